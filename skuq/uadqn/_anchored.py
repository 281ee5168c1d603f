"""Training of anchored quantile networks, all of them at once, through skorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq.models import Trained, TrainingSettings, seeded, train
from skuq.uadqn._losses import prior_scale, quantile_levels, quantile_loss
from skuq.uadqn._networks import StackedLinear, stacked_mlp, weights_of

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


class QuantileNetworks(nn.Module):
    """Anchored quantile networks for rows of a table, in float64.

    Parameters
    ----------
    n_members : int
        Number of networks.
    sizes : sequence of int
        Width of input, hidden layers and output (the number of quantiles).
    prior_gain : float
        Gain of the orthogonal initialisation, which is also where the anchors are.
    activation : {"relu", "tanh"}
        Activation between the layers.
    """

    def __init__(self, n_members: int, sizes: Sequence[int], prior_gain: float, activation: str):
        super().__init__()
        gains = [prior_gain] * n_members
        self.networks = stacked_mlp(n_members, sizes, gains, ACTIVATIONS[activation]).double()
        for layer in self.networks:
            if isinstance(layer, StackedLinear):
                # A bias is the weight of a constant input. With biases of 0 all kinks of a
                # ReLU network lie in one point, and the anchors would keep them there.
                nn.init.normal_(layer.bias, std=float(layer.weight.detach().std()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (n_samples, n_features) to (n_samples, n_members, n_quantiles)."""
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

    def forward(self, quantiles: Tensor, targets: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Loss of a batch: samples come first, one target and one weight for each."""
        weight = batch["weight"]
        losses = quantile_loss(quantiles.transpose(0, 1), targets, self.levels)
        data = (losses @ weight).sum() / weight.sum()
        pulls = [
            (p - anchor).square().flatten(1).sum(1)
            for p, anchor in zip(self.trained, self.anchors, strict=True)
        ]
        return data + self.strength @ torch.stack(pulls).sum(0)


class TrainingData(NamedTuple):
    """Standardised training data, float64.

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
    data: TrainingData,
    networks: Callable[[int], QuantileNetworks],
    noise_scale: float,
    *,
    settings: TrainingSettings,
    seed: int,
) -> Trained:
    """Initialise anchored networks and train them.

    Parameters
    ----------
    data : TrainingData
        What the networks learn from.
    networks : callable
        Builds the untrained networks from the number of features.
    noise_scale : float
        As in `AnchoredLoss`.
    settings : TrainingSettings
        How they are trained.
    seed : int
        Governs initial weights and the order of batches.

    Returns
    -------
    Trained
        The networks and the losses of each epoch.

    Raises
    ------
    ValueError
        If the training diverges.
    """
    with seeded(seed):
        start = networks(data.inputs.shape[1]).to(settings.device)
    return train(
        start,
        AnchoredLoss(start, noise_scale, data.weight.sum()),
        {"inputs": data.inputs, "weight": data.weight},
        data.targets,
        settings=settings,
        seed=seed,
    )
