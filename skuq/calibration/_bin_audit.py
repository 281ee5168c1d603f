"""Audit of sums per bin: limits of the gaps, calibration error due to chance, and all test results.

The audit needs neither the predictions nor the model. Line numbers refer to Algorithm 1 of Rabanser
et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse of Model Abstention", ICML
2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration._bin_sums import BinSums, TopLabelPredictions, whole_sums
from skuq.calibration._region_search import RegionSearch, search_regions
from skuq.calibration._scan import (
    SEED,
    clopper_pearson,
    detectable_gap,
    detectable_shift,
    scan_bins,
)

N_SIMULATIONS = 2000  # number of simulated calibration errors, and of bootstrap replicates


class BinAudit(NamedTuple):
    """Findings of an audit, one row per confidence bin: arrays of shape (n_bins,).

    Attributes
    ----------
    lower, upper : ndarray, float64
        Edges of the bins ``[lower, upper)``; the last bin includes its upper edge.
    count : ndarray, int64, or float64 with fractional weights
        Number of predictions, or the sum of their weights.
    confidence, accuracy : ndarray, float64
        Mean reported confidence and share of correct predictions; NaN in an empty bin.
    gap : ndarray, float64
        ``accuracy - confidence``: positive where the model is underconfident.
    gap_low, gap_high : ndarray, float64
        Simultaneous limits of the gap that an unlimited number of samples would show. They hold at
        the confidence level for all bins of the audit together (exact binomial, Bonferroni).
    within_alpha : ndarray, bool
        Whether ``|gap| <= alpha``: step 3 of Algorithm 1. An empty bin passes.
    p_value : ndarray, float64
        p-value of the finding that contains the bin, corrected for the whole audit (`scan_bins`).
        For a bin outside of findings, the p-value of this bin alone. 1 in an empty bin.
    finding : ndarray, int64
        Number of the finding that contains the bin, starting at 1 for the most significant; 0 if
        the bin is in no finding. A finding is a run of neighbouring bins whose deviation cannot be
        explained by chance.
    significant : ndarray, bool
        Whether the bin belongs to a finding.
    direction : ndarray of str
        "underconfident" or "overconfident" where significant, else "".
    threshold, threshold_overconfident : float
        Smallest evidence for a finding of underconfidence, and for a finding of overconfidence, in
        nats (`scan_bins`).
    detectable_underconfidence, detectable_overconfidence : ndarray, float64
        Smallest distance of the accuracy from the confidence (above it for underconfidence, below
        it for overconfidence) that is detected with probability 0.8 in a single bin; NaN if no such
        distance exists.
    detectable_underconfident_shift, detectable_overconfident_shift : float
        Smallest distance that is detected with probability 0.8 if all bins have it (accuracies are
        capped at 1 and at 0); NaN if no such distance exists.
    """

    lower: FloatArray
    upper: FloatArray
    count: IntArray  # type: ignore[assignment]  # hides tuple.count, which is not used here
    confidence: FloatArray
    accuracy: FloatArray
    gap: FloatArray
    gap_low: FloatArray
    gap_high: FloatArray
    within_alpha: BoolArray
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
    """Result of an audit.

    Attributes
    ----------
    sums : BinSums
        Integer sums over all samples.
    group_sums : dict of str to BinSums
        Integer sums over each group.
    bins : BinAudit
        Findings among all samples.
    group_bins : dict of str to BinAudit
        Findings in each group.
    n_families : int
        Number of tests that share the permitted error probability: a test of all samples, a test of
        each non-empty group, and the search for regions.
    ece_interval : tuple of float
        Bootstrap interval for the expected calibration error.
    ece_chance : float
        Expected calibration error that a perfectly calibrated model exceeds with probability
        ``1 - confidence_level``.
    regions : RegionSearch or None
        Regions of the inputs with significant deviations; None if no regions were searched.
    """

    sums: BinSums
    group_sums: dict[str, BinSums]
    bins: BinAudit
    group_bins: dict[str, BinAudit]
    n_families: int
    ece_interval: tuple[float, float]
    ece_chance: float
    regions: RegionSearch | None = None

    @property
    def passed(self) -> bool:
        """Whether the audit has no findings among all samples, in any group or in any region."""
        if self.regions is not None and self.regions.regions:
            return False
        return not any(part.significant.any() for part in (self.bins, *self.group_bins.values()))

    @property
    def within_alpha(self) -> bool:
        """Verdict of Algorithm 1: whether every bin of all samples has ``|gap| <= alpha``."""
        return bool(self.bins.within_alpha.all())  # Line 22


def audit_sums(
    sums: BinSums,
    group_sums: Mapping[str, BinSums] | None = None,
    *,
    alpha: float = 0.05,
    confidence_level: float = 0.95,
    rows: tuple[Any, TopLabelPredictions] | None = None,
    row_weight: NDArray[Any] | None = None,
    region_alpha: float | None = None,
    weighted: bool = False,
) -> AuditResult:
    """Audit binned sums, as `CalibrationAuditor` does.

    Parameters
    ----------
    sums : BinSums
        Sums over all samples, possibly added up from parts.
    group_sums : mapping of str to BinSums, default=None
        Sums over each group.
    alpha : float, default=0.05
        Tolerated distance between accuracy and confidence of a bin.
    confidence_level : float, default=0.95
        Probability that a model within alpha passes the audit.
    rows : tuple of X and TopLabelPredictions, default=None
        Inputs and predictions from which the sums were computed. If given, regions of the inputs
        are searched too (`search_regions`).
    row_weight : ndarray of shape (n_samples,), default=None
        Weights of these predictions, as used for the sums. Default: 1 each.
    region_alpha : float, default=None
        Tolerated distance between accuracy and confidence of a region. Default: `alpha`.
    weighted : bool, default=False
        Whether sums of fractional weights are accepted. Tests and limits then use the effective
        number of predictions (`scan_bins`).

    Returns
    -------
    AuditResult

    Raises
    ------
    ValueError
        If `alpha` or `region_alpha` is not in [0, 1]; if `confidence_level` is not in (0, 1); if
        the sums contain no predictions; or if they are sums of weights and `weighted` is False.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.calibration import BinSums, audit_sums
    >>> sums = BinSums(np.array([0, 5, 10]), np.array([20, 0]), np.array([19, 0]),
    ...                np.array([80, 0]), scale=10)
    >>> audit_sums(sums).passed
    False
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"`alpha` must be in [0, 1], got {alpha}.")
    if region_alpha is not None and not 0 <= region_alpha <= 1:
        raise ValueError(f"`region_alpha` must be in [0, 1], got {region_alpha}.")
    if not 0 < confidence_level < 1:
        raise ValueError(f"`confidence_level` must be in (0, 1), got {confidence_level}.")
    if not sums.count.any():
        raise ValueError("`sums` must contain at least one prediction, got none.")
    groups = {} if group_sums is None else dict(group_sums)
    families = (sums, *groups.values())
    if not weighted and any(part.count.dtype.kind == "f" for part in families):
        raise ValueError(
            "`sums` must count predictions, got sums of weights, which do not determine the number "
            "of samples. Pass `weighted=True` to use the effective number of samples instead."
        )
    n_families = sum(bool(part.count.any()) for part in families) + (rows is not None)
    tolerated = alpha if region_alpha is None else region_alpha
    shared: dict[str, Any] = {"confidence_level": confidence_level, "n_families": n_families}
    bins, *group_bins = (audit_bins(part, alpha=alpha, **shared) for part in families)
    tail = (1 - confidence_level) / 2
    low, high = np.quantile(ece_bootstrap(sums), [tail, 1 - tail])
    return AuditResult(
        sums,
        groups,
        bins,
        dict(zip(groups, group_bins, strict=True)),
        n_families,
        (float(low), float(high)),
        float(np.quantile(ece_under_calibration(sums), confidence_level)),
        None
        if rows is None
        else search_regions(*rows, alpha=tolerated, weight=row_weight, **shared),
    )


def audit_bins(
    sums: BinSums, *, alpha: float, confidence_level: float = 0.95, n_families: int = 1
) -> BinAudit:
    """Compare accuracy with confidence in each bin, and mark deviations beyond chance.

    The permitted error probability ``1 - confidence_level`` is shared by `n_families` sets of
    samples that are audited together, such as all samples and each group.
    """
    # The reference inputs are treated as fixed and their labels as independent. The number of
    # correct predictions in a bin is then a sum of independent trials whose mean probability is
    # compared with the mean confidence. The tails of this sum are at most those of a binomial
    # variable with the same mean (Hoeffding, "On the Distribution of the Number of Successes in
    # Independent Trials", 1956, Theorem 5). Limits and findings therefore hold although the trials
    # have unequal probabilities. The theorem does not cover counts that differ by less than one
    # from the expected number, such as one error where half an error is expected; there, limits and
    # findings are approximate.
    level = (1 - confidence_level) / n_families
    filled = sums.count > 0
    tail = level / (2 * max(1, int(filled.sum())))
    tested = whole_sums(sums)
    low, high = clopper_pearson(tested.correct, tested.count, tail)
    confidence = sums.mean_confidence
    scan = scan_bins(sums, alpha=alpha, level=level)
    number, side = np.zeros(len(sums.count), np.int64), np.full(len(sums.count), "", "U14")
    for k, found in enumerate(scan.findings, 1):
        inside = np.arange(found.first, found.last + 1)
        inside = inside[filled[inside]]
        number[inside], side[inside] = k, found.direction
    given: dict[str, Any] = {"count": tested.count, "confidence": confidence, "alpha": alpha}
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
        _within(sums, alpha),
        np.where(filled, np.minimum(1.0, n_families * scan.p_value), 1.0),
        number,
        number > 0,
        side,
        scan.threshold,
        scan.threshold_overconfident,
        detectable_gap(**under),
        detectable_gap(**over),
        detectable_shift(**under),
        detectable_shift(**over),
    )


def _within(sums: BinSums, alpha: float) -> BoolArray:
    """Step 3 of Algorithm 1, computed exactly for the decimal number that was passed as alpha."""
    tolerated = Fraction(str(float(alpha))) * sums.scale
    rows = zip(sums.deviation.tolist(), sums.count.tolist(), strict=True)
    return np.array([abs(deviation) <= tolerated * count for deviation, count in rows])  # Line 21


def ece_under_calibration(sums: BinSums) -> FloatArray:
    """Simulate the ECE of a perfectly calibrated model with the same bin counts; shape (2000,)."""
    filled = sums.count > 0
    count, confidence = sums.count[filled], sums.mean_confidence[filled].clip(0, 1)
    whole = np.maximum(1, whole_sums(sums).count[filled])
    correct = np.random.default_rng(SEED).binomial(
        whole, confidence, size=(N_SIMULATIONS, len(count))
    )
    # The variance of the simulated accuracy corresponds to the effective number of predictions in
    # the bin.
    return (np.abs(correct - whole * confidence) * (count / whole)).sum(axis=1) / count.sum()


def ece_bootstrap(sums: BinSums) -> FloatArray:
    """Draw bootstrap replicates of the expected calibration error, shape (2000,).

    Bin sizes and accuracies are resampled; mean confidences of the bins are fixed.
    """
    filled = sums.count > 0
    total = int(sums.n_effective)
    confidence, share = sums.mean_confidence[filled], sums.count[filled] / sums.count.sum()
    rng = np.random.default_rng(SEED)
    count = rng.multinomial(total, share / share.sum(), size=N_SIMULATIONS)
    correct = rng.binomial(count, sums.accuracy[filled].clip(0, 1))
    return np.abs(correct - count * confidence).sum(axis=1) / total
