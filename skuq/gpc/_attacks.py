"""Gradient attacks on Gaussian-process classifiers, for comparison with certificates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skuq.base import FloatArray
from skuq.gpc.bounds._neighbourhoods import Neighbourhoods
from skuq.gpc.bounds._probability_model import ProbabilityModel
from skuq.gpc.inference._predictive import most_probable

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
    model: ProbabilityModel, regions: Neighbourhoods, labels: NDArray[np.intp], method: str
) -> Attack:
    """Lower the probability of one class by following its gradient.

    Parameters
    ----------
    model : ProbabilityModel
        The model.
    regions : Neighbourhoods
        Regions around n points, in which the attack stays.
    labels : ndarray of shape (n,)
        Index of the class of each point.
    method : {"fgsm", "pgd"}
        One step of the gradient's sign to the border of the region, or many shorter ones.

    Returns
    -------
    Attack

    References
    ----------
    Grosse, Pfaff, Smith, Backes, "The limitations of model uncertainty in adversarial
    settings", 2018: GPFGS is the method "fgsm".
    """
    value, gradient = model.attackable(regions.points, labels)
    if method == "fgsm":  # the attack ends where its step does, better or not
        best = regions.project(regions.points - regions.steepest(gradient))
    else:
        best = _iterated(model, regions, labels, value, gradient)
    proba = model.probabilities(best)
    return Attack(best, proba[np.arange(len(best)), labels], most_probable(proba) != labels)


def _iterated(
    model: ProbabilityModel,
    regions: Neighbourhoods,
    labels: NDArray[np.intp],
    best_value: FloatArray,
    gradient: FloatArray,
) -> FloatArray:
    """The best points on the way of many steps that become shorter."""
    points, best = regions.points, regions.points.copy()
    for step in range(_STEPS):
        length = 0.5 * _DECAY**step
        points = regions.project(points - length * regions.steepest(gradient))
        value, gradient = model.attackable(points, labels)
        better = value < best_value
        best[better], best_value[better] = points[better], value[better]
    return best
