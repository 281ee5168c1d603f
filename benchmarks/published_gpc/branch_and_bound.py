"""Branch and bound for one input of a Gaussian-process classifier, as published.

The algorithm serves as a reference for tests of skuq's bounds. It bounds one box at a time, and
solves hundreds of linear programmes per box, or six times as many for three classes. Line numbers
refer to Algorithm 1 of Blaas et al., "Adversarial Robustness Guarantees for Classification with
Gaussian Processes", AISTATS 2020.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtr

from benchmarks.published_gpc.integrals import discretised_bounds, probit_bounds, uniform_partition
from benchmarks.published_gpc.linear_programmes import (
    Extremes,
    Spectrum,
    covariance_bounds,
    mean_bounds,
    relax,
    spectrum,
    variance_bounds,
)
from benchmarks.published_gpc.softmax import Interval, softmax_bounds
from skuq.base import FloatArray
from skuq.gpc import Bounds, RobustGPC
from skuq.gpc.bounds import StationaryKernel, from_sklearn
from skuq.gpc.inference import Posterior, class_probabilities, tilted_moments

_MAX_CLASSES = 3  # the cost is exponential in the number of classes
_MOST_INTERVALS = 100_000
_MOST_BOXES = 2**18  # maximum number of boxes in the grid of the latent space, for several classes
_CERTAIN = 1e-16  # smaller latent variances are treated as zero


def published_bounds(
    gpc: RobustGPC,
    X: ArrayLike,
    radius: float,
    *,
    class_: Any = None,
    features: ArrayLike | None = None,
    domain: tuple[ArrayLike, ArrayLike] = (-np.inf, np.inf),
    tol: float = 0.01,
    max_time: float = math.inf,
    max_regions: int = 1_000_000,
) -> Bounds:
    """Bound class probabilities with linear programmes, one point and one box at a time.

    Arguments and result are those of `RobustGPC.predict_proba_bounds` for the maximum norm, with
    `max_time` for each point. At most three classes are supported. With the likelihood "softmax",
    bounds are valid, but for any `tol` several hundredths apart, because the grid in latent space
    is limited to 2**18 boxes.
    """
    X, (least, most) = np.asarray(X, dtype=float), domain
    free = np.zeros(X.shape[1], dtype=bool)
    free[slice(None) if features is None else features] = True
    lower = np.where(free, np.maximum(X - radius, least), X)
    upper = np.where(free, np.minimum(X + radius, most), X)
    columns = np.arange(len(gpc.classes_))
    if class_ is not None:
        columns = np.flatnonzero(gpc.classes_ == class_)
    limits = {"tol": tol, "max_regions": max_regions, "max_time": max_time}
    found: list[list[BoxBounds]] = []
    n_regions: list[int] = []
    for row in range(len(X)):
        search = _softmax_classes if gpc.likelihood_ == "softmax" else _binary_classes
        of_classes, regions_bounded = search(gpc, lower[row], upper[row], columns, **limits)
        found.append(of_classes)
        n_regions.append(regions_bounded)

    def column(name: str) -> NDArray[Any]:
        return np.array([[getattr(one, name) for one in point] for point in found])

    return Bounds(
        *(column(name) for name in ("min_lower", "min_upper", "max_lower", "max_upper")),
        column("argmin"),
        column("argmax"),
        np.array(n_regions),
        np.array([all(one.converged for one in point) for point in found]),
    )


def _binary_classes(
    gpc: RobustGPC,
    lower: FloatArray,
    upper: FloatArray,
    classes: NDArray[np.intp],
    **limits: Any,
) -> tuple[list[BoxBounds], int]:
    """Bounds on the given classes, derived from the positive class, and the number of boxes."""
    one = branch_and_bound(gpc.posterior_, lower, upper, likelihood=gpc.likelihood_, **limits)
    # The smallest probability of the first class is 1 minus the largest of the second.
    ends = (1 - one.max_upper, 1 - one.max_lower, 1 - one.min_upper, 1 - one.min_lower)
    first = BoxBounds(*ends, one.argmax, one.argmin, one.n_regions, one.converged)
    return [(first, one)[class_] for class_ in classes], one.n_regions


def _softmax_classes(
    gpc: RobustGPC,
    lower: FloatArray,
    upper: FloatArray,
    classes: NDArray[np.intp],
    **limits: Any,
) -> tuple[list[BoxBounds], int]:
    """Bounds per given class, and the number of boxes of all classes (first box counted once)."""
    found = multiclass_branch_and_bound(gpc.posterior_, lower, upper, classes, **limits)
    return found, 1 + sum(one.n_regions - 1 for one in found)


class BoxBounds(NamedTuple):
    """Bounds on the extremes of the probability of one class over a box."""

    min_lower: float
    min_upper: float  # attained at `argmin`
    max_lower: float  # attained at `argmax`
    max_upper: float
    argmin: FloatArray  # (n_features,), input with the smallest probability found
    argmax: FloatArray  # (n_features,), input with the largest probability found
    n_regions: int  # number of boxes that were bounded
    # Whether the lower and upper bound differ by at most `tol`, for the minimum and the maximum.
    converged: bool


@dataclass(frozen=True)
class _Region:
    """Box, bounds on the probabilities over this box, and probabilities at some inputs."""

    lower: FloatArray
    upper: FloatArray
    bounds: FloatArray  # (n_classes, 2)
    attained: FloatArray  # (n_classes, 2), limit of the bounds as the box shrinks to an input
    points: FloatArray  # (n_points, n_features), inputs that were evaluated
    values: FloatArray  # (n_points, n_classes), probabilities at `points`


class _Found(NamedTuple):
    """Result of a search for a minimum."""

    lower: float
    upper: float
    at: FloatArray
    n_regions: int


@dataclass(frozen=True)
class _Model:
    """Posterior prepared for bounding boxes."""

    posterior: Posterior
    kernel: StationaryKernel
    forms: list[Spectrum]  # one per pair of latent functions, as in `Posterior.reduction`
    likelihood: str
    n_intervals: int  # per dimension of the latent space; unused by the probit likelihood
    regions: dict[bytes, _Region]  # cache, shared by all searches

    def bound(self, lower: FloatArray, upper: FloatArray) -> _Region:
        """Lines 5 to 9 of Algorithm 1, for the minimum and the maximum of all classes at once."""
        key = lower.tobytes() + upper.tobytes()
        if key not in self.regions:
            self.regions[key] = self._bound(lower, upper)
        return self.regions[key]

    def _bound(self, lower: FloatArray, upper: FloatArray) -> _Region:
        box = relax(self.kernel, self.posterior.inputs, lower, upper)
        weights = self.posterior.weights
        means = [mean_bounds(box, each) for each in weights]  # Lines 5 and 6
        pairs = [
            variance_bounds(box, form, self.kernel.variance)
            if c == d
            else covariance_bounds(box, form)
            for form, c, d in zip(self.forms, *np.triu_indices(len(weights)), strict=True)
        ]
        points = np.stack(  # Line 9
            [box.centre, *(x for each in (*means, *pairs) for x in (each.at_lower, each.at_upper))]
        )
        mean, covariance = _ranges(means), _symmetric(_ranges(pairs), len(weights))
        bounds = self.expectation(mean, covariance)  # Lines 7 and 8
        values = self.probabilities(points)
        attained = np.stack([values.min(0), values.max(0)], axis=1)
        if self.likelihood == "softmax":
            mean, covariance = (Interval(x[0], x[0]) for x in self.posterior.moments(points[:1]))
            attained = self.expectation(mean, covariance)
        return _Region(lower, upper, bounds, attained, points, values)

    def expectation(self, mean: Interval, covariance: Interval) -> FloatArray:
        """Bounds on the expected likelihood over ranges of the moments, shape (n_classes, 2)."""
        # mean (L,), covariance (L, L); binary likelihoods return only the positive class.
        if self.likelihood == "softmax":
            return softmax_bounds(mean, covariance, self.n_intervals)
        moments = (*_ends(mean),), (*_ends(covariance),)
        if self.likelihood == "probit":
            return np.array([probit_bounds(*moments)])
        partition = uniform_partition(self.likelihood, self.n_intervals)
        return np.array([discretised_bounds(partition, *moments)])

    def probabilities(self, X: FloatArray) -> FloatArray:
        """Probabilities at inputs, of all classes or (binary likelihoods) the positive class."""
        mean, covariance = self.posterior.moments(X)
        if self.likelihood == "softmax":
            return class_probabilities("softmax", mean, covariance)
        mean, variance = mean[:, 0], covariance[:, 0, 0]
        if self.likelihood == "probit":
            return ndtr(mean / np.sqrt(1 + variance))[:, None]
        one = np.ones(len(mean))
        tilted = tilted_moments("logit", one, mean, np.maximum(variance, _CERTAIN), one)
        return np.where(variance > _CERTAIN, np.exp(tilted.log_mean), expit(mean))[:, None]


def _ranges(extremes: list[Extremes]) -> Interval:
    return Interval(*np.array([[each.lower, each.upper] for each in extremes]).T)


def _symmetric(pairs: Interval, n_latent: int) -> Interval:
    """Ranges of the entries of symmetric matrices (L, L), given their upper triangles."""
    index = np.empty((n_latent, n_latent), dtype=np.intp)
    rows, columns = np.triu_indices(n_latent)
    index[rows, columns] = index[columns, rows] = np.arange(len(rows))
    return pairs.at(index)


def _ends(one: Interval) -> tuple[float, float]:
    return one.low.item(), one.high.item()


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
    # Rounding errors are not included in the bounds.
    if len(posterior.weights) != 1:
        raise ValueError(
            f"A binary likelihood has one latent function, and this model has "
            f"{len(posterior.weights)}; use multiclass_branch_and_bound."
        )
    if likelihood not in ("probit", "logit"):
        raise ValueError(f"likelihood must be 'probit' or 'logit', got {likelihood!r}.")
    _check(tol)
    if n_intervals is None:
        n_intervals = math.ceil(min(2 / tol, _MOST_INTERVALS))
    model = _prepare(posterior, likelihood, n_intervals)
    return _extremes(model, lower, upper, [0], tol, max_regions, max_time)[0]


def multiclass_branch_and_bound(
    posterior: Posterior,
    lower: ArrayLike,
    upper: ArrayLike,
    classes: Iterable[int],
    *,
    tol: float = 0.01,
    max_regions: int = 1000,
    max_time: float = math.inf,
    n_intervals: int | None = None,
) -> list[BoxBounds]:
    """Bound the minimum and maximum over a box of the softmax probability of each given class."""
    # lower, upper (n_features,)
    # Rounding errors are not included in the bounds. `tol` does not include the slack of the
    # partition: a search ends when smaller boxes would improve the bounds by at most `tol`.
    n_latent = len(posterior.weights)
    if n_latent > _MAX_CLASSES:
        raise ValueError(f"At most {_MAX_CLASSES} classes are supported, got {n_latent}.")
    _check(tol)
    if n_intervals is None:
        affordable = int(_MOST_BOXES ** (1 / n_latent) + 1e-9)
        n_intervals = max(2, math.ceil(min(2 / tol, affordable)))  # at least one for each tail
    model = _prepare(posterior, "softmax", n_intervals)
    return _extremes(model, lower, upper, list(classes), tol, max_regions, max_time)


def _check(tol: float) -> None:
    if tol <= 0:
        raise ValueError(f"tol must be positive, got {tol}.")


def _prepare(posterior: Posterior, likelihood: str, n_intervals: int) -> _Model:
    kernel = from_sklearn(posterior.kernel, posterior.inputs.shape[1])
    forms = [spectrum(matrix) for matrix in posterior.reduction()]
    return _Model(posterior, kernel, forms, likelihood, n_intervals, {})


def _extremes(
    model: _Model,
    lower: ArrayLike,
    upper: ArrayLike,
    classes: list[int],
    tol: float,
    max_regions: int,
    max_time: float,
) -> list[BoxBounds]:
    """Search for minimum and maximum of each class, with equal time limits."""
    start = time.monotonic()
    found: list[BoxBounds] = []
    root = model.bound(np.asarray(lower, float), np.asarray(upper, float))
    share = max_time / (2 * len(classes))
    for class_ in classes:
        ends = start + share * (1 + len(found) * 2), start + share * (2 + len(found) * 2)
        low = _search(model, root, class_, 1, tol, max_regions, ends[0])
        high = _search(model, root, class_, -1, tol, max_regions, ends[1])
        close = low.upper - low.lower <= tol and high.upper - high.lower <= tol
        # The root, which both searches share, is counted once.
        n_regions = low.n_regions + high.n_regions - 1
        values = low.lower, low.upper, -high.upper, -high.lower
        found.append(BoxBounds(*values, low.at, high.at, n_regions, close))
    return found


def _search(
    model: _Model,
    root: _Region,
    class_: int,
    sign: int,
    tol: float,
    max_regions: int,
    deadline: float,
) -> _Found:
    """Algorithm 1 for the minimum of ``sign`` times the probability of a class."""
    # The global lower bound is the minimum over waiting boxes (with the bounds of their parents)
    # and boxes that were not split because their bounds are tight. `goal` is an upper limit of the
    # global lower bound: the smallest probability found or, for several classes, the smallest limit
    # in `attained`.
    order = itertools.count()  # tie-breaker for equal bounds
    waiting: list[tuple[float, int, FloatArray, FloatArray]] = []
    settled, incumbent, goal, at = math.inf, math.inf, math.inf, root.points[0]
    region, inherited, n_regions = root, -math.inf, 1
    while True:
        lower = max(inherited, float((sign * region.bounds[class_]).min()))
        own_goal = float((sign * region.attained[class_]).min())
        goal, values = min(goal, own_goal), sign * region.values[:, class_]
        if values.min() < incumbent:
            incumbent, at = float(values.min()), region.points[values.argmin()]
        halves = _split(model.kernel, region) if own_goal - lower > tol else []  # Line 10
        for half in halves:  # Lines 11 to 13
            heapq.heappush(waiting, (lower, next(order), *half))
        settled = settled if halves else min(settled, lower)
        found = min(settled, waiting[0][0] if waiting else math.inf)  # Lines 14 and 15
        finished = goal - found <= tol or not waiting
        if finished or n_regions >= max_regions or time.monotonic() >= deadline:
            return _Found(min(found, incumbent), incumbent, at, n_regions)
        # Lines 3 and 4
        inherited, _, *corners = heapq.heappop(waiting)
        region, n_regions = model.bound(*corners), n_regions + 1


def _split(kernel: StationaryKernel, region: _Region) -> list[tuple[FloatArray, FloatArray]]:
    """Bisect the longest side of a box, in units of length-scales; [] if this side is too short."""
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
