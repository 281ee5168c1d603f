"""Findings of an audit per confidence bin, with exact limits.

Line numbers are those of Algorithm 1 of the paper [1] of `audit_bins`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration._power import detectable_gap, detectable_shift
from skuq.calibration._scan import scan_bins
from skuq.calibration._sums import BinSums


class BinAudit(NamedTuple):
    """Findings of an audit, one row per confidence bin: arrays of shape (n_bins,).

    Attributes
    ----------
    lower, upper : ndarray, float64
        Edges of the bins ``[lower, upper)``; the last bin includes its upper edge.
    count : ndarray, int64
        Number of predictions.
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


def audit_bins(
    sums: BinSums, *, alpha: float, confidence_level: float = 0.95, n_families: int = 1
) -> BinAudit:
    """Compare accuracy with confidence in each bin, and mark what chance does not explain.

    Parameters
    ----------
    sums : BinSums
        Integer sums per bin.
    alpha : float
        Tolerated distance between accuracy and confidence, in [0, 1].
    confidence_level : float, default=0.95
        Probability that an audit of a model within alpha finds nothing significant.
    n_families : int, default=1
        Sets of samples that are audited together: all of them, and each group.

    Returns
    -------
    BinAudit

    Notes
    -----
    The reference inputs are taken as given and their labels as drawn independently. The
    number of correct predictions in a bin is then a sum of independent trials whose mean
    probability is compared with the mean confidence. It varies at most as a binomial number
    of the same mean [2]_, so that limits and findings hold although the trials have unequal
    probabilities.

    References
    ----------
    .. [1] Rabanser et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse
       of Model Abstention", ICML 2025, Algorithm 1 and Appendix D.3.5.
    .. [2] Hoeffding, "On the Distribution of the Number of Successes in Independent
       Trials", Annals of Mathematical Statistics 27, 1956, Theorem 5. For a single success
       or failure among nearly certain trials it holds only approximately.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.calibration import BinSums, audit_bins
    >>> sums = BinSums(np.array([0, 5, 10]), np.array([20, 0]), np.array([19, 0]),
    ...                np.array([80, 0]), scale=10)
    >>> audit_bins(sums, alpha=0.05).direction[0]
    np.str_('underconfident')
    """
    level = (1 - confidence_level) / n_families
    filled = sums.count > 0
    tail = level / (2 * max(1, int(filled.sum())))
    low, high = clopper_pearson(sums.correct, sums.count, tail)
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
        detectable_gap(sums.count, confidence, alpha=alpha, threshold=scan.threshold),
        detectable_shift(sums.count, confidence, alpha=alpha, threshold=scan.threshold),
    )


def clopper_pearson(
    successes: ArrayLike, trials: ArrayLike, tail: float
) -> tuple[FloatArray, FloatArray]:
    """Exact limits for a probability, each missed with probability at most `tail`.

    Parameters
    ----------
    successes, trials : array-like of int
        Counts; without trials the limits are 0 and 1.
    tail : float
        Error of each limit, in (0, 0.5).

    Returns
    -------
    low, high : ndarray
        Limits in [0, 1].

    Examples
    --------
    >>> from skuq.calibration import clopper_pearson
    >>> low, high = clopper_pearson(10, 10, 0.025)
    >>> low.round(3), high
    (np.float64(0.692), array(1.))
    """
    successes, trials = np.asarray(successes), np.asarray(trials)
    with np.errstate(invalid="ignore"):
        low = beta.ppf(tail, successes, trials - successes + 1)
        high = beta.isf(tail, successes + 1, trials - successes)
    return np.where(successes > 0, low, 0.0), np.where(successes < trials, high, 1.0)


def _within(sums: BinSums, alpha: float) -> BoolArray:
    """Step 3 of Algorithm 1, exact: alpha counts as the decimal that was written."""
    tolerated = Fraction(str(float(alpha))) * sums.scale
    rows = zip(sums.deviation.tolist(), sums.count.tolist(), strict=True)
    return np.array([abs(deviation) <= tolerated * count for deviation, count in rows])  # Line 21
