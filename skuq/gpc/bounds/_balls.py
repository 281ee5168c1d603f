"""Balls of the l1 and l2 norm that restrict boxes: projections and linear bounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_SAFETY = 1e-14  # relative widening of what is computed with rounding, for each feature


@dataclass(frozen=True)
class Ball:
    """Balls that restrict boxes, one per problem.

    Attributes
    ----------
    center : Tensor of shape (q, f)
        Centres.
    radius : Tensor of shape (q,)
        Radii.
    norm : int
        1 or 2.
    """

    center: Tensor
    radius: Tensor
    norm: int

    def select(self, rows: Tensor) -> Ball:
        """The balls of some of the problems."""
        return Ball(self.center[rows], self.radius[rows], self.norm)

    def project(self, points: Tensor) -> Tensor:
        """Move points that lie outside towards the centre, until they do not."""
        offset = points - self.center
        distance = torch.linalg.vector_norm(offset, self.norm, -1)
        share = self.radius * (1 - 1e-12) / distance.clamp(min=1e-300)
        inside = (distance <= self.radius)[:, None]
        return torch.where(inside, points, self.center + share[:, None] * offset)

    def steepest(self, gradient: Tensor) -> Tensor:
        """The step within each ball along which a function with this gradient grows most."""
        if self.norm == 2:
            size = torch.linalg.vector_norm(gradient, 2, -1, keepdim=True)
            return gradient / size.clamp(min=1e-300) * self.radius[:, None]
        largest = gradient.abs().argmax(-1, keepdim=True)
        step = gradient.gather(-1, largest).sign() * self.radius[:, None]
        return torch.zeros_like(gradient).scatter(-1, largest, step)

    def shrink(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Smallest boxes around the intersections, and which of them are not empty."""
        outside = torch.maximum(lower - self.center, self.center - upper).clamp(min=0)
        powers = outside**self.norm
        safety = 1 + _SAFETY * (1 + lower.shape[-1])
        rest = (self.radius**self.norm * safety - powers.sum(-1))[:, None] + powers
        reach = rest.clamp(min=0) ** (1 / self.norm) * safety
        tight_lower = torch.maximum(lower, self.center - reach)
        tight_upper = torch.minimum(upper, self.center + reach)
        kept = (rest >= 0).all(-1) & (tight_lower <= tight_upper).all(-1)
        return tight_lower, torch.maximum(tight_lower, tight_upper), kept

    def within(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Return whether each box lies in its ball."""
        farthest = torch.maximum((lower - self.center).abs(), (upper - self.center).abs())
        return torch.linalg.vector_norm(farthest, self.norm, -1) <= self.radius

    def parts(self, centers: Tensor, half_widths: Tensor) -> BallParts:
        """The balls in the coordinates of boxes."""
        return BallParts(self.center - centers, half_widths, self.radius, self.norm)


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
