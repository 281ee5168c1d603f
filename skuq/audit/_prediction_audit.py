"""Audits of recorded predictions, or of sums of predictions, without the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted

from skuq import calibration, validation
from skuq.base import FloatArray, IntArray
from skuq.calibration import BinSums, Direction, Strategy, TopLabelPredictions
from skuq.labels import as_text, labels_of_proba, positions_of

if TYPE_CHECKING:
    import pandas as pd

MAX_GROUPS = 200  # maximum groups of a column; more distinct values suggest names or measurements
MOST_COUNTED = 20  # whole-number weights with a larger mean may be survey weights, not counts
_MOST_COUNTED = 2**33  # largest sum of counts: the sum of as many confidences fits into an int64
FAR = 0.1  # a pass is conclusive only if gaps of tolerance + FAR would be detected
DENSITY_BINS = 20  # bins in plots of the distribution of confidence

SensitiveFeatures: TypeAlias = "ArrayLike | Mapping[str, ArrayLike] | pd.DataFrame"


class Grouping(NamedTuple):
    codes: NDArray[np.int16]  # (n_samples,), group of each sample
    names: list[str]  # such as "sex=female"


class Parts(NamedTuple):
    sums: BinSums  # over all samples
    group_sums: Mapping[Any, BinSums]
    density: BinSums | None = None  # over finer bins, for plots
    group_density: Mapping[Any, BinSums] = {}


def named_groups(columns: Any) -> list[Grouping]:
    """Divide samples by the values of each column; missing values form a separate group.

    A Series keeps its name. An array is called "group", and columns of a two-dimensional array are
    called "group_0", "group_1" and so on.
    """
    named = [] if columns is None else _by_name(columns)
    return distinct([_grouping(str(name), values) for name, values in named])


def distinct(groupings: list[Grouping]) -> list[Grouping]:
    """Return `groupings`; raise if two groups share a name, such as those of 1 and "1"."""
    seen = Counter(name for grouping in groupings for name in grouping.names)
    if twice := [name for name, times in seen.items() if times > 1]:
        raise ValueError(f"Group names must differ, got {twice[0]!r} twice; rename one.")
    return groupings


def groups_of_columns(
    groups: str | int | list[Any] | Callable[[Any], Any] | None, X: Any
) -> list[Grouping]:
    """Divide samples by columns of `X`, given by name, by position or by a callable."""
    if groups is None:
        return []
    if callable(groups):
        return named_groups(groups(X))
    names = groups if isinstance(groups, list) else [groups]
    return named_groups({name: validation.column_of(X, name) for name in names})


def _by_name(columns: Any) -> Iterable[tuple[Any, Any]]:
    if hasattr(columns, "items") and getattr(columns, "ndim", 2) > 1:
        return columns.items()
    # A Series also has `items`, but is a single column.
    name = getattr(columns, "name", None)
    array = np.asarray(columns)
    if array.ndim == 2:
        return ((f"group_{k}", column) for k, column in enumerate(array.T))
    return [("group" if name is None else name, columns)]


def _grouping(name: str, values: ArrayLike) -> Grouping:
    import pandas as pd

    # Convert other pandas types to NumPy: `factorize` would sort categories by their own order.
    is_text = isinstance(getattr(values, "dtype", None), pd.StringDtype)
    array: Any = pd.Series(values).array if is_text else np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"Group {name!r} must be one-dimensional, got shape {array.shape}.")
    codes, found = pd.factorize(array, sort=True)
    check_number_of_groups(name, len(found))
    # Integers with missing values are read as floats; `as_text` gives 1.0 the same name as 1.
    names = [f"{name}={as_text(value)}" for value in found]
    if (codes < 0).any():
        codes = np.where(codes < 0, len(names), codes)
        names.append(f"{name}=missing")
    return Grouping(codes.astype(np.int16), names)


def check_number_of_groups(name: str, found: int) -> None:
    if found > MAX_GROUPS:
        raise ValueError(
            f"Group {name!r} has {found} different values, more than {MAX_GROUPS}; divide it into "
            "ranges first, such as age groups."
        )


def parts_of(
    predictions: TopLabelPredictions,
    grouping: list[Grouping],
    n_bins: int,
    strategy: Strategy = "uniform",
    weight: NDArray[Any] | None = None,
    square: FloatArray | None = None,
) -> Parts:
    counted, given = predictions.confidence, None
    if weight is not None:
        counted, given = counted[weight > 0], weight[weight > 0].astype(float)
    edges = [
        calibration.bin_edges(counted, n_bins, strategy, weight=given),
        calibration.bin_edges(counted, DENSITY_BINS),
    ]
    groups = [(group.codes, len(group.names)) for group in grouping]
    names = [name for group in grouping for name in group.names]
    (sums, *of_groups), (density, *densities) = calibration.group_sums(
        predictions, edges, groups, weight=weight, square=square
    )
    named = (dict(zip(names, each, strict=True)) for each in (of_groups, densities))
    return Parts(sums, next(named), density, next(named))


def audit_weights(sample_weight: Any, n_samples: int) -> NDArray[Any] | None:
    if sample_weight is None:
        return None
    weight = validation.unwarned_weights(sample_weight, n_samples)
    if are_ambiguous(weight, weight.sum(), int(np.count_nonzero(weight))):
        validation.warn_user(
            f"The whole numbers in `sample_weight` add up to {weight.sum():.3g}, more than "
            f"{MOST_COUNTED} for each sample, and were taken as survey weights: only their ratios "
            "matter. If they are counts of samples, repeat the samples."
        )
        return weight
    validation.warn_of_relative_weights(weight)
    return counted_weights(weight)


def warn_of_copies(predictions: TopLabelPredictions, groups: Any) -> None:
    if groups is None and (copies := calibration.n_repeated(predictions)):
        validation.warn_user(validation.repeated_rows(copies))


def clustered(weight: Any, codes: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return weights that make each group count as one sample, and squared weights for variances.

    The squared weights of a group add up to the square of the group's weight. With these, the
    variance formula for independent samples is an upper bound for any dependence within groups.
    """
    weight = validation.independent_counts(None if weight is None else weight.astype(float), codes)
    return weight, weight * np.bincount(codes, weights=weight)[codes]


def are_ambiguous(weight: NDArray[Any], total: float, n_weighed: int) -> bool:
    """Whether whole numbers are so large that they may be survey weights instead of counts."""
    return bool((weight == np.floor(weight)).all() and total > MOST_COUNTED * n_weighed)


def counted_weights(weight: FloatArray) -> NDArray[Any]:
    """Convert checked weights to integers if all are whole numbers."""
    if not (weight == np.floor(weight)).all():
        return weight
    if weight.sum() > _MOST_COUNTED:
        raise ValueError(
            f"`sample_weight` adds up to {weight.sum():.3g} samples, but integer sums can hold at "
            f"most {_MOST_COUNTED:.3g}; if the weights are not counts, divide them by the largest."
        )
    return weight.astype(np.int64)


def _result_attribute(name: str) -> Any:
    def get(auditor: PredictionAudit) -> Any:
        if "result_" not in vars(auditor):
            raise AttributeError("There are no results yet; call `fit` or `from_predictions`.")
        return attrgetter(name)(auditor.result_)

    return property(get)


class PredictionAudit(BaseEstimator):
    n_bins: int
    tolerance: float
    strategy: Strategy
    confidence_level: float
    search_regions: bool | float
    random_state: int | None
    classes_: NDArray[Any]
    result_: calibration.AuditResult
    settings_: dict[str, Any]
    _predictions: TopLabelPredictions  # not set if the audit was made from sums

    passed_: bool = _result_attribute("passed")
    within_tolerance_: bool = _result_attribute("within_tolerance")
    bins_: calibration.BinAudit = _result_attribute("bins")
    group_bins_: dict[str, calibration.BinAudit] = _result_attribute("group_bins")
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
    def regions_(self) -> list[calibration.Region]:
        searched = self.result_.regions
        return [] if searched is None else searched.regions

    def suspicious_bins(self) -> IntArray:
        """Return bins with significant deviations among all samples, most significant first."""
        check_is_fitted(self)
        found = np.flatnonzero(self.bins_.significant)
        return found[np.argsort(self.bins_.finding[found], kind="stable")]

    def suspicious_samples(self) -> IntArray:
        """Return row numbers (int64) of the reference samples in suspicious bins, bin by bin.

        Correct predictions come first in an underconfident bin, wrong ones in an overconfident bin.
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

    def _detection(self, direction: Direction) -> dict[str, Any]:
        found = self.bins_
        below = direction == "overconfident"
        return {
            "tolerance": self.settings_["tolerance"],
            "threshold": found.threshold_overconfident if below else found.threshold,
            "direction": direction,
        }

    @property
    def conclusive_(self) -> bool:
        return not self.passed_ or not self._misses(self.settings_["tolerance"] + FAR)

    def _misses(self, gap: float, times: float = 1.0) -> bool:
        """Whether an audit of `times` as many samples misses a gap of all bins (power < 0.8)."""
        count, mean = np.rint(times * self.sums_.effective_count), self.sums_.mean_confidence
        most: dict[Direction, float] = {"underconfident": 1 - self.confidence_}
        most["overconfident"] = self.confidence_
        return any(
            possible > gap
            and not calibration.detectable_shift(count, mean, **self._detection(direction)) <= gap
            for direction, possible in most.items()
        )

    def _required_size(self, gap: float) -> float:
        """Return how many samples detect `gap`, within 5 %; infinite if 4096 times as many fail."""
        low, high = 0.0, 1.0
        while self._misses(gap, high):
            low, high = high, 2 * high
            if high > 2**12:
                return np.inf
        while high - low > 0.05 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self._misses(gap, middle) else (low, middle)
        return high * self.n_effective_

    def _check_samples_kept(self) -> None:
        check_is_fitted(self)
        if not hasattr(self, "_predictions"):
            raise ValueError(
                "This audit was made from sums, so its samples were not kept; use `fit` or "
                "`from_predictions`."
            )

    @classmethod
    def from_predictions(
        cls,
        y: ArrayLike,
        proba: ArrayLike,
        *,
        classes: ArrayLike | None = None,
        predicted: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        sensitive_features: SensitiveFeatures | None = None,
        groups: Any = None,
        X: Any = None,
        **params: Any,
    ) -> Self:
        """Audit recorded predictions, without the model.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            True labels.
        proba, classes
            Probabilities as the provider reported them, never rescaled, and labels in column order;
            as in `skuq.metrics.calibration_table`.
        predicted : array-like of shape (n_samples,), default=None
            Labels that the provider predicted, such as by a decision threshold. By default, the
            most probable class.
        sample_weight, sensitive_features, groups : array-like, default=None
            As in `fit`.
        X : DataFrame or array-like of shape (n_samples, n_features), default=None
            Inputs, or other known columns of the samples, in which regions are searched;
            required if `search_regions` is set.
        **params
            Parameters of the class, except `sensitive_columns`.

        Examples
        --------
        >>> from skuq import CalibrationAuditor
        >>> proba = [[0.55, 0.45]] * 40
        >>> audit = CalibrationAuditor.from_predictions([0] * 40, proba, classes=[0, 1])
        >>> audit.passed_, str(audit.bins_.direction[5])
        (False, 'underconfident')
        """
        audit = cls._without_model(params)
        if (X is not None) != audit._searches():
            raise ValueError("`search_regions` searches the columns of `X`: pass both, or neither.")
        grouping = named_groups(sensitive_features)
        known = labels_of_proba(y, proba, classes)
        codes = None if predicted is None else positions_of(np.asarray(predicted), known)
        predictions = calibration.top_label_predictions(y, proba, classes=classes, predicted=codes)
        if X is not None:
            check_consistent_length(X, predictions.confidence)
        weight = audit_weights(sample_weight, len(predictions.confidence))
        warn_of_copies(predictions, groups)
        audit._audit(predictions, grouping, X, weight, groups)
        audit.classes_ = known
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

        Examples
        --------
        >>> from skuq import CalibrationAuditor
        >>> from skuq.calibration import merged_sums
        >>> proba = [[0.55, 0.45]] * 40
        >>> part = CalibrationAuditor.from_predictions([0] * 40, proba, classes=[0, 1])
        >>> CalibrationAuditor.from_sums(merged_sums([part.sums_, part.sums_])).n_samples_
        80
        """
        audit = cls._without_model(dict(**params, n_bins=len(sums.count)))
        if audit._searches():
            raise ValueError(
                "`search_regions` needs all samples, but only their sums were passed; use `fit` "
                "or `from_predictions`, or set search_regions=False."
            )
        audit._audit_parts(Parts(sums, dict(group_sums or {})))
        if classes is not None:
            audit.classes_ = np.asarray(classes)
        return audit

    def undersample(self, rho: float, region_mask: ArrayLike, *, random_state: Any = None) -> Self:
        """Return a new audit without some of a region's samples (Eq. 20); recompute quantile bins.

        Parameters
        ----------
        rho : float
            Fraction of the region's samples to remove, in [0, 1].
        region_mask : array-like of shape (n_rows,), bool
            Whether each reference sample lies in the region.
        random_state : int, RandomState instance or None, default=None
            Seed for the choice of the removed samples.
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
        region_tolerance = settings.pop("region_tolerance")
        audit: Self = copy(self).set_params(
            **settings, search_regions=False if region_tolerance is None else region_tolerance
        )
        rows, weight = self._predictions.at(kept), self._weight
        conditions = None if self._conditions is None else self._conditions.without(~kept)
        grouping = [g._replace(codes=g.codes[kept]) for g in self._grouping]
        weight, codes = (None if e is None else e[kept] for e in (weight, self._codes))
        audit._audit(rows, grouping, conditions, weight, codes)
        return audit

    @classmethod
    def _without_model(cls, params: dict[str, Any]) -> Self:
        audit = cls(None, **params)
        audit._validate_params()
        instead = "without X; pass the columns themselves as `sensitive_features`."
        validation.refuse_ineffective(audit, ["sensitive_columns"], instead)
        return audit

    def _check_size(self, n_samples: float) -> None:
        if n_samples < max(2, self.n_bins):
            raise ValueError(
                f"The reference set has n_samples={n_samples:.6g}, but at least "
                f"{max(2, self.n_bins)} are needed for n_bins={self.n_bins}."
            )

    def _searches(self) -> bool:
        # The number 0, unlike False, requests a search (with a tolerance of 0).
        return not isinstance(self.search_regions, bool | np.bool_) or bool(self.search_regions)

    def _audit(
        self,
        predictions: TopLabelPredictions,
        grouping: list[Grouping],
        X: Any,
        weight: NDArray[Any] | None,
        groups: Any = None,
    ) -> None:
        """Audit predictions; `X` is None, a table, or the conditions derived from a table."""
        for group in grouping:
            check_consistent_length(group.codes, predictions.confidence)
        n_samples = len(predictions.confidence)
        self._check_size(n_samples)
        seed = calibration.search_seed(predictions, self.random_state or 0)
        conditions = None if X is None else calibration.checked_conditions(X, n_samples, seed)
        rows = None if conditions is None else (conditions, predictions)
        self._predictions, self._grouping, self._weight = predictions, grouping, weight
        self._conditions, self._codes, square = conditions, None, None
        if groups is not None:
            self._codes = validation.group_codes(groups, len(predictions.confidence))
            weight, square = clustered(weight, self._codes)
        parts = parts_of(predictions, grouping, self.n_bins, self.strategy, weight, square)
        self._audit_parts(parts, rows, weight, self._codes)

    def _audit_parts(
        self,
        parts: Parts,
        rows: tuple[Any, TopLabelPredictions] | None = None,
        weight: NDArray[Any] | None = None,
        codes: IntArray | None = None,
    ) -> None:
        """Audit sums; `rows`, if given, are used only to search for regions and are not kept."""
        self._check_size(parts.sums.n_effective)
        self._parts = parts
        own = not isinstance(self.search_regions, bool | np.bool_)
        region_tolerance = float(self.search_regions if own else self.tolerance)
        self.settings_ = {
            "n_bins": int(self.n_bins),
            "strategy": self.strategy,
            "tolerance": float(self.tolerance),
            "confidence_level": float(self.confidence_level),
            "region_tolerance": None if rows is None else region_tolerance,
        }
        self.result_ = calibration.audit_sums(
            parts.sums,
            parts.group_sums,
            tolerance=self.tolerance,
            confidence_level=self.confidence_level,
            rows=rows,
            row_weight=weight,
            row_codes=codes,
            region_tolerance=self.settings_["region_tolerance"],
            random_state=self.random_state or 0,
        )
