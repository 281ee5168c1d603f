"""Lower bounds of quadratic functions over boxes and balls, many at once.

Equations are those of the proofs page of the user guide (`docs/guide/robust_gpc_proofs.rst`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from skuq.gpc.bounds._regions import BallParts

_SWEEPS = 4  # of coordinate descent; any number gives a valid bound
_SAFETY = 1e-12  # relative; far above the rounding error of what is computed here


def box_minimum(
    value: Tensor, gradient: Tensor, hessian: Tensor, ball: BallParts | None = None
) -> tuple[Tensor, Tensor]:
    """Lower bound of ``value + gradient @ t + t @ hessian @ t / 2`` over ``-1 <= t <= 1``.

    The better of two bounds. The first keeps the diagonal of the Hessian and bounds the rest
    by absolute values. The second makes the function convex by adding to the diagonal what
    the smallest eigenvalue lacks, and pays for that at most; a tangent at any point, here
    the one that coordinate descent ends at, then bounds it from below.

    Parameters
    ----------
    value : Tensor of shape (b,)
        Constant parts.
    gradient : Tensor of shape (b, f)
        Linear parts.
    hessian : Tensor of shape (b, f, f)
        Symmetric quadratic parts.
    ball : BallParts, default=None
        Restricts the boxes: linear parts are bounded over it too, and what makes the function
        convex costs less.

    Returns
    -------
    bound : Tensor of shape (b,)
        No larger than the minimum, rounding included.
    point : Tensor of shape (b, f)
        Where the minimum is likely to be attained.

    Examples
    --------
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> bound, point = box_minimum(one[0], -one, 4 * one[None])
    >>> round(float(bound), 6), round(float(point), 6)
    (0.875, 0.25)
    """
    diagonal = hessian.diagonal(dim1=-2, dim2=-1)
    others = hessian.abs().sum((-2, -1)) - diagonal.abs().sum(-1)
    separable = _separable_minimum(gradient, diagonal) - others / 2  # Eq. 14
    lacking = (-torch.linalg.eigvalsh(hessian)[:, 0]).clamp(min=0)
    scale = hessian.abs().sum((-2, -1))
    lacking = lacking + _SAFETY * scale
    convex = hessian + torch.diag_embed(lacking[:, None].expand_as(gradient))
    point = _descend(gradient, convex)
    length = torch.full_like(lacking, gradient.shape[-1])
    if ball is not None:
        length = torch.minimum(length, ball.squared_length())
    bound = torch.maximum(separable, _tangent(gradient, convex, point, ball) - lacking * length / 2)
    if ball is not None:
        tangent = _tangent(gradient, convex, torch.zeros_like(point), ball)
        bound = torch.maximum(bound, tangent - lacking * length / 2)
    rounding = _SAFETY * (value.abs() + gradient.abs().sum(-1) + scale)
    return value + bound - rounding, point


def _tangent(gradient: Tensor, convex: Tensor, point: Tensor, ball: BallParts | None) -> Tensor:
    """Least value of the tangent at a point of a convex quadratic function (Eq. 15, 16)."""
    curved = (convex @ point[..., None])[..., 0]
    slope = gradient + curved
    least = -slope.abs().sum(-1)
    if ball is not None:
        least = torch.maximum(least, ball.linear_minimum(slope))
    return ((gradient + curved / 2) * point).sum(-1) + least - (slope * point).sum(-1)


def _separable_minimum(gradient: Tensor, diagonal: Tensor) -> Tensor:
    """Minimum of ``sum_j g_j t_j + d_j t_j^2 / 2`` over the box."""
    inside = diagonal > gradient.abs()
    inner = -(gradient**2) / (2 * torch.where(inside, diagonal, 1.0))
    return torch.where(inside, inner, diagonal / 2 - gradient.abs()).sum(-1)


def _descend(gradient: Tensor, convex: Tensor) -> Tensor:
    """Coordinate descent on convex quadratics within the box."""
    point = torch.zeros_like(gradient)
    diagonal = convex.diagonal(dim1=-2, dim2=-1)
    flat = diagonal <= 0
    step = 1 / torch.where(flat, 1.0, diagonal)
    for _ in range(_SWEEPS):
        for j in range(gradient.shape[-1]):
            slope = gradient[:, j] + (convex[:, j] * point).sum(-1)
            moved = point[:, j] - slope * step[:, j]
            point[:, j] = torch.where(flat[:, j], -slope.sign(), moved.clamp(-1, 1))
    return point
