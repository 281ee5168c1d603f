"""The networks that are trained when the user brings none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.base import FloatArray
from skuq.models._networks import MLP
from skuq.models._training import TrainingSettings, WeightedLoss, train
from skuq.stored import stored

# Weight decay is a Gaussian prior on the weights, so that the posterior is proper.
CLASSIFIER = TrainingSettings(learning_rate=5e-3, max_epochs=100, batch_size=256, weight_decay=1e-4)
# Steps of constant length would end at random near the optimum, from where searches find models
# of smaller loss everywhere.
REGRESSOR = TrainingSettings(
    learning_rate=1e-2, max_epochs=100, batch_size=64, weight_decay=1e-4, cosine=True
)

# Their users cannot set a learning rate.
_ADVICE = "scale the features, for instance with StandardScaler"


def float64_mlp(n_features: int, n_outputs: int, **options: Any) -> nn.Sequential:
    """`MLP` with one hidden layer of 100 units, in float64."""
    network: nn.Sequential = MLP(n_features, n_outputs, **options).double()
    return network


def train_default_classifier(
    X: NDArray[Any],
    codes: NDArray[np.int64],
    *,
    n_classes: int,
    sample_weight: NDArray[Any] | None = None,
    seed: int,
    device: str | torch.device,
    network: Callable[[int, int], nn.Module] = float64_mlp,
) -> nn.Module:
    """Train the classifier that users get who bring none.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Inputs.
    codes : ndarray of shape (n_samples,), int64
        Classes, 0 to `n_classes` - 1.
    n_classes : int
        Number of outputs.
    sample_weight : ndarray of shape (n_samples,), default=None
        Weights in the loss: 2 equals a sample given twice.
    seed : int
        Governs initial weights and shuffling.
    device : str or torch.device
        Where to train.
    network : callable, default=float64_mlp
        Builds the untrained network from the numbers of features and classes.

    Returns
    -------
    torch.nn.Module
        Trained network, on the CPU and in evaluation mode; it returns logits.
    """
    loss = WeightedLoss(nn.CrossEntropyLoss(reduction="none"))
    settings = replace(CLASSIFIER, device=device)
    build = partial(network, X.shape[1], n_classes)
    data = _weighted(X, sample_weight)
    return train(build, loss, data, codes, settings=settings, seed=seed, advice=_ADVICE).module


def train_default_regressor(
    X: NDArray[Any],
    y: FloatArray,
    *,
    n_outputs: int,
    sample_weight: NDArray[Any] | None = None,
    seed: int,
    device: str | torch.device,
) -> nn.Module:
    """Train the regressor that users get who bring none, on the standardised target.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Inputs.
    y : ndarray of shape (n_samples,), float64
        Targets.
    n_outputs : int
        1 for the mean (least squares), 2 for mean and log variance (likelihood of a normal
        distribution).
    sample_weight : ndarray of shape (n_samples,), default=None
        Weights in the loss: 2 equals a sample given twice.
    seed : int
        Governs initial weights and shuffling.
    device : str or torch.device
        Where to train.

    Returns
    -------
    torch.nn.Module
        Trained network, on the CPU and in evaluation mode; its outputs are in units of `y`.
    """
    data = _weighted(X, sample_weight)
    centre = np.average(y, weights=data["weight"])
    scale = np.sqrt(np.average((y - centre) ** 2, weights=data["weight"])) or 1.0
    # Where the variance is learnt too, the mean takes longer: large variances let it lag behind.
    max_epochs = REGRESSOR.max_epochs * n_outputs
    network = train(
        partial(float64_mlp, X.shape[1], n_outputs),
        WeightedLoss(GaussianLoss()),
        data,
        (y - centre) / scale,
        settings=replace(REGRESSOR, max_epochs=max_epochs, device=device),
        seed=seed,
        advice=_ADVICE,
    ).module
    assert isinstance(network, nn.Sequential)
    restore = Affine([scale, 1.0][:n_outputs], [centre, 2 * np.log(scale)][:n_outputs])
    return nn.Sequential(*network, restore).eval()


def _weighted(X: NDArray[Any], sample_weight: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
    weight = np.ones(len(X)) if sample_weight is None else sample_weight
    return {"inputs": X.astype(np.float64, copy=False), "weight": weight}


class GaussianLoss(nn.Module):
    """Negative log-likelihood per sample, or half the squared error without a log variance."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = (targets - outputs[:, 0]).square() / 2
        if outputs.shape[1] == 1:
            return losses
        return losses / outputs[:, 1].exp() + outputs[:, 1] / 2


@stored("models.affine", fields={"factor": list[float], "shift": list[float]})
class Affine(nn.Module):
    """Each output times a fixed factor plus a fixed shift."""

    factor: Tensor
    shift: Tensor

    def __init__(self, factor: list[float], shift: list[float]):
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor, dtype=torch.float64))
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float64))

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs * self.factor + self.shift
