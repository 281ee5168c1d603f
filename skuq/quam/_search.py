"""Adversarial model search: QUAM's Algorithm 1, for many test points at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from skuq.models import TrainingSet, stacked_forward
from skuq.quam._objectives import Objective

# Activations of one pass stay below this: larger ones leave the caches, and the allocator
# asks the system for fresh pages at every step, which takes three times as long.
_PASS_BYTES = 16 * 2**20


class Trajectories(NamedTuple):
    """All models met by a batch of searches, by what they predict and how well they fit.

    Attributes
    ----------
    outputs : Tensor of shape (n_points, n_searches, n_steps, n_outputs), float64
        What each model returns at its own test point.
    excess_loss : Tensor of shape (n_points, n_searches, n_steps), float64
        Estimate of ``L_train - L_ref``: mean training loss of each model above that of the
        reference model, in nats.
    """

    outputs: Tensor
    excess_loss: Tensor


# Outputs, excess losses and weights of the models that an update has led to.
Observer = Callable[[Tensor, Tensor, dict[str, Tensor]], None]


class Schedule(NamedTuple):
    """How hard the penalty is, and how long the strides are, in each step of a search.

    Attributes
    ----------
    penalties : tuple of n_steps floats
        Weight c of the penalty.
    learning_rates : tuple of n_steps floats
        Step sizes of Adam, relative to the root mean square of each parameter tensor.
    """

    penalties: tuple[float, ...]
    learning_rates: tuple[float, ...]


def penalty_schedule(
    n_steps: int, *, c0: float, eta: float, update_every: int, learning_rate: float, decay: float
) -> Schedule:
    """Raise the penalty and shorten the strides, by constant factors.

    Parameters
    ----------
    n_steps : int
        Number of steps.
    c0, eta : float
        First weight of the penalty, and the factor by which it grows.
    update_every : int
        Steps between two changes.
    learning_rate, decay : float
        First step size, and the factor by which it shrinks.

    Returns
    -------
    Schedule
        One penalty and one step size for each step.

    Examples
    --------
    >>> schedule = penalty_schedule(
    ...     4, c0=1.0, eta=2.0, update_every=2, learning_rate=1.0, decay=4.0
    ... )
    >>> schedule.penalties, schedule.learning_rates
    ((1.0, 1.0, 2.0, 2.0), (1.0, 1.0, 0.25, 0.25))
    """
    updates = [step // update_every for step in range(n_steps)]
    return Schedule(
        tuple(c0 * eta**m for m in updates), tuple(learning_rate / decay**m for m in updates)
    )


@torch.enable_grad()
def search_adversarial_models(
    module: nn.Module,
    weights: dict[str, Tensor],
    x: Tensor,
    train: TrainingSet,
    batches: Sequence[Tensor],
    *,
    objective: Objective,
    schedule: Schedule,
    weight_decay: float = 0.0,
    observer: Observer | None = None,
) -> Trajectories:
    """Search adversarial models for many test points, all at once.

    Each search minimises ``L_adv(w) + c (L_train(w) - L_ref)``, one Adam step per penalty
    iteration, while c grows. The searches are independent of one another: gradients of their
    sum are the gradients of each, and Adam works element by element.

    Mini-batches are shared by all searches, so a result does not depend on which other
    points are searched along. ``L_train - L_ref`` is estimated by the difference of the two
    models' losses on the same batch, which is unbiased and free of most of the batch noise.
    The slack gamma of the paper is a constant of the objective, which no gradient sees: it
    enters only where the best model is picked (`best_adversarial_models`).

    Parameters
    ----------
    module : torch.nn.Module
        Reference model; it is not altered.
    weights : dict of str to Tensor of shape (n_points * n_searches, \\*parameter.shape)
        The parameters that move, where each search starts, point by point; they are altered
        in place and hold the last models afterwards.
    x : Tensor of shape (n_points, ...)
        Test points.
    train : TrainingSet
        Training data of the penalty, inputs in the form that `module` takes.
    batches : sequence of n_steps + 1 int64 Tensors
        Rows of the penalty's mini-batch in each iteration; the last one only serves to
        evaluate the models of the last update.
    objective : Objective
        What the searches want at the test points, and the training loss.
    schedule : Schedule
        Penalties and step sizes of the n_steps steps. One step size suits networks of very
        different weights because it is relative; a tensor of zeros stays.
    weight_decay : float, default=0.0
        Precision of a normal prior around 0 per training sample, as weight decay in training
        means it: ``weight_decay / 2 * |w|**2`` is then part of both losses.
    observer : callable, default=None
        Shown the models of each update: their outputs at the own test points, their excess
        loss and their weights, which change afterwards.

    Returns
    -------
    Trajectories
        One model per update; the model that the search starts from is not among them.

    References
    ----------
    Schweighofer et al., "Quantification of Uncertainty with Adversarial Models",
    NeurIPS 2023: Algorithm 1 and Appendix C.1.
    """
    n_points, n_models = len(x), len(next(iter(weights.values())))
    own_x = x.repeat_interleave(n_models // n_points, dim=0).unsqueeze(1)
    adam = torch.optim.Adam(
        [{"params": [w], "scale": _scale(module, k)} for k, w in weights.items()]
    )
    penalty = _Penalty(module, weights, train, objective, weight_decay)
    outputs, excess = [], []
    for step, rows in enumerate(batches):
        last = step + 1 == len(batches)
        c = 0.0 if last else schedule.penalties[step]
        adam.zero_grad()
        # A copy, because a module may alter its input in place. Double, because small
        # divergences drown in the rounding of single precision.
        own = stacked_forward(module, weights, own_x.clone(), shared_input=False)
        own = own.squeeze(1).double()
        if not last:
            objective.attack(own).sum().backward()  # type: ignore[no-untyped-call]  # Line 4
        l_pen = penalty.add_gradient(rows, c)  # Lines 3 and 5
        if step > 0:
            outputs.append(own.detach())
            excess.append(l_pen)
            if observer is not None:
                observer(outputs[-1], l_pen, weights)
        if not last:
            for group in adam.param_groups:
                group["lr"] = group["scale"] * schedule.learning_rates[step]
            adam.step()  # Line 6; line 9 is the schedule
    shape = (n_points, n_models // n_points, len(batches) - 1)
    return Trajectories(
        torch.stack(outputs, dim=1).reshape(*shape, -1), torch.stack(excess, dim=1).reshape(shape)
    )


def _scale(module: nn.Module, name: str) -> float:
    """Root mean square of a parameter of the reference model."""
    return float(module.get_parameter(name).detach().square().mean().sqrt())


@torch.no_grad()
def excess_loss(
    module: nn.Module,
    weights: dict[str, Tensor],
    train: TrainingSet,
    rows: Tensor,
    objective: Objective,
    weight_decay: float = 0.0,
) -> Tensor:
    """``L_train - L_ref`` of many models, on some training samples.

    Parameters
    ----------
    module : torch.nn.Module
        Reference model.
    weights : dict of str to Tensor of shape (n_models, \\*parameter.shape)
        The parameters in which the models differ from it.
    train : TrainingSet
        Training data.
    rows : Tensor of shape (n_rows,), int64
        Which of its samples to use.
    objective : Objective
        Supplies the training loss.
    weight_decay : float, default=0.0
        As in `search_adversarial_models`.

    Returns
    -------
    Tensor of shape (n_models,), float64
        In nats.
    """
    return _Penalty(module, weights, train, objective, weight_decay).add_gradient(rows, 0.0)


class _Penalty:
    """``L_train - L_ref`` of each model on a batch, and its gradient."""

    def __init__(
        self,
        module: nn.Module,
        weights: dict[str, Tensor],
        train: TrainingSet,
        objective: Objective,
        weight_decay: float,
    ):
        self.module, self.weights, self.train = module, weights, train
        self.objective, self.weight_decay = objective, weight_decay
        n_models = len(next(iter(weights.values())))
        row_bytes = n_models * largest_activation(module, train.X[:1])
        self.rows_per_pass = max(1, _PASS_BYTES // row_bytes)
        self.reference_norm = sum(
            float(module.get_parameter(name).detach().double().square().sum()) for name in weights
        )

    def add_gradient(self, rows: Tensor, c: float) -> Tensor:
        """Add c times the gradient to the weights' unless c is 0; return the losses."""
        share = self.train.weight[rows]
        share = share / share.sum()
        total: Tensor | float = 0.0
        size = self.rows_per_pass
        parts = zip(torch.split(rows, size), torch.split(share, size), strict=True)
        for part, weight in parts:
            with torch.set_grad_enabled(c != 0):
                outputs = stacked_forward(
                    self.module, self.weights, self.train.X[part], shared_input=True
                )
                losses = self.objective.loss(outputs, self.train.y[part])
                excess = (losses.double() - self.train.reference_loss[part]) @ weight
                if c != 0:
                    (c * excess).sum().backward()  # type: ignore[no-untyped-call]
            total = total + excess.detach()
        assert isinstance(total, Tensor)
        return total + self._add_decay(c) if self.weight_decay else total

    def _add_decay(self, c: float) -> Tensor:
        norms = []
        for w in self.weights.values():
            norms.append(w.detach().double().flatten(1).square().sum(1))
            if w.grad is not None:
                w.grad.add_(w.detach(), alpha=c * self.weight_decay)
        return (torch.stack(norms).sum(0) - self.reference_norm) * (self.weight_decay / 2)


def largest_activation(module: nn.Module, x: Tensor) -> int:
    """Bytes of the largest tensor that a module computes on the way.

    Parameters
    ----------
    module : torch.nn.Module
        Network.
    x : Tensor of shape (1, ...)
        One input.

    Returns
    -------
    int
        Bytes, of the input or of the output of any layer.

    Examples
    --------
    >>> largest_activation(nn.Sequential(nn.Linear(2, 5), nn.Linear(5, 3)), torch.ones(1, 2))
    20
    """
    sizes = [x.nbytes]

    def note(_module: nn.Module, _inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.nbytes)

    handles = [layer.register_forward_hook(note) for layer in module.modules()]
    try:
        with torch.no_grad():
            module(x.clone())
    finally:
        for handle in handles:
            handle.remove()
    return max(sizes)
