"""Gradient attacks on Gaussian-process classifiers, for comparison with certificates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skuq.base import FloatArray
from skuq.gpc.bounds._probability_model import ProbabilityModel
from skuq.gpc.bounds._regions import Region
from skuq.gpc.inference._posterior import most_probable

_STEPS = 40  # of the iterated attack
_DECAY = 0.9  # of its step length


class Attack(NamedTuple):
    """Worst points found by an attack.

    Attributes
    ----------
    points : ndarray of shape (n, n_features), float64
        Points of the regions.
    proba : ndarray of shape (n,), float64
        Probability that they give to the class attacked.
    success : ndarray of shape (n,), bool
        Whether another class is more probable there.
    """

    points: FloatArray
    proba: FloatArray
    success: NDArray[np.bool_]


def gradient_attack(
    model: ProbabilityModel,
    regions: Region,
    labels: NDArray[np.intp],
    method: str,
    n_restarts: int = 0,
    rng: np.random.RandomState | None = None,
) -> Attack:
    """Lower the probability of one class by following its gradient."""
    # labels (n,)
    # Beyond three classes the gradient is that of the margin.
    # Grosse, Pfaff, Smith, Backes, "The limitations of model uncertainty in adversarial settings",
    # 2018: GPFGS is the method "fgsm".
    regions = regions.to(model.device)
    value, gradient = model.attackable(regions.center, labels)
    if method == "fgsm":  # the attack ends where its step does, better or not
        best = regions.project(regions.center - regions.steepest(gradient))
    else:
        best, least = regions.center.clone(), value.clone()
        for restart in range(1 + n_restarts):
            start = regions.center
            if restart and rng is not None:
                share = torch.as_tensor(rng.uniform(size=start.shape)).to(start)
                start = regions.project(regions.lower + share * (regions.upper - regions.lower))
                value, gradient = model.attackable(start, labels)
            found, reached = _iterated(model, regions, labels, start, value, gradient)
            better = reached < least
            best[better], least[better] = found[better], reached[better]
    points = best.cpu().numpy()
    proba = model.probabilities(points)
    return Attack(points, proba[np.arange(len(points)), labels], most_probable(proba) != labels)


def _iterated(
    model: ProbabilityModel,
    regions: Region,
    labels: NDArray[np.intp],
    points: Tensor,
    value: Tensor,
    gradient: Tensor,
) -> tuple[Tensor, Tensor]:
    """The best points on the way of many steps that become shorter, and their values."""
    best, least = points.clone(), value.clone()
    for step in range(_STEPS):
        length = 0.5 * _DECAY**step
        points = regions.project(points - length * regions.steepest(gradient))
        value, gradient = model.attackable(points, labels)
        better = value < least
        best[better], least[better] = points[better], value[better]
    return best, least
