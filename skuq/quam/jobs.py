"""One batch of searches as a job of its own, which any process or machine can run."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.information import Decomposition, decompose_expected, decompose_selected
from skuq.quam.sampling import AdversarialModels, best_adversarial_models, trajectory_weights
from skuq.quam.search import (
    TrainingSet,
    Trajectories,
    search_adversarial_models,
    training_batches,
)

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
    y : ndarray of shape (n_samples,), int64
        Class codes.
    weight : ndarray of shape (n_samples,), float64
        Sample weights, all positive.
    reference_loss : ndarray of shape (n_samples,), float64
        Cross-entropy of the reference model on each sample, in nats.
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
    """How to search; see `search_adversarial_models`."""

    n_steps: int
    c0: float
    eta: float
    learning_rate: float
    train_batch_size: int
    seed: int
    device: str


@torch.inference_mode(False)
def search_batch(
    problem: SearchProblem,
    settings: SearchSettings,
    x: NDArray[Any],
    log_reference: NDArray[Any],
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
    log_reference : ndarray of shape (n_points, n_classes)
        Log-probabilities of the reference model at the test points.
    summarise : callable
        Reduces ``(log_reference, trajectories)``, both tensors, to what is wanted, so that
        trajectories never travel between processes.

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
    # The same seed for every batch of points: all searches see the same mini-batches.
    generator = torch.Generator().manual_seed(settings.seed)
    rows = training_batches(
        len(problem.X), settings.train_batch_size, settings.n_steps + 1, generator
    )
    trajectories = search_adversarial_models(
        module,
        torch.tensor(x, device=device),
        problem.training_set(device),
        [batch.to(device) for batch in rows],
        parameters=[name for name, p in module.named_parameters() if p.is_floating_point()],
        n_classes=log_reference.shape[1],
        c0=settings.c0,
        eta=settings.eta,
        learning_rate=settings.learning_rate,
    )
    if not all(bool(torch.isfinite(part).all()) for part in trajectories):
        raise ValueError(
            "An adversarial model search diverged (NaN or infinite loss). Use a smaller "
            "`learning_rate`, or smaller `c0`, `eta` or `n_steps` (the penalty grows to "
            "c0 * eta**n_steps), or scale the features, for instance with StandardScaler."
        )
    return summarise(torch.tensor(log_reference, device=device), trajectories)


def summarise_uncertainty(
    log_reference: Tensor, trajectories: Trajectories, *, setting: str, temperature: float
) -> Decomposition:
    """Weigh all models met by the searches and take Eq. 1 or Eq. 2 over them.

    Parameters
    ----------
    log_reference : Tensor of shape (n_points, n_classes)
        Log-probabilities of the reference model.
    trajectories : Trajectories
        Result of the searches.
    setting : {"selected", "expected"}
        Eq. 2 or Eq. 1.
    temperature : float
        Temperature of the weights.

    Returns
    -------
    Decomposition
        Aleatoric and epistemic part, float64 arrays of shape (n_points,), in nats.
    """
    weights = trajectory_weights(trajectories.excess_loss, temperature)
    log_proba = trajectories.log_proba.flatten(1, 2)  # (n_points, n_models, n_classes)
    if setting == "selected":
        parts = decompose_selected(log_reference, log_proba, weights)
    else:
        parts = decompose_expected(log_proba, weights)
    return Decomposition(*(part.double().cpu().numpy() for part in parts))


def summarise_best(
    log_reference: Tensor, trajectories: Trajectories, *, gamma: float
) -> AdversarialModels:
    """Keep the best adversarial model of each search; see `best_adversarial_models`."""
    return best_adversarial_models(log_reference, trajectories, gamma)
