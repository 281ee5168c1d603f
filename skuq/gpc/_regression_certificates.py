"""Certificates for regression over regions: bounds on the moments, and stability of the mean."""

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

_TIE = 1e-9  # margins below this, relative to the tolerance, are undecided
_ROUNDING = 4 * UNIT  # bound on the relative rounding error of one product and one sum


class MomentBounds(NamedTuple):
    """Proven bounds on the predicted mean, or standard deviation, in regions around n points.

    All arrays are float64; bounds are in the unit of the target.

    Attributes
    ----------
    min_lower, min_upper : ndarray of shape (n,)
        Bounds on the smallest value in the region.
    max_lower, max_upper : ndarray of shape (n,)
        Bounds on the largest value in the region.
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
    """Proven bounds on predictions over a region around each of n points.

    Attributes
    ----------
    mean : MomentBounds
        Bounds on the predicted mean.
    std : MomentBounds
        Bounds on the standard deviation that ``predict(X, return_std=True)`` returns.
    n_regions : ndarray of shape (n,), int64
        Number of boxes that were bounded.
    converged : ndarray of shape (n,), bool
        Whether all gaps between lower and upper bounds of the point are within `tol`. If not,
        `max_time` or `max_regions` was reached; the bounds are valid, but wider.
    """

    mean: MomentBounds
    std: MomentBounds
    n_regions: NDArray[np.int64]
    converged: NDArray[np.bool_]


def moment_bounds(
    model: MomentModel, regions: Region, limits: Limits, progress: ProgressCallback = None
) -> tuple[NDArray[Any], ...]:
    """Bound the extremes of mean and standard deviation over each region.

    Returns the fields of `MomentBounds` for the mean and again for the standard deviation, the
    number of boxes, and convergence, as (n,) or (n, n_features) arrays.
    """
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
    """Decide for each region whether the mean stays within a tolerance of the mean at its center.

    Shape: `tolerances` (n,). Margins are returned in units of the tolerances.
    """
    objectives = model.of_mean(tolerances)
    most = np.stack([model.values(regions.center, objectives[:, i]) for i in range(2)], axis=1)
    least = -most[:, ::-1]
    middle, error = (most + least) / 2, (most - least) / 2
    return certificate(model, regions, objectives, middle - 1, error, _TIE, limits, progress)


def rescaled(bounds: MomentBounds, scale: float, shift: float) -> MomentBounds:
    """Transform bounds to ``shift + scale * value``, rounded outwards."""

    def moved(end: FloatArray, direction: int) -> FloatArray:
        value = shift + scale * end
        return value + direction * _ROUNDING * (abs(shift) + np.abs(scale * end))

    return bounds._replace(
        min_lower=moved(bounds.min_lower, -1),
        min_upper=moved(bounds.min_upper, 1),
        max_lower=moved(bounds.max_lower, -1),
        max_upper=moved(bounds.max_upper, 1),
    )
