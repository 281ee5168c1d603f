"""Normalising flows of radial layers, one for each class, evaluated in one batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus


def radial_step(
    points: Tensor, centre: Tensor, radius: Tensor, stretch: Tensor
) -> tuple[Tensor, Tensor]:
    """Move points away from a centre or towards it.

    ``f(z) = z + b (z - c) / (a + |z - c|)``, which is invertible as long as ``b > -a``.

    Parameters
    ----------
    points : Tensor of shape (..., n_samples, n_dimensions)
        Points z.
    centre : Tensor of shape (..., 1, n_dimensions)
        Centre c.
    radius, stretch : Tensors of shape (..., 1, 1)
        Reach a > 0 and strength b > -a.

    Returns
    -------
    moved : Tensor of the shape of `points`
        Images f(z).
    log_det : Tensor of shape (..., n_samples)
        Logarithm of the determinant of the Jacobian.

    References
    ----------
    Rezende and Mohamed, ICML 2015, Eq. 14.
    """
    offset = points - centre
    distance = _length(offset)
    pull = stretch / (radius + distance)
    # d/dr (1 + b / (a + r)) r = 1 + b a / (a + r)^2 along the radius, 1 + pull across it
    along = pull * radius / (radius + distance)
    n_dimensions = points.shape[-1]
    log_det = (n_dimensions - 1) * torch.log1p(pull) + torch.log1p(along)
    return points + pull * offset, log_det.squeeze(-1)


def _length(offset: Tensor) -> Tensor:
    """Compute the Euclidean length along the last axis, differentiable at 0 too."""
    return (offset.square().sum(dim=-1, keepdim=True) + 1e-20).sqrt()


class RadialFlows(nn.Module):
    """Densities of classes: standard normal distributions transformed by radial layers.

    Parameters
    ----------
    n_classes : int
        Number of densities.
    n_dimensions : int
        Dimension of the points.
    n_layers : int
        Number of layers of each flow.
    """

    def __init__(self, n_classes: int, n_dimensions: int, n_layers: int):
        super().__init__()
        bound = 1 / math.sqrt(n_dimensions)
        start = torch.empty(n_layers, n_classes, 1, n_dimensions + 2).uniform_(-bound, bound)
        self.centre = nn.Parameter(start[..., 2:].clone())
        self.raw_radius = nn.Parameter(start[..., :1].clone())
        self.raw_stretch = nn.Parameter(start[..., 1:2].clone())

    def forward(self, points: Tensor) -> Tensor:
        """Compute log-densities (n_samples, n_classes) of points (n_samples, n_dimensions)."""
        radius = softplus(self.raw_radius)
        stretch = softplus(self.raw_stretch) - radius  # above minus the radius: invertible
        moved = points.expand(self.centre.shape[1], *points.shape)
        log_det = points.new_zeros(())
        for layer in zip(self.centre, radius, stretch, strict=True):
            moved, step = radial_step(moved, *layer)
            log_det = log_det + step
        n_dimensions = points.shape[1]
        normal = -0.5 * (moved.square().sum(dim=-1) + n_dimensions * math.log(2 * math.pi))
        return (normal + log_det).T
