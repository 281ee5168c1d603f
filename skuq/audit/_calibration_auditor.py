"""Audit of reported confidence, as a scikit-learn estimator."""

from __future__ import annotations

from contextlib import suppress
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.utils import (
    check_array,
    check_consistent_length,
    column_or_1d,
    get_tags,
)
from sklearn.utils._param_validation import Interval, RealNotInt, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from skuq.audit._audited_model import (
    as_rows,
    is_prefit,
    module_classifier,
    trained_with_proba,
)
from skuq.audit._groups import (
    Grouping,
    SensitiveFeatures,
    audit_weights,
    distinct,
    groups_of_columns,
    sensitive_groups,
)
from skuq.audit._prediction_audit import PredictionAudit
from skuq.base import FloatArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.calibration import (
    Strategy,
    top_label_predictions,
)
from skuq.metrics import expected_calibration_error
from skuq.probabilities import proba_of_classes
from skuq.validation import MOST_BINS, checked_labels


def _holds_fitted_classifier(auditor: CalibrationAuditor) -> bool:
    model = auditor.estimator
    if hasattr(model, "predict_proba") and is_prefit(model):
        return True
    raise AttributeError(
        f"`partial_fit` needs a fitted classifier with `predict_proba`, got {model!r}; fit it "
        "first, or pass recorded predictions to `partial_fit_predictions`."
    )


class CalibrationAuditor(ClassifierMixin, UncertaintyMixin, PredictionAudit):
    """Audit of a classifier's confidence against the labels of a reference set.

    In some confidence bins, a model whose confidence was lowered on purpose is right far more often
    than it claims. The auditor compares accuracy with confidence in every bin and reports the
    differences that exceed the tolerance `alpha` by more than chance explains. By default every bin
    contains the samples of all groups, so an overconfident group can offset an underconfident
    group. To reveal such groups, name the groups to audit (`groups`, or `sensitive_features` of
    `fit`) or search regions (`search_regions`).

    Parameters
    ----------
    estimator : object
        Classifier with `predict_proba`. A fitted classifier is audited without training and is
        never modified; the reference set must not contain its training data. Wrap the classifier in
        `sklearn.frozen.FrozenEstimator` to keep it fitted under cloning, as in a grid search. A
        classifier that is not fitted is audited on cross-validated predictions, so that no sample
        is predicted by a model that was trained on it. There are 5 stratified folds; if the largest
        class has fewer than 5 samples, there are as many folds as samples in this class. The
        classifier is then trained on all data. A `torch.nn.Module` that returns logits counts as
        fitted.
    n_bins : int, default=10
        Number of confidence bins.
    alpha : float, default=0.05
        Tolerated distance between accuracy and confidence of a bin. `choose_alpha` measures the
        tolerance with which honest models pass.
    strategy : {"uniform", "quantile"}, default="uniform"
        "uniform": bins of equal width on [0, 1], as in Algorithm 1. "quantile": bins with equal
        numbers of samples.
    groups : str, int, list of these, or callable, default=None
        Columns of `X` whose groups are audited too, each column separately: names for a data
        frame, positions for an array. A callable computes such columns from `X`. Pass attributes
        that are not inputs of the model as `sensitive_features` to `fit`. Groups must not be
        defined by the label: within such groups no honest model is calibrated.
    confidence_level : float, default=0.95
        Probability that the audit reports nothing significant for a model within `alpha` in
        every bin, group and region, however many of these are tested.
    search_regions : bool or float, default=False
        Whether to search regions of the inputs, such as "age <= 30 and education =
        Bachelors", for wrong confidence that averages out within a whole bin. `X` must be
        a table of at most 1,000 columns. True searches with the tolerance `alpha`. A float is the
        tolerance within regions; an integer raises an error, because 1 could mean True or a
        tolerance of 1. Honest models pass only with a larger tolerance within regions than in bins;
        `choose_alpha` measures this tolerance. The search shares the permitted error probability
        with the other tests.

    Attributes
    ----------
    passed_ : bool
        Whether the audit found no significant deviation among all samples, in any group or
        in any region. `scan_bins` tests every run of neighbouring bins, and `search_regions` tests
        every region.
    within_alpha_ : bool
        Verdict of Algorithm 1: whether every bin of all samples has ``|gap| <= alpha``. It does
        not account for chance.
    bins_ : BinAudit
        Findings per confidence bin.
    group_bins_ : dict of str to BinAudit
        Findings per confidence bin of each group, by names such as "sex=female".
    regions_ : list of Region
        Regions of the inputs with significant deviations, most significant first. ``rule``
        describes a region in words; pass its ``conditions`` to `skuq.calibration.region_mask` to
        find its rows. Empty if no regions were searched.
    sums_ : BinSums
        Integer sums that determine all results except the results for regions.
    group_sums_ : dict of str to BinSums
        Integer sums of each group.
    ece_, mce_ : float
        Expected (Eq. 6) and maximum calibration error over the bins, in [0, 1].
    ece_interval_ : tuple of float
        Bootstrap interval for `ece_` at the confidence level. Like `ece_` it is biased upwards
        on small reference sets; compare it with `ece_chance_`.
    ece_chance_ : float
        Noise floor of `ece_`: a perfectly calibrated model exceeds it with probability
        ``1 - confidence_level``.
    result_ : AuditResult
        All results above in one object, as `skuq.calibration.audit_sums` returns them.
    settings_ : dict
        Parameters that the audit used: `n_bins`, `strategy`, `alpha`, `confidence_level` and
        `region_alpha` (None if no regions were searched). Setting parameters afterwards does not
        change these settings or the findings.
    n_families_ : int
        Number of tests that share the permitted error probability ``1 - confidence_level``: a test
        of all samples, a test of each group, and the search for regions.
    n_samples_ : int
        Size of the reference set, or the sum of its weights: a float if any weight is fractional.
    n_effective_ : int or float
        Effective size of the reference set: `n_samples_`, or less if weights are fractional.
    accuracy_, confidence_ : float
        Mean accuracy and confidence on the reference set.
    estimator_ : object
        The audited classifier; not set by `from_predictions`.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Uncertainty is measured as a probability. The total is 1 - reported confidence. The aleatoric
    part is 1 - audited accuracy of the confidence bin. The epistemic part is the total minus the
    aleatoric part, an uncertainty that the reference set does not support. It is positive where
    confidence is artificially low, and negative where confidence is too high. In a bin without
    reference samples, both parts are NaN.

    If all weights are whole numbers, they count samples: the audit equals an audit of repeated
    rows. Fractional weights, such as inverse selection probabilities, carry less independent
    evidence than their sum suggests. Accuracy, confidence and calibration errors are then weighted,
    and the statistical tests and the limits of the gaps use the effective number of samples of each
    bin, ``sum(w)**2 / sum(w**2)`` (Kish). This approximation was checked by simulation; rescaling
    fractional weights does not change the results.

    The audit is deterministic: equal sums produce equal findings, so other people can reproduce
    the findings.

    A significant finding shows that confidence is wrong, not that it was falsified. An audit
    without findings covers only the inputs that the reference set covers (Section 5).

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
        "alpha": [Interval(Real, 0, 1, closed="both")],
        "strategy": [StrOptions({"uniform", "quantile"})],
        "groups": [None, str, Integral, list, callable],
        "confidence_level": [Interval(Real, 0, 1, closed="neither")],
        "search_regions": ["boolean", Interval(RealNotInt, 0, 1, closed="both")],
    }

    def __init__(
        self,
        estimator: Any,
        *,
        n_bins: int = 10,
        alpha: float = 0.05,
        strategy: Strategy = "uniform",
        groups: Any = None,
        confidence_level: float = 0.95,
        search_regions: bool | float = False,
    ):
        self.estimator = estimator
        self.n_bins = n_bins
        self.alpha = alpha
        self.strategy = strategy
        self.groups = groups
        self.confidence_level = confidence_level
        self.search_regions = search_regions

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        sensitive_features: SensitiveFeatures | None = None,
    ) -> CalibrationAuditor:
        """Audit the classifier on a reference set.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Reference inputs, in the form that the classifier accepts.
        y : array-like of shape (n_samples,)
            True labels of the reference inputs.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights >= 0, in numbers of samples: 2 counts the sample twice, 0 leaves it out. A mean
            below 0.1 or above 10 causes a warning. Fractional weights are treated as survey
            weights (see Notes). A classifier that is not fitted is trained with the weights,
            too.
        sensitive_features : array-like, DataFrame or mapping of str to array-like, default=None
            Attributes whose groups are audited too, each attribute separately, whether or not
            they are inputs of the model: values of shape (n_samples,) or (n_samples,
            n_attributes). Groups are named after columns, keys or the name of a Series; groups of
            an array are named "group=...".

        Returns
        -------
        CalibrationAuditor
            The fitted auditor.

        Raises
        ------
        ValueError
            If there are fewer samples than bins, a label is unknown to the classifier, the
            predictions are not probabilities, or the samples cannot be divided into groups by an
            attribute.
        TypeError
            If `estimator` does not predict probabilities.
        """
        X = as_rows(self.estimator, X)
        validate_data(self, X, skip_check_array=True)
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        if y.dtype == object:  # scikit-learn fails on None and pandas.NA among text
            checked_labels(y, "y")
        check_array(y, ensure_2d=False, dtype=None, input_name="y")
        check_classification_targets(y)
        self._check_size(len(y))
        weight = audit_weights(sample_weight, len(y))
        grouping = self._groups(X, sensitive_features)
        conditions = self._conditions_of(X)
        if not hasattr(self.estimator, "predict_proba"):
            self.estimator_ = module_classifier(self.estimator, X, y)
            proba = self.estimator_.predict_proba(X)
        elif is_prefit(self.estimator):
            self.estimator_, proba = self.estimator, self._reported(X)
        else:
            self.estimator_, proba = trained_with_proba(self.estimator, X, y, weight)
        self.classes_ = np.asarray(self.estimator_.classes_)
        if weight is not None:  # samples of weight 0 may have unknown labels
            y = np.where(weight > 0, y, self.classes_[0])
        predictions = top_label_predictions(y, proba, classes=self.classes_)
        self._audit(predictions, grouping, conditions, weight)
        return self

    @available_if(_holds_fitted_classifier)
    @_fit_context(prefer_skip_nested_validation=False)
    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: ArrayLike | None = None,
        *,
        sample_weight: Any = None,
        sensitive_features: SensitiveFeatures | None = None,
    ) -> CalibrationAuditor:
        """Audit a fitted classifier on one more part of the reference set.

        Findings are computed from integer sums. After the last part, they therefore equal the
        findings of `fit` on all parts together, bit for bit. Only the sums are kept, not the
        samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Reference inputs, in the form that the classifier accepts.
        y : array-like of shape (n_samples,)
            True labels of the reference inputs.
        classes : array-like of shape (n_classes,), default=None
            Labels; must be the labels of the fitted classifier. Default: these labels.
        sample_weight : array-like of shape (n_samples,), default=None
            As in `fit`.
        sensitive_features : array-like, DataFrame or mapping of str to array-like, default=None
            As in `fit`.

        Returns
        -------
        CalibrationAuditor
            The auditor; it has findings as soon as there are as many samples as bins.

        Raises
        ------
        ValueError
            If the strategy is "quantile", because quantiles depend on all samples; if regions are
            to be searched; if a label is unknown to the classifier; or if its predictions are not
            probabilities.
        AttributeError
            If `estimator` is not a fitted classifier with `predict_proba`.
        """
        X = as_rows(self.estimator, X)
        validate_data(self, X, reset=not hasattr(self, "n_features_in_"), skip_check_array=True)
        y = column_or_1d(y, warn=True)
        check_consistent_length(X, y)
        self.estimator_ = self.estimator
        self.classes_ = np.asarray(self.estimator_.classes_)
        if classes is not None and {*np.asarray(classes).tolist()} != {*self.classes_.tolist()}:
            raise ValueError(
                f"`classes` must be the classes of the classifier, {self.classes_.tolist()}, got "
                f"{np.asarray(classes).tolist()}."
            )
        predictions = top_label_predictions(y, self._reported(X), classes=self.classes_)
        weight = audit_weights(sample_weight, len(y))
        return self._add(predictions, self._groups(X, sensitive_features), weight)

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the predicted probabilities of the audited classifier unchanged.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities, columns in the order of `classes_`.
        """
        check_is_fitted(self)
        if not hasattr(self, "estimator_"):
            raise ValueError(
                "This audit was made from recorded predictions and has no model to predict "
                "with; use CalibrationAuditor(model).fit(X_ref, y_ref)."
            )
        X = as_rows(self.estimator, X)
        # A 1-D array, which is a single row, is not checked: the model raises an error for it.
        if len(getattr(X, "shape", "xy")) > 1:
            validate_data(self, X, reset=False, skip_check_array=True)
        return proba_of_classes(self.estimator_.predict_proba(X), self.classes_)

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict the most probable class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples,)
            Class labels.
        """
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Split the reported uncertainty into a supported and an unsupported part.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        Uncertainty
            Probabilities, each of shape (n_samples,). The total is 1 - reported confidence, the
            aleatoric part 1 - audited accuracy of the bin. The epistemic part is the difference,
            which the reference set does not support. Aleatoric and epistemic part are NaN in a bin
            without reference samples.
        """
        confidence = np.asarray(self.predict_proba(X), np.float64).max(axis=1)
        accuracy = self.bins_.accuracy[self.sums_.bin_of(confidence)]
        return with_index_of(X, Uncertainty(1 - confidence, 1 - accuracy, accuracy - confidence))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return minus the expected calibration error (Eq. 6) on new data.

        On the data of `fit`, a prefit model scores ``-ece_``. Use the score to compare models with
        the same number of bins. Do not use it to choose the number of bins, because a small number
        of bins hides errors. Do not choose a model by this score alone, because an uninformative
        model can be calibrated.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            True labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights >= 0; only their ratios matter here.

        Returns
        -------
        float
            In [-1, 0]; 0 is best.
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
        if hasattr(self.estimator, "__sklearn_tags__"):  # `fit` rejects other objects
            with suppress(AttributeError):  # raised for a wrapped client of a served model
                tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    def _reported(self, X: Any) -> FloatArray:
        """Probabilities of the fitted model, or a clear error if `X` has extra group columns."""
        try:
            return self.estimator.predict_proba(X)
        except ValueError as error:
            expected = getattr(self.estimator, "n_features_in_", self.n_features_in_)
            if self.groups is None or expected >= self.n_features_in_:
                raise
            raise ValueError(
                f"The model was trained on {expected} features, but X has {self.n_features_in_}. "
                "Drop from X the columns the model was not trained on, and pass them as "
                "fit(X, y, sensitive_features=...)."
            ) from error

    def _groups(self, X: Any, sensitive_features: SensitiveFeatures | None) -> list[Grouping]:
        return distinct([*groups_of_columns(self.groups, X), *sensitive_groups(sensitive_features)])
