"""Scores of predictions in regression: intervals and quantiles."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from skuq.quantities import check_coverage, values_and_limits, values_and_quantiles
from skuq.validation import weighted_mean


def interval_score(
    y_true: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    coverage: float = 0.9,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean width of intervals, plus a penalty for each value outside its interval.

    The penalty is the distance to the interval times ``2 / (1 - coverage)``. The score is proper:
    its expectation is smallest for the interval between the quantiles at ``(1 - coverage) / 2`` and
    ``(1 + coverage) / 2``. It is also called the Winkler score.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True values.
    lower, upper : array-like of shape (n_samples,)
        Limits of the intervals, in units of the target.
    coverage : float, default=0.9
        Nominal coverage of the intervals, in (0, 1).
    sample_weight : array-like of shape (n_samples,), optional
        Weights >= 0; a sample of weight 2 counts twice. Default: 1 each.

    Returns
    -------
    float
        In units of the target, >= 0; smaller is better. The score is infinite if a limit is
        infinite.

    Raises
    ------
    ValueError
        If the inputs do not match each other; if a value is missing; if `y_true` is infinite; if a
        lower limit exceeds its upper limit; or if `coverage` is not in (0, 1).

    References
    ----------
    .. [1] Gneiting, Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", Journal
       of the American Statistical Association 102, 2007 (Eq. 43).

    Examples
    --------
    >>> from skuq.metrics import interval_score
    >>> round(interval_score([1.0, 2.0, 5.0], [0.0, 1.0, 3.0], [2.0, 3.0, 4.5], coverage=0.8), 6)
    3.5
    """
    check_coverage(coverage)
    truth, low, high = values_and_limits(y_true, lower, upper)
    outside = np.maximum(low - truth, 0.0) + np.maximum(truth - high, 0.0)
    return weighted_mean(high - low + 2 / (1 - coverage) * outside, sample_weight)  # Eq. 43


def interval_coverage(
    y_true: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Share of the true values that lie in their intervals, including the limits.

    Parameters
    ----------
    y_true, lower, upper, sample_weight
        As in `interval_score`.

    Returns
    -------
    float
        In [0, 1]; the best value is the nominal coverage of the intervals.

    Raises
    ------
    ValueError
        As in `interval_score`.

    Examples
    --------
    >>> from skuq.metrics import interval_coverage
    >>> interval_coverage([1.0, 2.0, 5.0, 3.0], [0.0, 1.0, 3.0, 3.0], [2.0, 3.0, 4.5, 4.0])
    0.75
    """
    truth, low, high = values_and_limits(y_true, lower, upper)
    return weighted_mean(((low <= truth) & (truth <= high)).astype(np.float64), sample_weight)


def pinball_loss(
    y_true: ArrayLike,
    y_quantiles: ArrayLike,
    levels: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean loss of predicted quantiles, over samples and levels.

    The expectation of the loss is smallest for the true quantiles. For one level, it equals
    `sklearn.metrics.mean_pinball_loss`. Twice the loss at the levels 0.05, 0.15, ..., 0.95, or at
    a finer grid of this kind, approximates the continuous ranked probability score.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True values.
    y_quantiles : array-like of shape (n_samples, n_levels)
        Predicted quantiles, one column for each level, in units of the target.
    levels : array-like of shape (n_levels,)
        Levels of the quantiles, in (0, 1).
    sample_weight : array-like of shape (n_samples,), optional
        Weights >= 0; a sample of weight 2 counts twice. Default: 1 each.

    Returns
    -------
    float
        In units of the target, >= 0; smaller is better.

    Raises
    ------
    ValueError
        If the inputs do not match each other or are not finite, or a level is not in (0, 1).

    References
    ----------
    .. [1] Koenker, Bassett, "Regression Quantiles", Econometrica 46(1), 1978.

    Examples
    --------
    >>> from skuq.metrics import pinball_loss
    >>> round(pinball_loss([1.0, 2.0], [[0.0, 1.5], [1.0, 4.0]], levels=[0.1, 0.9]), 6)
    0.1125
    """
    truth, quantiles, asked = values_and_quantiles(y_true, y_quantiles, levels)
    above = truth[:, None] - quantiles  # (n_samples, n_levels)
    return weighted_mean(np.maximum(asked * above, (asked - 1) * above).mean(axis=1), sample_weight)
