"""What a search wants at the test point, and the training loss it must keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax


class Objective(NamedTuple):
    """The two sides of a search, as functions of what the models return.

    Attributes
    ----------
    attack : callable
        Outputs at the own test point, shape (n_models, n_outputs), to ``L_adv`` of each
        model, shape (n_models,); the searches minimise it.
    loss : callable
        Outputs on training samples, shape (n_models, n_samples, n_outputs), and targets, shape
        (n_samples,), to losses in nats, shape (n_models, n_samples).
    """

    attack: Callable[[Tensor], Tensor]
    loss: Callable[[Tensor, Tensor], Tensor]


def classification_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of many models on the same samples.

    Parameters
    ----------
    logits : Tensor of shape (n_models, n_samples, n_classes)
        Outputs.
    y : Tensor of shape (n_samples,), int64
        Class codes.

    Returns
    -------
    Tensor of shape (n_models, n_samples)
        Losses in nats.

    Examples
    --------
    >>> classification_loss(torch.zeros(2, 3, 4), torch.tensor([0, 1, 3])).exp()[0]
    tensor([4., 4., 4.])
    """
    n_models, n_samples, _ = logits.shape
    losses = cross_entropy(logits.flatten(0, 1), y.repeat(n_models), reduction="none")
    return losses.reshape(n_models, n_samples)


def targeted(targets: Tensor) -> Objective:
    """Ask each model for a class of its own at its test point (Appendix C.1).

    Parameters
    ----------
    targets : Tensor of shape (n_points, n_searches), int64
        Class that each search wants.

    Returns
    -------
    Objective
        ``L_adv`` is the cross-entropy of the class.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Section 3, "Practical Implementation".

    Examples
    --------
    >>> logits = torch.tensor([[0.0, 0.0], [0.0, -torch.inf]])
    >>> targeted(torch.tensor([[1, 0]])).attack(logits).exp()
    tensor([2., 1.])
    """
    wanted = targets.flatten()

    def attack(logits: Tensor) -> Tensor:
        return cross_entropy(logits, wanted, reduction="none")

    return Objective(attack, classification_loss)


def untargeted(log_reference: Tensor) -> Objective:
    """Ask each model to differ from the reference model in whatever way (Algorithm 1).

    Parameters
    ----------
    log_reference : Tensor of shape (n_models, n_classes)
        Log-probabilities of the reference model at the test point of each search.

    Returns
    -------
    Objective
        ``L_adv`` is minus the KL divergence of the model from the reference.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Algorithm 1, line 4.

    Examples
    --------
    >>> same = torch.zeros(1, 2).log_softmax(-1)
    >>> float(untargeted(same).attack(same))
    0.0
    """

    def attack(logits: Tensor) -> Tensor:
        # Not clipped at zero like `kl_divergence`: that would have no gradient there.
        return (torch.exp(log_reference) * (log_softmax(logits, -1) - log_reference)).sum(-1)

    return Objective(attack, classification_loss)
