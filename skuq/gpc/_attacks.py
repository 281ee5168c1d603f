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

_STEPS = 40  # number of steps of "pgd"
_DECAY = 0.9  # factor on the step length after each step


class Attack(NamedTuple):
    """Points found by an attack.

    Attributes
    ----------
    points : ndarray of shape (n, n_features), float64
        For each region, the point with the lowest probability that was found.
    proba : ndarray of shape (n,), float64
        Probability of the attacked class at `points`.
    success : ndarray of shape (n,), bool
        Whether a different class is predicted at `points`.
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
    # With more than three classes, the margin is minimised, not the probability. Method "fgsm" is
    # GPFGS of Grosse, Pfaff, Smith, Backes, "The limitations of model uncertainty in adversarial
    # settings", 2018.
    regions = regions.to(model.device)
    value, gradient = model.attackable(regions.center, labels)
    if method == "fgsm":  # the point is returned even if the probability did not decrease
        best = regions.project(regions.center - regions.steepest(gradient))
    else:
        start, n = regions.center, len(regions.center)
        if n_restarts and rng is not None:  # all starts of a point take their steps together
            share = torch.as_tensor(rng.uniform(size=(n_restarts * n, start.shape[1]))).to(start)
            regions = regions[torch.arange(n, device=start.device).repeat(1 + n_restarts)]
            labels = np.tile(labels, 1 + n_restarts)
            lower, width = regions.lower[n:], (regions.upper - regions.lower)[n:]
            start = regions.project(torch.cat([start, lower + share * width]))
            value, gradient = model.attackable(start, labels)
        found, reached = _iterated(model, regions, labels, start, value, gradient)
        labels, least = labels[:n], reached.view(-1, n).argmin(0)
        best = found[least * n + torch.arange(n, device=least.device)]
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
    """Run projected gradient descent with decaying steps; returns the best points and values."""
    best, least = points.clone(), value.clone()
    for step in range(_STEPS):
        length = 0.5 * _DECAY**step
        points = regions.project(points - length * regions.steepest(gradient))
        value, gradient = model.attackable(points, labels)
        better = value < least
        best[better], least[better] = points[better], value[better]
    return best, least
