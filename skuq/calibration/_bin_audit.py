"""Audit of sums per bin: exact limits, what chance does, and the result of all tests together.

Neither the predictions nor the model is needed. Line numbers are those of Algorithm 1 of Rabanser
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

N_SIMULATIONS = 2000  # of calibration errors by chance


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
        Limits for the gap that an unlimited number of samples would show, at the confidence
        level for all bins of the audit together (exact binomial, Bonferroni).
    within_alpha : ndarray, bool
        Whether ``|gap| <= alpha``: step 3 of Algorithm 1. An empty bin passes.
    p_value : ndarray, float64
        p-value of the bin's finding, corrected for the whole audit (`scan_bins`); for a bin in
        no finding, its own. 1 in an empty bin.
    finding : ndarray, int64
        Number of the finding that the bin belongs to, 1 for the most striking; 0 for none.
        A finding is a run of neighbouring bins that chance does not explain together.
    significant : ndarray, bool
        Whether the bin belongs to a finding.
    direction : ndarray of str
        "underconfident" or "overconfident" where significant, else "".
    threshold : float
        Evidence that a finding of underconfidence needs here, in nats (`scan_bins`).
    detectable_gap : ndarray, float64
        Gap of a single bin that is found with a probability of 0.8; NaN if none is.
    detectable_shift : float
        Gap that is found with that probability if all bins have it, or are always right where
        the confidence leaves less; NaN if none is.
    """

    lower: FloatArray
    upper: FloatArray
    count: IntArray  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
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
    detectable_gap: FloatArray
    detectable_shift: float


class AuditResult(NamedTuple):
    """Result of an audit.

    Attributes
    ----------
    sums : BinSums
        Integer sums of all samples.
    group_sums : dict of str to BinSums
        Integer sums of each group.
    bins : BinAudit
        Findings of all samples.
    group_bins : dict of str to BinAudit
        Findings of each group.
    n_families : int
        Tests that share the error: all samples, each group that has any, and the search.
    ece_interval : tuple of float
        Bootstrap interval of the expected calibration error.
    ece_chance : float
        Expected calibration error that a perfectly calibrated model exceeds with probability
        ``1 - confidence_level``.
    regions : RegionSearch or None
        Regions of the inputs that deviate; None if none were searched.
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
        """Whether there is no finding, among all samples, in a group or in a region."""
        if self.regions is not None and self.regions.regions:
            return False
        return not any(part.significant.any() for part in (self.bins, *self.group_bins.values()))

    @property
    def within_alpha(self) -> bool:
        """Verdict of Algorithm 1: whether ``|gap| <= alpha`` in every bin of all samples."""
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
    """Audit sums per bin, as `CalibrationAuditor` does.

    Parameters
    ----------
    sums : BinSums
        Of all samples; sums of parts may have been added up.
    group_sums : mapping of str to BinSums, default=None
        Of each group.
    alpha : float, default=0.05
        Tolerated distance between accuracy and confidence of a bin.
    confidence_level : float, default=0.95
        Probability that a model within alpha passes.
    rows : tuple of X and TopLabelPredictions, default=None
        Inputs and predictions of which the sums were made, to search regions too
        (`search_regions`).
    row_weight : ndarray of shape (n_samples,), default=None
        Weights of these predictions, of which the sums were made. Default: 1 each.
    region_alpha : float, default=None
        Tolerated distance between accuracy and confidence of a region. Default: `alpha`.
    weighted : bool, default=False
        Whether sums of fractional weights are accepted, for which tests and limits are
        those of an effective number of predictions (`scan_bins`).

    Returns
    -------
    AuditResult

    Raises
    ------
    ValueError
        If `alpha` or `region_alpha` is not in [0, 1], or `confidence_level` not in (0, 1), or
        the sums are of no predictions, or of weights without `weighted`.

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
        raise ValueError(f"`alpha` must be a share in [0, 1], got {alpha}.")
    if region_alpha is not None and not 0 <= region_alpha <= 1:
        raise ValueError(f"`region_alpha` must be a share in [0, 1], got {region_alpha}.")
    if not 0 < confidence_level < 1:
        raise ValueError(f"`confidence_level` must be in (0, 1), got {confidence_level}.")
    if not sums.count.any():
        raise ValueError("`sums` must be of at least one prediction, got none.")
    groups = {} if group_sums is None else dict(group_sums)
    families = (sums, *groups.values())
    if not weighted and any(part.count.dtype.kind == "f" for part in families):
        raise ValueError(
            "`sums` must count predictions, got sums of weights; an audit compares them with what "
            "chance does to as many samples, which weights do not say. With `weighted=True` the "
            "effective number of samples takes their place."
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
    """Compare accuracy with confidence in each bin, and mark what chance does not explain.

    `n_families` sets of samples are audited together and share the error: all of them, each group.
    """
    # The reference inputs are taken as given and their labels as drawn independently. The number
    # of correct predictions in a bin is then a sum of independent trials whose mean probability is
    # compared with the mean confidence. It varies at most as a binomial number of the same mean
    # (Hoeffding, "On the Distribution of the Number of Successes in Independent Trials", 1956,
    # Theorem 5), so that limits and findings hold although the trials have unequal probabilities.
    # For a single success or failure among nearly certain trials that holds only approximately.
    level = (1 - confidence_level) / n_families
    filled = sums.count > 0
    tail = level / (2 * max(1, int(filled.sum())))
    tested = whole_sums(sums)
    low, high = clopper_pearson(tested.correct, tested.count, tail)
    confidence = sums.mean_confidence
    scan = scan_bins(sums, alpha=alpha, level=level)
    number, direction = np.zeros(len(sums.count), np.int64), np.full(len(sums.count), "", "U14")
    for k, found in enumerate(scan.findings, 1):
        inside = np.arange(found.first, found.last + 1)
        inside = inside[filled[inside]]
        number[inside], direction[inside] = k, found.direction
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
        direction,
        scan.threshold,
        detectable_gap(tested.count, confidence, alpha=alpha, threshold=scan.threshold),
        detectable_shift(tested.count, confidence, alpha=alpha, threshold=scan.threshold),
    )


def _within(sums: BinSums, alpha: float) -> BoolArray:
    """Step 3 of Algorithm 1, exact; alpha counts as the decimal that was written."""
    tolerated = Fraction(str(float(alpha))) * sums.scale
    rows = zip(sums.deviation.tolist(), sums.count.tolist(), strict=True)
    return np.array([abs(deviation) <= tolerated * count for deviation, count in rows])  # Line 21


def ece_under_calibration(sums: BinSums) -> FloatArray:
    """Simulate the ECE that a perfectly calibrated model shows on as many samples, (2000,)."""
    filled = sums.count > 0
    count, confidence = sums.count[filled], sums.mean_confidence[filled].clip(0, 1)
    whole = np.maximum(1, whole_sums(sums).count[filled])
    correct = np.random.default_rng(SEED).binomial(
        whole, confidence, size=(N_SIMULATIONS, len(count))
    )
    # The accuracy of a bin varies as that of its effective number of predictions.
    return (np.abs(correct - whole * confidence) * (count / whole)).sum(axis=1) / count.sum()


def ece_bootstrap(sums: BinSums) -> FloatArray:
    """Draw expected calibration errors of reference sets like this one, (2000,).

    Sizes and accuracies of the bins vary, their mean confidences do not.
    """
    filled = sums.count > 0
    total = int(sums.n_effective)
    confidence, share = sums.mean_confidence[filled], sums.count[filled] / sums.count.sum()
    rng = np.random.default_rng(SEED)
    count = rng.multinomial(total, share / share.sum(), size=N_SIMULATIONS)
    correct = rng.binomial(count, sums.accuracy[filled].clip(0, 1))
    return np.abs(correct - count * confidence).sum(axis=1) / total
