"""Objectives of the search for adversarial models: attack at the test point, and training loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax


class Objective(ABC):
    """The two losses of a batch of searches, as functions of the models' outputs."""

    @property
    @abstractmethod
    def n_searches(self) -> int:
        """Number of searches for each test point."""

    @abstractmethod
    def attack(self, outputs: Tensor) -> Tensor:
        """``L_adv`` of Line 4, which the searches minimise.

        Shapes: `outputs` (n_points, n_searches, n_outputs); returns (n_points, n_searches).
        """

    @abstractmethod
    def training_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss l of Line 3.

        Shapes: `outputs` (n_models, n_samples, n_outputs), `y` (n_samples,); returns (n_models,
        n_samples).
        """

    @abstractmethod
    def subset(self, searches: slice) -> Objective:
        """The objective restricted to some of the searches of each point."""

    @abstractmethod
    def at(self, rows: slice | Tensor) -> Objective:
        """The objective restricted to some of the points."""

    def offsets(self) -> dict[str, Tensor]:
        r"""Initial displacement of each search's weights from the reference model, by parameter.

        Each displacement has shape (n_points * n_searches, \*parameter.shape), ordered by point.
        """
        return {}


def classification_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of many models on the same samples.

    Shapes: `logits` (n_models, n_samples, n_classes), `y` (n_samples,); returns (n_models,
    n_samples).
    """
    return cross_entropy(logits.movedim(-1, 1), y.expand(len(logits), -1), reduction="none")


@dataclass(frozen=True, eq=False)
class Targeted(Objective):
    """Cross-entropy with a separate target class for each search (Appendix C.1).

    Parameters
    ----------
    targets : Tensor of shape (n_points, n_searches) or (1, n_searches), int64
        Target classes, separate for each point or the same for all points.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Section 3, "Practical Implementation".

    Examples
    --------
    >>> logits = torch.tensor([[[0.0, 0.0], [0.0, -torch.inf]]])
    >>> Targeted(torch.tensor([[1, 0]])).attack(logits).exp()
    tensor([[2., 1.]])
    """

    targets: Tensor

    @property
    def n_searches(self) -> int:
        return self.targets.shape[1]

    def attack(self, outputs: Tensor) -> Tensor:
        targets = self.targets.expand(outputs.shape[:2])
        return cross_entropy(outputs.movedim(-1, 1), targets, reduction="none")

    def training_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return classification_loss(outputs, y)

    def subset(self, searches: slice) -> Targeted:
        return Targeted(self.targets[:, searches])

    def at(self, rows: slice | Tensor) -> Targeted:
        return self if len(self.targets) == 1 else Targeted(self.targets[rows])


@dataclass(frozen=True, eq=False)
class Untargeted(Objective):
    """Negative divergence from the reference model, one search for each point (Algorithm 1).

    Parameters
    ----------
    log_reference : Tensor of shape (n_points, n_classes)
        Log-probabilities of the reference model.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Algorithm 1, line 4.

    Examples
    --------
    >>> same = torch.zeros(1, 2).log_softmax(-1)
    >>> float(Untargeted(same).attack(same[:, None]))
    0.0
    """

    log_reference: Tensor

    @property
    def n_searches(self) -> int:
        return 1

    def attack(self, outputs: Tensor) -> Tensor:
        # `kl_divergence` is not used: it clips negative values to zero, and clipped values have a
        # gradient of zero.
        log_reference = self.log_reference[:, None]
        return (torch.exp(log_reference) * (log_softmax(outputs, -1) - log_reference)).sum(-1)

    def training_loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return classification_loss(outputs, y)

    def subset(self, searches: slice) -> Untargeted:
        return self

    def at(self, rows: slice | Tensor) -> Untargeted:
        return Untargeted(self.log_reference[rows])


def classification_objective(
    log_reference: Tensor, *, targeted: bool, n_targets: int | None
) -> Targeted | Untargeted:
    """Objective with one search per target class of each point, or one untargeted search.

    Shapes: `log_reference` (n_points, n_classes).
    """
    n_points, n_classes = log_reference.shape
    if not targeted:
        return Untargeted(log_reference)
    if n_targets is None or n_targets >= n_classes:
        return Targeted(torch.arange(n_classes, device=log_reference.device).expand(n_points, -1))
    return Targeted(log_reference.topk(n_targets, dim=1).indices)
