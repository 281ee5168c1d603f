"""Effect of each feature on a class probability, from proven ranges (Appendix G)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from skuq.base import FloatArray
from skuq.gpc.bounds._probability_model import Limits, ProbabilityModel
from skuq.gpc.bounds._regions import Region


class FeatureEffects(NamedTuple):
    """Effect of each feature on the probability of a class.

    Attributes
    ----------
    local : ndarray of shape (n, n_features), float64
        For each point: positive where the probability rises with the feature (Eq. 23-25 of the
        paper), in units of probability; between -2 and 2.
    overall : ndarray of shape (n_features,), float64
        Average over the points (Eq. 26 of the paper).
    error : ndarray of shape (n, n_features), float64
        Proven bound of the error of `local`.
    """

    local: FloatArray
    overall: FloatArray
    error: FloatArray


def feature_effects(
    model: ProbabilityModel,
    regions: Region,
    labels: NDArray[np.intp],
    limits: Limits,
    progress: Callable[[int], object] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Compare ranges of a probability on both sides of each feature (Eq. 23-25 of the paper).

    Parameters
    ----------
    model : ProbabilityModel
        The model.
    regions : Region
        Boxes around n points. Their features are moved one at a time, to each of both ends; the
        effects of others are 0.
    labels : ndarray of shape (n,)
        Index of the class whose probability is meant.
    limits : Limits
        When to stop; the time is shared among the features.
    progress : callable, default=None
        Called with the number of points when all features are done.

    Returns
    -------
    local, error : ndarray of shape (n, n_features)
        As in `FeatureEffects`.
    """
    features = regions.free.tolist()
    share = limits._replace(max_time=limits.max_time / len(features))
    local, error = (np.zeros(tuple(regions.center.shape)) for _ in range(2))
    for feature in features:
        found = _effect(model, _sides(regions, feature), labels, share)
        local[:, feature], error[:, feature] = found
    if progress is not None:
        progress(len(regions))
    return local, error


def _sides(regions: Region, feature: int) -> Region:
    """Points of a region that differ in one feature: above its point, and then below."""
    center, above, below = (regions.center.clone() for _ in range(3))
    above[:, feature], below[:, feature] = regions.upper[:, feature], regions.lower[:, feature]
    lower, upper = torch.cat([center, below]), torch.cat([above, center])
    return Region(torch.cat([center, center]), lower, upper)


def _effect(
    model: ProbabilityModel, sides: Region, labels: NDArray[np.intp], limits: Limits
) -> tuple[FloatArray, FloatArray]:
    """Largest plus smallest probability above minus those below; and the error."""
    units = np.eye(model.n_classes)[labels]
    objectives = np.stack([units, -units], axis=1)
    found = model.minima(sides, np.concatenate([objectives] * 2), limits)
    middle, half = (found.lower + found.upper) / 2, (found.upper - found.lower) / 2
    above, below = np.split(middle[:, 0] - middle[:, 1], 2)
    return above - below, half.sum(axis=1).reshape(2, -1).sum(axis=0)
