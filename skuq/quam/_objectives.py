"""Objectives that gradient searches minimise: an attack at test points, and the training loss."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

from skuq.quam._importance_sampling import (
    DIRECTIONS,
    Gaussians,
    OutputBias,
    directed_divergence,
    gaussian_loss,
    gaussians,
)

# Initial displacement from the given model, in standard deviations of the noise. An attack by the
# divergence cannot start at the given model itself, because its gradient is zero there.
START = 1e-2


class Objective(ABC):
    """Attack and training loss of a batch of searches, as functions of the models' outputs."""

    @property
    @abstractmethod
    def n_searches(self) -> int:
        """Number of searches for each test point."""

    @abstractmethod
    def attack(self, outputs: Tensor) -> Tensor:
        """Compute ``L_adv`` of Line 4, (n_points, n_searches), from outputs (..., n_outputs)."""

    @abstractmethod
    def training_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Compute the loss of Line 3: (n_models, n_samples, n_outputs) -> (n_models, n_samples)."""

    @abstractmethod
    def subset(self, searches: slice) -> Objective:
        """Restrict the objective to some of the searches of each point."""

    @abstractmethod
    def at(self, rows: slice | Tensor) -> Objective:
        """Restrict the objective to some of the points."""

    def offsets(self) -> dict[str, Tensor]:
        r"""Return initial changes of weights, each (n_points * n_searches, \*parameter.shape)."""
        return {}


class _OfClasses(Objective):
    def training_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(outputs.movedim(-1, 1), y.expand(len(outputs), -1), reduction="none")


@dataclass(frozen=True, eq=False)
class Targeted(_OfClasses):
    """Attack: cross-entropy with the class in `targets`, (n_points or 1, n_searches) (App. C.1)."""

    targets: Tensor

    @property
    def n_searches(self) -> int:
        return self.targets.shape[1]

    def attack(self, outputs: Tensor) -> Tensor:
        targets = self.targets.expand(outputs.shape[:2])
        return cross_entropy(outputs.movedim(-1, 1), targets, reduction="none")

    def subset(self, searches: slice) -> Targeted:
        return Targeted(self.targets[:, searches])

    def at(self, rows: slice | Tensor) -> Targeted:
        return self if len(self.targets) == 1 else Targeted(self.targets[rows])


@dataclass(frozen=True, eq=False)
class Untargeted(_OfClasses):
    """Attack: negative KL divergence from `log_reference`, (n_points, n_classes) (Line 4)."""

    log_reference: Tensor

    @property
    def n_searches(self) -> int:
        return 1

    def attack(self, outputs: Tensor) -> Tensor:
        # `kl_divergence` cannot be used, because it clips negative values to zero, and clipped
        # values have no gradient.
        log_reference = self.log_reference[:, None]
        return (torch.exp(log_reference) * (log_softmax(outputs, -1) - log_reference)).sum(-1)

    def subset(self, searches: slice) -> Untargeted:
        return self

    def at(self, rows: slice | Tensor) -> Untargeted:
        return Untargeted(self.log_reference[rows])


@dataclass(frozen=True, eq=False)
class _TwoSided(Objective):
    """Two searches per point, for a higher and for a lower prediction.

    `reference` contains the given model's outputs at the points, (n_points, n_outputs). Larger
    displacements than `limit`, in units of the target, do not improve the attack.
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
        # `new_full` writes on the device, whereas `new_tensor` would wait for a copy from the CPU.
        return torch.cat([self.reference.new_full((1,), sign) for sign in self.directions])

    def away(self, mean: Tensor) -> Tensor:
        """Compute displacements in the direction of the search; reduce larger ones to `limit`."""
        return (self.sign * (mean - self.given.mean)).clamp_max(self.limit)

    def training_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return gaussian_loss(outputs, y, self.noise_variance)

    def subset(self, searches: slice) -> Self:
        return replace(self, directions=self.directions[searches])

    def at(self, rows: slice | Tensor) -> Self:
        return replace(self, reference=self.reference[rows])


@dataclass(frozen=True, eq=False)
class Displacement(_TwoSided):
    """Attack: displacement of the mean, in standard deviations of the given model.

    If all models have the same variance, the displacement is the square root of twice the
    divergence, and ranks models in the same order. Unlike with the divergence, the penalised
    objective has a minimum for every penalty, and its gradient at the given model is not zero.
    """

    def attack(self, outputs: Tensor) -> Tensor:
        return -self.away(outputs[..., 0]) / self.given.variance.sqrt()


@dataclass(frozen=True, eq=False)
class Divergence(_TwoSided):
    """Attack: divergence from the given model in the search direction (Eq. 25, Appendix C.1).

    The gradient of the divergence at the given model is zero. Searches therefore start at a
    displacement of 0.01 standard deviations of the noise, by a change of `bias`. If `bias` is None,
    searches start at the given model, and only the attack adds this displacement to the means.
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
