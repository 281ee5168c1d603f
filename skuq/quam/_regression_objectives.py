"""Objectives of a regressor's searches: to predict more, or less, than the given model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from skuq.quam._objectives import Objective
from skuq.quam._regression_sampling import (
    DIRECTIONS,
    Gaussians,
    directed_divergence,
    gaussian_loss,
    gaussians,
)
from skuq.quam._tasks import OutputBias

# A search starts this far off the given model, in standard deviations of the noise: at the
# model itself the divergence is least and has no gradient.
START = 1e-2


@dataclass(frozen=True, eq=False)
class _TwoSided(Objective):
    """Two searches for each point, one for a higher and one for a lower prediction.

    Parameters
    ----------
    reference : Tensor of shape (n_points, n_outputs)
        Outputs of the given model at the test points.
    noise_variance : float or None
        Variance of all models; None if it is their second output.
    directions : tuple of int, default=(1, -1)
        Sign of the displacement that each search of a point asks for.
    limit : float, default=inf
        Displacement, in units of the target, beyond which there is nothing to gain.
    """

    reference: Tensor
    noise_variance: float | None
    directions: tuple[int, ...] = DIRECTIONS
    limit: float = math.inf

    @property
    def n_searches(self) -> int:
        return len(self.directions)

    @cached_property
    def given(self) -> Gaussians:
        """The given model at each point, (n_points, 1)."""
        return gaussians(self.reference[:, None], self.noise_variance)

    @cached_property
    def sign(self) -> Tensor:
        """Direction of each search, (n_searches,)."""
        # Not `new_tensor`, which would wait for an upload.
        return torch.cat([self.reference.new_full((1,), sign) for sign in self.directions])

    def away(self, mean: Tensor) -> Tensor:
        """How far means lie on the wanted side, in units of the target, up to the limit."""
        return (self.sign * (mean - self.given.mean)).clamp_max(self.limit)

    def training_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return gaussian_loss(outputs, y, self.noise_variance)

    def subset(self, searches: slice) -> Self:
        return replace(self, directions=self.directions[searches])

    def at(self, rows: slice | Tensor) -> Self:
        return replace(self, reference=self.reference[rows])


@dataclass(frozen=True, eq=False)
class Displacement(_TwoSided):
    """Displacement of the mean, in standard deviations of the given model.

    With one variance for all models, it is the root of twice the divergence, so that the same
    models are the best within any loss. Yet minus the displacement, unlike minus its square,
    has a minimum for every penalty, and a gradient from the start.

    Examples
    --------
    >>> import torch
    >>> attack = Displacement(torch.tensor([[0.0]]), 0.25).attack
    >>> attack(torch.tensor([[[2.0], [2.0]]]))  # right for the first search, wrong for the second
    tensor([[-4.,  4.]])
    """

    def attack(self, outputs: Tensor) -> Tensor:
        return -self.away(outputs[..., 0]) / self.given.variance.sqrt()


@dataclass(frozen=True, eq=False)
class Divergence(_TwoSided):
    """Divergence from the given model in the direction of the search (Eq. 25, Appendix C.1).

    Where a search starts, at the given model, the divergence has no gradient. So searches start
    0.01 standard deviations of the noise away from it.

    Parameters
    ----------
    bias : OutputBias or None, default=None
        The parameter by which the start is moved. None leaves the start, and lets the attack,
        though not the training loss, add that much to the displacement.

    Examples
    --------
    >>> import torch
    >>> bias = OutputBias("bias", width=1, effect=1.0)
    >>> objective = Divergence(torch.tensor([[0.0]]), 1.0, bias=bias)
    >>> objective.attack(torch.tensor([[[2.0], [2.0]]]))  # right for the first search only
    tensor([[-2.,  2.]])
    >>> objective.offsets()["bias"].tolist()
    [[0.009999999776482582], [-0.009999999776482582]]
    """

    bias: OutputBias | None = None

    def attack(self, outputs: Tensor) -> Tensor:
        models = gaussians(outputs, self.noise_variance)
        away = self.away(models.mean)
        if self.bias is None:
            away = away + START * self.given.variance.sqrt()
        return -directed_divergence(self.given, models, away)  # Line 4, Eq. 25

    def offsets(self) -> dict[str, Tensor]:
        if self.bias is None:
            return {}
        start = self.sign * self.given.variance.sqrt() * START / self.bias.effect
        offset = self.reference.new_zeros(start.numel(), self.bias.width)
        offset[:, 0] = start.flatten()
        return {self.bias.name: offset}


def regression_objective(
    reference: Tensor,
    *,
    attack: str,
    noise_variance: float | None,
    bias: OutputBias | None,
    limit: float = math.inf,
) -> Displacement | Divergence:
    """Two searches for each point, by displacement or by divergence.

    Shapes: `reference` (n_points, n_outputs).
    """
    if attack == "displacement":
        return Displacement(reference, noise_variance, limit=limit)
    return Divergence(reference, noise_variance, limit=limit, bias=bias)
