"""Gaussian averages of likelihoods by the trapezoidal rule, with a proven error."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

MAX_CLASSES = 4  # the number of nodes is exponential in the classes
_REACH = 7.8  # standard deviations; the normal distribution has less than 1e-14 beyond


class Nodes(NamedTuple):
    """Nodes and weights for averages over standard normal variables.

    Attributes
    ----------
    points : Tensor of shape (n, dimensions)
        Nodes.
    weights : Tensor of shape (n,)
        Weights; their sum is 1 up to `error`.
    error : float
        Bound on the error of the average of any of the functions meant.
    """

    points: Tensor
    weights: Tensor
    error: float


def normal_nodes(scale: float, accuracy: float, dimensions: int, like: Tensor) -> Nodes:
    """Nodes for functions ``g(scale * t)`` where g is bounded by 1 within pi / 2 of the reals.

    The logistic function and the softmax are such functions: there, the real part of every
    ``exp(f_i - f_j)`` is positive. With half-width a of the strip and step h, the error is at
    most ``2 exp(a^2 / 2) / (exp(2 pi a / h) - 1)`` for each dimension.

    Parameters
    ----------
    scale : float
        Largest standard deviation of any difference of arguments.
    accuracy : float
        Wanted error.
    dimensions : int
        Number of variables.
    like : Tensor
        Gives dtype and device.

    Returns
    -------
    Nodes

    References
    ----------
    Trefethen and Weideman, "The Exponentially Convergent Trapezoidal Rule", SIAM Review
    2014, Theorem 5.1.
    """
    width = min(math.pi / (2 * max(scale, 1e-300)), 4.0)
    height = 2 * math.exp(width**2 / 2)
    step = 2 * math.pi * width / math.log1p(height / accuracy)
    half = math.ceil(_REACH / step)
    axis = step * torch.arange(-half, half + 1, dtype=like.dtype, device=like.device)
    mass = step / math.sqrt(2 * math.pi) * torch.exp(-(axis**2) / 2)
    points = torch.cartesian_prod(*[axis] * dimensions).reshape(-1, dimensions)
    weights = torch.cartesian_prod(*[mass] * dimensions).reshape(-1, dimensions).prod(-1)
    kept = weights > accuracy / 100 / len(weights)
    dropped = float(weights[~kept].sum())
    return Nodes(points[kept], weights[kept], dimensions * (accuracy + 1e-13) + dropped)
