"""Regions: boxes that balls of the l1 or l2 norm may cut, many at once.

Equations are those of the proofs page of the user guide (`docs/guide/robust_gpc_proofs.rst`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from skuq.gpc.bounds._latent_model import UNIT

_SAFETY = 1e-14  # relative widening of what is computed with rounding, for each feature
_WITHIN = 1 - 1e-12  # of the radius: where points are moved that lie outside their ball


@dataclass(frozen=True)
class Region:
    """One region for each of n points: a box, cut by a ball unless the norm is the maximum norm.

    Attributes
    ----------
    center : Tensor of shape (n, f)
        The points that the regions are around, which are the centres of the balls.
    lower, upper : Tensor of shape (n, f)
        Boxes.
    radius : Tensor of shape (n,), default=None
        Radii of the balls; None for boxes alone.
    norm : {1, 2}, default=2
        Norm of the balls.
    """

    center: Tensor
    lower: Tensor
    upper: Tensor
    radius: Tensor | None = None
    norm: int = 2

    def __len__(self) -> int:
        return len(self.center)

    def __getitem__(self, rows: Any) -> Region:
        """The regions of some of the points."""
        return self.within(self.lower[rows], self.upper[rows], rows)

    def to(self, device: str) -> Region:
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
            size = torch.linalg.vector_norm(slope, 2, -1, keepdim=True)
            return slope / size.clamp(min=1e-300) * self.radius[:, None]
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
        """Where to expand, half-widths that reach both faces in spite of rounding, and the balls.

        That is the centre of the box, or of the ball if it lies in the box and is closer to all
        points of both: where a domain cuts off parts of many features, for example.
        """
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
    """Balls as seen from boxes: offsets of the centres, and the boxes' half-widths.

    Points of a box are ``center + half_widths * t`` with ``-1 <= t <= 1``.
    """

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
        """Bound of ``|t|^2`` over the part of each box in its ball, (b,) (Eq. 16).

        As many coordinates are 1 as the ball has room for, those of the least half-widths first.
        """
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
