"""Bounds on expected likelihoods of one latent function over ranges of its moments, as published.

Numbers of propositions and lemmas refer to Blaas et al., "Adversarial Robustness Guarantees for
Classification with Gaussian Processes", AISTATS 2020.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logit, ndtr, ndtri

from skuq.base import FloatArray

LARGE = 1e150  # replaces infinite means, to avoid differences of infinities
_TINY = 1e-300  # replaces a variance of zero
_QUANTILES = {"probit": ndtri, "logit": logit}


class Partition(NamedTuple):
    """Consecutive intervals of the latent space, with the likelihood at their endpoints."""

    edges: FloatArray  # (n_intervals + 1,), increasing, from -inf to inf
    likelihood: FloatArray  # (n_intervals + 1,), likelihood at the edges, nondecreasing


def uniform_partition(likelihood: str, n_intervals: int) -> Partition:
    """Partition in which the likelihood increases by the same amount over each interval."""
    # Appendix A.3
    levels = np.linspace(0.0, 1.0, n_intervals + 1)
    return Partition(_QUANTILES[likelihood](levels), levels)


def mass_bounds(
    a: ArrayLike,
    b: ArrayLike,
    mean: tuple[ArrayLike, ArrayLike],
    variance: tuple[ArrayLike, ArrayLike],
) -> tuple[FloatArray, FloatArray]:
    """Smallest and largest Gaussian probability of an interval over ranges of the moments."""
    # Proposition 2. For a mean at distance g outside [a, b], the probability is largest at the
    # variance ``w (2 g + w) / (2 log(1 + w / g))`` with ``w = b - a``. This expression equals
    # Sigma^m of the paper, but does not divide by zero if the mean is an endpoint of the interval.
    a, b, low, high, var_low, var_high = np.broadcast_arrays(a, b, *mean, *variance)
    low, high = np.clip(low, -LARGE, LARGE), np.clip(high, -LARGE, LARGE)
    middle = (a + b) / 2
    nearest = np.clip(middle, low, high)
    most = _mass(a, b, nearest, np.clip(_best_variance(a, b, nearest), var_low, var_high))
    farthest = np.where(middle - low > high - middle, low, high)
    least = np.minimum(_mass(a, b, farthest, var_low), _mass(a, b, farthest, var_high))
    return least, most


def _best_variance(a: FloatArray, b: FloatArray, mean: FloatArray) -> FloatArray:
    """Variance that maximises the probability of [a, b]; zero if the mean lies inside."""
    gap = np.maximum(np.maximum(a - mean, mean - b), 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        width = b - a
        best = width * (2 * gap + width) / (2 * np.log1p(width / gap))
    best = np.where(np.isfinite(width), best, np.inf)
    return np.where((gap > 0) & (width > 0), best, 0.0)


def _mass(a: FloatArray, b: FloatArray, mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Gaussian probability of [a, b], computed from the smaller tails for accuracy."""
    scale = np.sqrt(np.maximum(variance, _TINY))
    start, stop = (a - mean) / scale, (b - mean) / scale
    flip = start + stop > 0
    start, stop = np.where(flip, -stop, start), np.where(flip, -start, stop)
    return ndtr(stop) - ndtr(start)


def discretised_bounds(
    partition: Partition, mean: tuple[float, float], variance: tuple[float, float]
) -> tuple[float, float]:
    """Bounds on the expected likelihood over ranges of the latent moments."""
    # Proposition 1
    edges, values = partition
    if len(edges) == 2:  # the whole line has probability 1
        return float(values[0]), float(values[1])
    least, most = mass_bounds(edges[:-1], edges[1:], mean, variance)
    return max(0.0, float(values[:-1] @ least)), min(1.0, float(values[1:] @ most))


def probit_bounds(
    mean: tuple[float, float], variance: tuple[float, float], scale: float = 1.0
) -> tuple[float, float]:
    """Bounds on ``E[Phi(scale f)]`` over ranges of the moments of f, in closed form."""
    # Lemma 3
    lower_variance = variance[1] if mean[0] >= 0 else variance[0]
    upper_variance = variance[0] if mean[1] >= 0 else variance[1]
    return (
        float(ndtr(mean[0] / np.sqrt(scale**-2 + lower_variance))),
        float(ndtr(mean[1] / np.sqrt(scale**-2 + upper_variance))),
    )
