"""Audit of reported confidence, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from numbers import Integral, Real
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, _fit_context, clone
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.utils import (
    check_array,
    check_consistent_length,
    check_random_state,
    column_or_1d,
    get_tags,
)
from sklearn.utils._param_validation import Interval, RealNotInt, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from skuq.audit._parts import Parts, merged_parts, parts_of
from skuq.base import FloatArray, IntArray, Uncertainty, UncertaintyMixin
from skuq.calibration import (
    AuditResult,
    BinAudit,
    BinSums,
    Conditions,
    Grouping,
    Region,
    Strategy,
    TopLabelPredictions,
    audit_sums,
    bin_of,
    conditions_of,
    detectable_gap,
    distinct,
    groups_of_columns,
    in_units,
    named_groups,
    required_samples,
    top_label_predictions,
)
from skuq.labels import codes_of
from skuq.metrics import expected_calibration_error
from skuq.model_selection import _PredictsUncertainty
from skuq.models import ModuleClassifier, as_rows, taken_as_it_is
from skuq.validation import checked_labels

if TYPE_CHECKING:
    import pandas as pd


SensitiveFeatures: TypeAlias = "ArrayLike | Mapping[str, ArrayLike] | pd.DataFrame"


class _PredictsProbabilities(_PredictsUncertainty):
    """Estimator with probabilities in the place of its predictions, columns as in `labels`.

    For `predict_proba` itself scikit-learn hands the estimator 0, 1, ... in the place of labels,
    which class weights would then miss or confuse.
    """

    def __init__(self, estimator: Any, labels: NDArray[Any]):
        super().__init__(estimator)
        self.labels = labels

    def predict(self, X: Any) -> FloatArray:
        reported = np.asarray(self.estimator_.predict_proba(X))
        proba = np.zeros((len(reported), len(self.labels)), reported.dtype)
        known = np.asarray(self.estimator_.classes_)
        proba[:, codes_of(known, self.labels, "classes_")] = reported
        return proba


def _sensitive_groups(columns: SensitiveFeatures | None) -> list[Grouping]:
    return [] if columns is None else named_groups(columns)


def _of_result(name: str) -> Any:
    """Attribute of a fitted auditor that `result_` holds under a dotted name."""

    def get(auditor: CalibrationAuditor) -> Any:
        if "result_" not in vars(auditor):
            raise AttributeError(
                "This CalibrationAuditor has no results yet; call `fit` or `from_predictions`."
            )
        return attrgetter(name)(auditor.result_)

    return property(get)


def _holds_fitted_classifier(auditor: CalibrationAuditor) -> bool:
    model = auditor.estimator
    if hasattr(model, "predict_proba") and taken_as_it_is(model, after_the_fact=True):
        return True
    raise AttributeError(
        f"`partial_fit` needs a fitted classifier with `predict_proba`, got {model!r}; fit it "
        "first, or give recorded predictions to `partial_fit_predictions`."
    )


class CalibrationAuditor(ClassifierMixin, UncertaintyMixin, BaseEstimator):
    """Audit of reported confidence: is it what the labels of a reference set support?

    Confidence that was lowered on purpose leaves a trace: predictions in some confidence
    bin are right far more often than they claim. The auditor compares accuracy with
    confidence in every bin, and says which differences exceed the tolerance `alpha` by more
    than chance explains.

    Parameters
    ----------
    estimator : object
        Classifier with `predict_proba`. A fitted one is audited as it is and never altered;
        wrapped in `sklearn.frozen.FrozenEstimator` it stays fitted under cloning too, as in
        a search. One that is not fitted is audited through cross-validated predictions
        (5 stratified folds, or as many as the largest class has samples if these are fewer)
        and then trained on all data, so that it is never judged on what
        it has seen. The reference set must be new to a fitted one. A `torch.nn.Module` that
        returns logits counts as fitted.
    n_bins : int, default=10
        Number of confidence bins.
    alpha : float, default=0.05
        Tolerated distance between accuracy and confidence of a bin; `choose_alpha` measures
        what honest models need.
    strategy : {"uniform", "quantile"}, default="uniform"
        Bins of equal width on [0, 1], as in Algorithm 1, or of equal numbers of samples.
    groups : str, int, list of these, or callable, default=None
        Columns of `X` whose groups are audited too, each column by itself: names for a data
        frame, positions for an array. A callable maps `X` to such columns. Attributes that the
        model does not take belong into `sensitive_features` of `fit`. Groups must not follow
        from the label: within such groups no honest model is calibrated.
    confidence_level : float, default=0.95
        Probability that the audit of a model that keeps to `alpha` in every bin, group and
        region finds nothing significant, however many there are.
    search_regions : bool or float, default=False
        Whether regions of the inputs are searched too, such as "age <= 30 and education =
        Bachelors", where confidence is wrong although it is not in a whole bin. `X` must be
        a table of at most 1,000 columns, or nothing is searched. A float is the tolerance
        within regions, True takes `alpha`, and an integer, which could mean either, is refused.
        Honest models need more there than in bins, and `choose_alpha` measures how much. The
        search shares the permitted error with the other tests.

    Attributes
    ----------
    passed_ : bool
        Whether nothing deviates significantly, among all samples, in a group or in a region:
        `scan_bins` compares accuracy with confidence in every run of neighbouring bins, and
        `search_regions` in every region.
    within_alpha_ : bool
        Verdict of Algorithm 1: every bin of all samples has ``|gap| <= alpha``, whether by
        chance or not.
    bins_ : BinAudit
        Findings per confidence bin.
    group_bins_ : dict of str to BinAudit
        The same per group, by names such as "sex=female".
    regions_ : list of Region
        Regions of the inputs that deviate significantly, most striking first; ``rule`` says
        in words where, and `skuq.audit.region_mask` finds the rows that meet ``conditions``.
        Empty if none were searched.
    sums_ : BinSums
        Integer sums that determine all figures but those of regions.
    group_sums_ : dict of str to BinSums
        The same per group.
    ece_, mce_ : float
        Expected (Eq. 6) and maximum calibration error over the bins, in [0, 1].
    ece_interval_ : tuple of float
        Bootstrap interval of `ece_` at the confidence level. Like `ece_` it is biased upwards
        on small reference sets: compare with `ece_chance_`.
    ece_chance_ : float
        Noise floor of `ece_`: a perfectly calibrated model exceeds it with probability
        ``1 - confidence_level``.
    result_ : AuditResult
        All of the above in one object, as `skuq.calibration.audit_sums` returns it.
    settings_ : dict
        `n_bins`, `strategy`, `alpha`, `confidence_level` and `region_alpha` (None: no regions
        were searched) of the audit; setting parameters afterwards changes nothing that was
        found.
    n_families_ : int
        Tests that share the permitted error: all samples, each group, and the search.
    n_samples_ : int
        Size of the reference set.
    accuracy_, confidence_ : float
        Mean accuracy and confidence on it.
    estimator_ : object
        The audited classifier; missing after `from_predictions`.
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of features, if `X` had string column names.

    Notes
    -----
    Uncertainty is stated in probability. total = 1 - reported confidence, aleatoric = 1 -
    audited accuracy of the confidence bin, epistemic = the rest that the reference set does
    not support: positive where confidence is artificially low, negative where it is too
    high. In a bin without reference samples it is 0.

    Nothing is left to a random state: equal sums give equal findings, so that others can
    check them.

    A significant finding says that confidence is wrong, not that it was falsified; an audit
    without one covers only what the reference set covers (Section 5).

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

    passed_: bool = _of_result("passed")
    within_alpha_: bool = _of_result("within_alpha")
    bins_: BinAudit = _of_result("bins")
    group_bins_: dict[str, BinAudit] = _of_result("group_bins")
    sums_: BinSums = _of_result("sums")
    group_sums_: dict[str, BinSums] = _of_result("group_sums")
    n_families_: int = _of_result("n_families")
    ece_interval_: tuple[float, float] = _of_result("ece_interval")
    ece_chance_: float = _of_result("ece_chance")
    ece_: float = _of_result("sums.expected_calibration_error")
    mce_: float = _of_result("sums.maximum_calibration_error")
    n_samples_: int = _of_result("sums.n_samples")
    accuracy_: float = _of_result("sums.overall_accuracy")
    confidence_: float = _of_result("sums.overall_confidence")

    _parameter_constraints: dict[str, Any] = {
        "estimator": "no_validation",
        "n_bins": [Interval(Integral, 1, None, closed="left")],
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

    @property
    def regions_(self) -> list[Region]:
        """Regions that deviate; empty if none were searched."""
        searched = self.result_.regions
        return [] if searched is None else searched.regions

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        proba: ArrayLike,
        *,
        classes: ArrayLike | None = None,
        sensitive_features: SensitiveFeatures | None = None,
        X: Any = None,
        **params: Any,
    ) -> CalibrationAuditor:
        """Audit recorded predictions; the model itself is not needed.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            True labels.
        proba : array-like of shape (n_samples, n_classes)
            Probabilities as the provider reported them; rows sum to 1 within 1e-4.
        classes : array-like of shape (n_classes,), default=None
            Labels in column order. Default: the sorted labels of `y`, which must then be as
            many as the columns.
        sensitive_features : array-like, DataFrame or mapping of str to array-like, default=None
            Attributes whose groups are audited too, as `fit` takes them.
        X : DataFrame or array-like of shape (n_samples, n_features), default=None
            Inputs, or other columns that are known of the samples, in which regions are
            searched if `search_regions` says so; it needs them.
        **params
            Parameters of the class, except `groups`: there is no `X` here.

        Returns
        -------
        CalibrationAuditor
            Fitted, but without a model to predict with.

        Raises
        ------
        ValueError
            If the inputs do not fit together, are not probabilities, or are fewer than bins;
            if `groups` is given, or `search_regions` without `X`.

        Examples
        --------
        >>> from skuq import CalibrationAuditor
        >>> proba = [[0.55, 0.45]] * 40
        >>> audit = CalibrationAuditor.from_predictions([0] * 40, proba, classes=[0, 1])
        >>> audit.passed_, str(audit.bins_.direction[5])
        (False, 'underconfident')
        """
        audit = cls(None, **params)
        audit._validate_params()
        if audit.groups is not None:
            raise ValueError(
                "`groups` names columns of X, and recorded predictions have none; pass the "
                "columns themselves as `sensitive_features`."
            )
        if X is None and audit._searches():
            raise ValueError(
                "`search_regions` needs columns to search in, and recorded predictions have none; "
                "pass them as `X`."
            )
        grouping = _sensitive_groups(sensitive_features)
        predictions = top_label_predictions(y, proba, classes=classes)
        if X is not None:
            check_consistent_length(X, predictions.confidence)
        audit._audit(predictions, grouping, audit._conditions_of(X))
        audit.classes_ = np.unique(y) if classes is None else np.asarray(classes)
        return audit

    @classmethod
    def from_sums(
        cls,
        sums: BinSums,
        group_sums: Mapping[str, BinSums] | None = None,
        *,
        classes: ArrayLike | None = None,
        **params: Any,
    ) -> CalibrationAuditor:
        """Audit sums per bin, such as those that several parties or machines have added up.

        Parameters
        ----------
        sums : BinSums
            Of all predictions, as `sums_` of other audits and `skuq.calibration.merged_sums`
            give them.
        group_sums : mapping of str to BinSums, default=None
            Of each group.
        classes : array-like of shape (n_classes,), default=None
            Labels, to be kept as `classes_`.
        **params
            Parameters of the class; `n_bins` follows from the sums.

        Returns
        -------
        CalibrationAuditor
            Fitted, but without a model to predict with, and without samples to return.

        Raises
        ------
        ValueError
            If the sums are of fewer predictions than bins, or regions are to be searched.

        Examples
        --------
        >>> from skuq import CalibrationAuditor
        >>> from skuq.calibration import merged_sums
        >>> proba = [[0.55, 0.45]] * 40
        >>> part = CalibrationAuditor.from_predictions([0] * 40, proba, classes=[0, 1])
        >>> CalibrationAuditor.from_sums(merged_sums([part.sums_, part.sums_])).n_samples_
        80
        """
        audit = cls(None, **params, n_bins=len(sums.count))
        audit._validate_params()
        audit._check_no_search()
        return audit._audit_parts(Parts(sums, dict(group_sums or {})), classes)

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Any, y: Any, *, sensitive_features: SensitiveFeatures | None = None
    ) -> CalibrationAuditor:
        """Audit the classifier on a reference set.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Reference inputs, as the classifier takes them.
        y : array-like of shape (n_samples,)
            Their true labels.
        sensitive_features : array-like, DataFrame or mapping of str to array-like, default=None
            Attributes whose groups are audited too, each by itself, whether or not the model
            takes them: values of shape (n_samples,) or (n_samples, n_attributes). Groups are
            named after columns, keys or the name of a Series; those of an array "group=...".

        Returns
        -------
        CalibrationAuditor
            The fitted auditor.

        Raises
        ------
        ValueError
            If there are fewer samples than bins, a label is unknown to the classifier, what it
            predicts are not probabilities, or attributes cannot be divided into groups.
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
        grouping = self._groups(X, sensitive_features)
        if isinstance(self.estimator, nn.Module) and not hasattr(self.estimator, "predict_proba"):
            self.estimator_ = ModuleClassifier(self.estimator).fit(X, y)
            proba = self.estimator_.predict_proba(X)
        elif not hasattr(self.estimator, "predict_proba"):
            raise TypeError(
                "`estimator` must be a torch.nn.Module or a classifier with `predict_proba`, got "
                f"{self.estimator!r}. Recorded predictions are audited by "
                "CalibrationAuditor.from_predictions."
            )
        elif taken_as_it_is(self.estimator, after_the_fact=True):
            self.estimator_, proba = self.estimator, self._reported(X)
        else:
            proba = self._cross_validated(X, y)
            self.estimator_ = clone(self.estimator).fit(X, y)
        self.classes_ = np.asarray(self.estimator_.classes_)
        predictions = top_label_predictions(y, proba, classes=self.classes_)
        self._audit(predictions, grouping, self._conditions_of(X))
        return self

    @available_if(_holds_fitted_classifier)
    @_fit_context(prefer_skip_nested_validation=False)
    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: Any = None,
        *,
        sensitive_features: SensitiveFeatures | None = None,
    ) -> CalibrationAuditor:
        """Audit a fitted classifier on one more part of the reference set.

        After the last part the findings are those of `fit` on all parts together, to the last
        bit: the sums that determine them are integers. Only these are kept, and no samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Reference inputs, as the classifier takes them.
        y : array-like of shape (n_samples,)
            Their true labels.
        classes : object, default=None
            Ignored, since a fitted classifier knows its classes.
        sensitive_features : array-like, DataFrame or mapping of str to array-like, default=None
            As `fit` takes them.

        Returns
        -------
        CalibrationAuditor
            The auditor; its findings stand as soon as there are as many samples as bins.

        Raises
        ------
        ValueError
            If the strategy is "quantile", whose bins depend on all samples, regions are to be
            searched, a label is unknown to the classifier, or what it predicts are not
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
        predictions = top_label_predictions(y, self._reported(X), classes=self.classes_)
        return self._add(predictions, self._groups(X, sensitive_features))

    def partial_fit_predictions(
        self,
        y: ArrayLike,
        proba: ArrayLike,
        *,
        classes: ArrayLike,
        sensitive_features: SensitiveFeatures | None = None,
    ) -> CalibrationAuditor:
        """Audit one more part of recorded predictions, as `partial_fit` does of a model.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            True labels.
        proba : array-like of shape (n_samples, n_classes)
            Probabilities as the provider reported them; rows sum to 1 within 1e-4.
        classes : array-like of shape (n_classes,)
            Labels in column order; a part need not have all of them.
        sensitive_features : array-like, DataFrame or mapping of str to array-like, default=None
            As `fit` takes them.

        Returns
        -------
        CalibrationAuditor
            The auditor; its findings stand as soon as there are as many samples as bins.

        Raises
        ------
        ValueError
            If the strategy is "quantile", regions are to be searched, or the inputs do not fit
            together or are not probabilities.

        Examples
        --------
        >>> from skuq import CalibrationAuditor
        >>> audit = CalibrationAuditor(None)
        >>> for part in range(3):
        ...     audit = audit.partial_fit_predictions([0] * 9, [[0.55, 0.45]] * 9, classes=[0, 1])
        >>> audit.n_samples_, audit.passed_
        (27, False)
        """
        self._validate_params()
        grouping = _sensitive_groups(sensitive_features)
        self._add(top_label_predictions(y, proba, classes=classes), grouping)
        self.classes_ = np.asarray(classes)
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Predict with the audited classifier; its probabilities are passed on unchanged.

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
                "This audit was made from recorded predictions and holds no model to predict "
                "with; use CalibrationAuditor(model).fit(X_ref, y_ref)."
            )
        X = as_rows(self.estimator, X)
        if len(getattr(X, "shape", "xy")) > 1:  # of a single row the model says what is wrong
            validate_data(self, X, reset=False, skip_check_array=True)
        return self.estimator_.predict_proba(X)

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
        """Split reported uncertainty into what the reference set supports and the rest.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        Uncertainty
            Probabilities, each of shape (n_samples,): total is 1 - reported confidence,
            aleatoric 1 - audited accuracy of its bin, epistemic the unsupported rest.
        """
        confidence = np.asarray(self.predict_proba(X), np.float64).max(axis=1)
        bins = bin_of(in_units(confidence), self.sums_.edges)
        accuracy = self.bins_.accuracy[bins]
        supported = np.where(np.isnan(accuracy), confidence, accuracy)
        return Uncertainty.from_parts(1 - supported, supported - confidence)

    def score(self, X: Any, y: Any) -> float:
        """Score calibration on new data: minus the expected calibration error (Eq. 6).

        On the data of `fit` a model that was fitted before scores ``-ece_``. Use it to compare
        models over the same number of bins. It is not a reason to choose bins, since fewer of
        them hide errors, nor a model, since one that says little can be calibrated.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            True labels.

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
        )

    def undersample(
        self, rho: float, region_mask: ArrayLike, *, random_state: Any = None
    ) -> CalibrationAuditor:
        """Repeat the audit as if the reference set covered a region less well (Eq. 20).

        Parameters
        ----------
        rho : float
            Share of the region's samples to remove, in [0, 1].
        region_mask : array-like of shape (n_samples,), bool
            Which reference samples lie in the region.
        random_state : int, RandomState instance or None, default=None
            Choice of the removed samples.

        Returns
        -------
        CalibrationAuditor
            A new, fitted auditor of the same model; quantile bins are drawn again.
        """
        self._check_samples_kept()
        self._validate_params()
        if not 0 <= rho <= 1:
            raise ValueError(f"`rho` must be in [0, 1], got {rho}.")
        mask = np.asarray(region_mask)
        if mask.shape != (self.n_samples_,) or mask.dtype != bool:
            raise ValueError(
                f"`region_mask` must be booleans of shape ({self.n_samples_},), one per "
                f"reference sample, got {mask.dtype} of shape {mask.shape}."
            )
        inside = np.flatnonzero(mask)
        removed = check_random_state(random_state).permutation(inside)
        kept = np.ones(len(mask), bool)
        kept[removed[: round(rho * len(inside))]] = False  # Eq. 20
        settings = dict(self.settings_)
        region_alpha = settings.pop("region_alpha")
        audit: CalibrationAuditor = copy(self).set_params(
            **settings, search_regions=False if region_alpha is None else region_alpha
        )
        before = self._predictions
        rows = TopLabelPredictions(before.confidence[kept], before.correct[kept])
        conditions = None if self._conditions is None else self._conditions.without(~kept)
        audit._audit(rows, [g._replace(codes=g.codes[kept]) for g in self._grouping], conditions)
        return audit

    def suspicious_bins(self) -> IntArray:
        """Return the bins of all samples that deviate significantly, most striking first."""
        check_is_fitted(self)
        found = np.flatnonzero(self.bins_.significant)
        return found[np.argsort(self.bins_.finding[found], kind="stable")]

    def suspicious_samples(self) -> IntArray:
        """Return the reference samples in suspicious bins.

        Returns
        -------
        ndarray of int64
            Row numbers of the reference set: bin by bin as `suspicious_bins` orders them,
            and in an underconfident bin the correct predictions first, in an overconfident
            one the wrong ones.
        """
        self._check_samples_kept()
        bins = bin_of(self._predictions.confidence, self.sums_.edges)
        rows = []
        for b in self.suspicious_bins():
            inside = np.flatnonzero(bins == b)
            correct = self._predictions.correct[inside]
            first = correct if self.bins_.direction[b] == "underconfident" else ~correct
            rows += [inside[first], inside[~first]]
        return np.concatenate(rows) if rows else np.empty(0, np.int64)

    def detectable_gaps(self, *, power: float = 0.8) -> FloatArray:
        """Find the smallest underconfidence that this audit would have reported.

        Parameters
        ----------
        power : float, default=0.8
            Probability of the finding.

        Returns
        -------
        ndarray of shape (n_bins,), float64
            Gap between accuracy and confidence per bin; NaN where the bin has too few
            samples for any.
        """
        check_is_fitted(self)
        sums = self.sums_
        return detectable_gap(sums.count, sums.mean_confidence, power=power, **self._detection())

    def required_samples(self, gap: float, *, power: float = 0.8) -> FloatArray:
        """Find how many samples each bin needs for an underconfidence to be reported.

        Parameters
        ----------
        gap : float
            True accuracy minus confidence, larger than `alpha`.
        power : float, default=0.8
            Probability of the finding.

        Returns
        -------
        ndarray of shape (n_bins,), float64
            Samples per bin; NaN in an empty bin, infinite if no number is enough. Multiplied
            with ``n_samples_ / sums_.count`` it is the size of such a reference set.
        """
        check_is_fitted(self)
        confidence = self.sums_.mean_confidence
        needed = np.full(len(confidence), np.nan)
        filled = ~np.isnan(confidence)
        needed[filled] = required_samples(gap, confidence[filled], power=power, **self._detection())
        return needed

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if hasattr(self.estimator, "__sklearn_tags__"):  # `fit` says what is wrong with others
            with suppress(AttributeError):  # of what it wraps, such as a client of a served model
                tags.input_tags = get_tags(self.estimator).input_tags
        return tags

    def _reported(self, X: Any) -> FloatArray:
        """Probabilities of the fitted model; an error if the columns of groups disturb it."""
        try:
            return self.estimator.predict_proba(X)
        except ValueError as error:
            expected = getattr(self.estimator, "n_features_in_", self.n_features_in_)
            if self.groups is None or expected >= self.n_features_in_:
                raise
            raise ValueError(
                f"The model was trained on {expected} features, but X has {self.n_features_in_}. "
                "Take columns of `groups` that the model has not seen out of X, and pass them as "
                "fit(X, y, sensitive_features=...)."
            ) from error

    def _cross_validated(self, X: Any, y: NDArray[Any]) -> FloatArray:
        """Probabilities by models that did not see the sample, columns by sorted label."""
        labels, counts = np.unique(y, return_counts=True)
        if len(labels) > 1 and counts.min() < 2:
            raise ValueError(
                f"The class {labels[counts.argmin()]!r} has one sample only, so no model that has "
                "not seen it can know it; add samples, or audit a fitted classifier."
            )
        folds = StratifiedKFold(min(5, counts.max()), shuffle=True, random_state=0)
        return cross_val_predict(_PredictsProbabilities(self.estimator, labels), X, y, cv=folds)

    def _groups(self, X: Any, sensitive_features: SensitiveFeatures | None) -> list[Grouping]:
        return distinct(
            [*groups_of_columns(self.groups, X), *_sensitive_groups(sensitive_features)]
        )

    def _detection(self) -> dict[str, float]:
        """Tolerance and evidence that decide on a finding, for the functions on power."""
        return {"alpha": self.settings_["alpha"], "threshold": self.bins_.threshold}

    def _least(self) -> int:
        return max(2, self.n_bins)

    def _check_size(self, n_samples: int) -> None:
        least = self._least()
        if n_samples < least:
            raise ValueError(
                f"The reference set has n_samples={n_samples}, but at least {least} are needed "
                f"for n_bins={self.n_bins}; take more samples or fewer bins."
            )

    def _check_samples_kept(self) -> None:
        check_is_fitted(self)
        if not hasattr(self, "_predictions"):
            raise ValueError(
                "This audit was made in parts or from sums, which keep no samples; use `fit` or "
                "`from_predictions` on all samples at once."
            )

    def _searches(self) -> bool:
        """Whether regions are to be searched; a tolerance of 0 does, False does not."""
        return not isinstance(self.search_regions, bool | np.bool_) or bool(self.search_regions)

    def _check_no_search(self) -> None:
        if self._searches():
            raise ValueError(
                "`search_regions` needs all samples at once, and parts keep only sums; use `fit` "
                "or `from_predictions`, or audit parts with search_regions=False."
            )

    def _conditions_of(self, X: Any) -> Conditions | None:
        return conditions_of(X) if self._searches() and X is not None else None

    def _region_alpha(self) -> float:
        own = not isinstance(self.search_regions, bool | np.bool_)
        return float(self.search_regions if own else self.alpha)

    def _audit(
        self,
        predictions: TopLabelPredictions,
        grouping: list[Grouping],
        conditions: Conditions | None,
    ) -> None:
        """Audit these predictions, and forget all others."""
        self._check_size(len(predictions.confidence))
        self._parts = self._add_up(predictions, grouping)
        self._judge(None if conditions is None else (conditions, predictions))
        self._predictions, self._grouping = predictions, grouping
        self._conditions = conditions

    def _add(
        self, predictions: TopLabelPredictions, grouping: list[Grouping]
    ) -> CalibrationAuditor:
        """Audit these predictions together with those before."""
        if self.strategy == "quantile":
            raise ValueError(
                "`strategy='quantile'` puts the edges of its bins where all samples together have "
                "their quantiles, so that parts cannot be added up; use 'uniform'."
            )
        self._check_no_search()
        parts = self._add_up(predictions, grouping)
        self._parts = merged_parts([self._parts, parts]) if hasattr(self, "_parts") else parts
        for name in {"_predictions", "_grouping", "_conditions"} & vars(self).keys():
            delattr(self, name)
        if self._parts.sums.n_samples >= self._least():
            self._judge()
        return self

    def _add_up(self, predictions: TopLabelPredictions, grouping: list[Grouping]) -> Parts:
        for group in grouping:
            check_consistent_length(group.codes, predictions.confidence)
        return parts_of(predictions, grouping, n_bins=self.n_bins, strategy=self.strategy)

    def _audit_parts(
        self,
        parts: Parts,
        classes: ArrayLike | None,
        rows: tuple[Any, TopLabelPredictions] | None = None,
    ) -> CalibrationAuditor:
        """Audit sums; of the samples only those in `rows` are looked at, and none is kept."""
        self._check_size(parts.sums.n_samples)
        self._parts = parts
        self._judge(rows)
        if classes is not None:
            self.classes_ = np.asarray(classes)
        return self

    def _judge(self, rows: tuple[Any, TopLabelPredictions] | None = None) -> None:
        self.settings_: dict[str, Any] = {
            "n_bins": int(self.n_bins),
            "strategy": self.strategy,
            "alpha": float(self.alpha),
            "confidence_level": float(self.confidence_level),
            "region_alpha": None if rows is None else self._region_alpha(),
        }
        self.result_: AuditResult = audit_sums(
            self._parts.sums,
            self._parts.group_sums,
            alpha=self.alpha,
            confidence_level=self.confidence_level,
            rows=rows,
            region_alpha=self.settings_["region_alpha"],
        )
