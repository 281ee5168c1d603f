"""Regions, which are boxes that balls of the l1 or l2 norm may cut, and functions over them.

A `Region` holds the boxes and balls of many points, `BallParts` the balls as seen from boxes,
`Moments` quadratic functions over boxes with bounds of their errors, and `box_minimum` bounds the
least value of such functions. Equations are those of the proofs page of the user guide
(`docs/guide/robust_gpc_proofs.rst`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skuq.gpc.bounds._latent_model import UNIT

_SAFETY = 1e-14  # relative widening of what is computed with rounding, for each feature
_WITHIN = 1 - 1e-12  # of the radius: where points are moved that lie outside their ball
_SWEEPS = 4  # of coordinate descent; any number gives a valid bound
_MARGIN = 1e-12  # relative; far above the rounding error of minima of quadratic functions


@dataclass(frozen=True)
class Region:
    """One region for each of n points: a box, cut by a ball unless the norm is the maximum norm."""

    # (n, f), the points that the regions are around, which are the centres of the balls
    center: Tensor
    lower: Tensor  # (n, f), boxes
    upper: Tensor  # (n, f)
    radius: Tensor | None = None  # (n,), radii of the balls; None for boxes alone
    norm: int = 2  # norm of the balls

    def __len__(self) -> int:
        return len(self.center)

    def __getitem__(self, rows: Any) -> Region:
        """The regions of some of the points."""
        return self.within(self.lower[rows], self.upper[rows], rows)

    def to(self, device: str | torch.device) -> Region:
        """The regions on a device."""
        radius = None if self.radius is None else self.radius.to(device)
        lower, upper = self.lower.to(device), self.upper.to(device)
        return Region(self.center.to(device), lower, upper, radius, self.norm)

    @property
    def free(self) -> Tensor:
        """Indices of the features that vary in any region; the first if there are none."""
        moving = torch.nonzero((self.upper > self.lower).any(0))[:, 0]
        return moving if len(moving) else moving.new_zeros(1)

    def of_features(self, features: Tensor) -> Region:
        """The regions in these features, which are all that vary."""
        lower, upper = self.lower[:, features], self.upper[:, features]
        return Region(self.center[:, features], lower, upper, self.radius, self.norm)

    def within(self, lower: Tensor, upper: Tensor, rows: Any) -> Region:
        """The parts of some of the regions that lie in these boxes."""
        radius = None if self.radius is None else self.radius[rows]
        return Region(self.center[rows], lower, upper, radius, self.norm)

    def project(self, points: Tensor) -> Tensor:
        """Move points into their regions, those outside of a ball towards its centre."""
        points = torch.clamp(points, self.lower, self.upper)
        if self.radius is None:
            return points
        offset = points - self.center
        distance = torch.linalg.vector_norm(offset, self.norm, -1)
        within = min(_WITHIN, 1 - 2 * self._rounding)
        shift = (self.radius * within / distance.clamp(min=1e-300))[:, None] * offset
        moved = self.center + shift
        # On the grid of a large centre, a shift may have become longer than the radius.
        longer = (moved - self.center).abs() > shift.abs()
        nearer = torch.where(longer, torch.nextafter(moved, self.center), moved)
        moved = torch.where(self._ball_holds(moved), moved, nearer)
        return torch.where(self._ball_holds(points), points, moved)

    @property
    def _rounding(self) -> float:
        """Relative rounding error of a distance, in whichever order it is summed up."""
        return 4 * UNIT * (2 + self.center.shape[-1])

    def _ball_holds(self, points: Tensor) -> Tensor:
        """Whether points lie in their balls for certain, (n, 1)."""
        assert self.radius is not None
        distance = torch.linalg.vector_norm(points - self.center, self.norm, -1, keepdim=True)
        return distance * (1 + self._rounding) <= self.radius[:, None]

    def steepest(self, gradient: Tensor) -> Tensor:
        """The step within each region along which a function of this gradient grows most."""
        if self.radius is None:
            return gradient.sign() * (self.upper - self.lower)
        slope = torch.where(self.upper > self.lower, gradient, 0.0)
        if self.norm == 2:
            largest = slope.abs().amax(-1, keepdim=True)  # by which squares do not underflow
            slope = slope / torch.where(largest > 0, largest, 1.0)
            size = torch.linalg.vector_norm(slope, 2, -1, keepdim=True)
            return slope / size.clamp(min=1.0) * self.radius[:, None]
        largest = slope.abs().argmax(-1, keepdim=True)
        step = slope.gather(-1, largest).sign() * self.radius[:, None]
        return torch.zeros_like(slope).scatter(-1, largest, step)

    def shrink(self) -> tuple[Region, Tensor]:
        """The same regions in their smallest boxes, and which of them are not empty."""
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
        """Return whether each region is a whole box: no ball cuts it."""
        if self.radius is None:
            return torch.ones_like(self.lower[:, 0], dtype=torch.bool)
        farthest = torch.maximum((self.lower - self.center).abs(), (self.upper - self.center).abs())
        return torch.linalg.vector_norm(farthest, self.norm, -1) <= self.radius

    def coordinates(self) -> tuple[Tensor, Tensor, BallParts | None]:
        """Centres, half-widths that reach both faces in spite of rounding, and the balls."""
        # That is the centre of the box, or of the ball if it lies in the box and is closer to all
        # points of both: where a domain cuts off parts of many features, for example.
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
    """Balls as seen from boxes: offsets of the centres, and the boxes' half-widths."""

    # Points of a box are ``center + half_widths * t`` with ``-1 <= t <= 1``.

    offset: Tensor
    half_widths: Tensor
    radius: Tensor
    norm: int

    def select(self, rows: Tensor) -> BallParts:
        """The balls of some of the boxes."""
        return BallParts(self.offset[rows], self.half_widths[rows], self.radius[rows], self.norm)

    def repeat(self, count: int) -> BallParts:
        """Each of the balls several times in a row."""
        rows = torch.arange(len(self.radius), device=self.radius.device)
        return self.select(rows.repeat_interleave(count))

    def distance(self) -> Tensor:
        """Bound of the distance of any point of a ball from the box's centre, (b,)."""
        safety = 1 + _SAFETY * (2 + self.offset.shape[-1])
        return (self.radius + torch.linalg.vector_norm(self.offset, self.norm, -1)) * safety

    def squared_length(self) -> Tensor:
        """Bound of ``|t|^2`` over the part of each box in its ball, (b,) (Eq. 16)."""
        # As many coordinates are 1 as the ball has room for, those of the least half-widths first.
        moving = self.half_widths > 0
        costs = torch.where(moving, self.half_widths, torch.inf).sort(-1).values ** self.norm
        budget = (self.distance() ** self.norm)[:, None]
        before = costs.cumsum(-1) - costs
        before = torch.where(costs.isinf(), torch.inf, before)
        share = ((budget - before) / costs).nan_to_num(nan=0.0).clamp(0, 1)
        return share.sum(-1) * (1 + _SAFETY * (2 + self.offset.shape[-1]))

    def linear_minimum(self, gradient: Tensor) -> Tensor:
        """Lower bound over the ball of linear functions with `gradient` per half-width (Eq. 16)."""
        slope = self._slope(gradient)
        size = self.radius * self._dual(slope)
        start = (slope * self.offset).sum(-1)
        scale = (slope * self.offset).abs().sum(-1) + size
        return start - size - slope.shape[-1] * _SAFETY * scale

    def linear_reach(self, gradient: Tensor) -> Tensor:
        """Largest absolute value over the ball of linear functions (b, k, f) in t, (b, k)."""
        slope = self._slope(gradient.movedim(1, 0)).movedim(0, 1)
        return self.distance()[:, None] * self._dual(slope) * (1 + 1e-12)

    def _slope(self, gradient: Tensor) -> Tensor:
        moving = self.half_widths > 0
        return torch.where(moving, gradient / torch.where(moving, self.half_widths, 1.0), 0.0)

    def _dual(self, slope: Tensor) -> Tensor:
        return torch.linalg.vector_norm(slope, torch.inf if self.norm == 1 else 2, -1)


class Moments(NamedTuple):
    """Expansion of one family of functions over boxes, in coordinates ``t in [-1, 1]^f``."""

    value: Tensor  # (b, k), at the centres
    gradient: Tensor  # (b, k, f), times the half-widths of the boxes
    hessian: Tensor  # (b, k, f, f), times the half-widths on both sides
    # (b, k), bound on the error of the second-order polynomial anywhere in the box, rounding
    # included
    rest: Tensor
    # (b, k, f), bound on the error of ``gradient + hessian @ t`` as the gradient at t, in boxes
    # that lie in their ball
    gradient_rest: Tensor
    ball: BallParts | None = None  # restricts the boxes

    def select(self, rows: Tensor) -> Moments:
        """The expansions over some of the boxes."""
        ball = None if self.ball is None else self.ball.select(rows)
        return self._each(lambda part: part[rows], ball)

    def combine(self, weights: Tensor) -> Moments:
        """Weighted sums of the k functions, with weights of shape (b, o, k); k becomes o."""
        absolute = weights.abs()
        return Moments(
            (weights @ self.value[..., None])[..., 0],
            weights @ self.gradient,
            torch.einsum("bok,bkfg->bofg", weights, self.hessian),
            (absolute @ self.rest[..., None])[..., 0],
            absolute @ self.gradient_rest,
            self.ball,
        )

    def flatten(self) -> Moments:
        """Each function of each box as a single function of a box of its own."""
        ball = None if self.ball is None else self.ball.repeat(self.value.shape[1])
        return self._each(lambda part: part.flatten(0, 1)[:, None], ball)

    def plus(self, other: Moments) -> Moments:
        """Sum of two families of functions."""
        return Moments(
            self.value + other.value,
            self.gradient + other.gradient,
            self.hessian + other.hessian,
            self.rest + other.rest,
            self.gradient_rest + other.gradient_rest,
            self.ball,
        )

    def quadratic_reach(self) -> Tensor:
        """Largest absolute value of each second-order part, shape (b, k)."""
        sums = self.hessian.abs().sum(-1)
        reach = sums.sum(-1)
        if self.ball is not None:
            frobenius = torch.linalg.matrix_norm(self.hessian) * (1 + 1e-12)
            largest = torch.minimum(sums.amax(-1), frobenius)
            reach = torch.minimum(reach, largest * self.ball.squared_length()[:, None])
        return reach / 2

    def reach(self) -> Tensor:
        """Largest distance of each function from its value at the centre, shape (b, k)."""
        linear = self.gradient.abs().sum(-1)
        if self.ball is not None:
            linear = torch.minimum(linear, self.ball.linear_reach(self.gradient))
        return linear + self.quadratic_reach() + self.rest

    def _each(self, change: Callable[[Tensor], Tensor], ball: BallParts | None) -> Moments:
        return Moments(
            change(self.value),
            change(self.gradient),
            change(self.hessian),
            change(self.rest),
            change(self.gradient_rest),
            ball,
        )

    def range(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds of shape (b, k) over the boxes."""
        reach = self.reach()
        return self.value - reach, self.value + reach


def box_minimum(
    value: Tensor, gradient: Tensor, hessian: Tensor, ball: BallParts | None = None
) -> tuple[Tensor, Tensor]:
    """Lower bound of ``value + gradient @ t + t @ hessian @ t / 2`` over ``-1 <= t <= 1``."""
    # value (b,), gradient (b, f), hessian (b, f, f) -> bound (b,), point (b, f)
    # The better of two bounds. The first keeps the diagonal of the Hessian and bounds the rest by
    # absolute values. The second makes the function convex by adding to the diagonal what the
    # smallest eigenvalue lacks, and pays for that at most; a tangent at any point, here the one
    # that coordinate descent ends at, then bounds it from below. Linear parts are bounded over the
    # ball too, in which making the function convex costs less. Rounding is included.
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
