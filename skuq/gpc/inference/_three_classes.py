"""Softmax probabilities of three classes, averaged over a Gaussian of any width.

A probability of three classes is an integral over two differences of latent functions to the
one of its class, ``p_c = E[1 / (1 + e^u + e^v)]``. Given u, the average over v is a logistic one:
with ``A = 1 + e^u`` it is ``1 / A * E[sigmoid(log A - v)]``. What is left is an integral over u, on
panels that are short where the integrand bends (Eq. 29 of the proofs page of the user guide).
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from skuq.base import FloatArray
from skuq.gpc.inference._quadrature import normal_nodes

_REACH = 8.3  # standard deviations; the normal distribution has less than 1e-16 beyond
_PANEL = 3.0  # width of the panels where the logistic function bends
_GROWTH = 2.0  # ratio of the widths of panels further away
_DEVIATIONS = 4.0  # standard deviations that a panel spans at most
_SATURATED = 27.0  # exp(-27) is 2e-12
_ORDER = 16  # of the Gauss-Legendre rule on each panel
_WIDE = 1.3  # deviation from which on the logistic density is narrower than the normal one
_LOGISTIC_STEP, _LOGISTIC_REACH = 0.7, 26.0
_ENTRIES = 500_000  # numbers in the largest temporary array: what fits into a cache is faster


def three_class_probabilities(mean: FloatArray, covariance: FloatArray) -> FloatArray:
    """Average the softmax of three latent functions over their Gaussian.

    Parameters
    ----------
    mean : ndarray of shape (n, 3)
        Latent means.
    covariance : ndarray of shape (n, 3, 3)
        Latent covariances.

    Returns
    -------
    ndarray of shape (n, 3), float64
        Probabilities, with errors below 1e-10 for deviations up to 1e4; those of a point do
        not depend on other points.

    Examples
    --------
    >>> three_class_probabilities(np.zeros((1, 3)), 1e4 * np.eye(3)[None]).round(9)
    array([[0.33333333, 0.33333333, 0.33333333]])
    """
    means, covariances = torch.as_tensor(mean), torch.as_tensor(covariance)
    proba = torch.stack([_own_probability(means, covariances, own) for own in range(3)], dim=-1)
    return (proba / proba.sum(-1, keepdim=True)).numpy()


def _own_probability(mean: Tensor, covariance: Tensor, own: int) -> Tensor:
    """Probability of one of the classes."""
    contrast = torch.eye(3, dtype=mean.dtype)[[c for c in range(3) if c != own]]
    contrast[:, own] = -1.0
    center, spread = mean @ contrast.T, contrast @ covariance @ contrast.T
    # u is the wider difference: then v changes no faster than u does.
    swap = spread[:, 1, 1] > spread[:, 0, 0]
    center = torch.where(swap[:, None], center.flip(1), center)
    variance = spread.diagonal(dim1=1, dim2=2).clamp(min=0)
    variance = torch.where(swap[:, None], variance.flip(1), variance)
    width = variance[:, 0].sqrt()
    slope = (spread[:, 0, 1] / variance[:, 0].clamp(min=1e-300)).clamp(-1, 1)
    rest = (variance[:, 1] - slope**2 * variance[:, 0]).clamp(min=0).sqrt()
    result = torch.empty_like(width)
    # Points of about the same width have the same number of panels.
    octaves = (width.clamp(min=0.1).log2() + 1e-3).ceil()
    for octave in np.unique(octaves.numpy()):
        for wide in (False, True):
            members = torch.nonzero((octaves == octave) & ((rest > _WIDE) == wide))[:, 0]
            edges = _edges(float(2**octave))
            size = max(1, _ENTRIES // (3 * len(edges) * _ORDER * len(_nodes(wide)[0])))
            for rows in torch.split(members, size):
                parts = (center[rows], width[rows], slope[rows], rest[rows])
                result[rows] = _integral(*parts, edges, wide)
    return result


def _edges(width: float) -> Tensor:
    """Distances of the borders of panels from a place where the integrand bends."""
    distances, panel = [0.0], _PANEL
    while distances[-1] < 2 * _REACH * width:
        distances.append(distances[-1] + panel)
        panel = max(panel, (_GROWTH - 1) * distances[-1])
    return torch.tensor(distances, dtype=torch.float64)


def _integral(
    center: Tensor, width: Tensor, slope: Tensor, rest: Tensor, distances: Tensor, wide: bool
) -> Tensor:
    """Integral over ``u = center + width * t`` by panels, shape (b,)."""
    (u, v), scale = center.T, width.clamp(min=1e-300)
    # The integrand bends at u = 0, and left of it where the average over v does, at v = 0.
    bend = (u - v / torch.where(slope == 0, 1e-300, slope)).clamp(-1e300, 0.0)
    right = torch.arange(0, _SATURATED + _PANEL, _PANEL, dtype=u.dtype)
    places = torch.cat([-distances, right]).expand(len(u), -1)
    places = torch.cat([places, bend[:, None] - distances, bend[:, None] + distances], 1)
    whole = torch.linspace(-_REACH, _REACH, 1 + math.ceil(2 * _REACH / _DEVIATIONS), dtype=u.dtype)
    borders = torch.cat([(places - u[:, None]) / scale[:, None], whole.expand(len(u), -1)], 1)
    most = ((_SATURATED - u) / scale).clamp(-_REACH, _REACH)
    borders = torch.minimum(borders.clamp(min=-_REACH), most[:, None]).sort(1).values
    half = borders.diff(dim=1) / 2
    kept = (half > 0).any(0)
    half, middle = half[:, kept, None], (borders[:, 1:] + borders[:, :-1])[:, kept, None] / 2
    x, weights = (torch.as_tensor(part) for part in np.polynomial.legendre.leggauss(_ORDER))
    t = (middle + half * x).flatten(1)
    mass = (half * weights).flatten(1) * torch.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    at = u[:, None] + width[:, None] * t
    lead = torch.nn.functional.softplus(at) - v[:, None] - (slope * width)[:, None] * t
    return (mass * torch.sigmoid(-at) * _logistic_average(lead, rest, wide)).sum(1)


def _logistic_average(mean: Tensor, deviation: Tensor, wide: bool) -> Tensor:
    """``E[sigmoid(f)]`` for means (b, k) and deviations (b,), on one side of `_WIDE`."""
    points, weights = _nodes(wide)
    if wide:  # P(e < f) for a logistic variable e is E[Phi((mean - e) / deviation)] too
        return torch.special.ndtr((mean[..., None] - points) / deviation[:, None, None]) @ weights
    return torch.sigmoid(mean[..., None] + deviation[:, None, None] * points) @ weights


@cache
def _nodes(wide: bool) -> tuple[Tensor, Tensor]:
    """Trapezoidal rule for the logistic or for the normal density (Eq. 28)."""
    if not wide:
        nodes = normal_nodes([_WIDE], 1e-12, torch.empty(0, dtype=torch.float64))
        return nodes.points[:, 0], nodes.weights
    count = math.ceil(_LOGISTIC_REACH / _LOGISTIC_STEP)
    points = _LOGISTIC_STEP * torch.arange(-count, count + 1, dtype=torch.float64)
    density = torch.sigmoid(points) * torch.sigmoid(-points)
    return points, density / density.sum()
