"""Regions, which are boxes or intersections of boxes and balls, and quadratic functions over them.

`Region` contains the boxes and balls around many points, `BallParts` the balls in coordinates
relative to boxes, and `Moments` quadratic functions over boxes with error bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skuq.gpc.bounds._latent_model import UNIT

_SAFETY = 1e-14  # margin for relative rounding errors, per feature
_WITHIN = 1 - 1e-12  # distance of projected points from the centre, as a fraction of the radius
_SWEEPS = 4  # number of sweeps of coordinate descent; bounds are valid after any number of sweeps
_MARGIN = 1e-12  # margin for relative rounding errors of minima of quadratic functions


@dataclass(frozen=True)
class Region:
    """Regions around n points: boxes, intersected with balls if the norm is "l1" or "l2"."""

    center: Tensor  # (n, f), points, and centres of the balls
    lower: Tensor  # (n, f), lower limits of the boxes
    upper: Tensor  # (n, f), upper limits of the boxes
    radius: Tensor | None = None  # (n,), radii of the balls; None for boxes without balls
    norm: int = 2  # norm of the balls, 1 or 2

    def __len__(self) -> int:
        return len(self.center)

    def __getitem__(self, rows: Any) -> Region:
        return self.within(self.lower[rows], self.upper[rows], rows)

    def to(self, device: str | torch.device) -> Region:
        radius = None if self.radius is None else self.radius.to(device)
        lower, upper = self.lower.to(device), self.upper.to(device)
        return Region(self.center.to(device), lower, upper, radius, self.norm)

    @property
    def free(self) -> Tensor:
        """Indices of the features that vary in at least one region; [0] if no feature varies."""
        moving = torch.nonzero((self.upper > self.lower).any(0))[:, 0]
        return moving if len(moving) else moving.new_zeros(1)

    def of_features(self, features: Tensor) -> Region:
        lower, upper = self.lower[:, features], self.upper[:, features]
        return Region(self.center[:, features], lower, upper, self.radius, self.norm)

    def within(self, lower: Tensor, upper: Tensor, rows: Any) -> Region:
        """Restrict the regions at `rows` to smaller boxes."""
        radius = None if self.radius is None else self.radius[rows]
        return Region(self.center[rows], lower, upper, radius, self.norm)

    def project(self, points: Tensor) -> Tensor:
        """Move points into their regions: clip to the box, then move towards the ball's center."""
        points = torch.clamp(points, self.lower, self.upper)
        if self.radius is None:
            return points
        offset = points - self.center
        distance = torch.linalg.vector_norm(offset, self.norm, -1)
        within = min(_WITHIN, 1 - 2 * self._rounding)
        shift = (self.radius * within / distance.clamp(min=1e-300))[:, None] * offset
        moved = self.center + shift
        # Rounding may put points outside the ball if the coordinates of its center are large.
        longer = (moved - self.center).abs() > shift.abs()
        nearer = torch.where(longer, torch.nextafter(moved, self.center), moved)
        moved = torch.where(self._ball_holds(moved), moved, nearer)
        return torch.where(self._ball_holds(points), points, moved)

    @property
    def _rounding(self) -> float:
        """Bound on the relative rounding error of a distance, for any order of summation."""
        return 4 * UNIT * (2 + self.center.shape[-1])

    def _ball_holds(self, points: Tensor) -> Tensor:
        """Return whether points are certain to lie in their balls despite rounding, (n, 1)."""
        assert self.radius is not None
        distance = torch.linalg.vector_norm(points - self.center, self.norm, -1, keepdim=True)
        return distance * (1 + self._rounding) <= self.radius[:, None]

    def steepest(self, gradient: Tensor) -> Tensor:
        """Return the step of steepest ascent whose length is the radius, or the width of a box."""
        if self.radius is None:
            return gradient.sign() * (self.upper - self.lower)
        slope = torch.where(self.upper > self.lower, gradient, 0.0)
        if self.norm == 2:
            largest = slope.abs().amax(-1, keepdim=True)  # scale, so that no square underflows
            slope = slope / torch.where(largest > 0, largest, 1.0)
            size = torch.linalg.vector_norm(slope, 2, -1, keepdim=True)
            return slope / size.clamp(min=1.0) * self.radius[:, None]
        largest = slope.abs().argmax(-1, keepdim=True)
        step = slope.gather(-1, largest).sign() * self.radius[:, None]
        return torch.zeros_like(slope).scatter(-1, largest, step)

    def shrink(self) -> tuple[Region, Tensor]:
        """Shrink boxes to the bounding boxes of regions; also return a mask of nonempty regions."""
        lower, upper = self.lower, self.upper
        if self.radius is None:
            return self, (lower <= upper).all(-1)
        outside = torch.maximum(lower - self.center, self.center - upper).clamp(min=0)
        powers = outside**self.norm
        safety = 1 + _SAFETY * (1 + lower.shape[-1])
        rest = (self.radius**self.norm * safety - powers.sum(-1))[:, None] + powers
        reach = rest.clamp(min=0) ** (1 / self.norm) * safety
        lower = torch.maximum(lower, self.center - reach)
        upper = torch.minimum(upper, self.center + reach)
        kept = (rest >= 0).all(-1) & (lower <= upper).all(-1)
        return Region(self.center, lower, torch.maximum(lower, upper), self.radius, self.norm), kept

    def is_box(self) -> Tensor:
        if self.radius is None:
            return torch.ones_like(self.lower[:, 0], dtype=torch.bool)
        farthest = torch.maximum((self.lower - self.center).abs(), (self.upper - self.center).abs())
        return torch.linalg.vector_norm(farthest, self.norm, -1) <= self.radius

    def coordinates(self) -> tuple[Tensor, Tensor, BallParts | None]:
        """Return each box's origin and half-widths (rounded up), and its ball as in `BallParts`."""
        # The origin is the ball's centre if that lies in the box and gives a smaller bound on
        # distances, for example if a domain clips many features; otherwise, the box's centre.
        origin = self.lower + (self.upper - self.lower) / 2
        if self.radius is not None:
            inside = ((self.lower <= self.center) & (self.center <= self.upper)).all(-1)
            offset = torch.linalg.vector_norm(origin - self.center, self.norm, -1)
            across = torch.linalg.vector_norm(self.upper - origin, self.norm, -1)
            closer = inside & (self.radius < torch.minimum(across, self.radius + offset))
            origin = torch.where(closer[:, None], self.center, origin)
        half_widths = torch.maximum(self.upper - origin, origin - self.lower) * (1 + 4 * UNIT)
        if self.radius is None:
            return origin, half_widths, None
        ball = BallParts(self.center - origin, half_widths, self.radius, self.norm)
        return origin, half_widths, ball


@dataclass(frozen=True)
class BallParts:
    """Balls in coordinates t, in which each box is ``origin + half_widths * t``, |t_i| <= 1."""

    offset: Tensor  # centre of the ball minus origin
    half_widths: Tensor
    radius: Tensor
    norm: int  # 1 or 2

    def select(self, rows: Tensor) -> BallParts:
        return BallParts(self.offset[rows], self.half_widths[rows], self.radius[rows], self.norm)

    def repeat(self, count: int) -> BallParts:
        rows = torch.arange(len(self.radius), device=self.radius.device)
        return self.select(rows.repeat_interleave(count))

    def distance(self) -> Tensor:
        """Bound the distance of points of the ball from the origin t = 0, (b,)."""
        safety = 1 + _SAFETY * (2 + self.offset.shape[-1])
        return (self.radius + torch.linalg.vector_norm(self.offset, self.norm, -1)) * safety

    def squared_length(self) -> Tensor:
        """Bound ``|t|^2`` over the intersection of box and ball, (b,) (Eq. 16)."""
        # The largest length is found greedily: coordinates are set to 1, in ascending order of
        # half-widths, until the point reaches the boundary of the ball.
        moving = self.half_widths > 0
        costs = torch.where(moving, self.half_widths, torch.inf).sort(-1).values ** self.norm
        budget = (self.distance() ** self.norm)[:, None]
        before = costs.cumsum(-1) - costs
        before = torch.where(costs.isinf(), torch.inf, before)
        share = ((budget - before) / costs).nan_to_num(nan=0.0).clamp(0, 1)
        return share.sum(-1) * (1 + _SAFETY * (2 + self.offset.shape[-1]))

    def linear_minimum(self, gradient: Tensor) -> Tensor:
        """Bound ``gradient @ t`` from below over the ball (Eq. 16)."""
        slope = self._slope(gradient)
        size = self.radius * self._dual(slope)
        start = (slope * self.offset).sum(-1)
        scale = (slope * self.offset).abs().sum(-1) + size
        return start - size - slope.shape[-1] * _SAFETY * scale

    def linear_reach(self, gradient: Tensor) -> Tensor:
        """Bound ``|gradient @ t|`` over the ball, (b, k)."""
        slope = self._slope(gradient.movedim(1, 0)).movedim(0, 1)
        return self.distance()[:, None] * self._dual(slope) * (1 + 1e-12)

    def _slope(self, gradient: Tensor) -> Tensor:
        moving = self.half_widths > 0
        return torch.where(moving, gradient / torch.where(moving, self.half_widths, 1.0), 0.0)

    def _dual(self, slope: Tensor) -> Tensor:
        return torch.linalg.vector_norm(slope, torch.inf if self.norm == 1 else 2, -1)


class Moments(NamedTuple):
    """Second-order expansions of k functions over boxes, in coordinates ``t in [-1, 1]^f``."""

    value: Tensor  # (b, k), at t = 0
    gradient: Tensor  # (b, k, f), at t = 0
    hessian: Tensor  # (b, k, f, f), at t = 0
    rest: Tensor  # (b, k), bound on the error of the polynomial over the box, including rounding
    # (b, k, f), bound on the difference between the gradient at t and ``gradient + hessian @ t``;
    # valid for boxes inside their balls
    gradient_rest: Tensor
    ball: BallParts | None = None  # balls with which the boxes are intersected

    def select(self, rows: Tensor) -> Moments:
        ball = None if self.ball is None else self.ball.select(rows)
        return self._each(lambda part: part[rows], ball)

    def combine(self, weights: Tensor) -> Moments:
        absolute = weights.abs()
        value, rest = (weights @ self.value[..., None])[..., 0], absolute @ self.rest[..., None]
        gradient, gradient_rest = weights @ self.gradient, absolute @ self.gradient_rest
        hessian = torch.einsum("bok,bkfg->bofg", weights, self.hessian)
        return Moments(value, gradient, hessian, rest[..., 0], gradient_rest, self.ball)

    def flatten(self) -> Moments:
        ball = None if self.ball is None else self.ball.repeat(self.value.shape[1])
        return self._each(lambda part: part.flatten(0, 1)[:, None], ball)

    def plus(self, other: Moments) -> Moments:
        sums = (one + two for one, two in zip(self[:5], other[:5], strict=True))
        return Moments._make([*sums, self.ball])

    def quadratic_reach(self) -> Tensor:
        """Bound the absolute values of the second-order terms, shape (b, k)."""
        sums = self.hessian.abs().sum(-1)
        reach = sums.sum(-1)
        if self.ball is not None:
            frobenius = torch.linalg.matrix_norm(self.hessian) * (1 + 1e-12)
            largest = torch.minimum(sums.amax(-1), frobenius)
            reach = torch.minimum(reach, largest * self.ball.squared_length()[:, None])
        return reach / 2

    def reach(self) -> Tensor:
        """Bound the change of each function from its value at the centre, shape (b, k)."""
        linear = self.gradient.abs().sum(-1)
        if self.ball is not None:
            linear = torch.minimum(linear, self.ball.linear_reach(self.gradient))
        return linear + self.quadratic_reach() + self.rest

    def _each(self, change: Callable[[Tensor], Tensor], ball: BallParts | None) -> Moments:
        return Moments._make([*map(change, self[:5]), ball])

    def range(self) -> tuple[Tensor, Tensor]:
        reach = self.reach()
        return self.value - reach, self.value + reach


def box_minimum(
    value: Tensor, gradient: Tensor, hessian: Tensor, ball: BallParts | None = None
) -> tuple[Tensor, Tensor]:
    """Bound ``value + gradient @ t + t @ hessian @ t / 2`` from below over ``-1 <= t <= 1``.

    Shapes: `value` (b,), `gradient` (b, f), `hessian` (b, f, f); returns the bound (b,) and a
    likely minimiser (b, f).
    """
    # The result is the larger of two bounds. The first is the exact minimum without off-diagonal
    # entries of the Hessian, minus the largest value of the off-diagonal terms. For the second,
    # `lacking` is added to the diagonal, which makes the function convex. The bound is the minimum
    # of its tangent at the end of coordinate descent, minus the largest value of the added term; a
    # ball tightens both parts. Margins for rounding errors are subtracted.
    diagonal = hessian.diagonal(dim1=-2, dim2=-1)
    others = hessian.abs().sum((-2, -1)) - diagonal.abs().sum(-1)
    separable = _separable_minimum(gradient, diagonal) - others / 2  # Eq. 14
    lacking = (-torch.linalg.eigvalsh(hessian)[:, 0]).clamp(min=0)
    scale = hessian.abs().sum((-2, -1))
    lacking = lacking + _MARGIN * scale
    convex = hessian + torch.diag_embed(lacking[:, None].expand_as(gradient))
    point = _descend(gradient, convex)
    length = torch.full_like(lacking, gradient.shape[-1])
    if ball is not None:
        length = torch.minimum(length, ball.squared_length())
    bound = torch.maximum(separable, _tangent(gradient, convex, point, ball) - lacking * length / 2)
    if ball is not None:
        tangent = _tangent(gradient, convex, torch.zeros_like(point), ball)
        bound = torch.maximum(bound, tangent - lacking * length / 2)
    rounding = _MARGIN * (value.abs() + gradient.abs().sum(-1) + scale)
    return value + bound - rounding, point


def _tangent(gradient: Tensor, convex: Tensor, point: Tensor, ball: BallParts | None) -> Tensor:
    """Minimise the tangent, at `point`, of a convex quadratic function (Eq. 15, 16)."""
    curved = (convex @ point[..., None])[..., 0]
    slope = gradient + curved
    least = -slope.abs().sum(-1)
    if ball is not None:
        least = torch.maximum(least, ball.linear_minimum(slope))
    return ((gradient + curved / 2) * point).sum(-1) + least - (slope * point).sum(-1)


def _separable_minimum(gradient: Tensor, diagonal: Tensor) -> Tensor:
    """Minimise ``sum_j g_j t_j + d_j t_j^2 / 2`` over the box."""
    inside = diagonal > gradient.abs()
    inner = -(gradient**2) / (2 * torch.where(inside, diagonal, 1.0))
    return torch.where(inside, inner, diagonal / 2 - gradient.abs()).sum(-1)


def _descend(gradient: Tensor, convex: Tensor) -> Tensor:
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
