"""Base of the gradient searches: parameters, schedule, data, and the steps of Algorithm 1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, from_numpy, nn
from torch.nn.functional import linear

from skuq._networks import (
    HeldOnDevice,
    TrainingSet,
    as_double,
    evaluate,
    largest_activation,
    moved,
    on_device,
    resolve_device,
    stack_parameters,
    stacked_forward,
)
from skuq.base import FloatArray
from skuq.files import stored
from skuq.models import Given, TrainingData
from skuq.quam._importance_sampling import OutputBias
from skuq.quam._objectives import Objective
from skuq.quam._search import Problem, Search, Setup, Task

# Maximum memory of the weights of searches that run together, as a multiple of the largest tensor
# that `within_memory` allows. Further searches run afterwards.
_TENSORS_OF_WEIGHTS = 4
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


class Schedule(NamedTuple):
    """For each step, weight c of the penalty, and step size as a fraction of the weights' size."""

    penalties: tuple[float, ...]
    learning_rates: tuple[float, ...]


def penalty_schedule(
    n_steps: int, *, c0: float, eta: float, update_every: int, learning_rate: float, decay: float
) -> Schedule:
    """Build a schedule: each update multiplies c by `eta` and divides the step size by `decay`."""
    updates = [step // update_every for step in range(n_steps)]
    penalties = tuple(c0 * eta**m for m in updates)  # Lines 1 and 9
    return Schedule(penalties, tuple(learning_rate / decay**m for m in updates))


class SearchSettings(NamedTuple):
    """Settings of a gradient search, in which every "auto" is replaced by a number."""

    schedule: Schedule
    prior_precision: float
    train_batch_size: int
    device: torch.device


#: Constraint on the parameter `effort`.
EFFORT: list[Any] = [StrOptions({"equal", "paper"})]


@dataclass(kw_only=True, eq=False, repr=False)
class NetworkSearch(Search):
    """Search over the weights of a network, or of some of its layers."""

    parameters: Any = "auto"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "parameters": [StrOptions({"auto", "all", "linear", "last"}), callable],
    }
    form = "network"

    def check_suits(self, given: Given, device: Any) -> None:
        if not given.has_gradients:
            raise TypeError(
                f"{type(self).__name__} needs a model with gradients, but "
                f"{type(given.learner).__name__} has no gradients; use search='refit', or "
                "search=None, which selects a suitable search."
            )
        resolve_device(device)  # raises before the training starts

    def fitted(self, model: Any, data: TrainingData, setup: Setup) -> FittedSearch:
        """Split the network before the first searched weight, and collect the training data."""
        inputs, chosen = data.inputs, self.parameters
        chosen = model.moving_parameters if chosen == "auto" else chosen
        body, module, names = model.cut(chosen, inputs)
        features = inputs if body is None else evaluate(body, inputs, device=setup.device)
        counts = data.weight > 0
        problem = SearchProblem(
            module,
            names,
            X=features.numpy()[counts],
            y=(data.codes if len(data.codes) else data.labels)[counts],
            weight=data.weight[counts],
            reference_loss=setup.losses[counts],
            seed=setup.seed,
        )
        return FittedSearch(body, problem)

    def problem(self, model: Any, data: TrainingData, setup: Setup) -> Problem:
        return self.problem_of(self.fitted(model, data, setup), setup)

    @abstractmethod
    def problem_of(self, fitted: FittedSearch, setup: Setup) -> Problem:
        """Build the problem of this search from a network that is already split."""


@dataclass(kw_only=True, eq=False, repr=False)
class GradientSearch(NetworkSearch):
    """Parameters of the gradient searches, documented in `PoolSearch`."""

    targeted: bool = True
    n_steps: int | str
    c0: float | str
    eta: float | str = "auto"
    update_every: int = 1
    learning_rate: float | str = 0.1
    learning_rate_decay: float | str = "auto"
    prior_precision: float | str = 0.0
    train_batch_size: int

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **NetworkSearch._parameter_constraints,
        "targeted": ["boolean"],
        "n_steps": [Interval(Integral, 1, None, closed="left")],
        "c0": [Interval(Real, 0, None, closed="left"), StrOptions({"auto"})],
        "eta": [Interval(Real, 1, None, closed="left"), StrOptions({"auto"})],
        "update_every": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, 10, closed="right")],
        "learning_rate_decay": [Interval(Real, 1, None, closed="left"), StrOptions({"auto"})],
        "prior_precision": [Interval(Real, 0, None, closed="left")],
        "train_batch_size": [Interval(Integral, 1, None, closed="left")],
    }

    def length(self, module: nn.Module) -> tuple[int, float]:
        """Return the number of steps and the initial step size of a search over a module."""
        return int(self.n_steps), float(self.learning_rate)

    def shortening(self, problem: SearchProblem, task: Task) -> float:
        """Return the first step size divided by the last step size."""
        return 10.0

    def precision(self, problem: SearchProblem) -> float:
        """Return the precision of the prior on each weight."""
        return float(self.prior_precision)

    def settings(self, problem: SearchProblem, task: Task, device: torch.device) -> SearchSettings:
        """Collect the settings; replace each "auto" by a number that suits the task."""
        n_steps, learning_rate = self.length(problem.module)
        # On a pool, the penalty grows tenfold, by default from 10 to 100 times the attack's weight.
        growth = task.growth if self.pointwise else 10.0
        updates = max((n_steps - 1) // self.update_every, 1)
        eta, decay = (
            total ** (1 / updates) if given == "auto" else float(given)
            for given, total in (
                (self.eta, growth),
                (self.learning_rate_decay, self.shortening(problem, task)),
            )
        )
        schedule = penalty_schedule(
            n_steps,
            c0=task.first_penalty(problem.total_weight) if self.c0 == "auto" else float(self.c0),
            eta=eta,
            update_every=self.update_every,
            learning_rate=learning_rate,
            decay=decay,
        )
        return SearchSettings(schedule, self.precision(problem), self.train_batch_size, device)

    def problem_of(self, fitted: FittedSearch, setup: Setup) -> FittedSearch:
        module, names = fitted.problem.module, fitted.problem.parameters
        if not any(bool(module.get_parameter(name).any()) for name in names):
            raise ValueError(
                f"All parameters to be searched are zero ({list(names)}). Steps would be zero too, "
                "because they are proportional to the parameters; select other parameters by "
                "`parameters` of the search."
            )
        return fitted


class Searched(NamedTuple):
    """Network and training data on a device, shared by all searches on this device."""

    module: nn.Module
    train: TrainingSet
    scales: dict[str, float]
    square: float
    total_weight: float
    row_bytes: int
    batches: dict[tuple[int, int], MiniBatches]

    @classmethod
    def of(
        cls, module: nn.Module, train: TrainingSet, names: Sequence[str], total_weight: float
    ) -> Searched:
        """Compute, from the reference model, the attributes that all searches share."""
        squares = {n: as_double(module.get_parameter(n).detach()).square() for n in names}
        return cls(
            module,
            train,
            {name: float(square.mean().sqrt()) for name, square in squares.items()},
            sum(float(square.sum()) for square in squares.values()),
            total_weight,
            largest_activation(module, train.X[:1]),
            {},
        )

    def searches_that_fit(self, n_searches: int, n_points: int, n_bytes: int) -> Iterator[slice]:
        """Split the searches of each point into groups whose weights fit into memory."""
        limit = _TENSORS_OF_WEIGHTS * n_bytes
        n_together = max(1, limit // (n_points * bytes_of(self.module, self.scales)))
        for start in range(0, n_searches, n_together):
            yield slice(start, start + n_together)


@stored("quam.search-problem")
@dataclass(frozen=True)
class SearchProblem(HeldOnDevice):
    """Reference model and training data, shared by the searches of all test points."""

    module: nn.Module  # part of the reference model that begins with the first searched parameter
    parameters: tuple[str, ...]  # names of the searched parameters
    X: NDArray[Any]  # inputs of the module, an array because joblib shares arrays among processes
    y: NDArray[Any]  # class codes (int64), or targets of a regression
    weight: NDArray[Any]  # sample weights, all positive
    reference_loss: NDArray[Any]  # loss of the reference model on each sample, in nats
    seed: int  # seed of the mini-batches

    @property
    def total_weight(self) -> float:
        """Sum of the sample weights, which is the number of samples in the likelihood."""
        return float(self.weight.sum())

    @torch.no_grad()
    def output_bias(self) -> OutputBias | None:
        """Return the last searched bias whose first element shifts all predicted means equally."""
        module, X = deepcopy(self.module), torch.tensor(self.X[:1024])
        before = module(X.clone())
        # The step is large, because single-precision rounding errors are divided by the step below.
        step = 1 + before[:, 0].abs().max()
        for name in reversed(self.parameters):
            bias = module.get_parameter(name)
            if name.rpartition(".")[2] != "bias" or bias.shape != before.shape[1:]:
                continue
            bias[0] += step
            effect = (module(X.clone())[:, 0] - before[:, 0]) / step
            bias[0] -= step
            if effect[0] != 0 and torch.allclose(effect, effect[0], rtol=1e-3, atol=0):
                return OutputBias(name, len(bias), float(effect[0]))
        return None

    def _copy_to(self, device: torch.device) -> Searched:
        arrays = (self.X, self.y, self.weight, self.reference_loss)
        tensors = (from_numpy(array) if array.flags.writeable else array for array in arrays)
        train = TrainingSet(*(on_device(each, device) for each in tensors))
        return Searched.of(moved(self.module, device), train, self.parameters, self.total_weight)


@stored("quam.fitted-search")
@dataclass(frozen=True)
class FittedSearch(HeldOnDevice, Problem):
    """A network that `fit` split into fixed first layers (`body`) and the searched layers."""

    body: nn.Module | None
    problem: SearchProblem

    @property
    def total_weight(self) -> float:
        return self.problem.total_weight

    def features(self, inputs: Tensor, device: torch.device) -> Tensor:
        """Compute the inputs of the searched layers."""
        return inputs if self.body is None else evaluate(self.on(device), inputs, device=device)

    def _copy_to(self, device: torch.device) -> nn.Module:
        assert self.body is not None
        return moved(self.body, device)


def efforts(problem: SearchProblem, x: NDArray[Any]) -> FloatArray:
    """Compute the weight of the attack on each input, for effort="equal" of `QuadraticSearch`.

    `x` contains inputs of the searched layers. Norms include one more input, for the bias: a
    constant as large as the other inputs.
    """
    if problem.X.dtype.kind != "f" or any(
        isinstance(m, _EMBEDDINGS) for m in problem.module.modules()
    ):
        return np.ones(len(x))  # inputs are ids, whose norms have no meaning
    of_train, of_x = (
        np.einsum("ij,ij->i", each, each)
        for each in (each.reshape(len(each), -1).astype(np.float64) for each in (problem.X, x))
    )
    constant = np.average(of_train, weights=problem.weight) / problem.X[0].size
    order = np.argsort(of_train)
    reached = np.cumsum(problem.weight[order]) / problem.total_weight
    median, largest = of_train[order[np.searchsorted(reached, [0.5, 0.99])]] + constant
    of_x = of_x + constant
    if median == 0:
        return np.ones(len(x))
    effort: FloatArray = np.maximum(median / of_x, np.minimum(1, median * of_x / largest**2))
    return effort


class MiniBatches:
    """Training data of each step; labels, weights and losses are gathered before the first step.

    `rows` has the shape (n_steps, n_rows). If n_rows is the number of samples, each mini-batch is
    the whole training set, and each row of `rows` must be in ascending order.
    """

    def __init__(self, train: TrainingSet, rows: Tensor):
        self.X = train.X
        whole = rows.shape[1] == len(train.X)
        self.rows = None if whole else on_device(rows, train.X.device)
        order = slice(None) if self.rows is None else self.rows
        y, weight, loss = train.y[order], train.weight[order], train.reference_loss[order]
        share = weight / weight.sum(-1, keepdim=True)
        self.steps = [each.expand(len(rows), -1) for each in (y, share, loss)]

    def __getitem__(self, step: int) -> TrainingSet:
        """Return the samples of a step, with weights that sum to 1."""
        X = self.X if self.rows is None else self.X[self.rows[step]]
        return TrainingSet(X, *(each[step] for each in self.steps))


class Attack(ABC):
    """Inputs at which a search makes models disagree, and the loss ``L_adv`` at these inputs."""

    @abstractmethod
    def inputs(self, step: int) -> Tensor:
        """Return a step's inputs: (n_rows, ...) if shared by models, or (n_models, n_rows, ...)."""

    @abstractmethod
    def losses(self, step: int, rows: slice, outputs: Tensor) -> Tensor:
        """Compute ``L_adv`` of all models at `rows` from outputs (n_models, n_rows, n_outputs)."""

    # Weight of `losses` in the objective; a Tensor is expanded to the shape of `losses`.
    weight: float | Tensor = 1.0


class Descent:
    """Gradient descent of many variants of a network on ``L_adv + c (L_train - L_ref)``.

    One tensor contains all searched weights. Step sizes are relative to the root mean square of
    each parameter. No step waits for a result from the device.
    """

    def __init__(
        self, searched: Searched, objective: Objective, *, prior_precision: float, n_bytes: int
    ):
        self.searched, self.objective, self.n_bytes = searched, objective, n_bytes
        # `prior_precision` refers to the sum of the losses, but the penalty contains their mean.
        self.weight_decay = prior_precision / searched.total_weight
        parameters = [searched.module.get_parameter(name) for name in searched.scales]
        self.sizes = [parameter.numel() for parameter in parameters]
        scales = zip(parameters, searched.scales.values(), strict=True)
        self.scale = torch.cat([p.new_full((p.numel(),), scale) for p, scale in scales])

    @torch.no_grad()
    def start(self, points: Objective, n_points: int) -> dict[str, Tensor]:
        """Return the reference model's weights plus the offsets of the objective."""
        n_models = n_points * points.n_searches
        weights = stack_parameters(self.searched.module, n_models, self.searched.scales)
        for name, offset in points.offsets().items():
            weights[name] += offset
        return weights

    @torch.enable_grad()
    def steps(
        self, start: dict[str, Tensor], batches: MiniBatches, schedule: Schedule, attack: Attack
    ) -> Iterator[Tensor]:
        """Run Lines 2-6 and 9 of Algorithm 1; for each step, yield the excess losses before it."""
        # Steps change tensors in place, because allocating large tensors would fragment the memory.
        initial = torch.cat([_by_model(w.detach()) for w in start.values()], dim=1)
        moved = torch.zeros_like(initial)  # change of the weights, in units of `self.scale`
        adam = torch.optim.Adam([moved], fused=True)
        current = initial.clone()
        self._weights = current.detach().requires_grad_()
        self._weights.grad = moved.grad = torch.zeros_like(initial)
        for step, (c, learning_rate) in enumerate(zip(*schedule, strict=True)):  # Line 2
            l_pen = self._add_gradients(step, batches[step], c, attack)
            adam.param_groups[0]["lr"] = learning_rate
            adam.step()  # Line 6
            torch.addcmul(initial, moved, self.scale, out=current)
            self._weights.grad.zero_()
            yield l_pen

    def weights(self) -> dict[str, Tensor]:
        """Return the models' present weights by name, each (n_models, \\*parameter.shape)."""
        parts = torch.split(self._weights, self.sizes, dim=1)
        named = zip(self.searched.scales, parts, strict=True)
        given = ((name, part, self.searched.module.get_parameter(name)) for name, part in named)
        return {name: part.view(-1, *p.shape).to(p.dtype) for name, part, p in given}

    def _add_gradients(self, step: int, batch: TrainingSet, c: float, attack: Attack) -> Tensor:
        """Add gradients of Lines 3 and 4 to `_weights.grad`; return each model's excess loss."""
        shares = []
        for rows, samples, x in self._passes(attack.inputs(step), batch.X):
            outputs = self.outputs(self.weights(), x, shared_input=x.ndim == batch.X.ndim)
            # Use `split`: autograd would pad the gradients of two slices with zeros, and add both.
            sizes = [_length(rows), _length(samples)]
            attacked, trained = torch.split(outputs, sizes, dim=1)
            excess = self._excess(trained, batch, samples) @ batch.weight[samples]  # Line 3
            shares.append(excess.detach())
            # Lines 4 and 5: add the gradient of L_adv + c (L_train - L_ref), not the sum itself.
            terms: dict[Tensor, float | Tensor] = {excess: c}
            if _length(rows):
                terms[attack.losses(step, rows, attacked)] = attack.weight
            factors = [
                (w if torch.is_tensor(w) else term.new_full((), w)).expand_as(term)
                for term, w in terms.items()
            ]
            torch.autograd.backward([*terms], factors)
        excess = torch.stack(shares).sum(0)
        if not self.weight_decay:
            return excess
        with torch.no_grad():
            self._weights.grad.add_(self._weights, alpha=c * self.weight_decay)  # type: ignore[union-attr]
        return excess + self.prior(self.weights())

    def _passes(self, inputs: Tensor, X: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
        """Split attack inputs and samples into joint passes; separate passes would cost double."""
        own = inputs.ndim > X.ndim  # each model has its own attack inputs
        n_models, n_inputs = len(self._weights), inputs.shape[-X.ndim]
        for part in gen_batches(n_inputs + len(X), self._rows_per_pass(n_models)):
            start, stop = part.start, part.stop
            rows = slice(min(start, n_inputs), min(stop, n_inputs))
            samples = slice(max(start - n_inputs, 0), max(stop - n_inputs, 0))
            if not own:
                yield rows, samples, torch.cat([inputs[rows], X[samples]])
            elif _length(rows):
                trained = X[samples].expand(n_models, *X[samples].shape)
                yield rows, samples, torch.cat([inputs[:, rows], trained], dim=1)
            else:
                yield rows, samples, X[samples]

    def _rows_per_pass(self, n_models: int) -> int:
        return max(1, self.n_bytes // (n_models * self.searched.row_bytes))

    def outputs(self, weights: dict[str, Tensor], x: Tensor, *, shared_input: bool) -> Tensor:
        """Compute the outputs of all models, (n_models, n_rows, n_outputs)."""
        # Use double precision: rounding in single precision would hide small divergences.
        return as_double(variants_at(self.searched.module, weights, x, shared_input=shared_input))

    def _excess(self, outputs: Tensor, batch: TrainingSet, rows: slice) -> Tensor:
        """Compute each model's loss on training samples minus the reference model's (Line 3)."""
        losses = self.objective.training_loss(outputs, batch.y[rows])
        return losses - batch.reference_loss[rows]

    @torch.no_grad()
    def excess_of_each(self, weights: dict[str, Tensor], batch: TrainingSet) -> Tensor:
        """Compute excess losses of samples, without the term of the prior, (n_models, n_rows)."""
        parts = []
        for rows in gen_batches(
            len(batch.X), self._rows_per_pass(len(next(iter(weights.values()))))
        ):
            outputs = self.outputs(weights, batch.X[rows], shared_input=True)
            parts.append(self._excess(outputs, batch, rows))
        return torch.cat(parts, dim=1)

    @torch.no_grad()
    def prior(self, weights: dict[str, Tensor]) -> Tensor | float:
        """Compute the term of the prior in the excess loss, (n_models,)."""
        if not self.weight_decay:
            return 0.0
        squares = [_by_model(as_double(w)).square().sum(1) for w in weights.values()]
        return (torch.stack(squares).sum(0) - self.searched.square) * (self.weight_decay / 2)


def bytes_of(module: nn.Module, names: Iterable[str]) -> int:
    """Return the total size of the named parameters of a module."""
    return sum(module.get_parameter(name).nbytes for name in names)


def _by_model(weights: Tensor) -> Tensor:
    """Flatten each model's weights to a row, (n_models, n_weights), even if they are one scalar."""
    return weights.reshape(len(weights), -1)


def variants_at(
    module: nn.Module, weights: dict[str, Tensor], x: Tensor, *, shared_input: bool
) -> Tensor:
    """Compute outputs of variants of a module, (n_models, n_rows, n_outputs); fast if linear."""
    layer, prefix = linear_head(module)
    weight, bias = weights.get(f"{prefix}weight"), weights.get(f"{prefix}bias")
    if not shared_input or weight is None or (bias is None and layer.bias is not None):
        return stacked_forward(module, weights, x, shared_input=shared_input)
    of_all = linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
    return of_all.view(len(x), *weight.shape[:2]).transpose(0, 1)


def linear_head(module: nn.Module) -> tuple[Any, str]:
    """Return the layer, and its parameters' prefix, if a module is one linear layer, else None."""
    if type(module) is nn.Linear:
        return module, ""
    if type(module) is nn.Sequential and [*map(type, module)] == [nn.Linear]:
        return module[0], f"{next(iter(module._modules))}."
    return None, ""


def _length(rows: slice) -> int:
    return int(rows.stop - rows.start)
