"""Training through skorch of networks whose loss sees more than outputs and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import skorch
import torch
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval
from skorch.callbacks import Callback, EarlyStopping
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import Tensor, nn

from skuq.models import BatchLoader, seeded

# What the estimators of this package have in common.
TRAINING_PARAMETERS: dict[str, Any] = {
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "weight_decay": [Interval(Real, 0, None, closed="left")],
    "max_epochs": [Interval(Integral, 1, None, closed="left")],
    "patience": [Interval(Integral, 1, None, closed="left")],
    "callbacks": [list, None],
    "device": [str, torch.device],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


class Samples(NamedTuple):
    """What a training or validation pass is given.

    Attributes
    ----------
    inputs : mapping of str to ndarray of shape (n_samples, ...)
        What the network is called with, under "inputs", and whatever else its loss needs.
    codes : ndarray of shape (n_samples,), int64
        Classes, -1 where unknown.
    """

    inputs: Mapping[str, NDArray[Any]]
    codes: NDArray[np.int64]


class _Net(skorch.NeuralNet):
    """skorch net: the network sees X["inputs"], the criterion all of X."""

    def infer(self, x: Any, **fit_params: Any) -> Any:
        return super().infer(x["inputs"], **fit_params)

    def get_loss(self, y_pred: Any, y_true: Tensor, X: Any = None, **kwargs: Any) -> Tensor:
        loss: Tensor = self.criterion_(y_pred, y_true.to(self.device), X)
        return loss


def fit_network(
    network: nn.Module,
    criterion: nn.Module,
    training: Samples,
    validation: Samples | None,
    *,
    settings: Any,
    seed: int,
    device: torch.device,
    callbacks: Sequence[Callback] = (),
) -> tuple[nn.Module, Any]:
    """Train a network with all samples in one batch.

    Parameters
    ----------
    network : torch.nn.Module
        Network, trained in place; its start is the caller's.
    criterion : torch.nn.Module
        Called with the outputs, codes and inputs of a batch; returns the loss.
    training : Samples
        What the network learns from.
    validation : Samples or None
        Training stops when the loss of these has not improved for `settings.patience`
        epochs, and the best weights are kept. None: it runs for all epochs.
    settings : object
        Holds `learning_rate`, `weight_decay`, `max_epochs`, `patience`, `callbacks` and `verbose`.
    seed : int
        Governs dropout.
    device : torch.device
        Where to train.
    callbacks : sequence of skorch callbacks, default=()
        What the method needs besides the user's callbacks.

    Returns
    -------
    network : torch.nn.Module
        Trained, in evaluation mode, on the CPU.
    history : skorch.history.History
        Losses of each epoch.

    Raises
    ------
    ValueError
        If the training diverges.
    """
    stopping = None
    if validation is not None:
        stopping = EarlyStopping(
            patience=settings.patience, threshold=0, load_best=True, sink=_mute
        )
    net = _Net(
        network,
        criterion=criterion,
        optimizer=torch.optim.Adam,
        optimizer__weight_decay=settings.weight_decay,
        lr=settings.learning_rate,
        max_epochs=settings.max_epochs,
        batch_size=-1,
        iterator_train=BatchLoader,
        iterator_valid=BatchLoader,
        train_split=None if validation is None else predefined_split(_dataset(validation)),
        callbacks=[*callbacks, *filter(None, [stopping]), *(settings.callbacks or [])],
        device=str(device),
        verbose=int(settings.verbose),
    )
    with seeded(seed):
        net.fit(_dataset(training), None)
    network = net.module_.cpu().eval().requires_grad_(False)
    losses = np.array([epoch["train_loss"] for epoch in net.history if "train_loss" in epoch])
    if len(losses) == 0:
        raise KeyboardInterrupt("Interrupted before the first epoch ended.")
    if _diverged(network, losses):
        raise ValueError(
            f"Training diverged: the loss went from {losses[0]:.3g} to {losses[-1]:.3g}; use a "
            f"smaller `learning_rate` than {settings.learning_rate}."
        )
    return network, net.history


def _diverged(network: nn.Module, losses: NDArray[np.float64]) -> bool:
    """Whether anything is no number any more, or the loss has only grown."""
    numbers = all(bool(torch.isfinite(p).all()) for p in network.parameters())
    grown = losses[-1] > 2 * losses[0] > 0 and losses[0] == losses.min()
    return grown or not (numbers and bool(np.isfinite(losses).all()))


def checked_widths(hidden_sizes: Any) -> tuple[int, ...]:
    """Widths of hidden layers; an error if one is no positive integer."""
    widths = tuple(hidden_sizes)
    if not all(isinstance(width, int | np.integer) and width > 0 for width in widths):
        raise ValueError(f"`hidden_sizes` must hold positive integers, got {hidden_sizes!r}.")
    return widths


def _dataset(samples: Samples) -> Dataset:
    return Dataset(dict(samples.inputs), samples.codes)


def _mute(message: str) -> None:
    """Where early stopping says that it stopped."""
