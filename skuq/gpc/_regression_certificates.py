"""Certificates of regression over regions around points: ranges of moments, and stability."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skuq.base import FloatArray
from skuq.gpc._certificates import Certificate, ProgressCallback, certificate, per_point
from skuq.gpc.bounds._latent_model import UNIT
from skuq.gpc.bounds._moment_model import MomentModel
from skuq.gpc.bounds._probability_model import Limits
from skuq.gpc.bounds._regions import Region

_TIE = 1e-9  # of a tolerance: what is closer is left undecided
_ROUNDING = 4 * UNIT  # relative, of a product and a sum


class MomentBounds(NamedTuple):
    """Proven range of one predicted quantity over a region around each of n points.

    All are float64 in the unit of the target.

    Attributes
    ----------
    min_lower, min_upper : ndarray of shape (n,)
        Bounds of the smallest value in the region.
    max_lower, max_upper : ndarray of shape (n,)
        Bounds of the largest one.
    argmin, argmax : ndarray of shape (n, n_features)
        Points of the region that attain `min_upper` and `max_lower`, up to rounding.
    lower, upper : ndarray of shape (n,)
        `min_lower` and `max_upper`: all values in the region lie between them.
    """

    min_lower: FloatArray
    min_upper: FloatArray
    max_lower: FloatArray
    max_upper: FloatArray
    argmin: FloatArray
    argmax: FloatArray

    @property
    def lower(self) -> FloatArray:
        return self.min_lower

    @property
    def upper(self) -> FloatArray:
        return self.max_upper


class RegressionBounds(NamedTuple):
    """Proven ranges of predictions over a region around each of n points.

    Attributes
    ----------
    mean : MomentBounds
        Range of the predicted mean.
    std : MomentBounds
        Range of the predicted standard deviation, that of ``predict(X, return_std=True)``.
    n_regions : ndarray of shape (n,), int64
        Boxes that were bounded.
    converged : ndarray of shape (n,), bool
        Whether all bounds of the point are as close as was asked for; if not, a limit of time
        or regions was reached, and they are valid but wider.
    """

    mean: MomentBounds
    std: MomentBounds
    n_regions: NDArray[np.int64]
    converged: NDArray[np.bool_]


def moment_bounds(
    model: MomentModel, regions: Region, limits: Limits, progress: ProgressCallback = None
) -> tuple[NDArray[Any], ...]:
    """Bound the extremes of means and then of standard deviations: the parts of both ranges."""
    # Each part is (n,) or (n, n_features); numbers of boxes and convergence follow.
    n = len(regions)
    objectives = np.concatenate([model.of_mean(np.ones(n)), model.of_deviation(n)], axis=1)
    found = model.minima(regions, objectives, limits, progress=per_point(progress, 4))
    lower, upper, point = found.lower, found.upper, found.point
    parts: list[NDArray[Any]] = []
    for least, most in ((0, 1), (2, 3)):
        parts += [lower[:, least], upper[:, least], -upper[:, most], -lower[:, most]]
        parts += [point[:, least], point[:, most]]
    return *parts, found.n_regions.sum(axis=1), np.asarray(found.converged.all(axis=1))


def stability(
    model: MomentModel,
    regions: Region,
    tolerances: FloatArray,
    limits: Limits,
    progress: ProgressCallback = None,
) -> Certificate:
    """Decide for each region whether the mean stays within a tolerance of that at its point."""
    # tolerances (n,); margins are in units of them.
    objectives = model.of_mean(tolerances)
    most = np.stack([model.values(regions.center, objectives[:, i]) for i in range(2)], axis=1)
    least = -most[:, ::-1]
    middle, error = (most + least) / 2, (most - least) / 2
    return certificate(model, regions, objectives, middle - 1, error, _TIE, limits, progress)


def rescaled(bounds: MomentBounds, scale: float, shift: float) -> MomentBounds:
    """The same range in other units, ``shift + scale * value``, rounded outwards."""

    def moved(end: FloatArray, direction: int) -> FloatArray:
        value = shift + scale * end
        return value + direction * _ROUNDING * (abs(shift) + np.abs(scale * end))

    return bounds._replace(
        min_lower=moved(bounds.min_lower, -1),
        min_upper=moved(bounds.min_upper, 1),
        max_lower=moved(bounds.max_lower, -1),
        max_upper=moved(bounds.max_upper, 1),
    )
