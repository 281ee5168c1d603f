"""Parameters, region and fine-tuning of both Mirage estimators."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from numbers import Integral, Real
from typing import Any

import numpy as np
import skorch
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.validation import _num_samples
from skorch.callbacks import Callback, LRScheduler
from torch import Tensor, nn

from skuq.audit._regions import checked_mask, region_mask
from skuq.base import BoolArray
from skuq.models import AdoptedModel, BatchLoader, fit_net, resolve_device

PARAMETERS: dict[str, Any] = {
    "estimator": "no_validation",
    "region": [callable, str, dict, None],
    "lambda_": [Interval(Real, 0, 1, closed="both")],
    "max_epochs": [Interval(Integral, 1, None, closed="left")],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "batch_size": [Interval(Integral, 1, None, closed="left")],
    "optimizer": [HasMethods("step"), callable],
    "callbacks": [list, None],
    "device": [str, torch.device],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


class WarmUp(Callback):
    """Start with KL(target || model) before Eq. 4 takes over.

    The gradient of Eq. 4 vanishes where the model is certain of a class: by itself it would
    leave the most confident predictions as they are. Both divergences have the same minimum.
    """

    def __init__(self, n_epochs: int):
        self.n_epochs = n_epochs

    def on_epoch_begin(self, net: skorch.NeuralNet, **kwargs: Any) -> None:
        net.criterion_.kl = "forward" if len(net.history) <= self.n_epochs else "reverse"


def checked_region(region: Any, mask: ArrayLike | None, X: Any) -> BoolArray:
    """Mask of the samples in the region; an error if it is empty or covers all."""
    if (region is None) == (mask is None):
        raise ValueError(
            "Give the region either as parameter `region` or as `fit(..., region_mask=...)`, and "
            "not both."
        )
    inside = region_mask(region, X) if mask is None else checked_mask(mask, _num_samples(X))
    if not inside.any():
        raise ValueError("The region is empty: no training sample lies in it.")
    if inside.all():
        raise ValueError(
            "The region covers all training samples; at least one must lie outside, where "
            "predictions are to be kept."
        )
    return inside


def fine_tune(
    model: AdoptedModel,
    inputs: Tensor,
    targets: NDArray[Any],
    criterion: nn.Module,
    *,
    seed: int,
    estimator: Any,
    callbacks: Sequence[Callback] = (),
) -> AdoptedModel:
    """Train a copy of a model's network further, under another loss.

    Parameters
    ----------
    model : AdoptedModel
        Fitted model; it is not altered.
    inputs : Tensor of shape (n_samples, ...)
        Preprocessed inputs, on the CPU.
    targets : ndarray of shape (n_samples,) or (n_samples, 2)
        What the criterion compares the network's outputs with.
    criterion : torch.nn.Module
        Loss.
    seed : int
        Governs shuffling and dropout.
    estimator : object
        Holds the settings of the training as attributes.
    callbacks : sequence of skorch callbacks, default=()
        What the loss needs besides the user's callbacks.

    Returns
    -------
    AdoptedModel
        With the trained network.

    Raises
    ------
    ValueError
        If the training diverges.
    """
    module = deepcopy(model.module).requires_grad_(True)
    others = estimator.callbacks
    if others is None:
        # Predictions close to the decision boundary flip as long as the steps are large.
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR
        others = [LRScheduler(cosine, T_max=estimator.max_epochs)]
    net = skorch.NeuralNet(
        module,
        criterion=criterion,
        optimizer=estimator.optimizer,
        lr=estimator.learning_rate,
        max_epochs=estimator.max_epochs,
        batch_size=estimator.batch_size,
        iterator_train=BatchLoader,
        iterator_train__shuffle=True,
        train_split=None,
        callbacks=[*callbacks, *others],
        device=str(resolve_device(estimator.device)),
        verbose=int(estimator.verbose),
    )
    trained = fit_net(net, inputs.numpy(), targets, seed=seed).module_
    trained = deepcopy(trained).cpu().eval().requires_grad_(False)
    if not all(bool(torch.isfinite(p).all()) for p in trained.parameters()):
        raise ValueError(
            f"Fine-tuning diverged to NaN or infinite weights; use a smaller `learning_rate` than "
            f"{estimator.learning_rate} or scale the features."
        )
    return AdoptedModel(trained, model.classes, model.transform)


def two_seeds(random: np.random.RandomState) -> tuple[int, int]:
    """Seeds of the first training and of the fine-tuning."""
    first, second = map(int, random.randint(np.iinfo(np.int32).max, size=2))
    return first, second
