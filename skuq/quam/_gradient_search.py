"""Searches by gradients: their parameters, schedule and data, and the steps of Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import torch
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn

from skuq.base import FloatArray
from skuq.models import NetworkModel, look_at
from skuq.networks import TrainingSet, evaluate, stacked_forward
from skuq.quam._objectives import Objective
from skuq.quam._tasks import OutputBias, Problem, Search
from skuq.stored import stored

# Searches run together while their stacked weights fit into this; larger stacks are no faster.
_STACK_BYTES = 64 * 2**20
# Activations of one pass stay below this: larger ones leave the caches, and the allocator
# asks the system for fresh pages at every step, which takes three times as long.
_PASS_BYTES = 16 * 2**20


class Schedule(NamedTuple):
    """Weight of the penalty and step size in each step of a search.

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
    """Raise the penalty and shorten the steps, by constant factors.

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

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Algorithm 1, lines 1 and 9.

    Examples
    --------
    >>> schedule = penalty_schedule(
    ...     4, c0=1.0, eta=2.0, update_every=2, learning_rate=1.0, decay=4.0
    ... )
    >>> schedule.penalties, schedule.learning_rates
    ((1.0, 1.0, 2.0, 2.0), (1.0, 1.0, 0.25, 0.25))
    """
    updates = [step // update_every for step in range(n_steps)]
    penalties = tuple(c0 * eta**m for m in updates)  # Lines 1 and 9
    return Schedule(penalties, tuple(learning_rate / decay**m for m in updates))


class SearchSettings(NamedTuple):
    """Schedule, precision of the prior, rows of a mini-batch of the penalty, and device."""

    schedule: Schedule
    prior_precision: float
    train_batch_size: int
    device: torch.device


@dataclass(kw_only=True, eq=False, repr=False)
class GradientSearch(Search):
    """Parameters of the searches by gradients, as `PoolSearch` documents them.

    A dataclass writes the `__init__` that scikit-learn's conventions ask for: one explicit
    keyword for each parameter, which it assigns and nothing else.
    """

    parameters: Any = "auto"
    targeted: bool = True
    n_steps: int
    c0: float | str
    eta: float | str = "auto"
    update_every: int = 1
    learning_rate: float = 0.1
    learning_rate_decay: float | str = "auto"
    prior_precision: float = 0.0
    train_batch_size: int

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "parameters": [StrOptions({"auto", "all", "linear", "last", "bias", "norm"}), callable],
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
    # Parameters that move by default, and the factor by which steps shorten over all steps.
    _moving: ClassVar[str]
    _shortening: ClassVar[float]

    def check_suits(self, estimator: Any) -> None:
        """Refuse models of which no gradients are known."""
        given = look_at(estimator)
        if not given.has_gradients:
            raise TypeError(
                f"{type(self).__name__} follows gradients, and "
                f"{type(given.learner).__name__} has none; use search='refit', or None, which "
                "chooses the search that suits a model."
            )

    def settings(self, c0: float, growth: float, device: torch.device) -> SearchSettings:
        """Settings with these values of `c0`, and of the growth over all steps, for "auto"."""
        updates = max((self.n_steps - 1) // self.update_every, 1)
        eta, decay = (
            total ** (1 / updates) if given == "auto" else float(given)
            for given, total in (
                (self.eta, growth),
                (self.learning_rate_decay, self._shortening),
            )
        )
        schedule = penalty_schedule(
            self.n_steps,
            c0=c0 if self.c0 == "auto" else float(self.c0),
            eta=eta,
            update_every=self.update_every,
            learning_rate=self.learning_rate,
            decay=decay,
        )
        return SearchSettings(schedule, self.prior_precision, self.train_batch_size, device)

    def problem(
        self,
        model: NetworkModel,
        inputs: Tensor,
        y: NDArray[Any],
        weight: FloatArray,
        losses: FloatArray,
        *,
        seed: int,
        device: torch.device,
    ) -> FittedSearch:
        """Cut the network before the first weights that move, and keep the training data.

        `y` are class codes or targets, `losses` those of the network on each sample, in nats;
        samples of weight 0 are left out.
        """
        parameters = self.parameters
        if parameters == "auto":
            parameters = model.moving_parameters or self._moving
        body, module, names = model.cut(parameters, inputs)
        if not any(bool(module.get_parameter(name).any()) for name in names):
            raise ValueError(
                f"All parameters that a search may move are zero ({list(names)}), and step sizes "
                "are relative to them. Choose others with `parameters`."
            )
        features = inputs if body is None else evaluate(body, inputs, device=device)
        counts = weight > 0
        problem = SearchProblem(
            module,
            names,
            X=features.numpy()[counts],
            y=y[counts],
            weight=weight[counts],
            reference_loss=losses[counts],
            seed=seed,
        )
        return FittedSearch(body, problem)


@stored("quam.search-problem")
@dataclass(frozen=True)
class SearchProblem:
    """Reference model and training data, which the searches of all test points share."""

    module: nn.Module  # the reference model from the first moving parameter on
    parameters: tuple[str, ...]  # names of the parameters that move
    X: NDArray[Any]  # inputs of the module; plain arrays, which joblib shares between processes
    y: NDArray[Any]  # class codes (int64), or targets of a regression
    weight: NDArray[Any]  # sample weights, all positive
    reference_loss: NDArray[Any]  # of the reference model on each sample, in nats
    seed: int  # randomness of the mini-batches

    @property
    def total_weight(self) -> float:
        """Sum of the sample weights, which is the number of samples in the likelihood."""
        return float(self.weight.sum())

    def training_set(self, device: torch.device) -> TrainingSet:
        """The training data as tensors on a device."""
        arrays = (self.X, self.y, self.weight, self.reference_loss)
        return TrainingSet(*(torch.tensor(array, device=device) for array in arrays))


@stored("quam.fitted-search")
@dataclass(frozen=True)
class FittedSearch(Problem):
    """What `fit` prepares: the layers before the first parameter that moves, and the rest."""

    body: nn.Module | None
    problem: SearchProblem

    def features(self, inputs: Tensor, device: torch.device) -> Tensor:
        """Inputs as they reach the layers that move."""
        return inputs if self.body is None else evaluate(self.body, inputs, device=device)


def parts_that_fit(
    objective: Objective, module: nn.Module, names: Sequence[str], n_points: int
) -> Iterator[slice]:
    """The searches of each point in groups whose weights fit into memory together."""
    model_bytes = sum(module.get_parameter(name).nbytes for name in names)
    n_together = max(1, _STACK_BYTES // (n_points * model_bytes))
    for start in range(0, objective.n_searches, n_together):
        yield slice(start, start + n_together)


@torch.enable_grad()
def descend(
    excess_loss: ExcessLoss,
    batches: Sequence[Tensor],
    schedule: Schedule,
    attack: Callable[[int], Tensor],
) -> Iterator[Tensor]:
    """Take the steps of all searches together: Lines 2 to 6 and 9 of Algorithm 1.

    The weights of `excess_loss` are altered in place, `batches` are the rows of the penalty's
    mini-batch in each step, and ``attack(step)`` returns the sum of ``L_adv`` over the searches.
    Yields ``L_train - L_ref`` of each model before each step, (n_models,), on the step's batch.
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
    """Bytes of the largest tensor, input or output of a layer, that a module computes for `x`."""
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


@torch.no_grad()
def output_bias(module: nn.Module, parameters: tuple[str, ...], X: Tensor) -> OutputBias | None:
    """Find, among the parameters that move, the bias of the output layer; None if it does not move.

    In any network, it is the last bias of as many elements as there are outputs whose first
    element shifts the predicted mean by the same amount for all inputs.
    """
    module = deepcopy(module)
    before = module(X.clone())
    step = 1 + before[:, 0].abs().max()  # large enough to be seen in single precision
    for name in reversed(parameters):
        bias = module.get_parameter(name)
        if name.rpartition(".")[2] != "bias" or bias.shape != before.shape[1:]:
            continue
        bias[0] += step
        effect = (module(X.clone())[:, 0] - before[:, 0]) / step
        bias[0] -= step
        if effect[0] != 0 and torch.allclose(effect, effect[0], rtol=1e-3, atol=0):
            return OutputBias(name, len(bias), float(effect[0]))
    return None
