"""The data of an adversarial model search: model, training set, schedule and settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.base import FloatArray
from skuq.models import TrainingSet, evaluate
from skuq.quam._subnetwork import choose_subnetwork
from skuq.stored import stored


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


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the searches; see `search_adversarial_models`.

    Attributes
    ----------
    schedule : Schedule
        Penalties and step sizes.
    prior_precision : float
        Precision of the Gaussian prior of each weight.
    train_batch_size : int
        Rows in a mini-batch of the penalty.
    device : torch.device
        Where to compute.
    """

    schedule: Schedule
    prior_precision: float
    train_batch_size: int
    device: torch.device


@stored("quam.search-problem")
@dataclass(frozen=True)
class SearchProblem:
    """Reference model and training data, which the searches of all test points share.

    Attributes
    ----------
    module : torch.nn.Module
        Reference model, or the part of it from the first moving parameter on.
    parameters : tuple of str
        Names of the parameters that move.
    X : ndarray of shape (n_samples, ...)
        Training inputs of `module`. Plain arrays, which joblib shares between processes.
    y : ndarray of shape (n_samples,)
        Class codes (int64), or targets of a regression.
    weight : ndarray of shape (n_samples,), float64
        Sample weights, all positive.
    reference_loss : ndarray of shape (n_samples,), float64
        Loss of the reference model on each sample, in nats.
    seed : int
        Randomness of the mini-batches.
    """

    module: nn.Module
    parameters: tuple[str, ...]
    X: NDArray[Any]
    y: NDArray[Any]
    weight: NDArray[Any]
    reference_loss: NDArray[Any]
    seed: int

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
class FittedSearch:
    """Everything that `fit` prepares for the searches of any test point.

    Attributes
    ----------
    body : torch.nn.Module or None
        The layers before the first parameter that moves; None if there are none.
    problem : SearchProblem
        The layers that move, and the training data as they reach them.
    """

    body: nn.Module | None
    problem: SearchProblem

    def features(self, inputs: Tensor, device: torch.device) -> Tensor:
        """Inputs as they reach the layers that move."""
        return inputs if self.body is None else evaluate(self.body, inputs, device=device)


def mean_loss(losses: FloatArray, weight: FloatArray) -> float:
    """Mean training loss of the reference model, in nats (L_ref).

    Raises
    ------
    ValueError
        If it is not finite.
    """
    mean = float(np.average(losses, weights=weight))
    if not np.isfinite(mean):
        raise ValueError(
            f"The model's loss on its training data is {mean}. A skorch net "
            "whose module returns logits needs criterion=torch.nn.CrossEntropyLoss; with "
            "skorch's default criterion the module must return probabilities."
        )
    return mean


def prepare_search(
    network: nn.Module,
    parameters: Any,
    inputs: Tensor,
    y: NDArray[Any],
    *,
    weight: FloatArray,
    losses: FloatArray,
    seed: int,
    device: torch.device,
) -> FittedSearch:
    """Cut the network before the first parameter that moves, and keep the training data.

    Parameters
    ----------
    network : torch.nn.Module
        Reference model.
    parameters : str or callable
        The parameters that may move; see `choose_subnetwork`.
    inputs : Tensor of shape (n_samples, ...)
        Training inputs.
    y : ndarray of shape (n_samples,)
        Class codes or targets.
    weight : ndarray of shape (n_samples,), float64
        Sample weights; samples of weight 0 are left out.
    losses : ndarray of shape (n_samples,), float64
        Loss of the network on each sample, in nats.
    seed : int
        Randomness of the mini-batches.
    device : torch.device
        Where to compute features.

    Returns
    -------
    FittedSearch
        The state of all searches.

    Raises
    ------
    ValueError
        If no parameter can move.
    """
    module, names, body = choose_subnetwork(network, parameters, inputs[:1024])
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
