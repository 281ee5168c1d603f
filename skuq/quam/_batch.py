"""One batch of searches as a job of its own, which any process or machine can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.models import TrainingSet, stack_parameters, training_batches
from skuq.quam._objectives import Objective
from skuq.quam._search import Schedule, Trajectories, search_adversarial_models

# Searches run together while their stacked weights fit into this; larger stacks are no faster.
_STACK_BYTES = 64 * 2**20


class FollowUp(Protocol):
    """Draws more models from what the searches of a batch of test points find."""

    def observe(self, outputs: Tensor, excess_loss: Tensor, weights: dict[str, Tensor]) -> None:
        """See the models of each update of the searches (`search_adversarial_models`)."""

    def draw(
        self,
        module: nn.Module,
        x: Tensor,
        train: TrainingSet,
        rows: Tensor,
        settings: SearchSettings,
    ) -> Any:
        """Return what the summary gets in place of trajectories, once searches have ended.

        Parameters
        ----------
        module : torch.nn.Module
            Reference model.
        x : Tensor of shape (n_points, ...)
            Test points.
        train : TrainingSet
            Training data.
        rows : Tensor of shape (n_rows,), int64
            Training samples on which the last models of the searches were evaluated, the same
            for all batches of points.
        settings : SearchSettings
            Settings of the searches.
        """


class Plan(NamedTuple):
    """The searches of a batch of test points.

    Attributes
    ----------
    objective : Objective
        What they want.
    n_searches : int
        How many there are for each point.
    offsets : dict of str to Tensor of shape (n_points * n_searches, \\*parameter.shape)
        What is added to parameters before the first step; broadcast.
    follow_up : FollowUp or None
        What comes after the searches; None summarises their trajectories.
    part : callable or None
        Objective of a slice of the searches of each point, if they can run one after the other
        where all at once would take too much memory.
    """

    objective: Objective
    n_searches: int
    offsets: Mapping[str, Tensor] = {}
    follow_up: FollowUp | None = None
    part: Callable[[slice], Objective] | None = None


# From what the reference model returns at the test points to the plan, and from both this and
# the result to what is wanted. The second runs where the search ran, so that trajectories
# never travel between processes.
Planner = Callable[[Tensor], Plan]
Summary = Callable[[Tensor, Any], Any]


@dataclass(frozen=True)
class SearchProblem:
    """What the searches of all test points have in common.

    Attributes
    ----------
    module : torch.nn.Module
        Reference model, or its head if only the last layer moves.
    X : ndarray of shape (n_samples, ...)
        Training inputs of `module`. Plain arrays, which joblib shares between processes.
    y : ndarray of shape (n_samples,)
        Class codes (int64), or targets of a regression.
    weight : ndarray of shape (n_samples,), float64
        Sample weights, all positive.
    reference_loss : ndarray of shape (n_samples,), float64
        Loss of the reference model on each sample, in nats.
    """

    module: nn.Module
    X: NDArray[Any]
    y: NDArray[Any]
    weight: NDArray[Any]
    reference_loss: NDArray[Any]

    def training_set(self, device: str) -> TrainingSet:
        """The training data as tensors on a device."""
        arrays = (self.X, self.y, self.weight, self.reference_loss)
        return TrainingSet(*(torch.tensor(array, device=device) for array in arrays))


@dataclass(frozen=True)
class SearchSettings:
    """How to search; see `search_adversarial_models`.

    Attributes
    ----------
    parameters : tuple of str
        Names of the parameters that move.
    schedule : Schedule
        Penalties and step sizes.
    train_batch_size : int
        Rows in a mini-batch of the penalty.
    weight_decay : float
        Prior precision per training sample.
    seed : int
        Randomness of the mini-batches.
    device : str
        Where to compute.
    """

    parameters: tuple[str, ...]
    schedule: Schedule
    train_batch_size: int
    weight_decay: float
    seed: int
    device: str


@torch.inference_mode(False)
def search_batch(
    problem: SearchProblem,
    settings: SearchSettings,
    x: NDArray[Any],
    reference: NDArray[Any],
    planner: Planner,
    summarise: Summary,
) -> Any:
    """Search the adversarial models of one batch of test points and summarise them.

    Parameters
    ----------
    problem : SearchProblem
        Model and training data.
    settings : SearchSettings
        How to search.
    x : ndarray of shape (n_points, ...)
        Test points.
    reference : ndarray of shape (n_points, n_outputs)
        What the reference model returns at the test points.
    planner : callable
        Turns `reference`, a tensor, into the `Plan` of the searches.
    summarise : callable
        Reduces ``(reference, trajectories)``, both tensors, to what is wanted. After a
        follow-up, what this drew takes the place of the trajectories.

    Returns
    -------
    object
        What `summarise` returns.

    Raises
    ------
    ValueError
        If a search diverges.
    """
    device = settings.device
    module = deepcopy(problem.module).to(device)
    reference_outputs = torch.tensor(reference, device=device)
    plan = planner(reference_outputs)
    # The same seed for every batch of points: all searches see the same mini-batches.
    generator = torch.Generator().manual_seed(settings.seed)
    n_steps = len(settings.schedule.penalties)
    rows = training_batches(len(problem.X), settings.train_batch_size, n_steps + 1, generator)
    batches = [batch.to(device) for batch in rows]
    points, train = torch.tensor(x, device=device), problem.training_set(device)
    parts = [
        search_adversarial_models(
            module,
            _starts(module, settings.parameters, len(x) * n_searches, plan.offsets),
            points,
            train,
            batches,
            objective=objective,
            schedule=settings.schedule,
            weight_decay=settings.weight_decay,
            observer=None if plan.follow_up is None else plan.follow_up.observe,
        )
        for objective, n_searches in _slices(plan, module, settings.parameters, len(x))
    ]
    trajectories = Trajectories(*(torch.cat(each, dim=1) for each in zip(*parts, strict=True)))
    if not all(bool(torch.isfinite(part).all()) for part in trajectories):
        raise ValueError(
            "An adversarial model search diverged (NaN or infinite loss). Use a smaller "
            "`learning_rate`, or smaller `c0`, `eta` or `n_steps` (the penalty grows to "
            "c0 * eta**n_steps), or scale the features, for instance with StandardScaler."
        )
    if plan.follow_up is None:
        return summarise(reference_outputs, trajectories)
    drawn = plan.follow_up.draw(module, points, train, batches[-1], settings)
    return summarise(reference_outputs, drawn)


def _starts(
    module: nn.Module, names: tuple[str, ...], n_models: int, offsets: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Weights that searches start from."""
    weights = stack_parameters(module, n_models, names)
    with torch.no_grad():
        for name, offset in offsets.items():
            weights[name] += offset
    return weights


def _slices(
    plan: Plan, module: nn.Module, names: tuple[str, ...], n_points: int
) -> Iterator[tuple[Objective, int]]:
    """Objectives of searches that run together, and how many there are for each point."""
    model_bytes = sum(module.get_parameter(name).nbytes for name in names)
    n_together = max(1, _STACK_BYTES // (n_points * model_bytes))
    if plan.part is None or plan.n_searches <= n_together:
        yield plan.objective, plan.n_searches
        return
    for start in range(0, plan.n_searches, n_together):
        stop = min(start + n_together, plan.n_searches)
        yield plan.part(slice(start, stop)), stop - start
