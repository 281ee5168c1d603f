"""Effect of each feature on a class probability, from proven ranges (Appendix G)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skuq.base import FloatArray
from skuq.gpc.bounds._neighbourhoods import Neighbourhoods
from skuq.gpc.bounds._probability_model import Limits, ProbabilityModel


class FeatureEffects(NamedTuple):
    """Effect of each feature on the probability of a class.

    Attributes
    ----------
    local : ndarray of shape (n, n_features), float64
        For each point: positive where the probability rises with the feature (Eq. 23-25), in
        units of probability; between -2 and 2.
    overall : ndarray of shape (n_features,), float64
        Average over the points (Eq. 26).
    error : ndarray of shape (n, n_features), float64
        Proven bound of the error of `local`.
    """

    local: FloatArray
    overall: FloatArray
    error: FloatArray


def feature_effects(
    model: ProbabilityModel,
    points: FloatArray,
    labels: NDArray[np.intp],
    gamma: float,
    lower: FloatArray,
    upper: FloatArray,
    features: NDArray[np.intp],
    limits: Limits,
    progress: Callable[[int], object] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Compare the ranges of a probability on the two sides of each feature's interval (Eq. 23-25).

    Parameters
    ----------
    model : ProbabilityModel
        The model.
    points : ndarray of shape (n, n_features)
        Where effects are wanted.
    labels : ndarray of shape (n,)
        Index of the class whose probability is meant.
    gamma : float
        Length of each one-sided interval.
    lower, upper : ndarray of shape (n, n_features)
        Limits of the domain, to which intervals are clipped.
    features : ndarray of shape (k,)
        Indices of the features; the effects of others are 0.
    limits : Limits
        When to stop; the time is shared among the features.
    progress : callable, default=None
        Called with the number of points when all features are done.

    Returns
    -------
    local, error : ndarray of shape (n, n_features)
        As in `FeatureEffects`.
    """
    share = limits._replace(max_time=limits.max_time / max(1, len(features)))
    local, error = np.zeros_like(points), np.zeros_like(points)
    for feature in features:
        ends = []
        for step in (gamma, -gamma):
            least, most = points.copy(), points.copy()
            side = most if step > 0 else least
            side[:, feature] = np.clip(
                points[:, feature] + step, lower[:, feature], upper[:, feature]
            )
            ends.append(Neighbourhoods(points, least, most, None, None))
        local[:, feature], error[:, feature] = _difference(model, ends, labels, share)
    if progress is not None:
        progress(len(points))
    return local, error


def _difference(
    model: ProbabilityModel,
    sides: list[Neighbourhoods],
    labels: NDArray[np.intp],
    limits: Limits,
) -> tuple[FloatArray, FloatArray]:
    """Largest plus smallest probability to the right minus those to the left; and the error."""
    units = np.eye(model.n_classes)[labels]
    objectives = np.stack([units, -units], axis=1)
    both = Neighbourhoods(
        np.concatenate([side.points for side in sides]),
        np.concatenate([side.lower for side in sides]),
        np.concatenate([side.upper for side in sides]),
        None,
        None,
    )
    found = model.minima(both, np.concatenate([objectives] * 2), limits)
    middle, half = (found.lower + found.upper) / 2, (found.upper - found.lower) / 2
    right, left = np.split(middle[:, 0] - middle[:, 1], 2)
    return right - left, half.sum(axis=1).reshape(2, -1).sum(axis=0)
