"""Adversarial model search: QUAM's Algorithm 1, for many test points at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.models import TrainingSet, stack_parameters, stacked_forward, training_batches
from skuq.quam._objectives import Objective
from skuq.quam._search_problem import Schedule, SearchProblem, SearchSettings

# Searches run together while their stacked weights fit into this; larger stacks are no faster.
_STACK_BYTES = 64 * 2**20
# Activations of one pass stay below this: larger ones leave the caches, and the allocator
# asks the system for fresh pages at every step, which takes three times as long.
_PASS_BYTES = 16 * 2**20


class Trajectories(NamedTuple):
    """Predictions and training losses of all models met by a batch of searches.

    Attributes
    ----------
    outputs : Tensor of shape (n_points, n_searches, n_steps, n_outputs), float64
        Outputs of each model at its own test point.
    excess_loss : Tensor of shape (n_points, n_searches, n_steps), float64
        Estimate of ``L_train - L_ref``: mean training loss of each model above that of the
        reference model, in nats.
    """

    outputs: Tensor
    excess_loss: Tensor


def search_batch(
    problem: SearchProblem, settings: SearchSettings, x: NDArray[Any], objective: Objective
) -> Trajectories:
    """Search the adversarial models of one batch of test points.

    Parameters
    ----------
    problem : SearchProblem
        Model and training data.
    settings : SearchSettings
        Schedule, prior and device.
    x : ndarray of shape (n_points, ...)
        Test points.
    objective : Objective
        Attack and training loss, with tensors on the device.

    Returns
    -------
    Trajectories
        The models met by all searches.

    Raises
    ------
    ValueError
        If a search diverges.
    """
    device = settings.device
    module = deepcopy(problem.module).to(device)
    points, train = torch.tensor(x, device=device), problem.training_set(device)
    # The same seed for every batch of points: all searches see the same mini-batches.
    generator = torch.Generator().manual_seed(problem.seed)
    n_batches = len(settings.schedule.penalties) + 1
    rows = training_batches(len(problem.X), settings.train_batch_size, n_batches, generator)
    batches = [batch.to(device) for batch in rows]
    found = [
        search_adversarial_models(
            module,
            _starts(module, problem.parameters, len(x), part),
            points,
            train,
            batches,
            objective=part,
            schedule=settings.schedule,
            prior_precision=settings.prior_precision,
        )
        for part in map(
            objective.subset, parts_that_fit(objective, module, problem.parameters, len(x))
        )
    ]
    trajectories = Trajectories(*(torch.cat(each, dim=1) for each in zip(*found, strict=True)))
    if not all(bool(torch.isfinite(part).all()) for part in trajectories):
        raise ValueError(
            "An adversarial model search diverged (NaN or infinite loss). Use a smaller "
            "`learning_rate`, or smaller `c0`, `eta` or `n_steps` (the penalty grows to "
            "c0 * eta**n_steps), or scale the features, for instance with StandardScaler."
        )
    return trajectories


def parts_that_fit(
    objective: Objective, module: nn.Module, names: Sequence[str], n_points: int
) -> Iterator[slice]:
    """The searches of each point in groups whose weights fit into memory together."""
    model_bytes = sum(module.get_parameter(name).nbytes for name in names)
    n_together = max(1, _STACK_BYTES // (n_points * model_bytes))
    for start in range(0, objective.n_searches, n_together):
        yield slice(start, start + n_together)


def _starts(
    module: nn.Module, names: Sequence[str], n_points: int, objective: Objective
) -> dict[str, Tensor]:
    """Weights that the searches start from: the reference model's, moved by the offsets."""
    weights = stack_parameters(module, n_points * objective.n_searches, names)  # Line 1
    with torch.no_grad():
        for name, offset in objective.offsets().items():
            weights[name] += offset
    return weights


def search_adversarial_models(
    module: nn.Module,
    weights: dict[str, Tensor],
    x: Tensor,
    train: TrainingSet,
    batches: Sequence[Tensor],
    *,
    objective: Objective,
    schedule: Schedule,
    prior_precision: float = 0.0,
) -> Trajectories:
    """Search adversarial models for many test points, all at once.

    Each search minimises ``L_adv(w) + c (L_train(w) - L_ref)``, one Adam step per penalty
    iteration, while c grows. The searches are independent of one another: gradients of their
    sum are the gradients of each, and Adam works element by element.

    Mini-batches are shared by all searches, so a result does not depend on which other
    points are searched along. ``L_train - L_ref`` is estimated by the difference of the two
    models' losses on the same batch, which is unbiased and free of most of the batch noise.
    The slack gamma of the paper is a constant of the objective, without a gradient: it enters
    only where the best model is picked (`best_adversarial_models`).

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
        Attack at the test points, and training loss.
    schedule : Schedule
        Penalties and step sizes of the n_steps steps. One step size suits networks of very
        different weights because it is relative; a tensor of zeros stays.
    prior_precision : float, default=0.0
        Precision of the Gaussian prior around 0 of each weight: the negative log posterior is
        ``n * mean loss + prior_precision / 2 * |w|**2``, where n is the sum of the sample
        weights, and ``1 / n`` of it takes the place of the mean training loss of both models.

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
    points = x.repeat_interleave(n_models // n_points, dim=0).unsqueeze(1)
    outputs: list[Tensor] = []

    def attack(_step: int) -> Tensor:
        predicted = _predict(module, weights, points)
        outputs.append(predicted.detach())
        return objective.attack(predicted).sum()

    excess_loss = ExcessLoss(module, weights, train, objective, prior_precision)
    excess = [*descend(excess_loss, batches[:-1], schedule, attack)]
    with torch.no_grad():
        outputs.append(_predict(module, weights, points))
        excess.append(excess_loss.value(batches[-1]))
    # The models of the updates, without those that the searches start from.
    shape = (n_points, n_models // n_points, len(batches) - 1)
    return Trajectories(
        torch.stack(outputs[1:], dim=1).reshape(*shape, -1),
        torch.stack(excess[1:], dim=1).reshape(shape),
    )


@torch.enable_grad()
def descend(
    excess_loss: ExcessLoss,
    batches: Sequence[Tensor],
    schedule: Schedule,
    attack: Callable[[int], Tensor],
) -> Iterator[Tensor]:
    """Take the steps of all searches together: Lines 2 to 6 and 9 of Algorithm 1.

    Parameters
    ----------
    excess_loss : ExcessLoss
        Penalty, with the weights that move; they are altered in place.
    batches : sequence of n_steps int64 Tensors
        Rows of the penalty's mini-batch in each step.
    schedule : Schedule
        Penalties and step sizes.
    attack : callable
        ``attack(step)`` returns the sum of ``L_adv`` over the searches.

    Yields
    ------
    Tensor of shape (n_models,), float64
        ``L_train - L_ref`` of each model before each step, on the step's mini-batch.
    """
    adam = torch.optim.Adam(
        [
            {"params": [w], "scale": _scale(excess_loss.module, name)}
            for name, w in excess_loss.weights.items()
        ]
    )
    steps = zip(batches, *schedule, strict=True)
    for step, (rows, c, learning_rate) in enumerate(steps):  # Line 2
        adam.zero_grad()
        attack(step).backward()  # type: ignore[no-untyped-call]  # Line 4
        l_pen = excess_loss.add_gradient(rows, c)  # Lines 3 and 5
        for group in adam.param_groups:
            group["lr"] = group["scale"] * learning_rate
        adam.step()  # Line 6
        yield l_pen


def _predict(module: nn.Module, weights: dict[str, Tensor], points: Tensor) -> Tensor:
    """Outputs of each model at its test point, (n_models, n_outputs), float64."""
    # A copy, because a module may alter its input in place. Double, because small
    # divergences drown in the rounding of single precision.
    outputs = stacked_forward(module, weights, points.clone(), shared_input=False)
    return outputs.squeeze(1).double()


def _scale(module: nn.Module, name: str) -> float:
    """Root mean square of a parameter of the reference model."""
    return float(module.get_parameter(name).detach().square().mean().sqrt())


class ExcessLoss:
    """``L_train - L_ref`` of each model on a mini-batch, its value and its gradient (Line 3)."""

    def __init__(
        self,
        module: nn.Module,
        weights: dict[str, Tensor],
        train: TrainingSet,
        objective: Objective,
        prior_precision: float,
    ):
        self.module, self.weights, self.train, self.objective = module, weights, train, objective
        self.weight_decay = prior_precision / float(train.weight.sum())  # of the mean loss
        self.rows_per_pass = rows_per_pass(module, weights, train.X[:1])
        self.reference_norm = sum(
            float(module.get_parameter(name).detach().double().square().sum()) for name in weights
        )

    @torch.no_grad()
    def value(self, rows: Tensor) -> Tensor:
        """Excess loss of each model on some training samples, (n_models,), float64."""
        return torch.stack([*self._shares(rows)]).sum(0) + self.prior()

    def add_gradient(self, rows: Tensor, c: float) -> Tensor:
        """Add c times the gradient to that of the weights; return the value."""
        shares = []
        for share in self._shares(rows):
            (c * share).sum().backward()  # type: ignore[no-untyped-call]
            shares.append(share.detach())
        for w in self.weights.values():
            if self.weight_decay and w.grad is not None:
                w.grad.add_(w.detach(), alpha=c * self.weight_decay)
        return torch.stack(shares).sum(0) + self.prior()

    @torch.no_grad()
    def of_each(self, rows: Tensor) -> Tensor:
        """The likelihood's part for each training sample, (n_models, n_rows), float64."""
        return torch.cat([*self._losses(rows)], dim=1)

    def _shares(self, rows: Tensor) -> Iterator[Tensor]:
        """The likelihood's part of the excess loss, pass by pass, to be added up."""
        share = self.train.weight[rows]
        shares = torch.split(share / share.sum(), self.rows_per_pass)
        for losses, weight in zip(self._losses(rows), shares, strict=True):
            yield losses @ weight

    def _losses(self, rows: Tensor) -> Iterator[Tensor]:
        """Losses of each model on each training sample above the reference model's, by pass."""
        for part in torch.split(rows, self.rows_per_pass):
            outputs = stacked_forward(
                self.module, self.weights, self.train.X[part], shared_input=True
            )
            losses = self.objective.training_loss(outputs, self.train.y[part])
            yield losses.double() - self.train.reference_loss[part]

    def prior(self) -> Tensor | float:
        """The prior's part of the excess loss, (n_models,)."""
        if not self.weight_decay:
            return 0.0
        norms = [w.detach().double().flatten(1).square().sum(1) for w in self.weights.values()]
        return (torch.stack(norms).sum(0) - self.reference_norm) * (self.weight_decay / 2)


def rows_per_pass(module: nn.Module, weights: dict[str, Tensor], x: Tensor) -> int:
    """How many inputs such as `x`, of shape (1, ...), all models should take at once."""
    n_models = len(next(iter(weights.values())))
    return max(1, _PASS_BYTES // (n_models * largest_activation(module, x)))


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
