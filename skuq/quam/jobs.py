"""One batch of searches as a job of its own, which any process or machine can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.nets import stack_parameters
from skuq.quam.objectives import Objective
from skuq.quam.search import (
    Schedule,
    TrainingSet,
    Trajectories,
    search_adversarial_models,
    training_batches,
)


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
    """

    objective: Objective
    n_searches: int
    offsets: Mapping[str, Tensor] = {}


# From what the reference model returns at the test points to the plan, and from both this and
# the result to what is wanted. The second runs where the search ran, so that trajectories
# never travel between processes.
Planner = Callable[[Tensor], Plan]
Summary = Callable[[Tensor, Trajectories], Any]


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
        Reduces ``(reference, trajectories)``, both tensors, to what is wanted.

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
    weights = stack_parameters(module, len(x) * plan.n_searches, settings.parameters)
    with torch.no_grad():
        for name, offset in plan.offsets.items():
            weights[name] += offset
    # The same seed for every batch of points: all searches see the same mini-batches.
    generator = torch.Generator().manual_seed(settings.seed)
    n_steps = len(settings.schedule.penalties)
    rows = training_batches(len(problem.X), settings.train_batch_size, n_steps + 1, generator)
    trajectories = search_adversarial_models(
        module,
        weights,
        torch.tensor(x, device=device),
        problem.training_set(device),
        [batch.to(device) for batch in rows],
        objective=plan.objective,
        schedule=settings.schedule,
        weight_decay=settings.weight_decay,
    )
    if not all(bool(torch.isfinite(part).all()) for part in trajectories):
        raise ValueError(
            "An adversarial model search diverged (NaN or infinite loss). Use a smaller "
            "`learning_rate`, or smaller `c0`, `eta` or `n_steps` (the penalty grows to "
            "c0 * eta**n_steps), or scale the features, for instance with StandardScaler."
        )
    return summarise(reference_outputs, trajectories)
