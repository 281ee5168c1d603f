"""Training of networks with skorch, and the default networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq._networks._devices import is_out_of_memory, resolve_device, seeded, too_little_memory
from skuq._networks._modules import MLP, Affine, WeightedLoss
from skuq.base import FloatArray
from skuq.devices import with_gradients

if TYPE_CHECKING:
    from skorch.callbacks import Callback


@dataclass(frozen=True)
class TrainingSettings:
    """Settings for the training of a network by skorch.

    A `batch_size` of -1 uses all samples. With `cosine`, the learning rate decays to 0 over
    `max_epochs`. With validation data, training stops after `patience` epochs without a smaller
    loss, and keeps the best weights. `device` "auto" is as in `resolve_device`.
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
    """A network on the CPU, in evaluation mode without gradients, and the history of training."""

    module: nn.Module
    history: Any


@with_gradients()
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
    """Train a network reproducibly, and restore torch's global random state.

    A callable `module` is called after seeding; `seed` then also determines the initial weights.
    `data` contains the inputs of the network under "inputs", and arrays for the loss under other
    keys, such as "weight", which is rescaled to mean 1. The criterion gets outputs, targets and a
    dict of these arrays, if any. Without `validation` data, training runs for all epochs.
    `callbacks` run before the user's callbacks. Set `loss_changes` if the losses of different
    epochs cannot be compared. Raises ValueError, with `advice`, if the training diverges.
    """
    # Imported here, because importing skorch can take seconds.
    from skuq._networks._skorch import as_dataset, make_net

    with seeded(seed):
        if not isinstance(module, nn.Module):
            module = module()
        device = resolve_device(settings.device, module)
        lacks_double = device.type == "mps"
        was_double = any(each.dtype == torch.float64 for each in module.parameters())
        if lacks_double:
            module, criterion = module.float(), criterion.float()
        training = as_dataset(data, targets, device)
        held_out = None if validation is None else as_dataset(*validation, device)
        net = make_net(module, criterion, len(training), settings, device, held_out, callbacks)
        try:
            net.fit(training, None)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            advice = "train with smaller batches, or train a smaller network"
            raise too_little_memory(device, error, advice) from error
    trained = net.module_.cpu().eval().requires_grad_(False)
    if lacks_double and was_double:
        trained.double()
    if advice is None:
        rate = settings.learning_rate
        advice = f"use a smaller `learning_rate` than {rate}, or scale the features"
    _check_converged(trained, net.history, advice, may_grow=loss_changes)
    return Trained(trained, net.history)


def _check_converged(network: nn.Module, history: Any, advice: str, *, may_grow: bool) -> None:
    """Raise ValueError if weights or losses are not finite, or if the loss more than doubled."""
    losses = np.array([epoch["train_loss"] for epoch in history if "train_loss" in epoch])
    if len(losses) == 0:
        raise KeyboardInterrupt("Interrupted before the first epoch ended.")
    numbers = all(bool(torch.isfinite(p).all()) for p in network.parameters())
    grown = losses[-1] > 2 * losses[0] > 0 and losses[0] == losses.min()
    if (grown and not may_grow) or not (numbers and bool(np.isfinite(losses).all())):
        raise ValueError(
            f"Training diverged: the loss went from {losses[0]:.3g} to {losses[-1]:.3g}; {advice}."
        )


class TrainingSet(NamedTuple):
    """Training data from which a gradient search computes its penalty, the excess training loss.

    `X` (n_samples, ...) are inputs of the searched module, `y` class codes (int64) or targets;
    `weight` is positive; `reference_loss` is the reference model's loss on each sample, in nats.
    """

    X: Tensor
    y: Tensor
    weight: Tensor
    reference_loss: Tensor


def training_batches(
    n_samples: int, batch_size: int, n_batches: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Draw the rows of mini-batches from shuffled epochs; all rows if they fit into one batch."""
    if n_samples <= batch_size:
        for _ in range(n_batches):
            yield torch.arange(n_samples, device="cpu")
        return
    order = torch.empty(0, dtype=torch.int64, device="cpu")
    for _ in range(n_batches):
        if len(order) < batch_size:
            order = torch.randperm(n_samples, generator=generator, device="cpu")
        batch, order = order[:batch_size], order[batch_size:]
        yield batch


# Weight decay acts as a Gaussian prior on the weights, which makes the posterior proper.
CLASSIFIER = TrainingSettings(learning_rate=5e-3, max_epochs=100, batch_size=256, weight_decay=1e-4)
# The learning rate decays: training with a constant rate would end at a random point near the
# optimum, and searches from this point would find models with a smaller loss in every direction.
REGRESSOR = TrainingSettings(
    learning_rate=1e-2, max_epochs=100, batch_size=64, weight_decay=1e-4, cosine=True
)

# Users cannot set the learning rate of the default networks.
_ADVICE = "scale the features, for instance with StandardScaler"


def float64_mlp(n_features: int, n_outputs: int, **options: Any) -> nn.Sequential:
    """Create an `MLP` with one hidden layer of 100 units, in float64."""
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
    """Build ``network(n_features, n_classes)`` and train it as a classifier that outputs logits."""
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
    """Train the default regressor on the standardised target.

    A single output is the mean (least squares); two outputs are mean and log variance (Gaussian
    likelihood). Both refer to `y` in its original units.
    """
    data = _weighted(X, sample_weight)
    centre = np.average(y, weights=data["weight"])
    scale = np.sqrt(np.average((y - centre) ** 2, weights=data["weight"])) or 1.0
    # If the variance is learned, the mean needs more epochs, because large variances reduce the
    # gradient of the mean.
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
    """Gaussian negative log-likelihood per sample; for a single output, half the squared error."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = (targets - outputs[:, 0]).square() / 2
        if outputs.shape[1] == 1:
            return losses
        return losses / outputs[:, 1].exp() + outputs[:, 1] / 2
