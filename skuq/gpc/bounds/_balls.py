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
    """Balls as seen from boxes: offsets of the centres, and the boxes' half-widths."""

    offset: Tensor
    half_widths: Tensor
    radius: Tensor
    norm: int

    def repeat(self, count: int) -> BallParts:
        """Each of the balls several times in a row."""
        return BallParts(
            self.offset.repeat_interleave(count, 0),
            self.half_widths.repeat_interleave(count, 0),
            self.radius.repeat_interleave(count),
            self.norm,
        )

    def linear_minimum(self, gradient: Tensor) -> Tensor:
        """Lower bound over the ball of linear functions with `gradient` per half-width (Eq. 16)."""
        moving = self.half_widths > 0
        slope = torch.where(moving, gradient / torch.where(moving, self.half_widths, 1.0), 0.0)
        dual_order = torch.inf if self.norm == 1 else 2
        size = self.radius * torch.linalg.vector_norm(slope, dual_order, -1)
        start = (slope * self.offset).sum(-1)
        scale = (slope * self.offset).abs().sum(-1) + size
        return start - size - slope.shape[-1] * _SAFETY * scale
