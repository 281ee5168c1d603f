"""Audits of recorded predictions, or of sums of predictions, without the model."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted

from skuq.audit._groups import (
    Grouping,
    Parts,
    SensitiveFeatures,
    audit_weights,
    parts_of,
    sensitive_groups,
)
from skuq.base import FloatArray, IntArray
from skuq.calibration import (
    AuditResult,
    BinAudit,
    BinSums,
    Conditions,
    Direction,
    Region,
    Strategy,
    TopLabelPredictions,
    audit_sums,
    conditions_of,
    detectable_gap,
    required_samples,
    top_label_predictions,
)
from skuq.labels import labels_of_proba
from skuq.validation import refuse_ineffective


def _result_attribute(name: str) -> Any:
    """Create a property that returns a (dotted) attribute of a fitted auditor's `result_`."""

    def get(auditor: PredictionAudit) -> Any:
        if "result_" not in vars(auditor):
            raise AttributeError("There are no results yet; call `fit` or `from_predictions`.")
        return attrgetter(name)(auditor.result_)

    return property(get)


class PredictionAudit(BaseEstimator):
    """Base class of `CalibrationAuditor`: audits that do not need the model."""

    n_bins: int
    alpha: float
    strategy: Strategy
    confidence_level: float
    search_regions: bool | float
    classes_: NDArray[Any]
    result_: AuditResult
    settings_: dict[str, Any]
    _predictions: TopLabelPredictions  # missing if the audit was made from sums

    passed_: bool = _result_attribute("passed")
    within_alpha_: bool = _result_attribute("within_alpha")
    bins_: BinAudit = _result_attribute("bins")
    group_bins_: dict[str, BinAudit] = _result_attribute("group_bins")
    sums_: BinSums = _result_attribute("sums")
    group_sums_: dict[str, BinSums] = _result_attribute("group_sums")
    n_families_: int = _result_attribute("n_families")
    ece_interval_: tuple[float, float] = _result_attribute("ece_interval")
    ece_chance_: float = _result_attribute("ece_chance")
    ece_: float = _result_attribute("sums.expected_calibration_error")
    mce_: float = _result_attribute("sums.maximum_calibration_error")
    n_samples_: float = _result_attribute("sums.n_samples")
    n_effective_: float = _result_attribute("sums.n_effective")
    accuracy_: float = _result_attribute("sums.overall_accuracy")
    confidence_: float = _result_attribute("sums.overall_confidence")

    @property
    def regions_(self) -> list[Region]:
        """Regions with significant deviations; empty if no regions were searched."""
        searched = self.result_.regions
        return [] if searched is None else searched.regions

    def suspicious_bins(self) -> IntArray:
        """Return bins with significant deviations among all samples, most significant first."""
        check_is_fitted(self)
        found = np.flatnonzero(self.bins_.significant)
        return found[np.argsort(self.bins_.finding[found], kind="stable")]

    def suspicious_samples(self) -> IntArray:
        """Return the reference samples in suspicious bins.

        Returns
        -------
        ndarray of int64
            Row numbers of the reference set, bin by bin in the order of `suspicious_bins`. In an
            underconfident bin, correct predictions come first; in an overconfident bin, wrong
            predictions come first.
        """
        self._check_samples_kept()
        bins = self.sums_.bin_of(self._predictions.confidence)
        rows = []
        for b in self.suspicious_bins():
            inside = np.flatnonzero(bins == b)
            correct = self._predictions.correct[inside]
            first = correct if self.bins_.direction[b] == "underconfident" else ~correct
            rows += [inside[first], inside[~first]]
        return np.concatenate(rows) if rows else np.empty(0, np.int64)

    def detectable_gaps(
        self, *, power: float = 0.8, direction: Direction = "underconfident"
    ) -> FloatArray:
        """Return the smallest gap that this audit detects in each bin with probability `power`.

        Returns
        -------
        ndarray of shape (n_bins,), float64
            Positive distance between accuracy and confidence, for confidence that is too low
            ("underconfident") or too high; NaN where no gap is detectable.
        """
        check_is_fitted(self)
        sums = self.sums_
        return detectable_gap(
            sums.effective_count, sums.mean_confidence, power=power, **self._detection(direction)
        )

    def required_samples(
        self, gap: float, *, power: float = 0.8, direction: Direction = "underconfident"
    ) -> FloatArray:
        """Return the number of samples per bin that is needed to detect a given gap.

        Parameters
        ----------
        gap, power, direction
            As in `skuq.calibration.required_samples`.

        Returns
        -------
        ndarray of shape (n_bins,), float64
            Samples per bin; NaN in an empty bin, infinite if no number is large enough. To obtain
            the size of the whole reference set, multiply by ``n_samples_ / sums_.count``.
        """
        check_is_fitted(self)
        confidence = self.sums_.mean_confidence
        needed = np.full(len(confidence), np.nan)
        filled = ~np.isnan(confidence)
        needed[filled] = required_samples(
            gap, confidence[filled], power=power, **self._detection(direction)
        )
        return needed

    def _detection(self, direction: Direction) -> dict[str, Any]:
        """Tolerance and evidence threshold of this audit, as arguments of the power functions."""
        found = self.bins_
        below = direction == "overconfident"
        return {
            "alpha": self.settings_["alpha"],
            "threshold": found.threshold_overconfident if below else found.threshold,
            "direction": direction,
        }

    def _check_samples_kept(self) -> None:
        check_is_fitted(self)
        if not hasattr(self, "_predictions"):
            raise ValueError(
                "This audit was made from files or sums, so its samples were not kept; use "
                "`fit` or `from_predictions`."
            )

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        proba: ArrayLike,
        *,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        sensitive_features: SensitiveFeatures | None = None,
        X: Any = None,
        **params: Any,
    ) -> Self:
        """Audit recorded predictions; the model is not needed.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            True labels.
        proba : array-like or DataFrame of shape (n_samples, n_classes)
            Probabilities as the provider reported them, never rescaled. Each row must sum to 1
            within 1e-4 or, if all probabilities are rounded to the same number of decimals, within
            half a unit of the last decimal for each class. If columns are named after labels, the
            names determine the labels.
        classes : array-like of shape (n_classes,), default=None
            Labels in column order. Default: the labels in the column names, or the sorted labels
            of `y`; their number must equal the number of columns.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights >= 0, in numbers of samples, as in `fit`. Default: 1 each.
        sensitive_features : array-like, DataFrame or mapping of str to array-like, default=None
            Attributes whose groups are audited too, as in `fit`.
        X : DataFrame or array-like of shape (n_samples, n_features), default=None
            Inputs, or other known columns of the samples, in which regions are searched;
            required if `search_regions` is set.
        **params
            Parameters of the class, except `groups`, which needs columns of a model's inputs.

        Returns
        -------
        CalibrationAuditor
            Fitted, but without a model for predictions.

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
        audit._refuse_groups()
        if X is None and audit._searches():
            raise ValueError(
                "`search_regions` needs columns to search in, and recorded predictions have none; "
                "pass the columns as `X`."
            )
        if X is not None and not audit._searches():
            raise ValueError(
                "`X` has no effect with search_regions=False; set search_regions=True."
            )
        grouping = sensitive_groups(sensitive_features)
        predictions = top_label_predictions(y, proba, classes=classes)
        if X is not None:
            check_consistent_length(X, predictions.confidence)
        weight = audit_weights(sample_weight, len(predictions.confidence))
        audit._audit(predictions, grouping, audit._conditions_of(X), weight)
        audit.classes_ = labels_of_proba(y, proba, classes)
        return audit

    @classmethod
    def from_sums(
        cls,
        sums: BinSums,
        group_sums: Mapping[str, BinSums] | None = None,
        *,
        classes: ArrayLike | None = None,
        **params: Any,
    ) -> Self:
        """Audit sums per bin, such as totals over several parties or machines.

        Parameters
        ----------
        sums : BinSums
            Sums over all predictions, such as `sums_` of another audit or the result of
            `skuq.calibration.merged_sums`.
        group_sums : mapping of str to BinSums, default=None
            Sums over each group.
        classes : array-like of shape (n_classes,), default=None
            Labels to store as `classes_`.
        **params
            Parameters of the class, except `n_bins`, which the sums determine.

        Returns
        -------
        CalibrationAuditor
            Fitted, but without a model for predictions and without samples.

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
        audit._refuse_groups()
        audit._check_no_search()
        return audit._audit_parts(Parts(sums, dict(group_sums or {})), classes)

    def undersample(self, rho: float, region_mask: ArrayLike, *, random_state: Any = None) -> Self:
        """Repeat the audit with part of a region's reference samples removed (Eq. 20).

        Parameters
        ----------
        rho : float
            Fraction of the region's samples to remove, in [0, 1].
        region_mask : array-like of shape (n_rows,), bool
            Whether each reference sample lies in the region.
        random_state : int, RandomState instance or None, default=None
            Seed for the choice of the removed samples.

        Returns
        -------
        CalibrationAuditor
            A new, fitted auditor of the same model; quantile bins are recomputed.
        """
        self._check_samples_kept()
        self._validate_params()
        if not 0 <= rho <= 1:
            raise ValueError(f"`rho` must be in [0, 1], got {rho}.")
        n_rows = len(self._predictions.confidence)
        mask = np.asarray(region_mask)
        if mask.shape != (n_rows,) or mask.dtype != bool:
            raise ValueError(
                f"`region_mask` must be booleans of shape ({n_rows},), got {mask.dtype} of shape "
                f"{mask.shape}."
            )
        inside = np.flatnonzero(mask)
        removed = check_random_state(random_state).permutation(inside)
        kept = np.ones(len(mask), bool)
        kept[removed[: round(rho * len(inside))]] = False  # Eq. 20
        settings = dict(self.settings_)
        region_alpha = settings.pop("region_alpha")
        audit: Self = copy(self).set_params(
            **settings, search_regions=False if region_alpha is None else region_alpha
        )
        rows, weight = self._predictions.at(kept), self._weight
        conditions = None if self._conditions is None else self._conditions.without(~kept)
        grouping = [g._replace(codes=g.codes[kept]) for g in self._grouping]
        audit._audit(rows, grouping, conditions, None if weight is None else weight[kept])
        return audit

    def _refuse_groups(self) -> None:
        refuse_ineffective(
            self, ["groups"], "without X; pass the columns themselves as `sensitive_features`."
        )

    def _min_samples(self) -> int:
        return max(2, self.n_bins)

    def _check_size(self, n_samples: float) -> None:
        if n_samples < self._min_samples():
            raise ValueError(
                f"The reference set has n_samples={n_samples:.6g}, but at least "
                f"{self._min_samples()} are needed for n_bins={self.n_bins}."
            )

    def _searches(self) -> bool:
        """Whether to search regions; unlike False, a tolerance of 0 requests a search."""
        return not isinstance(self.search_regions, bool | np.bool_) or bool(self.search_regions)

    def _check_no_search(self) -> None:
        if self._searches():
            raise ValueError(
                "`search_regions` needs all samples at once, but parts keep only sums; use `fit` "
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
        weight: NDArray[Any] | None,
    ) -> None:
        """Audit these predictions and discard earlier predictions."""
        self._check_size(len(predictions.confidence))
        self._parts = self._add_up(predictions, grouping, weight)
        self._check_size(self._parts.sums.n_effective)
        self._compute_findings(None if conditions is None else (conditions, predictions), weight)
        self._predictions, self._grouping, self._weight = predictions, grouping, weight
        self._conditions = conditions

    def _add_up(
        self,
        predictions: TopLabelPredictions,
        grouping: list[Grouping],
        weight: NDArray[Any] | None,
    ) -> Parts:
        for group in grouping:
            check_consistent_length(group.codes, predictions.confidence)
        return parts_of(
            predictions, grouping, n_bins=self.n_bins, strategy=self.strategy, weight=weight
        )

    def _audit_parts(
        self,
        parts: Parts,
        classes: ArrayLike | None,
        rows: tuple[Any, TopLabelPredictions] | None = None,
        weight: NDArray[Any] | None = None,
    ) -> Self:
        """Audit sums; `rows`, if given, are used only to search for regions and are not kept."""
        self._check_size(parts.sums.n_effective)
        self._parts = parts
        self._compute_findings(rows, weight)
        if classes is not None:
            self.classes_ = np.asarray(classes)
        return self

    def _compute_findings(
        self,
        rows: tuple[Any, TopLabelPredictions] | None = None,
        weight: NDArray[Any] | None = None,
    ) -> None:
        self.settings_ = {
            "n_bins": int(self.n_bins),
            "strategy": self.strategy,
            "alpha": float(self.alpha),
            "confidence_level": float(self.confidence_level),
            "region_alpha": None if rows is None else self._region_alpha(),
        }
        self.result_ = audit_sums(
            self._parts.sums,
            self._parts.group_sums,
            alpha=self.alpha,
            confidence_level=self.confidence_level,
            rows=rows,
            row_weight=weight,
            weighted=True,
            region_alpha=self.settings_["region_alpha"],
        )
