"""Gaussian averages of likelihoods by the trapezoidal rule, with a proven error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MAX_CLASSES = 3  # the number of nodes is exponential in the classes
_MAX_NODES = 400_000
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


def normal_nodes(scales: Sequence[float], accuracy: float, like: Tensor) -> Nodes:
    """Nodes for functions ``g(scales * t)`` where g is bounded by 1 within pi / 2 of the reals.

    The logistic function and the softmax are such functions: there, the real part of every
    ``exp(f_i - f_j)`` is positive. With half-width a of the strip and step h, the error is at
    most ``2 exp(a^2 / 2) / (exp(2 pi a / h) - 1)`` for each dimension.

    Parameters
    ----------
    scales : sequence of float
        For each variable, the largest change of any difference of arguments with it.
    accuracy : float
        Wanted error for each dimension.
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
    axes, masses = zip(*(_axis(scale, accuracy, like) for scale in scales), strict=True)
    dimensions = len(axes)
    points = torch.cartesian_prod(*axes).reshape(-1, dimensions)
    weights = torch.cartesian_prod(*masses).reshape(-1, dimensions).prod(-1)
    kept = weights > accuracy / 100 / len(weights)
    dropped = float(weights[~kept].sum())
    beyond = sum(math.erfc(float(axis[-1]) / math.sqrt(2)) for axis in axes)
    error = dimensions * (accuracy + 1e-13) + dropped + beyond
    return Nodes(points[kept], weights[kept], error)


def node_count(scales: Sequence[float], accuracy: float) -> int:
    """Number of nodes that `normal_nodes` would begin with."""
    like = torch.empty(0, dtype=torch.float64)
    return math.prod(len(_axis(scale, accuracy, like)[0]) for scale in scales)


def affordable_accuracy(scales: Sequence[float], accuracies: Sequence[float]) -> float | None:
    """The first accuracy that does not take too many nodes, None if all do."""
    return next((a for a in accuracies if node_count(scales, a) <= _MAX_NODES), None)


def _axis(scale: float, accuracy: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Equidistant nodes of one variable, and the normal probability that each stands for."""
    width = min(math.pi / (2 * max(scale, 1e-300)), 4.0)
    height = 2 * math.exp(width**2 / 2)
    step = 2 * math.pi * width / math.log1p(height / accuracy)  # Eq. 28 of the proofs page
    reach = min(_REACH, math.sqrt(2 * math.log(100 / accuracy)) + 1)  # the rest is dropped
    half = math.ceil(reach / step)
    nodes = step * torch.arange(-half, half + 1, dtype=like.dtype, device=like.device)
    return nodes, step / math.sqrt(2 * math.pi) * torch.exp(-(nodes**2) / 2)
