"""Objectives of a regressor's searches: a higher or a lower prediction than the given model's."""

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

# Initial displacement from the given model, in standard deviations of the noise. Without this
# displacement, a search could not start: the given model minimises the divergence, whose gradient
# is therefore zero there.
START = 1e-2


@dataclass(frozen=True, eq=False)
class _TwoSided(Objective):
    """Base class for two searches per point, for a higher and for a lower prediction.

    Parameters
    ----------
    reference : Tensor of shape (n_points, n_outputs)
        Outputs of the given model at the test points.
    noise_variance : float or None
        Variance of all models; None if their second output is the log variance.
    directions : tuple of int, default=(1, -1)
        Sign of the displacement in each search of a point.
    limit : float, default=inf
        Displacement, in units of the target, at which the objective is clipped.
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
        """Prediction of the given model at each point, (n_points, 1)."""
        return gaussians(self.reference[:, None], self.noise_variance)

    @cached_property
    def sign(self) -> Tensor:
        """Direction of each search, (n_searches,)."""
        # `new_full` writes on the device; `new_tensor` would wait for a copy from the CPU.
        return torch.cat([self.reference.new_full((1,), sign) for sign in self.directions])

    def away(self, mean: Tensor) -> Tensor:
        """Displacement of means in the search direction, in units of the target, clipped."""
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

    If all models have the same variance, the displacement is the square root of twice the
    divergence. The objectives by displacement and by divergence then rank models in the same order.
    The penalised displacement, unlike its square, has a minimum for every penalty, and a nonzero
    gradient at the start.

    Examples
    --------
    >>> import torch
    >>> attack = Displacement(torch.tensor([[0.0]]), 0.25).attack
    >>> attack(torch.tensor([[[2.0], [2.0]]]))  # upward: good for the first search only
    tensor([[-4.,  4.]])
    """

    def attack(self, outputs: Tensor) -> Tensor:
        return -self.away(outputs[..., 0]) / self.given.variance.sqrt()


@dataclass(frozen=True, eq=False)
class Divergence(_TwoSided):
    """Divergence from the given model in the direction of the search (Eq. 25, Appendix C.1).

    At the given model, the divergence has zero gradient. Therefore, searches start at a
    displacement of 0.01 standard deviations of the noise from the given model.

    Parameters
    ----------
    bias : OutputBias or None, default=None
        Parameter that is changed to displace the start. None: the search starts at the given model,
        and the initial displacement is added in the attack, not in the training loss.

    Examples
    --------
    >>> import torch
    >>> bias = OutputBias("bias", width=1, effect=1.0)
    >>> objective = Divergence(torch.tensor([[0.0]]), 1.0, bias=bias)
    >>> objective.attack(torch.tensor([[[2.0], [2.0]]]))  # upward: good for the first search only
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
    """Objective with two searches per point, by displacement or by divergence.

    Shapes: `reference` (n_points, n_outputs).
    """
    if attack == "displacement":
        return Displacement(reference, noise_variance, limit=limit)
    return Divergence(reference, noise_variance, limit=limit, bias=bias)
