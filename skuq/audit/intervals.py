"""Exact statements about calibration from few samples: intervals, tests, and their power."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta, binom

from skuq.audit.sums import BinSums
from skuq.base import FloatArray
from skuq.metrics._validation import BoolArray, IntArray

N_SIMULATIONS = 2000
MAX_DOUBLINGS = 20  # of one sample, in the search for the number that a power needs


class BinAudit(NamedTuple):
    """Findings of an audit, one row per confidence bin; all arrays of shape (n_bins,).

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
        Probability of a gap at least this far beyond alpha if the true one is not beyond it,
        two-sided, times the number of bins tested. 1 in an empty bin.
    significant : ndarray, bool
        Whether the limits of the gap lie beyond alpha, which chance does not explain.
    direction : ndarray of str
        "underconfident" or "overconfident" where significant, else "".
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
    significant: BoolArray
    direction: np.ndarray


def audit_bins(
    sums: BinSums, *, alpha: float, confidence_level: float = 0.95, n_tests: int | None = None
) -> BinAudit:
    """Compare accuracy with confidence in each bin, and say what chance cannot explain.

    Parameters
    ----------
    sums : BinSums
        Integer sums per bin.
    alpha : float
        Tolerated distance between accuracy and confidence, in [0, 1].
    confidence_level : float, default=0.95
        Probability that an audit of a model within alpha finds nothing significant.
    n_tests : int, optional
        Number of bins that are tested in the whole audit. Default: those of `sums` that are
        not empty.

    Returns
    -------
    BinAudit

    Notes
    -----
    The reference inputs are taken as given and their labels as drawn independently. The
    number of correct predictions in a bin is then a sum of independent trials whose mean
    probability is compared with the mean confidence. Its tail is bounded by that of a
    binomial distribution with the same mean [2]_, so that the Clopper-Pearson limits hold
    although the trials have unequal probabilities.

    References
    ----------
    .. [1] Rabanser et al., "Confidential Guardian: Cryptographically Prohibiting the Abuse
       of Model Abstention", ICML 2025, Algorithm 1 and Appendix D.3.5.
    .. [2] Hoeffding, "On the Distribution of the Number of Successes in Independent
       Trials", Annals of Mathematical Statistics 27, 1956, Theorem 5.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.audit import BinSums, audit_bins
    >>> sums = BinSums(np.array([0, 5, 10]), np.array([20, 0]), np.array([19, 0]),
    ...                np.array([80, 0]), scale=10)
    >>> audit_bins(sums, alpha=0.05).direction[0]
    np.str_('underconfident')
    """
    tests = max(1, int((sums.count > 0).sum()) if n_tests is None else n_tests)
    tail = (1 - confidence_level) / (2 * tests)
    low, high = clopper_pearson(sums.correct, sums.count, tail)
    confidence, accuracy = sums.mean_confidence, sums.accuracy
    under, over = _tails(sums.correct, sums.count, confidence, alpha)
    p_value = np.minimum(1.0, 2 * tests * np.minimum(under, over))
    significant = p_value < 1 - confidence_level
    direction = np.where(under < over, "underconfident", "overconfident")
    return BinAudit(
        sums.edges[:-1] / sums.scale,
        sums.edges[1:] / sums.scale,
        sums.count,
        confidence,
        accuracy,
        accuracy - confidence,
        low - confidence,
        high - confidence,
        _within(sums, alpha),
        p_value,
        significant,
        np.where(significant, direction, ""),
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
    >>> from skuq.audit import clopper_pearson
    >>> low, high = clopper_pearson(10, 10, 0.025)
    >>> low.round(3), high
    (np.float64(0.692), array(1.))
    """
    successes, trials = np.asarray(successes), np.asarray(trials)
    with np.errstate(invalid="ignore"):
        low = beta.ppf(tail, successes, trials - successes + 1)
        high = beta.isf(tail, successes + 1, trials - successes)
    return np.where(successes > 0, low, 0.0), np.where(successes < trials, high, 1.0)


def detectable_gap(
    count: ArrayLike,
    confidence: ArrayLike,
    *,
    alpha: float,
    n_tests: int,
    confidence_level: float = 0.95,
    power: float = 0.8,
) -> FloatArray:
    """Find the smallest underconfidence that an audit would report with given probability.

    Parameters
    ----------
    count, confidence : array-like of shape (n_bins,)
        Number of predictions in each bin and their mean confidence.
    alpha, n_tests, confidence_level
        As in `audit_bins`.
    power : float, default=0.8
        Probability of the finding.

    Returns
    -------
    ndarray of shape (n_bins,), float64
        Gap between true accuracy and confidence; NaN where even an accuracy of 1 would not
        be reported with that probability.

    Examples
    --------
    >>> from skuq.audit import detectable_gap
    >>> detectable_gap([5, 50, 500], [0.5, 0.5, 0.5], alpha=0.05, n_tests=10).round(2)
    array([ nan, 0.3 , 0.13])
    """
    count, confidence = np.broadcast_arrays(np.asarray(count), np.asarray(confidence, float))
    tail = (1 - confidence_level) / (2 * n_tests)
    least = _least_significant(count, confidence + alpha, tail)
    possible = (count > 0) & (least <= count)
    # P(K >= k | p) = power is solved by a quantile of the beta distribution.
    with np.errstate(invalid="ignore"):
        accuracy = beta.ppf(power, least, count - least + 1)
    return np.where(possible, accuracy - confidence, np.nan)


def required_samples(
    gap: ArrayLike,
    confidence: ArrayLike,
    *,
    alpha: float,
    n_tests: int,
    confidence_level: float = 0.95,
    power: float = 0.8,
) -> FloatArray:
    """Find how many predictions a bin needs for an underconfidence to be reported.

    Parameters
    ----------
    gap : array-like of shape (n_bins,)
        True accuracy minus confidence, larger than `alpha`.
    confidence : array-like of shape (n_bins,)
        Mean confidence of the bin.
    alpha, n_tests, confidence_level
        As in `audit_bins`.
    power : float, default=0.8
        Probability of the finding.

    Returns
    -------
    ndarray of shape (n_bins,), float64
        Number of predictions from which on the power is reached for the first time; infinite
        if `gap` is not larger than `alpha` or a million are not enough. An accuracy above 1
        is taken as 1.

    Examples
    --------
    >>> from skuq.audit import required_samples
    >>> required_samples([0.5, 0.2, 0.04], 0.45, alpha=0.05, n_tests=10)
    array([ 13., 147.,  inf])
    """
    gap, confidence = np.broadcast_arrays(np.asarray(gap, float), np.asarray(confidence, float))
    tail = (1 - confidence_level) / (2 * n_tests)
    needed = [
        _required(min(g, 1 - c), c, alpha, tail, power)
        for g, c in zip(gap.ravel(), confidence.ravel(), strict=True)
    ]
    return np.array(needed).reshape(gap.shape)


def ece_under_calibration(sums: BinSums, random_state: np.random.RandomState) -> FloatArray:
    """Simulate the ECE that a perfectly calibrated model shows on as many samples.

    Parameters
    ----------
    sums : BinSums
        Integer sums per bin.
    random_state : numpy.random.RandomState
        Source of randomness.

    Returns
    -------
    ndarray of shape (2000,), float64
        Simulated expected calibration errors.
    """
    filled = sums.count > 0
    count, confidence = sums.count[filled], sums.mean_confidence[filled].clip(0, 1)
    correct = random_state.binomial(count, confidence, size=(N_SIMULATIONS, len(count)))
    return np.abs(correct - count * confidence).sum(axis=1) / count.sum()


def ece_bootstrap(sums: BinSums, random_state: np.random.RandomState) -> FloatArray:
    """Draw expected calibration errors of reference sets like this one.

    Parameters
    ----------
    sums : BinSums
        Integer sums per bin.
    random_state : numpy.random.RandomState
        Source of randomness.

    Returns
    -------
    ndarray of shape (2000,), float64
        Calibration errors of bootstrap samples. Sizes and accuracies of the bins vary, their
        mean confidences do not.
    """
    filled = sums.count > 0
    total, confidence = sums.count.sum(), sums.mean_confidence[filled]
    share = sums.count[filled] / total
    count = random_state.multinomial(total, share / share.sum(), size=N_SIMULATIONS)
    correct = random_state.binomial(count, sums.accuracy[filled])
    return np.abs(correct - count * confidence).sum(axis=1) / total


def _within(sums: BinSums, alpha: float) -> BoolArray:
    """Step 3 of Algorithm 1, exact: alpha is the decimal that was written."""
    tolerated = Fraction(str(float(alpha))) * sums.scale
    rows = zip(sums.deviation.tolist(), sums.count.tolist(), strict=True)
    return np.array([abs(deviation) <= tolerated * count for deviation, count in rows])


def _tails(
    correct: IntArray, count: IntArray, confidence: FloatArray, alpha: float
) -> tuple[FloatArray, FloatArray]:
    """Probability of at least, and of at most, as many correct ones, at the edge of alpha."""
    filled = count > 0
    high = np.where(filled, confidence + alpha, 1.0)
    low = np.where(filled, confidence - alpha, 0.0)
    under = np.where(high < 1, binom.sf(correct - 1, count, high.clip(0, 1)), 1.0)
    over = np.where(low > 0, binom.cdf(correct, count, low.clip(0, 1)), 1.0)
    return under, over


def _least_significant(count: IntArray, edge: FloatArray | float, tail: float) -> FloatArray:
    """Smallest number of correct ones that is significantly more than the edge allows."""
    least = binom.isf(tail, count, np.clip(edge, 0, 1)) + 1
    return np.where(np.less(edge, 1), least, np.inf)


def _required(gap: float, confidence: float, alpha: float, tail: float, power: float) -> float:
    if gap <= alpha:
        return np.inf

    def enough(count: IntArray) -> BoolArray:
        least = _least_significant(count, confidence + alpha, tail)
        return (least <= count) & (binom.sf(least - 1, count, confidence + gap) >= power)

    reached = np.flatnonzero(enough(2 ** np.arange(MAX_DOUBLINGS + 1)))
    if len(reached) == 0:
        return np.inf
    # Power is a saw tooth in the number of samples, so every smaller number is tried.
    candidates = np.arange(1, 2 ** reached[0] + 1)
    return float(candidates[enough(candidates).argmax()])
