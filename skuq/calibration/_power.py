"""Power of an audit of a given size, for judging one and for planning one."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta, binom

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration._scan import MAX_LENGTH, run_evidence

PRECISION = 40  # halvings of the interval in which a gap lies
MAX_DOUBLINGS = 20  # of one sample, in the search for the number that a power needs


def detectable_gap(
    count: ArrayLike,
    confidence: ArrayLike,
    *,
    alpha: float,
    threshold: float,
    power: float = 0.8,
) -> FloatArray:
    """Find the smallest underconfidence that an audit would report with given probability.

    Parameters
    ----------
    count, confidence : array-like of shape (n_bins,)
        Number of predictions in each bin and their mean confidence.
    alpha : float
        Tolerated distance between accuracy and confidence.
    threshold : float
        Evidence that a finding needs, in nats: that of `scan_bins`, or `planned_threshold`.
    power : float, default=0.8
        Probability of the finding, in (0, 1).

    Returns
    -------
    ndarray of shape (n_bins,), float64
        Gap between true accuracy and confidence, for a bin by itself; NaN where even an
        accuracy of 1 would not be reported with that probability.

    Examples
    --------
    >>> from skuq.calibration import detectable_gap, planned_threshold
    >>> threshold = planned_threshold()
    >>> detectable_gap([5, 50, 500], [0.5, 0.5, 0.5], alpha=0.05, threshold=threshold).round(2)
    array([ nan, 0.35, 0.15])
    """
    _check_power(power)
    count, confidence = np.broadcast_arrays(np.asarray(count), np.asarray(confidence, float))
    least = _least_significant(count, confidence + alpha, threshold)
    possible = (count > 0) & (least <= count)
    # P(K >= k | p) = power is solved by a quantile of the beta distribution.
    with np.errstate(invalid="ignore"):
        accuracy = beta.ppf(power, least, count - least + 1)
    return np.where(possible, accuracy - confidence, np.nan)


def detectable_shift(
    count: ArrayLike,
    confidence: ArrayLike,
    *,
    alpha: float,
    threshold: float,
    power: float = 0.8,
) -> float:
    """Find the smallest underconfidence that would be reported if all bins shared it.

    Parameters
    ----------
    count, confidence : array-like of shape (n_bins,)
        Number of predictions in each bin and their mean confidence.
    alpha, threshold, power
        As in `detectable_gap`.

    Returns
    -------
    float
        Smallest of the gaps that single runs of neighbouring bins reveal, so that all of them
        together may find a smaller one; NaN where none would be reported. Bins whose confidence
        is so high that they cannot have the gap are taken to be always right.

    Examples
    --------
    >>> from skuq.calibration import planned_threshold
    >>> from skuq.calibration._power import detectable_shift
    >>> round(detectable_shift([50, 500], [0.5, 0.6], alpha=0.05, threshold=planned_threshold()), 2)
    0.14
    """
    _check_power(power)
    size, claimed = _of_runs(np.asarray(count), np.nan_to_num(np.asarray(confidence, float)))
    total = size.sum(axis=1)

    def accuracy(gap: FloatArray | float) -> FloatArray:
        """Mean accuracy of each run."""
        right = np.minimum(claimed + np.reshape(gap, (-1, 1)), 1.0)
        return (size * right).sum(axis=1) / np.maximum(total, 1)

    least = _least_significant(total, accuracy(alpha), threshold)
    with np.errstate(invalid="ignore"):
        needed = beta.ppf(power, least, total - least + 1)  # as in `detectable_gap`
    low, high = np.zeros(len(total)), np.ones(len(total))
    for _ in range(PRECISION):
        middle = (low + high) / 2
        enough = accuracy(middle) >= needed
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return min(high[(total > 0) & (least <= total)].tolist(), default=math.nan)


def _of_runs(count: IntArray, confidence: FloatArray) -> tuple[IntArray, FloatArray]:
    """Counts and confidences of each run, shape (n_runs, longest run); bins it lacks count 0."""
    n_bins, longest = len(count), min(MAX_LENGTH, len(count))
    lengths = np.arange(1, longest + 1)
    first = np.concatenate([np.arange(n_bins - length + 1) for length in lengths])
    inside = lengths <= np.repeat(lengths, n_bins - lengths + 1)[:, None]
    bins = np.minimum(first[:, None] + lengths - 1, n_bins - 1)
    return np.where(inside, count[bins], 0), confidence[bins]


def required_samples(
    gap: ArrayLike,
    confidence: ArrayLike,
    *,
    alpha: float,
    threshold: float,
    power: float = 0.8,
) -> FloatArray:
    """Find how many predictions a bin needs for an underconfidence to be reported.

    Parameters
    ----------
    gap : array-like of shape (n_bins,)
        True accuracy minus confidence, larger than `alpha`.
    confidence : array-like of shape (n_bins,)
        Mean confidence of the bin.
    alpha, threshold, power
        As in `detectable_gap`.

    Returns
    -------
    ndarray of shape (n_bins,), float64
        Number of predictions from which on the power is reached for the first time; infinite
        if `gap` is not larger than `alpha` or a million are not enough. An accuracy above 1
        is taken as 1.

    Examples
    --------
    >>> from skuq.calibration import planned_threshold, required_samples
    >>> threshold = planned_threshold()
    >>> required_samples([0.5, 0.2, 0.04], 0.45, alpha=0.05, threshold=threshold)
    array([ 16., 227.,  inf])
    """
    _check_power(power)
    gap, confidence = np.broadcast_arrays(np.asarray(gap, float), np.asarray(confidence, float))
    needed = [
        _required(min(g, 1 - c), c, alpha, threshold, power)
        for g, c in zip(gap.ravel(), confidence.ravel(), strict=True)
    ]
    return np.array(needed).reshape(gap.shape)


def _check_power(power: float) -> None:
    if not 0 < power < 1:
        raise ValueError(f"`power` must be in (0, 1), got {power}.")


def _least_significant(count: IntArray, edge: FloatArray | float, threshold: float) -> FloatArray:
    """Smallest number of correct ones whose evidence reaches the threshold; inf if none."""
    edge = np.clip(np.nan_to_num(edge, nan=1.0), 0.0, 1.0)
    low, high = np.zeros(count.shape, np.int64), count + 1
    while (low < high).any():  # bisection: evidence never falls with a further correct one
        middle = (low + high) // 2
        enough = run_evidence(middle, count, edge, 1) >= threshold
        low, high = (
            np.where(enough | (low >= high), low, middle + 1),
            np.where(enough, middle, high),
        )
    return np.where(low <= count, low, np.inf)


def _required(gap: float, confidence: float, alpha: float, threshold: float, power: float) -> float:
    if gap <= alpha:
        return np.inf

    def enough(count: IntArray) -> BoolArray:
        least = _least_significant(count, confidence + alpha, threshold)
        return (least <= count) & (binom.sf(least - 1, count, confidence + gap) >= power)

    reached = np.flatnonzero(enough(2 ** np.arange(MAX_DOUBLINGS + 1)))
    if len(reached) == 0:
        return np.inf
    # Power is a saw tooth in the number of samples, so every smaller number is tried.
    candidates = np.arange(1, 2 ** reached[0] + 1)
    return float(candidates[enough(candidates).argmax()])
