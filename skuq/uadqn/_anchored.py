"""Training of anchored quantile networks, all of them at once, through skorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import skorch
import torch
from numpy.typing import NDArray
from skorch.callbacks import LRScheduler
from torch import Tensor, nn

from skuq.models import BatchLoader, seeded
from skuq.uadqn._losses import prior_scale, quantile_levels, quantile_loss
from skuq.uadqn._networks import StackedLinear, stacked_mlp, weights_of

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class QuantileNetworks(nn.Module):
    """Anchored quantile networks for rows of a table, in float64.

    Parameters
    ----------
    n_networks : int
        Number of networks.
    sizes : sequence of int
        Width of input, hidden layers and output (the number of quantiles).
    prior_gain : float
        Gain of the orthogonal initialisation, which is also where the anchors are.
    activation : {"relu", "tanh"}
        Activation between the layers.
    """

    def __init__(self, n_networks: int, sizes: Sequence[int], prior_gain: float, activation: str):
        super().__init__()
        gains = [prior_gain] * n_networks
        self.networks = stacked_mlp(n_networks, sizes, gains, ACTIVATIONS[activation]).double()
        for layer in self.networks:
            if isinstance(layer, StackedLinear):
                # A bias is the weight of a constant input. With biases of 0 all kinks of a
                # ReLU network lie in one point, and the anchors would keep them there.
                nn.init.normal_(layer.bias, std=float(layer.weight.detach().std()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (n_samples, n_features) to (n_samples, n_networks, n_quantiles)."""
        outputs: Tensor = self.networks(inputs)
        return outputs.transpose(0, 1)  # skorch and batched evaluation want samples first


class AnchoredLoss(nn.Module):
    """Quantile loss of all networks, each of them pulled towards its own start.

    Minimising it from independent starts samples approximately from the posterior
    (randomised maximum a posteriori sampling). The networks share no weights, so the sum of
    their losses trains each as if it were alone.

    Parameters
    ----------
    module : QuantileNetworks
        Networks as they were initialised.
    noise_scale : float
        Scale of the noise; its square is the strength of the anchors.
    n_samples : float
        Size of the data: the sum of the sample weights.
    """

    def __init__(self, module: QuantileNetworks, noise_scale: float, n_samples: float):
        super().__init__()
        self.trained = list(module.parameters())
        self.anchors = [p.detach().clone() for p in self.trained]
        variance = prior_scale([w.detach() for w in weights_of(module)]) ** 2
        self.strength = noise_scale**2 / (variance * n_samples)
        n_quantiles = self.trained[-1].shape[-1]
        self.levels = quantile_levels(n_quantiles, dtype=torch.float64, device=variance.device)

    def forward(self, quantiles: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
        """Loss of a batch: samples come first, one target and one weight for each."""
        losses = quantile_loss(quantiles.transpose(0, 1), targets, self.levels)
        data = (losses @ weight).sum() / weight.sum()
        pulls = [
            (p - anchor).square().flatten(1).sum(1)
            for p, anchor in zip(self.trained, self.anchors, strict=True)
        ]
        return data + self.strength @ torch.stack(pulls).sum(0)


class _WeightedNet(skorch.NeuralNet):
    """skorch net: the networks see X["inputs"], the loss sees X["weight"] as well."""

    def infer(self, x: Any, **fit_params: Any) -> Any:
        return super().infer(x["inputs"], **fit_params)

    def get_loss(self, y_pred: Any, y_true: Tensor, X: Any = None, **kwargs: Any) -> Tensor:
        loss: Tensor = self.criterion_(y_pred, y_true.to(self.device), X["weight"].to(self.device))
        return loss


class TrainingData(NamedTuple):
    """What the networks learn from, standardised, float64.

    Attributes
    ----------
    inputs : ndarray of shape (n_samples, n_features)
        Features.
    targets : ndarray of shape (n_samples, 1)
        One sample of each target's distribution.
    weight : ndarray of shape (n_samples,)
        Positive weights: 2 equals a sample given twice.
    """

    inputs: NDArray[np.float64]
    targets: NDArray[np.float64]
    weight: NDArray[np.float64]


def fit_anchored(
    data: TrainingData, *, settings: Any, seed: int, device: torch.device
) -> tuple[QuantileNetworks, Any]:
    """Initialise anchored networks and train them.

    Parameters
    ----------
    data : TrainingData
        What the networks learn from.
    settings : object
        Holds `n_networks`, `hidden_sizes`, `n_quantiles`, `prior_gain`, `noise_scale`,
        `activation`, `max_epochs`, `batch_size`, `learning_rate` and `verbose`.
    seed : int
        Governs initial weights and the order of batches.
    device : torch.device
        Where to train.

    Returns
    -------
    networks : QuantileNetworks
        Trained, in evaluation mode, on the CPU.
    history : skorch.history.History
        Losses of each epoch.

    Raises
    ------
    ValueError
        If the training diverges.
    """
    sizes = [data.inputs.shape[1], *settings.hidden_sizes, settings.n_quantiles]
    with seeded(seed):
        networks = QuantileNetworks(
            settings.n_networks, sizes, settings.prior_gain, settings.activation
        ).to(device)
        net = _WeightedNet(
            networks,
            criterion=AnchoredLoss(networks, settings.noise_scale, data.weight.sum()),
            optimizer=torch.optim.Adam,
            optimizer__fused=True,
            lr=settings.learning_rate,
            max_epochs=settings.max_epochs,
            batch_size=settings.batch_size,
            train_split=None,
            iterator_train=BatchLoader,
            iterator_train__shuffle=True,
            # Steps of constant length would leave each network at random near its optimum,
            # and that noise would count as epistemic variance.
            callbacks=[LRScheduler("CosineAnnealingLR", T_max=settings.max_epochs)],
            device=str(device),
            verbose=int(settings.verbose),
        )
        net.fit({"inputs": data.inputs, "weight": data.weight}, data.targets)
    networks = networks.cpu().eval().requires_grad_(False)
    if not all(bool(torch.isfinite(p).all()) for p in networks.parameters()):
        raise ValueError(
            f"Training diverged; use a smaller `learning_rate` than {settings.learning_rate}."
        )
    return networks, net.history
