"""Power of an audit of a given size, for judging one and for planning one."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta, binom

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration._scan import MAX_LENGTH, run_evidence

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
        together may find a smaller one; NaN where none would be reported.

    Examples
    --------
    >>> from skuq.calibration import planned_threshold
    >>> from skuq.calibration._power import detectable_shift
    >>> round(detectable_shift([50, 500], [0.5, 0.6], alpha=0.05, threshold=planned_threshold()), 2)
    0.14
    """
    counts, confidences = np.asarray(count), np.nan_to_num(np.asarray(confidence, float))
    total = np.cumsum([0, *counts])
    claimed = np.cumsum([0.0, *(counts * confidences)])
    gaps = [
        detectable_gap(
            (size := total[length:] - total[:-length]),
            (claimed[length:] - claimed[:-length]) / np.maximum(size, 1),
            alpha=alpha,
            threshold=threshold,
            power=power,
        )
        for length in range(1, min(MAX_LENGTH, len(counts)) + 1)
    ]
    return min((gap for gap in np.concatenate(gaps).tolist() if gap == gap), default=math.nan)


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
