"""Several networks of one shape, computed as one: layers whose weights are stacked.

Weights lie as (n_members, inputs, outputs), so that a batched product needs no transposed
copy, neither forward nor for the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


def _orthogonal(shape: tuple[int, ...], n_members: int, gains: Sequence[float]) -> Tensor:
    """Weights of one layer, (n_members, *shape); dtype is torch's default."""
    if len(gains) != n_members:
        raise ValueError(f"Expected one gain for each of {n_members} networks, got {gains}.")
    return torch.stack([nn.init.orthogonal_(torch.empty(shape), gain) for gain in gains])


class StackedLinear(nn.Module):
    """Linear layers of several networks.

    Parameters
    ----------
    n_members, in_features, out_features : int
        Number of networks, and the shape of each one's layer.
    gains : sequence of float of length n_members
        Gain of each network's orthogonal initialisation; biases start at 0.
    """

    def __init__(self, n_members: int, in_features: int, out_features: int, gains: Sequence[float]):
        super().__init__()
        weights = _orthogonal((out_features, in_features), n_members, gains)
        self.weight = nn.Parameter(weights.transpose(1, 2).contiguous())
        self.bias = nn.Parameter(torch.zeros(n_members, 1, out_features))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (n_samples or n_members, n_samples, in) to (n_members, n_samples, out)."""
        n_members = self.weight.shape[0]
        if inputs.ndim == 2:  # the same inputs for all networks
            inputs = inputs.expand(n_members, *inputs.shape)
        return torch.baddbmm(self.bias, inputs, self.weight)


class StackedConv2d(nn.Module):
    """The same convolution of one input by several networks.

    Parameters
    ----------
    n_members : int
        Number of networks.
    image_shape : tuple of int
        Height, width and channels of an image.
    out_channels, kernel_size : int
        Shape of each network's layer; stride 1, no padding.
    gains : sequence of float of length n_members
        Gain of each network's orthogonal initialisation; biases start at 0.
    """

    patches: Tensor

    def __init__(
        self,
        n_members: int,
        image_shape: tuple[int, ...],
        out_channels: int,
        kernel_size: int,
        gains: Sequence[float],
    ):
        super().__init__()
        shape = (out_channels, image_shape[-1], kernel_size, kernel_size)
        self.weight = nn.Parameter(_orthogonal(shape, n_members, gains))
        self.bias = nn.Parameter(torch.zeros(n_members, out_channels))
        cells = torch.arange(math.prod(image_shape)).view(image_shape)
        patches = cells.unfold(0, kernel_size, 1).unfold(1, kernel_size, 1)
        # Which numbers of an image the patches hold, (h' * w' * in * k * k). By index they are
        # copied faster than through the strides of `unfold`.
        self.register_buffer("patches", patches.flatten(), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Map (n_samples, h, w, in) to (n_members, n_samples * h' * w', out)."""
        n_members = self.weight.shape[0]
        # As a product of patches and filters: its result lies as the next layer wants it, where a
        # convolution's has to be copied, and so does its gradient.
        patches = images.flatten(1).index_select(1, self.patches)
        rows = patches.view(-1, self.weight[0, 0].numel()).expand(n_members, -1, -1)
        filters = self.weight.flatten(2).transpose(1, 2)
        return torch.baddbmm(self.bias[:, None], rows, filters)


def stacked_mlp(
    n_members: int,
    sizes: Sequence[int],
    gains: Sequence[float],
    activation: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Stack multilayer perceptrons: linear layers with an activation between them.

    Parameters
    ----------
    n_members : int
        Number of networks.
    sizes : sequence of int
        Width of input, hidden layers and output.
    gains : sequence of float of length n_members
        Gain of each network's orthogonal initialisation.
    activation : type of torch.nn.Module, default=torch.nn.ReLU
        Activation between the layers.

    Returns
    -------
    torch.nn.Sequential
        Maps (n_samples, in) or (n_members, n_samples, in) to (n_members, n_samples, out).

    Examples
    --------
    >>> import torch
    >>> from skuq.uadqn._networks import stacked_mlp
    >>> stacked_mlp(3, [4, 16, 2], gains=[1.0, 3.0, 3.0])(torch.zeros(5, 4)).shape
    torch.Size([3, 5, 2])
    """
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        layers += [StackedLinear(n_members, n_in, n_out, gains), activation()]
    return nn.Sequential(*layers[:-1])


def weights_of(module: nn.Module) -> list[Tensor]:
    """Trained weights of a module without biases, from which a prior's scale is taken."""
    named = module.named_parameters()
    return [p for name, p in named if p.requires_grad and not name.endswith("bias")]
