"""Audit sums per bin, and choose a tolerance with which an honest model passes the audit.

An audit of the sums needs neither the predictions nor the model. Line numbers refer to Algorithm 1
of Rabanser et al., "Confidential Guardian", ICML 2025.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration import _bin_sums, _scan
from skuq.calibration._bin_sums import BinSums, Strategy, TopLabelPredictions, bin_sums, whole_sums
from skuq.calibration._conditions import Conditions, checked_conditions, n_searched
from skuq.calibration._region_search import RegionSearch, region_tolerance, search_regions
from skuq.calibration._scan import ALL_SAMPLES, N_SIMULATIONS

# Constants of `choose_tolerance`:
N_STUDY_SIMULATIONS = 200  # number of simulated models for each reference set and tolerance
TOLERANCE_PRECISION = 1e-3  # the bisection stops at an interval of this width
N_REGION_DRAWS = 60  # maximum number of reference sets in which regions are searched


class BinAudit(NamedTuple):
    """Findings of an audit, one row per confidence bin: arrays of shape (n_bins,).

    Attributes
    ----------
    lower, upper, count, confidence, accuracy, gap
        As in `skuq.metrics.CalibrationTable`; `count` is int64 unless weights are fractional.
    gap_low, gap_high : ndarray, float64
        Confidence limits of the gap that an unlimited number of samples would show. All limits of
        the audit hold together with probability `confidence_level` (exact binomial, Bonferroni).
    within_tolerance : ndarray, bool
        Whether ``|gap| <= tolerance``: step 3 of Algorithm 1. An empty bin passes.
    p_value : ndarray, float64
        p-value of the finding that contains the bin, or else of the bin alone; 1 for an empty bin.
        p-values are corrected for all tests of the audit.
    finding : ndarray, int64
        Number of the finding that contains the bin: 1 for the most significant finding, 0 for no
        finding. A finding is a run of neighbouring bins whose deviation chance cannot explain.
    significant : ndarray, bool
        Whether the bin belongs to a finding.
    direction : ndarray of str
        "underconfident" or "overconfident" where significant, else "".
    threshold, threshold_overconfident : float
        Smallest evidence for a finding of underconfidence, and of overconfidence, in nats.
    detectable_underconfidence, detectable_overconfidence : ndarray, float64
        Smallest true distance between accuracy and confidence that a test of this bin alone
        detects, in the direction of the name, with probability 0.8; NaN if none exists.
    detectable_underconfident_shift, detectable_overconfident_shift : float
        Smallest distance that the test detects with probability 0.8 if accuracy and confidence
        have this distance in every bin (accuracies are clipped to [0, 1]); NaN if none exists.
    """

    lower: FloatArray
    upper: FloatArray
    count: IntArray  # type: ignore[assignment]  # hides tuple.count, which is not used here
    confidence: FloatArray
    accuracy: FloatArray
    gap: FloatArray
    gap_low: FloatArray
    gap_high: FloatArray
    within_tolerance: BoolArray
    p_value: FloatArray
    finding: IntArray
    significant: BoolArray
    direction: np.ndarray
    threshold: float
    threshold_overconfident: float
    detectable_underconfidence: FloatArray
    detectable_overconfidence: FloatArray
    detectable_underconfident_shift: float
    detectable_overconfident_shift: float


class AuditResult(NamedTuple):
    """Result of an audit: `CalibrationAuditor.result_`."""

    sums: BinSums  # sums per bin over all samples
    group_sums: dict[str, BinSums]  # sums per bin of each group
    bins: BinAudit  # findings among all samples
    group_bins: dict[str, BinAudit]  # findings in each group
    n_families: int  # number of tests: all samples, each non-empty group, and the region search
    ece_interval: tuple[float, float]  # bootstrap interval of the expected calibration error
    ece_chance: float  # ECE that a calibrated model exceeds with probability 1 - confidence_level
    regions: RegionSearch | None = None  # None if no regions were searched

    @property
    def passed(self) -> bool:
        """Whether the audit has no findings among all samples, in any group or in any region."""
        if self.regions is not None and self.regions.regions:
            return False
        return not any(part.significant.any() for part in (self.bins, *self.group_bins.values()))

    @property
    def within_tolerance(self) -> bool:
        """Whether ``|gap| <= tolerance`` in every bin of all samples: verdict of Algorithm 1."""
        return bool(self.bins.within_tolerance.all())  # Line 22


def audit_sums(
    sums: BinSums,
    group_sums: Mapping[str, BinSums] | None = None,
    *,
    tolerance: float = 0.05,
    confidence_level: float = 0.95,
    rows: tuple[Any, TopLabelPredictions] | None = None,
    row_weight: NDArray[Any] | None = None,
    row_codes: IntArray | None = None,
    region_tolerance: float | None = None,
    share: float = ALL_SAMPLES,
    random_state: int = 0,
) -> AuditResult:
    """Audit binned sums, as `CalibrationAuditor` does.

    `rows` are the inputs and predictions of the samples in `sums`. If `rows` is passed, regions of
    the inputs are searched with the tolerance `region_tolerance` (default: `tolerance`), with the
    sample weights `row_weight`, the group numbers `row_codes` and the seed `random_state`. `share`
    is the fraction of the permitted error probability that the test of all samples receives.
    """
    tolerated = tolerance if region_tolerance is None else region_tolerance
    groups = {} if group_sums is None else dict(group_sums)
    families = (sums, *groups.values())
    n_families = sum(bool(part.count.any()) for part in families) + (rows is not None)
    shared: dict[str, Any] = {"confidence_level": confidence_level}
    bins = audit_bins(sums, tolerance=tolerance, n_families=1 / share, **shared)
    # Groups and the region search share the rest of the error probability. If groups reduced the
    # share of the test of all samples, adding useless groups could make a failed audit pass.
    shared["n_families"] = max(1, n_families - 1) / (1 - share) if n_families > 1 else 1
    group_bins = [audit_bins(part, tolerance=tolerance, **shared) for part in groups.values()]
    tail = (1 - confidence_level) / 2
    low, high = np.quantile(ece_bootstrap(sums), [tail, 1 - tail])
    interval = float(low), float(high)
    chance = float(np.quantile(ece_under_calibration(sums), confidence_level))
    of_groups, regions = dict(zip(groups, group_bins, strict=True)), None
    if rows is not None:
        shared |= {"weight": row_weight, "codes": row_codes, "random_state": random_state}
        regions = search_regions(*rows, tolerance=tolerated, **shared)
    return AuditResult(sums, groups, bins, of_groups, n_families, interval, chance, regions)


def audit_bins(
    sums: BinSums, *, tolerance: float, confidence_level: float = 0.95, n_families: float = 1
) -> BinAudit:
    """Compare accuracy with confidence in each bin, and mark deviations beyond chance.

    The probability of a false finding is at most ``(1 - confidence_level) / n_families``.
    """
    # Labels are assumed independent, given the inputs. Limits and findings then hold even if some
    # predictions of a bin are more often correct than others (Hoeffding 1956, Theorem 5). Where the
    # number of correct predictions is within one of its expectation, both are approximate.
    level = (1 - confidence_level) / n_families
    filled = sums.count > 0
    tail = level / (2 * max(1, int(filled.sum())))
    tested = whole_sums(sums)
    low, high = _scan.clopper_pearson(tested.correct, tested.count, tail)
    confidence = sums.mean_confidence
    scan = _scan.scan_bins(sums, tolerance=tolerance, level=level)
    number, side = np.zeros(len(sums.count), np.int64), np.full(len(sums.count), "", "U14")
    for k, found in enumerate(scan.findings, 1):
        inside = np.arange(found.first, found.last + 1)
        inside = inside[filled[inside]]
        number[inside], side[inside] = k, found.direction
    given: dict[str, Any] = {"count": tested.count, "confidence": confidence}
    given["tolerance"] = tolerance
    under = given | {"threshold": scan.threshold, "direction": "underconfident"}
    over = given | {"threshold": scan.threshold_overconfident, "direction": "overconfident"}
    return BinAudit(
        sums.lower,
        sums.upper,
        sums.count,
        confidence,
        sums.accuracy,
        sums.gap,
        low - confidence,
        high - confidence,
        _within(sums, tolerance),
        np.where(filled, np.minimum(1.0, n_families * scan.p_value), 1.0),
        number,
        number > 0,
        side,
        scan.threshold,
        scan.threshold_overconfident,
        _scan.detectable_gap(**under),
        _scan.detectable_gap(**over),
        _scan.detectable_shift(**under),
        _scan.detectable_shift(**over),
    )


def _within(sums: BinSums, tolerance: float) -> BoolArray:
    """Compare ``|gap|`` with the tolerance exactly (step 3): as 1/10, for example, if it is 0.1."""
    tolerated = Fraction(str(float(tolerance))) * sums.scale
    rows = zip(sums.deviation.tolist(), sums.count.tolist(), strict=True)
    return np.array([abs(deviation) <= tolerated * count for deviation, count in rows])  # Line 21


def ece_under_calibration(sums: BinSums) -> FloatArray:
    """Simulate ECEs of a perfectly calibrated model with these bin counts, (N_SIMULATIONS,)."""
    filled = sums.count > 0
    count, confidence = sums.count[filled], sums.mean_confidence[filled].clip(0, 1)
    whole = np.maximum(1, whole_sums(sums).count[filled])
    correct = np.random.default_rng(_scan.SEED).binomial(
        whole, confidence, size=(N_SIMULATIONS, len(count))
    )
    # `whole` is the effective number of predictions, which gives the accuracy the right variance
    # if samples are weighted.
    return (np.abs(correct - whole * confidence) * (count / whole)).sum(axis=1) / count.sum()


def ece_bootstrap(sums: BinSums) -> FloatArray:
    """Draw bootstrap replicates of the ECE, (N_SIMULATIONS,); confidences of bins stay fixed."""
    filled = sums.count > 0
    total = int(sums.n_effective)
    confidence, share = sums.mean_confidence[filled], sums.count[filled] / sums.count.sum()
    rng = np.random.default_rng(_scan.SEED)
    count = rng.multinomial(total, share / share.sum(), size=N_SIMULATIONS)
    correct = rng.binomial(count, sums.accuracy[filled].clip(0, 1))
    return np.abs(correct - count * confidence).sum(axis=1) / total


class ToleranceStudy(NamedTuple):
    """Smallest tolerances with which an honest model passes: result of `choose_tolerance`."""

    tolerance: float
    region_tolerance: float | None


def choose_tolerance(
    y: ArrayLike,
    proba: ArrayLike,
    *,
    X: Any = None,
    classes: ArrayLike | None = None,
    reference_size: int | None = None,
    n_bins: int = 10,
    strategy: Strategy = "uniform",
    confidence_level: float = 0.95,
    n_repeats: int = 200,
    random_state: Any = None,
) -> ToleranceStudy:
    """Find the smallest audit tolerance with which an honest model passes.

    Reference sets are drawn, with replacement, from recorded predictions of a model that is known
    to be honest and was calibrated, for example by temperature scaling. The result is the smallest
    tolerance with which at least a fraction `confidence_level` of the sets passes the audit.

    Parameters
    ----------
    y : array-like of shape (n_samples,)
        True labels.
    proba : array-like of shape (n_samples, n_classes)
        Predictions of the honest model on data used neither for training nor for calibration.
    X : DataFrame or array-like of shape (n_samples, n_features), default=None
        Inputs. If given, the tolerance within regions is measured too, which is slow.
    classes : array-like of shape (n_classes,), default=None
        Labels in column order. Default: the sorted labels of `y`.
    reference_size : int, default=None
        Size of the reference sets. Default: n_samples.
    n_bins, strategy
        As in `CalibrationAuditor`; quantile bins are computed from all predictions.
    confidence_level : float, default=0.95
        Probability that the honest model passes; also the confidence level of the audits.
    n_repeats : int, default=200
        Number of reference sets.
    random_state : int, RandomState instance or None, default=None
        Seed for drawing the reference sets.

    Returns
    -------
    named tuple
        ``tolerance``: value for `tolerance` of `CalibrationAuditor`. ``region_tolerance``: value
        for its parameter `search_regions`; None if `X` is None.

    References
    ----------
    Rabanser et al., "Confidential Guardian", ICML 2025, Appendix D.3.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.calibration import choose_tolerance
    >>> rng = np.random.default_rng(0)
    >>> p = rng.uniform(size=5000)
    >>> y = rng.random(5000) < p
    >>> choose_tolerance(y, np.c_[1 - p, p], n_repeats=50, random_state=0).tolerance < 0.02
    True
    """
    random = check_random_state(random_state)
    predictions = _bin_sums.top_label_predictions(y, proba, classes=classes)
    n_samples = len(predictions.confidence)
    edges = _bin_sums.bin_edges(predictions.confidence, n_bins, strategy)
    size = n_samples if reference_size is None else reference_size
    draws = [
        bin_sums(predictions.at(random.randint(n_samples, size=size)), edges)
        for _ in range(n_repeats)
    ]
    regions = None
    if X is not None:
        conditions = checked_conditions(X, n_samples)
        size = n_searched(size, math.prod(np.shape(X)[1:]))
        sets = []
        for _ in range(min(n_repeats, N_REGION_DRAWS)):
            drawn = random.randint(len(conditions.rows), size=size)
            masks = conditions.masks[:, drawn]
            part = predictions.at(conditions.rows[drawn])
            sets.append((Conditions(conditions.rules, masks, np.arange(size)), part))
        regions = region_tolerance(sets, confidence_level)
    low, high = 0.0, 1.0
    while high - low > TOLERANCE_PRECISION:
        middle = (low + high) / 2
        passed = (
            _share_passed(draws, middle, ALL_SAMPLES * (1 - confidence_level)) >= confidence_level
        )
        low, high = (low, middle) if passed else (middle, high)
    return ToleranceStudy(high, regions)


def _share_passed(draws: list[BinSums], tolerance: float, level: float) -> float:
    """Return the fraction of draws without a finding, with fewer simulations than in an audit."""
    count = np.array([part.count for part in draws])
    correct = np.array([part.correct for part in draws])
    confidence = np.nan_to_num([part.mean_confidence for part in draws])
    rng, passed = np.random.default_rng(_scan.SEED), np.ones(len(draws), bool)
    for sign in (1, -1):
        edge = np.clip(confidence + sign * tolerance, 0, 1)
        found = _scan.largest_evidence(correct, count, edge, sign)
        simulated = rng.binomial(count, edge, size=(N_STUDY_SIMULATIONS, *count.shape))
        chance = _scan.largest_evidence(simulated, count, edge, sign)
        reached = (chance >= found * (1 - _scan.ROUNDING)).sum(axis=0)
        p = _scan.p_values(found, reached, N_STUDY_SIMULATIONS, _scan.n_runs(count.shape[-1]), sign)
        passed &= p >= level
    return float(passed.mean())
