"""Proper scores of predictions in regression: intervals, quantiles and distributions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from skuq.quantities import (
    check_coverage,
    interval_limits,
    values_and_gaussian,
    values_and_limits,
    values_and_quantiles,
)
from skuq.sample_weights import weighted_mean
from skuq.validation import check_same_length, finite, finite_columns


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


def mean_interval_width(
    lower: ArrayLike, upper: ArrayLike, *, sample_weight: ArrayLike | None = None
) -> float:
    """Mean width of intervals; comparable only between intervals of equal coverage.

    Parameters
    ----------
    lower, upper, sample_weight
        As in `interval_score`.

    Returns
    -------
    float
        In units of the target, >= 0; infinite if a limit is infinite.

    Raises
    ------
    ValueError
        As in `interval_score`.

    Examples
    --------
    >>> from skuq.metrics import mean_interval_width
    >>> mean_interval_width([0.0, 1.0, 3.0], [2.0, 3.0, 4.0])
    1.6666666666666667
    """
    low, high = interval_limits(lower, upper)
    return weighted_mean(high - low, sample_weight)


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


def crps_gaussian(
    y_true: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean continuous ranked probability score (CRPS) of Gaussian predictions.

    The CRPS is the integrated squared difference between the predicted distribution function and
    the step function at the true value. It is proper, and penalises outliers less than the
    negative log-likelihood does.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True values.
    mean, std : array-like of shape (n_samples,)
        Mean and standard deviation (including the noise) of each prediction, in units of the
        target; ``std > 0``.
    sample_weight : array-like of shape (n_samples,), optional
        Weights >= 0; a sample of weight 2 counts twice. Default: 1 each.

    Returns
    -------
    float
        In units of the target, > 0; smaller is better.

    Raises
    ------
    ValueError
        If the inputs do not match each other or are not finite, or a standard deviation is not
        positive.

    References
    ----------
    .. [1] Gneiting, Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", Journal
       of the American Statistical Association 102, 2007 (Section 4.2).

    Examples
    --------
    >>> from skuq.metrics import crps_gaussian
    >>> round(crps_gaussian([0.0, 3.0], mean=[0.0, 1.0], std=[1.0, 1.0]), 4)
    0.8432
    """
    truth, centre, scale = values_and_gaussian(y_true, mean, std)
    z = (truth - centre) / scale
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    score = scale * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return weighted_mean(score, sample_weight)


def crps_ensemble(
    y_true: ArrayLike,
    samples: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean continuous ranked probability score (CRPS) of samples of the predicted distribution.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True values.
    samples : array-like of shape (n_samples, n_draws)
        Samples of each prediction in any order, in units of the target, such as predictions of
        ensemble members plus noise. The empirical distribution of each row is scored: with one
        column the score is the mean absolute error.
    sample_weight : array-like of shape (n_samples,), optional
        Weights >= 0; a sample of weight 2 counts twice. Default: 1 each.

    Returns
    -------
    float
        In units of the target, >= 0; smaller is better.

    Raises
    ------
    ValueError
        If the inputs do not match each other or are not finite.

    References
    ----------
    .. [1] Gneiting, Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", Journal
       of the American Statistical Association 102, 2007 (Eq. 21).

    Examples
    --------
    >>> from skuq.metrics import crps_ensemble
    >>> crps_ensemble([0.0, 2.0], [[-1.0, 1.0], [2.0, 2.0]])
    0.25
    """
    truth, drawn = finite(y_true, "y_true"), finite_columns(samples, "samples")
    check_same_length(y_true=truth, samples=drawn)
    error = np.sort(drawn - truth[:, None], axis=1)
    # Eq. 21: E|X - y| - E|X - X'| / 2. Among the m sorted values, the value with rank k (from 0) is
    # the larger of two values in k pairs, and the smaller in the remaining m - 1 - k pairs.
    m = error.shape[1]
    half_spread = error @ (2 * np.arange(m) - m + 1) / m**2
    return weighted_mean(np.abs(error).mean(axis=1) - half_spread, sample_weight)


def gaussian_negative_log_likelihood(
    y_true: ArrayLike,
    mean: ArrayLike,
    std: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean negative logarithm of the Gaussian density at the true values.

    Parameters
    ----------
    y_true, mean, std, sample_weight
        As in `crps_gaussian`.

    Returns
    -------
    float
        In nats, may be negative; smaller is better. Values are comparable only for the same unit of
        the target, since a change of unit shifts them by the logarithm of the factor.

    Raises
    ------
    ValueError
        As in `crps_gaussian`.

    Examples
    --------
    >>> from skuq.metrics import gaussian_negative_log_likelihood
    >>> round(gaussian_negative_log_likelihood([0.0, 3.0], mean=[0.0, 1.0], std=[1.0, 1.0]), 4)
    1.9189
    """
    truth, centre, scale = values_and_gaussian(y_true, mean, std)
    z = (truth - centre) / scale
    return weighted_mean(np.log(scale) + (z**2 + np.log(2 * np.pi)) / 2, sample_weight)
