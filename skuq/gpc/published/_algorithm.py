"""Branch and bound for one input of a binary Gaussian-process classifier, as published.

The fast bounds of this package are tested against it. It bounds one box at a time and solves
hundreds of linear programmes for each. Lines are those of Algorithm 1 of Blaas et al.,
"Adversarial Robustness Guarantees for Classification with Gaussian Processes", AISTATS 2020.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, logit, ndtr, ndtri

from skuq.base import FloatArray
from skuq.gpc._certificates import ProbabilityBounds
from skuq.gpc.bounds._probability_model import Limits, ProbabilityModel
from skuq.gpc.bounds._regions import Region
from skuq.gpc.bounds._stationary import StationaryKernel, from_sklearn
from skuq.gpc.inference._likelihoods import tilted_moments
from skuq.gpc.inference._posterior import Posterior
from skuq.gpc.published._moments import Spectrum, mean_bounds, relax, spectrum, variance_bounds

_MOST_INTERVALS = 100_000
_CERTAIN = 1e-16  # latent variance below which it is taken as zero
_LARGE = 1e150  # stands for an infinite mean, so that no difference is undefined
_TINY = 1e-300  # stands for a variance of zero
_QUANTILES = {"probit": ndtri, "logit": logit}


def published_bounds(
    model: ProbabilityModel,
    regions: Region,
    classes: NDArray[np.intp],
    limits: Limits,
    progress: Callable[[int], object] | None = None,
) -> ProbabilityBounds:
    """Bound class probabilities by linear programmes, one point after the other."""
    # classes (k,); the time of `limits` is that of all points together.
    if model.likelihood == "softmax" or regions.radius is not None:
        raise ValueError("bounds='published' is for two classes and for boxes; use bounds='fast'.")
    deadline, found = time.monotonic() + limits.max_time, []
    for row, (lower, upper) in enumerate(
        zip(regions.lower.numpy(), regions.upper.numpy(), strict=True)
    ):
        left = max(deadline - time.monotonic(), 0.0) / (len(regions) - row)
        share = limits._replace(max_time=left)._asdict()
        found.append(
            branch_and_bound(model.posterior, lower, upper, likelihood=model.likelihood, **share)
        )
        if progress is not None:
            progress(1)
    least, most = _column(found, "min"), _column(found, "max")
    argmin = np.array([one.argmin for one in found])
    argmax = np.array([one.argmax for one in found])
    # The smallest probability of the first class belongs to the largest of the second.
    smallest = np.stack([1 - most[:, ::-1], least], axis=1)[:, classes]
    largest = np.stack([1 - least[:, ::-1], most], axis=1)[:, classes]
    return ProbabilityBounds(
        smallest[..., 0],
        smallest[..., 1],
        largest[..., 0],
        largest[..., 1],
        np.stack([argmax, argmin], axis=1)[:, classes],
        np.stack([argmin, argmax], axis=1)[:, classes],
        np.array([one.n_regions for one in found]),
        np.array([one.converged for one in found]),
    )


def _column(found: list[BoxBounds], end: str) -> FloatArray:
    """Lower and upper bound of one extreme of all points, shape (n, 2)."""
    return np.array(
        [[getattr(one, f"{end}_{side}") for side in ("lower", "upper")] for one in found]
    )


class BoxBounds(NamedTuple):
    """Bounds on the extremes of the probability of the positive class over a box."""

    min_lower: float  # the minimum lies between them; the upper bound is attained at `argmin`
    min_upper: float
    max_lower: float  # the maximum lies between them; the lower bound is attained at `argmax`
    max_upper: float
    argmin: FloatArray  # (n_features,), inputs of the smallest and largest probability seen
    argmax: FloatArray  # (n_features,)
    n_regions: int  # boxes that were bounded
    converged: bool  # whether both pairs of bounds are at most the tolerance apart


@dataclass(frozen=True)
class _Model:
    """Posterior in the form in which boxes are bounded."""

    posterior: Posterior
    kernel: StationaryKernel
    form: Spectrum
    partition: Partition | None  # the probit likelihood needs none

    def probability(self, X: FloatArray) -> FloatArray:
        """Probability of the positive class at each input, shape (n,)."""
        mean, covariance = self.posterior.moments(X)
        mean, variance = mean[:, 0], covariance[:, 0, 0]
        if self.partition is None:
            return ndtr(mean / np.sqrt(1 + variance))
        one = np.ones(len(mean))
        tilted = tilted_moments("logit", one, mean, np.maximum(variance, _CERTAIN), one)
        return np.where(variance > _CERTAIN, np.exp(tilted.log_mean), expit(mean))


@dataclass(frozen=True)
class _Region:
    """A box with bounds on the probability over it and the extremes of the inputs tried."""

    lower: FloatArray
    upper: FloatArray
    bounds: tuple[float, float]
    points: FloatArray
    values: FloatArray


class _Found(NamedTuple):
    """Result of a search for a minimum."""

    lower: float
    upper: float
    at: FloatArray
    n_regions: int


def branch_and_bound(
    posterior: Posterior,
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    likelihood: str = "probit",
    tol: float = 0.01,
    max_regions: int = 1000,
    max_time: float = math.inf,
    n_intervals: int | None = None,
) -> BoxBounds:
    """Bound the smallest and largest probability of the positive class over a box."""
    # lower, upper (n_features,)
    # Computed in double precision without directed rounding.
    # Blaas et al., "Adversarial Robustness Guarantees for Classification with Gaussian Processes",
    # AISTATS 2020, Algorithm 1.
    start = time.monotonic()
    if tol <= 0:
        raise ValueError(f"tol must be positive, got {tol}.")
    if n_intervals is None:
        n_intervals = math.ceil(min(2 / tol, _MOST_INTERVALS))
    model = _prepare(posterior, likelihood, n_intervals)
    root = _bound(model, np.asarray(lower, float), np.asarray(upper, float))
    low = _search(model, root, 1, tol, max_regions, start + max_time / 2)
    high = _search(model, root, -1, tol, max_regions, start + max_time)
    return BoxBounds(
        low.lower,
        low.upper,
        -high.upper,
        -high.lower,
        low.at,
        high.at,
        low.n_regions + high.n_regions - 1,  # the root is bounded once
        low.upper - low.lower <= tol and high.upper - high.lower <= tol,
    )


def _prepare(posterior: Posterior, likelihood: str, n_intervals: int) -> _Model:
    if len(posterior.weights) != 1:
        raise ValueError(
            "The published algorithm is for one latent function, and this model has "
            f"{len(posterior.weights)}; use bounds='fast'."
        )
    if likelihood not in ("probit", "logit"):
        raise ValueError(f"likelihood must be 'probit' or 'logit', got {likelihood!r}.")
    return _Model(
        posterior,
        from_sklearn(posterior.kernel, posterior.inputs.shape[1]),
        spectrum(posterior.reduction()[0]),
        None if likelihood == "probit" else uniform_partition(likelihood, n_intervals),
    )


def _bound(model: _Model, lower: FloatArray, upper: FloatArray) -> _Region:
    """Lines 5 to 9 of Algorithm 1, for the minimum and the maximum at once."""
    box = relax(model.kernel, model.posterior.inputs, lower, upper)
    mean = mean_bounds(box, model.posterior.weights[0])  # Lines 5 and 6
    variance = variance_bounds(box, model.form, model.kernel.variance)
    moments = (mean.lower, mean.upper), (variance.lower, variance.upper)
    if model.partition is None:  # Lines 7 and 8
        bounds = probit_bounds(*moments)
    else:
        bounds = discretised_bounds(model.partition, *moments)
    points = np.stack([box.centre, *mean[2:], *variance[2:]])  # Line 9
    return _Region(lower, upper, bounds, points, model.probability(points))


def _search(
    model: _Model, root: _Region, sign: int, tol: float, max_regions: int, deadline: float
) -> _Found:
    """Algorithm 1 for the minimum of ``sign`` times the probability."""
    # The global lower bound is the smallest over all boxes, those still to be explored, with their
    # parents' bounds, and those that were not split because their own bounds agree.
    order = itertools.count()  # decides between equal bounds
    waiting: list[tuple[float, int, FloatArray, FloatArray]] = []
    settled, incumbent, at = math.inf, math.inf, root.points[0]
    region, inherited, n_regions = root, -math.inf, 1
    while True:
        lower = max(inherited, min(sign * bound for bound in region.bounds))
        values = sign * region.values
        if values.min() < incumbent:
            incumbent, at = float(values.min()), region.points[values.argmin()]
        halves = _split(model.kernel, region) if values.min() - lower > tol else []  # Line 10
        for half in halves:  # Lines 11 to 13
            heapq.heappush(waiting, (lower, next(order), *half))
        settled = settled if halves else min(settled, lower)
        found = min(settled, waiting[0][0] if waiting else math.inf)  # Lines 14 and 15
        finished = incumbent - found <= tol or not waiting
        if finished or n_regions >= max_regions or time.monotonic() >= deadline:
            return _Found(min(found, incumbent), incumbent, at, n_regions)
        # Lines 3 and 4
        inherited, _, *corners = heapq.heappop(waiting)
        region, n_regions = _bound(model, *corners), n_regions + 1


def _split(kernel: StationaryKernel, region: _Region) -> list[tuple[FloatArray, FloatArray]]:
    """Halve a box across its longest side, in length-scales; [] if it cannot be halved."""
    width = region.upper - region.lower
    precisions = np.concatenate([term.precisions.numpy() for term in kernel.terms])
    scaled = np.where(width > 0, width * np.sqrt(precisions.max(0, initial=0.0)), -1.0)
    side = scaled.argmax()
    middle = (region.lower[side] + region.upper[side]) / 2
    if not region.lower[side] < middle < region.upper[side]:
        return []
    upper, lower = region.upper.copy(), region.lower.copy()
    upper[side] = lower[side] = middle
    return [(region.lower, upper), (lower, region.upper)]


class Partition(NamedTuple):
    """Consecutive intervals of the latent space, with the likelihood at their ends."""

    edges: FloatArray  # (n_intervals + 1,), increasing, from -inf to inf
    # (n_intervals + 1,), nondecreasing values of the likelihood at the edges
    likelihood: FloatArray


def uniform_partition(likelihood: str, n_intervals: int) -> Partition:
    """Partition in which the likelihood rises by the same amount over each interval."""
    # Blaas et al., AISTATS 2020, Appendix A.3.
    levels = np.linspace(0.0, 1.0, n_intervals + 1)
    return Partition(_QUANTILES[likelihood](levels), levels)


def mass_bounds(
    a: FloatArray,
    b: FloatArray,
    mean: tuple[FloatArray, FloatArray],
    variance: tuple[FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Smallest and largest Gaussian probability of an interval over ranges of the moments."""
    # Outside [a, b], at the distance g from the nearest end, the probability is largest at the
    # variance ``w (2 g + w) / (2 log(1 + w / g))`` with ``w = b - a``. That equals the Sigma^m of
    # the paper, whose form divides by zero at the ends of the interval.
    # Blaas et al., AISTATS 2020, Proposition 2.
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
    """Bounds on the expected likelihood over ranges of the latent moments."""
    # Blaas et al., AISTATS 2020, Proposition 1.
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
    """Bounds on ``E[Phi(scale f)]`` over ranges of the moments of f, in closed form."""
    # Blaas et al., AISTATS 2020, Lemma 3.
    lower_variance = variance[1] if mean[0] >= 0 else variance[0]
    upper_variance = variance[0] if mean[1] >= 0 else variance[1]
    return (
        float(ndtr(mean[0] / np.sqrt(scale**-2 + lower_variance))),
        float(ndtr(mean[1] / np.sqrt(scale**-2 + upper_variance))),
    )
