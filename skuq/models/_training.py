"""Training of a network through skorch: one net, one seed, one check for divergence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

if TYPE_CHECKING:
    from skorch.callbacks import Callback


@dataclass(frozen=True)
class TrainingSettings:
    """Settings for the training of a network.

    Attributes
    ----------
    learning_rate : float
        Learning rate of the optimiser, at the start.
    max_epochs : int
        Passes over the training data, at most.
    batch_size : int
        Samples per step; -1 takes all. Batches are shuffled if there are several.
    weight_decay : float
        The optimiser's L2 penalty.
    optimizer : callable
        A `torch.optim` optimiser class.
    cosine : bool
        Whether the learning rate goes to 0 along a cosine over `max_epochs`.
    patience : int or None
        With validation data: epochs without a smaller validation loss before training stops;
        the weights of the best epoch are kept.
    callbacks : sequence of skorch callbacks
        The user's.
    device : str or torch.device
        Where to train.
    verbose : int
        Whether skorch prints each epoch.
    """

    learning_rate: float
    max_epochs: int
    batch_size: int = -1
    weight_decay: float = 0.0
    optimizer: Callable[..., Any] = torch.optim.Adam
    cosine: bool = False
    patience: int | None = None
    callbacks: Sequence[Any] = ()
    device: str | torch.device = "cpu"
    verbose: int = 0


class Trained(NamedTuple):
    """A trained network.

    Attributes
    ----------
    module : torch.nn.Module
        The network, on the CPU, in evaluation mode and without gradients.
    history : skorch.history.History
        Losses of each epoch.
    """

    module: nn.Module
    history: Any


def train(
    module: nn.Module | Callable[[], nn.Module],
    criterion: nn.Module,
    data: Mapping[str, NDArray[Any]],
    targets: NDArray[Any],
    *,
    settings: TrainingSettings,
    seed: int,
    validation: tuple[Mapping[str, NDArray[Any]], NDArray[Any]] | None = None,
    callbacks: Sequence[Callback] = (),
    loss_changes: bool = False,
    advice: str | None = None,
) -> Trained:
    """Train a network reproducibly, leaving torch's global random state as it was.

    Parameters
    ----------
    module : torch.nn.Module or callable without arguments that returns one
        Network, trained in place. A callable is called under `seed`, which then governs the
        initial weights too.
    criterion : torch.nn.Module
        Called with the outputs and targets of a batch and, if `data` holds more than inputs, a
        dict of the rest; returns the loss.
    data : mapping of str to ndarray of shape (n_samples, ...)
        What the network is called with, under "inputs", and what else the loss needs, such as
        "weight", of which only the proportions count.
    targets : ndarray of shape (n_samples, ...)
        What the network learns.
    settings : TrainingSettings
        How it learns.
    seed : int
        Governs shuffling and dropout.
    validation : tuple of data and targets, default=None
        What `settings.patience` is about. None: training runs for all epochs.
    callbacks : sequence of skorch callbacks, default=()
        What the method needs besides the user's callbacks.
    loss_changes : bool, default=False
        Whether a callback changes the loss between epochs, whose values then cannot be compared.
    advice : str, default=None
        What to do if the training diverges, as the end of a sentence. None: a smaller
        `learning_rate`, or scaled features.

    Returns
    -------
    Trained
        The network and the losses of its training.

    Raises
    ------
    ValueError
        If the training diverges.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.models import MLP, TrainingSettings, WeightedLoss, train
    >>> data = {"inputs": np.eye(3, dtype=np.float32), "weight": np.ones(3)}
    >>> loss = WeightedLoss(nn.CrossEntropyLoss(reduction="none"))
    >>> settings = TrainingSettings(learning_rate=0.1, max_epochs=50)
    >>> trained = train(MLP(3, 3), loss, data, np.array([2, 0, 1]), settings=settings, seed=0)
    >>> trained.module(torch.eye(3)).argmax(dim=1)
    tensor([2, 0, 1])
    """
    # Here and not above: with some other libraries at hand, skorch takes seconds to import.
    from skuq.models._net import as_dataset, make_net

    training = as_dataset(_of_mean_weight_one(data), targets)
    net = make_net(
        module,
        criterion,
        len(training),
        settings=settings,
        validation=None
        if validation is None
        else as_dataset(_of_mean_weight_one(validation[0]), validation[1]),
        callbacks=callbacks,
    )
    with seeded(seed):
        net.fit(training, None)
    trained = net.module_.cpu().eval().requires_grad_(False)
    if advice is None:
        rate = settings.learning_rate
        advice = f"use a smaller `learning_rate` than {rate}, or scale the features"
    _check_converged(trained, net.history, advice, may_grow=loss_changes)
    return Trained(trained, net.history)


def _check_converged(network: nn.Module, history: Any, advice: str, *, may_grow: bool) -> None:
    """Refuse a network with weights or losses that are not numbers, or whose loss only grew."""
    losses = np.array([epoch["train_loss"] for epoch in history if "train_loss" in epoch])
    if len(losses) == 0:
        raise KeyboardInterrupt("Interrupted before the first epoch ended.")
    numbers = all(bool(torch.isfinite(p).all()) for p in network.parameters())
    grown = losses[-1] > 2 * losses[0] > 0 and losses[0] == losses.min()
    if (grown and not may_grow) or not (numbers and bool(np.isfinite(losses).all())):
        raise ValueError(
            f"Training diverged: the loss went from {losses[0]:.3g} to {losses[-1]:.3g}; {advice}."
        )


def _of_mean_weight_one(data: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    return {**data, "weight": mean_weight_one(data["weight"])} if "weight" in data else data


def mean_weight_one(weight: NDArray[Any]) -> NDArray[Any]:
    """Weights in the same proportions, of mean 1.

    Batches are then weighed by what is in them. Divided by its own weights instead, a batch would
    count no more than others for a sample that is worth a hundred.
    """
    return weight / (weight.mean() or 1.0)


class WeightedLoss(nn.Module):
    """Mean of a loss over the samples of a batch, times the batch's "weight".

    Parameters
    ----------
    loss : torch.nn.Module
        Called with outputs and targets; returns one value per sample.
    """

    def __init__(self, loss: nn.Module):
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Any, targets: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        return weighted_mean(self.loss(outputs, targets), batch["weight"])


def weighted_mean(losses: Tensor, weight: Tensor) -> Tensor:
    """Mean of the losses of a batch, times weights of mean 1 over all samples."""
    return (weight.to(losses) * losses).sum() / len(losses)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block, and leave its global random state as it was."""
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=list(devices)):
        torch.manual_seed(seed)
        yield
