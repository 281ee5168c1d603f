"""Gradient search, on a pool of inputs, for networks that predict one class on the whole pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils._param_validation import StrOptions
from torch import Tensor, nn

from skuq._networks import (
    HeldOnDevice,
    moved,
    on_device,
    resolve_device,
    training_batches,
    within_memory,
)
from skuq.base import IntArray
from skuq.files import stored
from skuq.quam._gradient_search import (
    Attack,
    Descent,
    FittedSearch,
    GradientSearch,
    MiniBatches,
    bytes_of,
    linear_head,
    variants_at,
)
from skuq.quam._objectives import Objective
from skuq.quam._search import (
    MAX_MEMORY,
    Found,
    Task,
    Work,
    mean_excess,
    searches_in_memory,
    with_progress,
)

# Maximum number of training samples on which losses of the models found are computed.
_N_COMPARED = 4096
# Only models of the last tenth of the steps are kept: in earlier steps, the penalty is too small to
# make the models fit the training data.
_SHARE_KEPT = 0.1
_LARGE = 2**15  # a single linear layer of more weights is searched in fewer and larger steps
_MOST_BYTES_KEPT = 2**25  # maximum memory for the kept models of one search
# Memory of a step: this many copies of the weights, or this many bytes, whichever is larger.
_WORKING_COPIES, _WORKING_BYTES = 10, 2**28
_ADVICE = "n_targets, search__n_steps, search__train_batch_size or search__parameters"


@stored("quam.pool-search")
@dataclass(kw_only=True, eq=False, repr=False)
class PoolSearch(GradientSearch):
    """Gradient search, during `fit`, for networks that predict one class on a whole pool.

    There is one search for each class or, for a regressor, one for higher and one for lower
    predictions. Each search minimises the objective of Algorithm 1, averaged over the pool. After
    `fit`, only the models found are evaluated at an input.

    Parameters
    ----------
    pool : "auto" or callable, default="auto"
        Source of the pool if no `X_pool` is passed to `fit`. "auto" is `skuq.quam.make_pool`, which
        alters training inputs. Unseen categories, and numbers out of range, are left out if the
        model raises errors for them. A callable receives the training inputs and returns a pool.
    parameters : {"auto", "all", "linear", "last"} or callable, default="auto"
        Weights of the network that are searched. "all": all weights. "linear": all weights from the
        first linear layer on; the features before this layer are computed only once. "last": the
        last layer. A callable ``parameters(name, tensor)`` returns whether to search a parameter,
        such as ``lambda name, _: name.endswith("bias")``. "auto" is "last" for a transformers model
        and "linear" for other networks. If a network cannot be split before its first linear layer,
        "auto" is "all" if the network is small and begins with a linear layer, and otherwise
        "last", with a warning.
    targeted : bool, default=True
        Whether there is one search for each class. False (for classifiers only) means a single
        search for a model whose prediction differs from that of the fitted model. It is cheaper,
        but tends to find the same alternative repeatedly.
    n_steps : int or "auto", default="auto"
        Number of steps of each search; the cost is proportional to this number. "auto" is 200, or
        50 if a single linear layer of more than 32,768 weights is searched, such as the head of a
        large network, because this search is convex and converges with larger steps.
    c0 : float, default=10.0
        Initial weight of the penalty on the training loss. If the penalty has weight c, the total
        weight of the pool is 1 / c of the total weight of the training samples.
    eta : float or "auto", default="auto"
        Factor by which the penalty grows at each update. "auto" multiplies it by 10 over a search.
    update_every : int, default=1
        Number of steps between two changes of penalty and step size.
    learning_rate : float or "auto", default="auto"
        Step size of the search, relative to the root mean square of each weight tensor. "auto" is
        0.1, or 0.4 for the short search of a large linear layer.
    learning_rate_decay : float or "auto", default="auto"
        Factor by which the step size shrinks at each update of the penalty. "auto" divides the step
        size by 10 over the search, so that the last models converge.
    prior_precision : float, default=0.0
        Precision of the zero-mean Gaussian prior on each searched weight: the negative log
        posterior is ``n_samples * mean training loss + prior_precision / 2 * |w|**2``. Set this
        precision if the model was trained with a prior; an optimiser's `weight_decay` corresponds
        to a precision of ``weight_decay * n_samples``. The prior affects the search and the
        importance weights of the models found.
    train_batch_size : int, default=512
        Number of training samples, and also number of pool inputs, in each step.
    max_memory : float or "auto", default="auto"
        Maximum memory, in bytes, for all searches and the models that they keep; "auto" is half of
        the free memory. If all searches together need more, only as many of the most probable
        classes are searched as fit into memory, with a warning.

    Notes
    -----
    Each search keeps the models of the last tenth of its steps: 20 models of 200 steps. If these
    models would take more than 32 MiB, the search keeps fewer models, but at least two.

    Examples
    --------
    >>> from skuq import QUAMClassifier
    >>> from skuq.quam import PoolSearch
    >>> quam = QUAMClassifier(search=PoolSearch(n_steps=100))
    >>> quam.set_params(search__learning_rate=0.05).search.learning_rate
    0.05
    """

    pool: Any = "auto"
    n_steps: int | str = "auto"
    c0: float | str = 10.0
    learning_rate: float | str = "auto"
    train_batch_size: int = 512
    max_memory: float | str = "auto"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **GradientSearch._parameter_constraints,
        "pool": [StrOptions({"auto"}), callable],
        "max_memory": MAX_MEMORY,
        "n_steps": [*GradientSearch._parameter_constraints["n_steps"], StrOptions({"auto"})],
        "learning_rate": [
            *GradientSearch._parameter_constraints["learning_rate"],
            StrOptions({"auto"}),
        ],
    }

    def length(self, module: nn.Module) -> tuple[int, float]:
        layer, _ = linear_head(module)
        is_large = layer is not None and layer.weight.numel() > _LARGE
        short = is_large and self.n_steps == "auto"
        n_steps, learning_rate = (50, 0.4) if short else (200, 0.1)
        return (
            n_steps if self.n_steps == "auto" else int(self.n_steps),
            learning_rate if self.learning_rate == "auto" else float(self.learning_rate),
        )

    def searches_in_memory(self, problem: FittedSearch, n_searches: int) -> int:
        module = problem.problem.module
        size = bytes_of(module, problem.problem.parameters)
        n_kept = len(_steps_kept(self.length(module)[0], size))
        working = max(_WORKING_COPIES * size, _WORKING_BYTES)
        return searches_in_memory(n_searches, n_kept, size, self.max_memory, working=working)

    def run(
        self,
        fitted: FittedSearch,
        task: Task,
        pool: Tensor,
        reference: Tensor,
        targets: IntArray,
        work: Work,
    ) -> FoundNetworks:
        """Search for models that minimise an objective averaged over a pool.

        This is Algorithm 1 with the mean of ``L_adv`` over the pool instead of ``L_adv`` at one
        test point, as in the authors' scripts. Steps use mini-batches of the pool and of the data.
        """
        problem, device = fitted.problem, work.device
        settings = self.settings(problem, task, device)
        objective = task.objective(on_device(reference, device), targets)
        searched, x = problem.on(device), fitted.features(pool, device)
        generator = torch.Generator().manual_seed(problem.seed)
        n_steps, size = len(settings.schedule.penalties), settings.train_batch_size
        pool_rows, rows = (
            torch.stack([*training_batches(n, size, n_steps, generator)])
            for n in (len(x), len(problem.X))
        )
        order = torch.arange(len(problem.X))
        if len(order) > _N_COMPARED:
            order = torch.randperm(len(order), generator=generator)[:_N_COMPARED]
        batches = MiniBatches(searched.train, rows)
        compared = MiniBatches(searched.train, order[None])[0]
        kept_steps = _steps_kept(n_steps, bytes_of(searched.module, problem.parameters))

        def search(n_bytes: int) -> tuple[list[dict[str, Tensor]], Tensor]:
            weights: list[dict[str, Tensor]] = []
            losses = []
            groups = [*searched.searches_that_fit(objective.n_searches, 1, n_bytes)]
            for searches in groups:
                part = objective.subset(searches)
                descent = Descent(
                    searched, part, prior_precision=settings.prior_precision, n_bytes=n_bytes
                )
                start = descent.start(part.at(slice(1)), 1)  # Line 1
                attack = _PoolAttack(on_device(x, device), pool_rows, part)
                steps = with_progress(
                    descent.steps(start, batches, settings.schedule, attack),
                    n_steps,
                    verbose=work.verbose,
                    advice=_ADVICE,
                    times=0 if weights else len(groups),
                )
                kept = _kept_models(steps, start, descent, kept_steps)
                weights.append({name: w.cpu() for name, w in kept.items()})
                prior = torch.as_tensor(descent.prior(kept), device=device).reshape(-1, 1)
                of_each = descent.excess_of_each(kept, compared) + prior
                losses.append(of_each.reshape(-1, len(kept_steps), len(order)))
            return weights, torch.cat(losses)

        weights, losses = within_memory(search, device)
        excess = mean_excess(losses.cpu().double().numpy(), problem.weight[order.numpy()])
        return FoundNetworks(targets, *excess, fitted, tuple(weights), searched.row_bytes)


@stored("quam.found-networks")
@dataclass(frozen=True)
class FoundNetworks(HeldOnDevice, Found):
    r"""Networks found on a pool: variants of the searched layers.

    `weights` has one entry for each group of searches that fit into memory together. An entry
    stacks the models' weights in order of the searches, (n_together * n_kept, \*parameter.shape).
    `row_bytes` is the size of the largest tensor that the module computes for one input.
    """

    fitted: FittedSearch
    weights: tuple[dict[str, Tensor], ...]
    row_bytes: int
    held_out: ClassVar[bool] = False

    def without_training_data(self) -> Self:
        none = np.empty(0)
        problem = replace(self.fitted.problem, X=none, y=none, weight=none, reference_loss=none)
        return replace(self, fitted=replace(self.fitted, problem=problem))

    def outputs(self, inputs: Tensor, device: torch.device | str = "cpu") -> Tensor:
        there = resolve_device(device, self.fitted.problem.module)
        x = self.fitted.features(inputs, there)
        return within_memory(lambda n_bytes: self._outputs(x, there, n_bytes), there).double()

    @torch.no_grad()
    def _outputs(self, x: Tensor, device: torch.device, n_bytes: int) -> Tensor:
        module, groups = self.on(device)
        n_kept, found = self.excess_loss.shape[1], []
        for weights in groups:
            n_models = len(next(iter(weights.values())))
            size = max(1, n_bytes // (n_models * self.row_bytes))
            passes = (
                variants_at(module, weights, on_device(part, device), shared_input=True).cpu()
                for part in torch.split(x, size)
            )
            outputs = torch.cat([*passes], dim=1)  # (n_models, n_points, n_outputs)
            by_search = outputs.reshape(-1, n_kept, *outputs.shape[1:])
            found.append(by_search.permute(2, 0, 1, 3))
        return torch.cat(found, dim=1)

    def _copy_to(self, device: torch.device) -> tuple[nn.Module, list[dict[str, Tensor]]]:
        weights = [{n: on_device(w, device) for n, w in group.items()} for group in self.weights]
        return moved(self.fitted.problem.module, device), weights


def _steps_kept(n_steps: int, model_bytes: int) -> list[int]:
    """Return the steps whose models are kept: the last tenth, or fewer if the models are large."""
    n_last = min(n_steps, max(2, round(_SHARE_KEPT * n_steps)))
    n_kept = min(n_last, max(2, _MOST_BYTES_KEPT // model_bytes))
    kept: list[int] = (
        np.linspace(n_steps - n_last, n_steps - 1, n_kept).round().astype(int).tolist()
    )
    return kept


class _PoolAttack(Attack):
    """Attack: mean of ``L_adv`` over a pool, estimated from one mini-batch per step."""

    def __init__(self, x: Tensor, rows: Tensor, objective: Objective):
        self.x, self.objective = x, objective
        self.rows = None if rows.shape[1] == len(x) else on_device(rows, x.device)
        self.weight = 1 / rows.shape[1]

    def inputs(self, step: int) -> Tensor:
        return self.x if self.rows is None else self.x[self.rows[step]]

    def losses(self, step: int, rows: slice, outputs: Tensor) -> Tensor:
        objective = self.objective
        if self.rows is not None:
            objective = objective.at(self.rows[step][rows])
        elif rows.stop - rows.start < len(self.x):
            objective = objective.at(rows)
        return objective.attack(outputs.transpose(0, 1))


@torch.no_grad()
def _kept_models(
    steps: Iterator[Tensor],
    start: dict[str, Tensor],
    descent: Descent,
    kept_steps: Sequence[int],
) -> dict[str, Tensor]:
    # Allocate the results before the first step. If these small tensors were allocated later, they
    # would lie between the large temporary tensors of the steps, and thus fragment the memory.
    kept = {n: w.new_empty(len(w), len(kept_steps), *w.shape[1:]) for n, w in start.items()}
    sums = next(w.new_zeros(len(w)) for w in start.values())
    for step, loss in enumerate(steps):
        sums += loss
        if step in kept_steps:
            for name, w in descent.weights().items():
                kept[name][:, kept_steps.index(step)] = w
    if not all(bool(torch.isfinite(each).all()) for each in (sums, *kept.values())):
        raise ValueError(
            "The search on the pool diverged (NaN or infinite loss). Use a smaller "
            "`learning_rate`, or scale the features, for instance by StandardScaler."
        )
    return {name: w.flatten(0, 1) for name, w in kept.items()}
