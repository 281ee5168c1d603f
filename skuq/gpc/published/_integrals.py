"""Bounds on class probabilities, given bounds on the moments of the latent functions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logit, ndtr, ndtri

from skuq.base import FloatArray

_LARGE = 1e150  # stands for an infinite mean, so that no difference is undefined
_TINY = 1e-300  # stands for a variance of zero
_QUANTILES = {"probit": ndtri, "logit": logit}


class Partition(NamedTuple):
    """Consecutive intervals of the latent space, with the likelihood at their ends.

    Attributes
    ----------
    edges : ndarray of shape (n_intervals + 1,)
        Increasing, from -inf to inf.
    likelihood : ndarray of shape (n_intervals + 1,)
        Nondecreasing values of the likelihood at the edges.
    """

    edges: FloatArray
    likelihood: FloatArray


def uniform_partition(likelihood: str, n_intervals: int) -> Partition:
    """Partition in which the likelihood rises by the same amount over each interval.

    Parameters
    ----------
    likelihood : {"probit", "logit"}
        Likelihood of the positive class.
    n_intervals : int
        N.

    Returns
    -------
    Partition

    References
    ----------
    Blaas et al., AISTATS 2020, Appendix A.3.

    Examples
    --------
    >>> from skuq.gpc.published._integrals import uniform_partition
    >>> uniform_partition("logit", 2).edges
    array([-inf,   0.,  inf])
    """
    levels = np.linspace(0.0, 1.0, n_intervals + 1)
    return Partition(_QUANTILES[likelihood](levels), levels)


def mass_bounds(
    a: FloatArray,
    b: FloatArray,
    mean: tuple[FloatArray, FloatArray],
    variance: tuple[FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Smallest and largest Gaussian probability of an interval over ranges of the moments.

    Parameters
    ----------
    a, b : ndarray
        Ends of the intervals, ``a < b``; at most one of the two may be infinite.
    mean, variance : tuple of two ndarray
        Lower and upper bounds on the moments; all arguments broadcast.

    Returns
    -------
    minimum, maximum : ndarray
        Over all pairs of a mean and a variance in their ranges; both are attained.

    Notes
    -----
    Outside [a, b], at the distance g from the nearest end, the probability is largest at the
    variance ``w (2 g + w) / (2 log(1 + w / g))`` with ``w = b - a``. That equals the Sigma^m
    of the paper, whose form divides by zero at the ends of the interval.

    References
    ----------
    Blaas et al., AISTATS 2020, Proposition 2.

    Examples
    --------
    >>> from skuq.gpc.published._integrals import mass_bounds
    >>> low, high = mass_bounds(-1.0, 1.0, (0.0, 0.0), (1.0, 4.0))
    >>> low.round(3), high.round(3)
    (np.float64(0.383), np.float64(0.683))
    """
    a, b, low, high, var_low, var_high = np.broadcast_arrays(a, b, *mean, *variance)
    low, high = np.clip(low, -_LARGE, _LARGE), np.clip(high, -_LARGE, _LARGE)
    middle = (a + b) / 2
    nearest = np.clip(middle, low, high)
    most = _mass(a, b, nearest, np.clip(_best_variance(a, b, nearest), var_low, var_high))
    farthest = np.where(middle - low > high - middle, low, high)
    least = np.minimum(_mass(a, b, farthest, var_low), _mass(a, b, farthest, var_high))
    return least, most


def _best_variance(a: FloatArray, b: FloatArray, mean: FloatArray) -> FloatArray:
    """Variance at which [a, b] is most probable: zero for a mean inside."""
    gap = np.maximum(np.maximum(a - mean, mean - b), 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        width = b - a
        best = width * (2 * gap + width) / (2 * np.log1p(width / gap))
    best = np.where(np.isfinite(width), best, np.inf)
    return np.where(gap > 0, best, 0.0)


def _mass(a: FloatArray, b: FloatArray, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Gaussian probability of [a, b], from the lighter tails."""
    scale = np.sqrt(np.maximum(variance, _TINY))
    start, stop = (a - mean) / scale, (b - mean) / scale
    flip = start + stop > 0
    start, stop = np.where(flip, -stop, start), np.where(flip, -start, stop)
    return ndtr(stop) - ndtr(start)


def discretised_bounds(
    partition: Partition, mean: tuple[float, float], variance: tuple[float, float]
) -> tuple[float, float]:
    """Bounds on the expected likelihood over ranges of the latent moments.

    Parameters
    ----------
    partition : Partition
        Of the latent space, for any nondecreasing likelihood with values in [0, 1].
    mean, variance : tuple of two float
        Lower and upper bounds on the moments.

    Returns
    -------
    lower, upper : float
        At exact moments they differ by the mean rise of the likelihood over an interval.

    References
    ----------
    Blaas et al., AISTATS 2020, Proposition 1.

    Examples
    --------
    >>> from skuq.gpc.published._integrals import discretised_bounds, uniform_partition
    >>> low, high = discretised_bounds(uniform_partition("logit", 100), (0.0, 0.0), (1.0, 1.0))
    >>> round(low, 3), round(high, 3)
    (0.495, 0.505)
    """
    edges, values = partition
    if len(edges) == 2:  # the whole line has probability 1
        return float(values[0]), float(values[1])
    least, most = mass_bounds(edges[:-1], edges[1:], _arrays(mean), _arrays(variance))
    return max(0.0, float(values[:-1] @ least)), min(1.0, float(values[1:] @ most))


def _arrays(pair: tuple[float, float]) -> tuple[FloatArray, FloatArray]:
    return np.asarray(pair[0], float), np.asarray(pair[1], float)


def probit_bounds(
    mean: tuple[float, float], variance: tuple[float, float], scale: float = 1.0
) -> tuple[float, float]:
    """Bounds on ``E[Phi(scale f)]`` over ranges of the moments of f, in closed form.

    Parameters
    ----------
    mean, variance : tuple of two float
        Lower and upper bounds on the moments of the latent value f.
    scale : float, default=1.0
        Steepness lambda of the likelihood.

    Returns
    -------
    lower, upper : float
        Both are attained at a pair of moments within their bounds.

    References
    ----------
    Blaas et al., AISTATS 2020, Lemma 3.

    Examples
    --------
    >>> from skuq.gpc.published._integrals import probit_bounds
    >>> low, high = probit_bounds((-1.0, 1.0), (0.0, 3.0))
    >>> round(low, 3), round(high, 3)
    (0.159, 0.841)
    """
    lower_variance = variance[1] if mean[0] >= 0 else variance[0]
    upper_variance = variance[0] if mean[1] >= 0 else variance[1]
    return (
        float(ndtr(mean[0] / np.sqrt(scale**-2 + lower_variance))),
        float(ndtr(mean[1] / np.sqrt(scale**-2 + upper_variance))),
    )
