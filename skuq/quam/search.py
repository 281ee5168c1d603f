"""Adversarial model search: QUAM's Algorithm 1, for many test points at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from skuq.nets import stack_parameters, stacked_forward


class TrainingSet(NamedTuple):
    """What the penalty is computed on.

    Attributes
    ----------
    X : Tensor of shape (n_samples, ...)
        Inputs of the searched module.
    y : Tensor of shape (n_samples,), int64
        Class codes.
    weight : Tensor of shape (n_samples,), float64
        Sample weights, all positive.
    reference_loss : Tensor of shape (n_samples,), float64
        Cross-entropy of the reference model on each sample, in nats.
    """

    X: Tensor
    y: Tensor
    weight: Tensor
    reference_loss: Tensor


class Trajectories(NamedTuple):
    """All models met by a batch of searches, by what they predict and how well they fit.

    Attributes
    ----------
    log_proba : Tensor of shape (n_points, n_targets, n_steps, n_classes)
        Log-probabilities that each model gives to the classes at its own test point.
    excess_loss : Tensor of shape (n_points, n_targets, n_steps)
        Estimate of ``L_train - L_ref``: mean training loss of each model above that of the
        reference model, in nats.
    """

    log_proba: Tensor
    excess_loss: Tensor


def training_batches(
    n_samples: int, batch_size: int, n_batches: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Draw the mini-batches of the penalty: shuffled epochs, or all samples if they fit.

    Parameters
    ----------
    n_samples, batch_size, n_batches : int
        Size of the training set, of a batch, and how many batches are wanted.
    generator : torch.Generator
        Source of randomness.

    Yields
    ------
    Tensor of shape (min(batch_size, n_samples),), int64
        Row numbers.
    """
    if n_samples <= batch_size:
        for _ in range(n_batches):
            yield torch.arange(n_samples)
        return
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(n_batches):
        if len(order) < batch_size:
            order = torch.randperm(n_samples, generator=generator)
        batch, order = order[:batch_size], order[batch_size:]
        yield batch


@torch.enable_grad()
def search_adversarial_models(
    module: nn.Module,
    x: Tensor,
    train: TrainingSet,
    batches: Sequence[Tensor],
    *,
    parameters: Sequence[str],
    n_classes: int,
    c0: float,
    eta: float,
    learning_rate: float,
) -> Trajectories:
    """Search one adversarial model per test point and class, all at once.

    Each search minimises ``CE(class, p(y | x, w)) + c (L_train(w) - L_ref)`` from the
    reference model, one Adam step per penalty iteration, and multiplies ``c`` by `eta` after
    each. The searches are independent of one another: gradients of their sum are the
    gradients of each, and Adam works element by element.

    Mini-batches are shared by all searches, so a result does not depend on which other
    points are searched along. ``L_train - L_ref`` is estimated by the difference of the two
    models' losses on the same batch, which is unbiased and free of most of the batch noise.

    Parameters
    ----------
    module : torch.nn.Module
        Reference model, returning logits; it is not altered.
    x : Tensor of shape (n_points, ...)
        Test points.
    train : TrainingSet
        Training data of the penalty, inputs in the form that `module` takes.
    batches : sequence of n_steps + 1 int64 Tensors
        Rows of the penalty's mini-batch in each iteration; the last one only serves to
        evaluate the models of the last update.
    parameters : sequence of str
        Names of the parameters that the search may move.
    n_classes : int
        Number of classes: one search targets each.
    c0, eta : float
        Initial penalty weight and its growth factor per step. The slack gamma of the paper
        is a constant of the objective, which no gradient sees: it enters only where the best
        model is picked (`best_adversarial_models`).
    learning_rate : float
        Step size of Adam, relative to the root mean square of each parameter tensor: one
        value then suits networks of very different weights. A tensor of zeros stays.

    Returns
    -------
    Trajectories
        One model per update; the reference model itself is not among them.

    References
    ----------
    Schweighofer et al., "Quantification of Uncertainty with Adversarial Models",
    NeurIPS 2023: Algorithm 1 and Appendix C.1.
    """
    n_points = len(x)
    # Searches are ordered point by point: search i * n_classes + k targets class k at point i.
    targets = torch.arange(n_classes, device=x.device).repeat(n_points)
    own_x = x.repeat_interleave(n_classes, dim=0).unsqueeze(1)  # (n_models, 1, ...)
    weights = stack_parameters(module, len(targets), parameters)
    adam = torch.optim.Adam(
        [
            {"params": [w], "lr": learning_rate * float(w.detach()[0].square().mean().sqrt())}
            for w in weights.values()
        ]
    )
    log_proba, excess = [], []
    c = c0
    for step, batch in enumerate(batches):
        # A copy, because a module may alter its input in place. Double, because small
        # divergences drown in the rounding of single precision.
        test_logits = stacked_forward(module, weights, own_x.clone(), shared_input=False)
        test_logits = test_logits.squeeze(1).double()
        l_pen = _excess_loss(module, weights, train, batch)  # Line 3
        if step > 0:
            log_proba.append(log_softmax(test_logits.detach(), dim=-1))
            excess.append(l_pen.detach())
        if step + 1 == len(batches):
            break
        l_adv = cross_entropy(test_logits, targets, reduction="none")  # Line 4, targeted
        adam.zero_grad()
        loss = l_adv + c * l_pen  # Line 5
        loss.sum().backward()  # type: ignore[no-untyped-call]
        adam.step()  # Line 6
        c *= eta  # Line 9
    shape = (n_points, n_classes, len(batches) - 1)
    return Trajectories(
        torch.stack(log_proba, dim=1).reshape(*shape, -1),
        torch.stack(excess, dim=1).reshape(shape),
    )


def _excess_loss(
    module: nn.Module, weights: dict[str, Tensor], train: TrainingSet, batch: Tensor
) -> Tensor:
    """``L_train - L_ref`` of each model on one batch, shape (n_models,)."""
    logits = stacked_forward(module, weights, train.X[batch], shared_input=True)
    n_models = len(logits)
    losses = cross_entropy(
        logits.flatten(0, 1).double(), train.y[batch].repeat(n_models), reduction="none"
    ).reshape(n_models, -1)
    weight = train.weight[batch]
    return (losses - train.reference_loss[batch]) @ (weight / weight.sum())
