"""Audit of reported confidence, as a scikit-learn estimator."""

from __future__ import annotations

import sys
from contextlib import suppress
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, _fit_context, clone
from sklearn.utils import _safe_indexing, check_array, check_consistent_length, get_tags, indexable
from sklearn.utils._param_validation import Interval, RealNotInt, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from skuq.audit import _prediction_audit
from skuq.audit._prediction_audit import PredictionAudit, SensitiveFeatures
from skuq.base import FloatArray, IntArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.calibration import Strategy, top_label_predictions
from skuq.labels import confidence_at, decided_codes, plain, proba_of_classes
from skuq.metrics import expected_calibration_error
from skuq.validation import MOST_BINS, checked_labels, group_codes, one_target, validate_data
from skuq.wrappers import is_module, is_prefit, weight_params

if TYPE_CHECKING:
    from skuq.models import ModuleClassifier


class CalibrationAuditor(ClassifierMixin, UncertaintyMixin, PredictionAudit):
    """Audit of a classifier's confidence against the labels of a reference set.

    The auditor compares accuracy with confidence in every bin and reports the differences that
    exceed `tolerance` by more than chance explains. By default, every bin contains the
    samples of all groups, so an overconfident group can offset an underconfident one. To reveal
    both, name groups (`sensitive_columns`, or `sensitive_features` of `fit`) or search regions.

    Parameters
    ----------
    estimator : object
        Classifier with `predict_proba`, or a `torch.nn.Module` that returns logits. A fitted
        classifier is audited as it is; the reference set must not contain its training data. Wrap
        it in `sklearn.frozen.FrozenEstimator` to keep it fitted under cloning, as in a grid search.
        A classifier that is not fitted is audited on out-of-fold predictions (up to 5 stratified
        folds), and then trained on all data.
    n_bins : int, default=10
        Number of confidence bins.
    tolerance : float, default=0.05
        Tolerated distance between accuracy and confidence of a bin; `choose_tolerance` measures
        the tolerance that honest models need to pass.
    strategy : {"uniform", "quantile"}, default="uniform"
        "uniform": bins of equal width on [0, 1], as in Algorithm 1. "quantile": bins with equal
        numbers of samples.
    sensitive_columns : str, int, list of these, or callable, default=None
        Columns of `X` whose groups are audited too, each column separately: names for a data
        frame, positions for an array. A callable computes such columns from `X`. Groups must not be
        defined by the label: within such groups no honest model is calibrated.
    confidence_level : float, default=0.95
        Probability that the audit reports nothing significant for a model within `tolerance` in
        every bin, group and region, however many of these are tested.
    search_regions : bool or float, default=False
        Whether to search regions of the inputs, such as "age <= 30 and education = Bachelors", for
        wrong confidence that averages out within a whole bin. `X` must be a table of at most 1,000
        columns. True searches with `tolerance`; a float is the tolerance within regions. Honest
        models need a larger tolerance there than in bins (`choose_tolerance`).
    random_state : int, default=None
        The auditor's own seed of the search, unknown to whoever made the predictions. Seed and
        labels decide from which half of the samples regions are learned, and which samples are
        searched if there are more than 250,000. None means 0.

    Attributes
    ----------
    passed_ : bool
        Whether no significant deviation was found among all samples, in any group or any region.
    conclusive_ : bool
        False if the audit passed, but has too few samples: it could miss a gap of ``tolerance +
        0.1`` that is common to all bins.
    within_tolerance_ : bool
        Verdict of Algorithm 1: whether every bin of all samples has ``|gap| <= tolerance``. It does
        not account for chance.
    bins_, group_bins_ : BinAudit, and dict of str to BinAudit
        Findings per confidence bin, and those of each group, by names such as "sex=female".
    regions_ : list of Region
        Regions with significant deviations, most significant first.
    sums_, group_sums_ : BinSums, and dict of str to BinSums
        Integer sums that determine all results except the results for regions.
    ece_, mce_ : float
        Expected (Eq. 6) and maximum calibration error over the bins, in [0, 1].
    ece_interval_ : tuple of float
        Bootstrap interval for `ece_` at the confidence level. Like `ece_` it is biased upwards
        on small reference sets; compare it with `ece_chance_`.
    ece_chance_ : float
        Noise floor of `ece_`: a perfectly calibrated model exceeds it with probability
        ``1 - confidence_level``.
    result_ : named tuple
        All results above in one object.
    settings_ : dict
        Parameters that the audit used; `region_tolerance` is None if no regions were searched.
    n_families_ : int
        Number of tests: of all samples, of each group, and the search for regions. The test of all
        samples has half the error probability ``1 - confidence_level``; the others share the rest.
    n_samples_, n_effective_ : int or float
        Size of the reference set (sum of its weights), and its effective size, which fractional
        weights reduce.
    accuracy_, confidence_ : float
        Mean accuracy and confidence on the reference set.
    estimator_ : object
        The audited classifier; not set by `from_predictions`.
    classes_, n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    Uncertainty is measured as a probability. The total is 1 - reported confidence, the aleatoric
    part 1 - audited accuracy of the confidence bin (NaN without reference samples). The epistemic
    part, total minus aleatoric, is uncertainty that the reference set does not support: positive
    where confidence is artificially low, negative where confidence is too high.

    Weights that are whole numbers count samples. With fractional weights, such as inverse selection
    probabilities, tests and limits use the effective number of samples of each bin,
    ``sum(w)**2 / sum(w**2)`` (Kish), an approximation that was checked by simulation.

    Equal sums produce equal findings. A finding shows that confidence is wrong, not that it was
    falsified. An audit covers only inputs like those of the reference set (Section 5).

    References
    ----------
    Rabanser, Shahin Shamsabadi, Franzese, Wang, Weller, Papernot, "Confidential Guardian:
    Cryptographically Prohibiting the Abuse of Model Abstention", ICML 2025.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skuq import CalibrationAuditor
    >>> X, y = make_moons(2000, noise=0.4, random_state=0)
    >>> model = LogisticRegression().fit(X[:500], y[:500])
    >>> audit = CalibrationAuditor(model).fit(X[500:], y[500:])
    >>> audit.passed_
    True
    """

    signed_uncertainty = True

    _parameter_constraints: dict[str, Any] = {
        "estimator": "no_validation",
        "n_bins": [Interval(Integral, 1, MOST_BINS, closed="both")],
        "tolerance": [Interval(Real, 0, 1, closed="both")],
        "strategy": [StrOptions({"uniform", "quantile"})],
        "sensitive_columns": [None, str, Integral, list, callable],
        "confidence_level": [Interval(Real, 0, 1, closed="neither")],
        "search_regions": ["boolean", Interval(RealNotInt, 0, 1, closed="both")],
        "random_state": [None, Interval(Integral, 0, None, closed="left")],
    }

    def __init__(
        self,
        estimator: Any,
        *,
        n_bins: int = 10,
        tolerance: float = 0.05,
        strategy: Strategy = "uniform",
        sensitive_columns: Any = None,
        confidence_level: float = 0.95,
        search_regions: bool | float = False,
        random_state: int | None = None,
    ):
        self.estimator = estimator
        self.n_bins = n_bins
        self.tolerance = tolerance
        self.strategy = strategy
        self.sensitive_columns = sensitive_columns
        self.confidence_level = confidence_level
        self.search_regions = search_regions
        self.random_state = random_state

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        sensitive_features: SensitiveFeatures | None = None,
        groups: Any = None,
    ) -> CalibrationAuditor:
        """Audit the classifier on a reference set.

        Parameters
        ----------
        X, y : array-like of shape (n_samples, n_features) and (n_samples,)
            Reference inputs, in the form that the classifier accepts, and their true labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights >= 0, in numbers of samples; a mean below 0.1 or above 10 causes a warning.
            Fractional weights, and whole numbers with a mean above 20, are survey weights (see
            Notes). A classifier that is not fitted is trained with the weights, too.
        sensitive_features : array-like, DataFrame or mapping of str to array-like, default=None
            Attributes whose groups are audited too, each attribute separately, whether or not
            they are inputs of the model: values of shape (n_samples,) or (n_samples,
            n_attributes). Groups are named after columns, keys or a Series, else "group=...".
        groups : array-like of shape (n_samples,), default=None
            Groups of samples whose outcomes may depend on each other, such as the visits of a
            patient. A group counts as one sample: tests and limits hold for any dependence within
            groups. A classifier that is not fitted is audited on folds that keep groups together.

        Raises
        ------
        ValueError
            If there are fewer samples than bins, a label is unknown to the classifier, or the
            predictions are not probabilities.
        """
        X = _as_rows(self.estimator, X)
        validate_data(self, X, skip_check_array=True)
        y = one_target(y)
        check_consistent_length(X, y)
        if y.dtype == object:  # scikit-learn fails on None and pandas.NA among text
            checked_labels(y, "y")
        check_array(y, ensure_2d=False, dtype=None, input_name="y")
        check_classification_targets(y)
        self._check_size(len(y))
        weight = _prediction_audit.audit_weights(sample_weight, len(y))
        columns = _prediction_audit.groups_of_columns(self.sensitive_columns, X)
        sensitive = _prediction_audit.named_groups(sensitive_features)
        grouping = _prediction_audit.distinct(columns + sensitive)
        if not hasattr(self.estimator, "predict_proba"):
            self.estimator_ = _module_classifier(self.estimator, X, y)
            proba, predicted = self.estimator_.predict_proba(X), None  # None: most probable class
        elif is_prefit(self.estimator, after_the_fact=True):
            self.estimator_, proba = self.estimator, self._reported(X)
            predicted = decided_codes(self.estimator, X, proba, np.asarray(self.estimator.classes_))
        else:
            found = _trained_with_proba(self.estimator, X, y, weight, groups)
            self.estimator_, proba, predicted = found
        self.classes_ = np.asarray(self.estimator_.classes_)
        if weight is not None:  # samples of weight 0 may have unknown labels; replace the labels
            y = np.where(weight > 0, y, self.classes_[0])
        options: dict[str, Any] = {"classes": self.classes_, "predicted": predicted}
        predictions = top_label_predictions(y, proba, **options)
        searched = X if self._searches() else None
        _prediction_audit.warn_of_copies(predictions, groups)
        self._audit(predictions, grouping, searched, weight, groups)
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the probabilities of the audited classifier, columns ordered as `classes_`."""
        check_is_fitted(self)
        if not hasattr(self, "estimator_"):
            raise ValueError(
                "This audit was made from recorded predictions and has no model to predict "
                "with; use CalibrationAuditor(model).fit(X_ref, y_ref)."
            )
        X = _as_rows(self.estimator, X)
        # A 1-D array, which is a single row, is not checked: the model raises an error for it.
        if len(getattr(X, "shape", "xy")) > 1:
            validate_data(self, X, reset=False, skip_check_array=True)
        return proba_of_classes(self.estimator_.predict_proba(X), self.classes_)

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the class of each sample with the audited classifier, shape (n_samples,)."""
        best = self.predict_proba(X).argmax(axis=1)  # raises an error if there is no `estimator_`
        if not hasattr(self.estimator_, "predict"):  # such as the client of a served model
            return self.classes_[best]
        return np.ravel(self.estimator_.predict(_as_rows(self.estimator, X)))

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Split the reported uncertainty into a supported and an unsupported part (see Notes)."""
        proba = np.asarray(self.predict_proba(X), np.float64)
        rows = _as_rows(self.estimator, X)
        codes = decided_codes(self.estimator_, rows, proba, self.classes_)
        confidence = confidence_at(codes, proba)
        accuracy = self.bins_.accuracy[self.sums_.bin_of(confidence)]
        return with_index_of(X, Uncertainty(1 - confidence, 1 - accuracy, accuracy - confidence))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return minus the expected calibration error (Eq. 6) on new data, in [-1, 0].

        Do not select the number of bins or a model by this score alone: few bins hide errors, and
        an uninformative model can be calibrated. Only ratios of weights matter.
        """
        return -expected_calibration_error(
            y,
            self.predict_proba(X),
            classes=self.classes_,
            n_bins=self.settings_["n_bins"],
            strategy=self.settings_["strategy"],
            sample_weight=sample_weight,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):  # otherwise, `fit` rejects the estimator
            with suppress(AttributeError):  # raised for a wrapped client of a served model
                tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    def _reported(self, X: Any) -> FloatArray:
        try:
            return self.estimator.predict_proba(X)
        except ValueError as error:
            n_features = getattr(self, "n_features_in_", 0)
            expected = getattr(self.estimator, "n_features_in_", n_features)
            if self.sensitive_columns is None or expected >= n_features:
                raise
            raise ValueError(
                f"The model was trained on {expected} features, but X has {n_features}. "
                "Pass the other columns as fit(X, y, sensitive_features=...)."
            ) from error


# `skuq.models` is imported only for networks, and cross-validation only if models are trained, so
# that an audit of recorded predictions starts quickly.


def _as_rows(estimator: Any, X: Any) -> Any:
    """Convert inputs of a transformers model to one array; return other inputs unchanged."""
    if "transformers" not in sys.modules:
        return X
    from skuq.models import as_rows

    return as_rows(estimator, X)


def _module_classifier(estimator: Any, X: Any, y: NDArray[Any]) -> ModuleClassifier:
    """Wrap a network that returns logits as a classifier; raise TypeError for anything else."""
    from skuq.models import OF_FUNCTION, ModuleClassifier

    if not is_module(estimator):
        raise TypeError(
            "`estimator` must be a torch.nn.Module or a classifier with `predict_proba`, got "
            f"{estimator!r}. To audit recorded predictions, use "
            f"CalibrationAuditor.from_predictions. {OF_FUNCTION}"
        )

    return ModuleClassifier(estimator).fit(X, y)


def _trained_with_proba(
    estimator: Any, X: Any, y: NDArray[Any], weight: NDArray[Any] | None, groups: Any
) -> tuple[Any, FloatArray, IntArray]:
    """Return a clone trained on all samples, and out-of-fold probabilities and decisions.

    Samples of weight 0 are not used for training; the clone predicts these samples.
    """
    group_of = None if groups is None else group_codes(groups, len(y))
    if weight is None:
        found = _out_of_fold_proba(estimator, X, y, np.ones(len(y)), group_of, {})
        return clone(estimator).fit(X, y), *found
    counted = np.flatnonzero(weight)
    (rows,) = indexable(X)
    rows, labels = _safe_indexing(rows, counted), y[counted]
    from skuq.models import look_at

    usable = look_at(estimator).usable_weight(weight[counted].astype(np.float64))
    params = {} if usable is None else weight_params(estimator, usable)
    fitted = clone(estimator).fit(rows, labels, **params)
    proba = np.array(fitted.predict_proba(X), np.float64)
    codes = decided_codes(fitted, X, proba, np.asarray(fitted.classes_))
    group_of = None if group_of is None else group_of[counted]
    found = _out_of_fold_proba(estimator, rows, labels, weight[counted], group_of, params)
    proba[counted], codes[counted] = found
    return fitted, proba, codes


def _out_of_fold_proba(
    estimator: Any,
    X: Any,
    y: NDArray[Any],
    weight: NDArray[Any],
    groups: IntArray | None,
    params: dict[str, Any],
) -> tuple[FloatArray, IntArray]:
    """Predict out-of-fold probabilities, one column per sorted label, and codes of decisions."""
    labels, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    size = np.maximum(counts, np.bincount(codes, weights=weight))
    if len(labels) == 1:
        raise ValueError(f"`y` has the class {plain(labels[0])!r} only; at least 2 are needed.")
    if size.min() < 2:
        raise ValueError(
            f"The class {plain(labels[size.argmin()])!r} has only one sample, but cross-validation "
            "needs two; add samples, or audit a fitted classifier."
        )
    from skuq.sklearn_counterparts import cross_val_predict_proba, fold_splits

    folds = fold_splits(min(5, counts.max()), y, groups, stratify=True, seed=0)
    return cross_val_predict_proba(estimator, X, y, labels=labels, cv=folds, params=params)
