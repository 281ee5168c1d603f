"""Gradient search for networks that predict one class on a whole pool of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils._param_validation import StrOptions
from torch import Tensor, nn

from skuq.base import IntArray
from skuq.networks import (
    moved,
    resolve_device,
    stack_parameters,
    stacked_forward,
    training_batches,
)
from skuq.quam._gradient_search import (
    ExcessLoss,
    FittedSearch,
    GradientSearch,
    SearchSettings,
    descend,
    parts_that_fit,
    rows_per_pass,
)
from skuq.quam._objectives import Objective
from skuq.quam._tasks import Found, mean_excess
from skuq.stored import stored

# Training samples on which the models found are compared.
_N_COMPARED = 4096
# Of the models met by a search, those of the last tenth of its steps are kept: before, the
# penalty is too weak to keep them close to the training data.
_SHARE_KEPT = 0.1


@stored("quam.pool-search")
@dataclass(kw_only=True, eq=False, repr=False)
class PoolSearch(GradientSearch):
    """Search of `fit` for networks that say one thing about a whole pool of inputs, by gradients.

    There is one search for each class (for a regressor: for more and for less), which minimises
    the mean of what Algorithm 1 minimises for a single input. After that, an input costs the
    evaluation of the models found.

    Parameters
    ----------
    pool : "auto" or callable, default="auto"
        How the pool is made where `fit` gets no `X_pool`. "auto" is `skuq.quam.make_pool`,
        which alters training inputs; without unseen categories, or numbers out of their range,
        if the model refuses these. A callable gets the training inputs and returns a pool.
    parameters : {"auto", "all", "linear", "last", "bias", "norm"} or callable, default="auto"
        Weights of the network that the search may move: all; all from the first linear layer on,
        where features before it can be computed once; the last layer; all biases; or the scales
        and shifts of normalisation layers. A callable ``parameters(name, tensor)`` returns for
        each whether it moves. "auto" is "linear", and "last" of a transformers model.
    targeted : bool, default=True
        Whether there is one search for each class, which it asks for. False: a single search
        for any model that differs from the fitted model's prediction, which is cheaper and
        tends to find the same alternative again and again. For classifiers only.
    n_steps : int, default=200
        Length of each search; its cost is proportional to this.
    c0 : float, default=10.0
        Initial weight of the penalty on training loss: a penalty c gives the pool a weight of
        1 / c of the training data, where each sample counts by its weight.
    eta : float or "auto", default="auto"
        Factor by which the penalty grows. "auto" makes it ten times as large in the end.
    update_every : int, default=1
        Steps between two changes of the penalty and of the step size.
    learning_rate : float, default=0.1
        Step size of the search, relative to the root mean square of each weight tensor.
    learning_rate_decay : float or "auto", default="auto"
        Factor by which the step size shrinks whenever the penalty grows. "auto" makes it a tenth
        in the end, so that the last models settle.
    prior_precision : float, default=0.0
        Precision of the Gaussian prior around 0 of each moving weight: the negative log posterior
        is ``n_samples * mean training loss + prior_precision / 2 * |w|**2``. Set it if the model
        was trained with one; that of an optimiser's `weight_decay` is ``weight_decay *
        n_samples``. It counts in the search and in the weights of the models.
    train_batch_size : int, default=512
        Training samples on which each step computes the penalty, and inputs of the pool in each
        step.

    Examples
    --------
    >>> from skuq import QUAMClassifier
    >>> from skuq.quam import PoolSearch
    >>> quam = QUAMClassifier(search=PoolSearch(n_steps=100))
    >>> quam.set_params(search__learning_rate=0.05).search.learning_rate
    0.05
    """

    pool: Any = "auto"
    n_steps: int = 200
    c0: float | str = 10.0
    train_batch_size: int = 512

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **GradientSearch._parameter_constraints,
        "pool": [StrOptions({"auto"}), callable],
    }
    _moving = "linear"
    _shortening = 10.0


@stored("quam.found-networks")
@dataclass(frozen=True)
class FoundNetworks(Found):
    """Networks found on a pool: variants of the layers that moved.

    Attributes
    ----------
    fitted : FittedSearch
        The layers before, and the module that the weights belong to.
    weights : tuple of dict of str to Tensor of shape (n_together * n_kept, \\*parameter.shape)
        Weights of the models, search by search, in groups that fit into memory together.
    """

    fitted: FittedSearch
    weights: tuple[dict[str, Tensor], ...]
    held_out: ClassVar[bool] = False

    def without_training_data(self) -> Self:
        none = np.empty(0)
        problem = replace(self.fitted.problem, X=none, y=none, weight=none, reference_loss=none)
        return replace(self, fitted=replace(self.fitted, problem=problem))

    def outputs(self, inputs: Tensor, device: torch.device | str = "cpu") -> Tensor:
        there = resolve_device(device)
        module = moved(self.fitted.problem.module, there)
        x = self.fitted.features(inputs, there)
        n_kept = self.excess_loss.shape[1]
        groups = []
        for group in self.weights:
            weights = {name: w.to(there) for name, w in group.items()}
            predicted = _evaluated(module, weights, x, there)  # (n_models, n_points, n_outputs)
            by_search = predicted.reshape(-1, n_kept, *predicted.shape[1:])
            groups.append(by_search.permute(2, 0, 1, 3))
        return torch.cat(groups, dim=1).double()


@torch.no_grad()
def _evaluated(
    module: nn.Module, weights: dict[str, Tensor], x: Tensor, device: torch.device
) -> Tensor:
    """Outputs of all models for all inputs, on the CPU."""
    size = rows_per_pass(module, weights, x[:1].to(device))
    passes = (
        stacked_forward(module, weights, part.to(device, copy=True), shared_input=True).cpu()
        for part in torch.split(x, size)
    )
    return torch.cat([*passes], dim=1)


def search_networks(
    fitted: FittedSearch,
    settings: SearchSettings,
    pool: Tensor,
    objective: Callable[[Tensor], Objective],
    targets: IntArray,
) -> FoundNetworks:
    """Search the models that do what an objective asks for, on average over a pool.

    The objective is that of Algorithm 1 with the mean of ``L_adv`` over the pool in place of a
    single test point: one set of weights has to answer for all inputs of the pool. Each step
    takes a mini-batch of the pool and one of the training data. The paper searches each test
    point on its own; its authors' scripts search all of them together.

    ``objective(rows)`` returns the objective at some inputs of the pool, whose numbers are a
    Tensor on the device; it has the same searches for all inputs, which ask for `targets`.
    """
    problem, device = fitted.problem, settings.device
    module = moved(problem.module, device)
    x, train = fitted.features(pool, device).to(device), problem.training_set(device)
    first = objective(torch.zeros(1, dtype=torch.int64, device=device))
    generator = torch.Generator().manual_seed(problem.seed)
    n_steps, size = len(settings.schedule.penalties), settings.train_batch_size
    draws = [training_batches(n, size, n_steps, generator) for n in (len(x), len(train.X))]
    pool_batches, batches = ([rows.to(device) for rows in draw] for draw in draws)
    compared = torch.randperm(len(train.X), generator=generator)[:_N_COMPARED].to(device)
    n_kept = max(1, round(_SHARE_KEPT * n_steps))
    weights, losses = [], []
    for searches in parts_that_fit(first, module, problem.parameters, 1):
        part = first.subset(searches)
        moving = stack_parameters(module, part.n_searches, problem.parameters)  # Line 1
        with torch.no_grad():
            for name, offset in part.offsets().items():
                moving[name] += offset
        excess_loss = ExcessLoss(module, moving, train, part, settings.prior_precision)
        attack = _attack_on(module, moving, x, pool_batches, objective, searches)
        steps = descend(excess_loss, batches, settings.schedule, attack)
        kept = _last_models(steps, moving, n_steps - n_kept)
        weights.append({name: w.cpu() for name, w in kept.items()})
        compare = ExcessLoss(module, kept, train, part, settings.prior_precision)
        prior = torch.as_tensor(compare.prior(), device=device).reshape(-1, 1)
        by_sample = compare.of_each(compared) + prior
        losses.append(by_sample.reshape(-1, n_kept, len(compared)))
    return FoundNetworks(
        targets,
        *mean_excess(torch.cat(losses).cpu().numpy(), train.weight[compared].cpu().numpy()),
        fitted,
        tuple(weights),
    )


def _attack_on(
    module: nn.Module,
    weights: dict[str, Tensor],
    x: Tensor,
    batches: Sequence[Tensor],
    objective: Callable[[Tensor], Objective],
    searches: slice,
) -> Callable[[int], Tensor]:
    """Sum over the searches of the mean of ``L_adv`` over a mini-batch of the pool."""

    def attack(step: int) -> Tensor:
        rows = batches[step]
        outputs = stacked_forward(module, weights, x[rows], shared_input=True).double()
        by_point = outputs.transpose(0, 1).flatten(0, 1)  # as objectives order models
        return objective(rows).subset(searches).attack(by_point).sum() / len(rows)

    return attack


def _last_models(
    steps: Iterator[Tensor], moving: dict[str, Tensor], first: int
) -> dict[str, Tensor]:
    """Run the searches; weights from step `first` on, one search after the other."""
    kept: list[dict[str, Tensor]] = []
    for step, excess in enumerate(steps):
        if not bool(torch.isfinite(excess).all()):
            kept = []
            break
        if step >= first:
            kept.append({name: w.detach().clone() for name, w in moving.items()})
    stacked = {name: torch.stack([k[name] for k in kept], dim=1) for name in moving if kept}
    if not kept or not all(bool(torch.isfinite(w).all()) for w in stacked.values()):
        raise ValueError(
            "The search on the pool diverged (NaN or infinite loss). Use a smaller "
            "`learning_rate`, or scale the features, for instance with StandardScaler."
        )
    return {name: w.flatten(0, 1) for name, w in stacked.items()}
