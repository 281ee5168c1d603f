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
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit, ndtr

from skuq.base import FloatArray
from skuq.gpc.bounds._stationary import StationaryKernel, from_sklearn
from skuq.gpc.inference._likelihoods import tilted_moments
from skuq.gpc.inference._posterior import Posterior
from skuq.gpc.published._integrals import (
    Partition,
    discretised_bounds,
    probit_bounds,
    uniform_partition,
)
from skuq.gpc.published._linear_functions import mean_bounds
from skuq.gpc.published._relaxation import relax
from skuq.gpc.published._variance import Spectrum, spectrum, variance_bounds

_MOST_INTERVALS = 100_000
_CERTAIN = 1e-16  # latent variance below which it is taken as zero


class BoxBounds(NamedTuple):
    """Bounds on the extremes of the probability of the positive class over a box.

    Attributes
    ----------
    min_lower, min_upper : float
        The minimum lies between them; the upper bound is attained at `argmin`.
    max_lower, max_upper : float
        The maximum lies between them; the lower bound is attained at `argmax`.
    argmin, argmax : ndarray of shape (n_features,)
        Inputs of the smallest and largest probability seen.
    n_regions : int
        Boxes that were bounded.
    converged : bool
        Whether both pairs of bounds are at most the tolerance apart.
    """

    min_lower: float
    min_upper: float
    max_lower: float
    max_upper: float
    argmin: FloatArray
    argmax: FloatArray
    n_regions: int
    converged: bool


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
    """Bound the smallest and largest probability of the positive class over a box.

    Parameters
    ----------
    posterior : Posterior
        Of one latent function.
    lower, upper : array-like of shape (n_features,)
        Corners of the box. Features with ``lower == upper`` do not vary.
    likelihood : {"probit", "logit"}, default="probit"
        Probability of the positive class given the latent value.
    tol : float, default=0.01
        Distance of the bounds on each extreme at which its search ends.
    max_regions : int, default=1000
        Most boxes that each of the two searches bounds.
    max_time : float, default=inf
        Seconds after which no further box is begun; at least one is bounded. The search for
        the minimum ends after half of them.
    n_intervals : int, default=None
        Intervals of the latent space for the logit likelihood; None takes ``ceil(2 / tol)``
        of them, but at most 100,000. The probit likelihood has a closed form.

    Returns
    -------
    BoxBounds
        Valid whether or not the searches converged.

    Raises
    ------
    ValueError
        If the posterior has several latent functions, the likelihood is unknown, the
        tolerance is not positive, or the box is empty or infinite.

    Notes
    -----
    Computed in double precision without directed rounding.

    References
    ----------
    Blaas et al., "Adversarial Robustness Guarantees for Classification with Gaussian
    Processes", AISTATS 2020, Algorithm 1.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.inference._posterior import BinaryPosterior
    >>> posterior = BinaryPosterior(RBF(), np.zeros((1, 1)), np.ones((1, 1)), np.eye(1))
    >>> found = branch_and_bound(posterior, [0.0], [1.0], tol=0.01)
    >>> round(found.min_upper, 3), round(found.max_lower, 3), found.converged
    (0.683, 0.841, True)
    """
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
    """Algorithm 1 for the minimum of ``sign`` times the probability.

    The global lower bound is the smallest over all boxes, those still to be explored, with
    their parents' bounds, and those that were not split because their own bounds agree.
    """
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
