"""Feature extractors: of small grids and of images, and of several networks as one module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    NatureCNN,
)
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from skuq.uadqn._networks import StackedConv2d

Space = spaces.Space[Any]

MIN_GRID = 3  # cells that `GridCNN` needs each way
MIN_IMAGE = 36  # pixels that `NatureCNN` of stable-baselines3 does
# Layers that behave differently in training.
MODAL = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


class GridCNN(BaseFeaturesExtractor):
    """Features of small grids such as MinAtar's: 16 filters of 3 x 3, then ReLU.

    Parameters
    ----------
    observation_space : gymnasium.spaces.Box
        Observations of shape (height, width, channels), not images of bytes, whose axes
        stable-baselines3 reorders.

    Raises
    ------
    ValueError
        For other observations.
    """

    N_FILTERS, KERNEL = 16, MIN_GRID

    def __init__(self, observation_space: spaces.Box):
        if len(observation_space.shape) != 3 or min(observation_space.shape[:2]) < self.KERNEL:
            raise ValueError(
                f"GridCNN takes grids of shape (height, width, channels), at least {self.KERNEL} "
                f"cells high and wide, got observations of shape {observation_space.shape}."
            )
        if is_image_space(observation_space):
            raise ValueError(
                "GridCNN takes grids of bool or float: of images of bytes, stable-baselines3 puts "
                "the channels first. Wrap the environment, or take another extractor."
            )
        height, width, channels = observation_space.shape
        outputs = (height - self.KERNEL + 1) * (width - self.KERNEL + 1) * self.N_FILTERS
        super().__init__(observation_space, outputs)
        self.image_shape = (height, width, channels)
        self.convolution = nn.Conv2d(channels, self.N_FILTERS, self.KERNEL)

    def forward(self, observations: Tensor) -> Tensor:
        """Map (n_samples, height, width, channels) to (n_samples, features), channels last."""
        maps = self.convolution(observations.permute(0, 3, 1, 2)).relu()
        return maps.permute(0, 2, 3, 1).flatten(1)

    def stacked(self, gains: Sequence[float]) -> nn.Module:
        """The same for several networks at once; outputs (n_members, n_samples, features)."""
        return _StackedGridCNN(self.image_shape, gains)


class DictExtractor(CombinedExtractor):
    """Features of dictionaries: stable-baselines3's, which fails on images too small for it.

    Parameters
    ----------
    observation_space : gymnasium.spaces.Dict
        Observations. Images of fewer than 36 x 36 pixels are flattened, as all else is.
    cnn_output_dim, normalized_image
        As in stable-baselines3.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        cnn_output_dim: int = 256,
        normalized_image: bool = False,
    ):
        parts: dict[str, Space] = {}
        for name, part in observation_space.items():
            is_image = is_image_space(part, normalized_image=normalized_image)
            if is_image and not is_large_enough(part):
                part = spaces.flatten_space(part)  # one axis, as only vectors have
            parts[name] = part
        super().__init__(spaces.Dict(parts), cnn_output_dim, normalized_image)


class _StackedGridCNN(nn.Module):
    def __init__(self, image_shape: tuple[int, ...], gains: Sequence[float]):
        super().__init__()
        n_filters, kernel = GridCNN.N_FILTERS, GridCNN.KERNEL
        self.convolution = StackedConv2d(len(gains), image_shape, n_filters, kernel, gains)

    def forward(self, observations: Tensor) -> Tensor:
        maps: Tensor = self.convolution(observations)
        # In place before the view: after it, the gradient would be copied three times.
        return maps.relu_().view(len(maps), len(observations), -1)


class _VmappedExtractor(nn.Module):
    """Any feature extractor, once for each network, computed as one batch."""

    def __init__(self, extractors: Sequence[nn.Module]):
        super().__init__()
        parameters, buffers = stack_module_state(list(extractors))
        trained = {name: p.requires_grad for name, p in extractors[0].named_parameters()}
        # A dictionary of parameters sorts its keys, and takes none with a dot.
        self.keys = {name: name.replace(".", "__") for name in [*parameters, *buffers]}
        self.stacked = nn.ParameterDict(
            {
                self.keys[name]: nn.Parameter(p.detach().clone(), trained[name])
                for name, p in parameters.items()
            }
        )
        self.constants = nn.Module()
        for name, buffer in buffers.items():
            self.constants.register_buffer(self.keys[name], buffer)
        # In a tuple it is no submodule: its own parameters are never used.
        self.template = (deepcopy(extractors[0]).to("meta"),)

    def forward(self, observations: Any) -> Tensor:
        def one(state: dict[str, Tensor]) -> Tensor:
            features: Tensor = functional_call(self.template[0], state, (observations,))
            return features

        tensors = dict(self.stacked.items()) | dict(self.constants.named_buffers())
        stacked = {name: tensors[key] for name, key in self.keys.items()}
        features: Tensor = vmap(one, randomness="different")(stacked)
        return features


def stack_extractors(
    make: Callable[[], BaseFeaturesExtractor], gains: Sequence[float]
) -> tuple[nn.Module, int]:
    """Build the feature extractors of several networks as one module.

    Parameters
    ----------
    make : callable
        Builds one extractor.
    gains : sequence of float
        Gain of each network's orthogonal initialisation.

    Returns
    -------
    torch.nn.Module
        Outputs (n_members, n_samples, features), or (n_samples, features) if there is
        nothing to learn in the extractor (it has no parameters, or frozen ones), so that all
        networks have the same features. Frozen weights stay as `make` sets them; weights of
        linear and convolutional layers that are trained are drawn anew.
    int
        Number of features.
    """
    first = make()
    if any(isinstance(module, MODAL) for module in first.modules()):
        raise ValueError(
            f"{type(first).__name__} has batch normalisation or dropout, which networks that "
            "stand for samples of a posterior cannot have; use an extractor without."
        )
    if not any(parameter.requires_grad for parameter in first.parameters()):
        return first, first.features_dim
    if type(first) is GridCNN:  # subclasses may compute something else
        return first.stacked(gains), first.features_dim
    extractors = [make() for _ in gains]
    for extractor, gain in zip(extractors, gains, strict=True):
        for module in extractor.modules():
            if all(parameter.requires_grad for parameter in module.parameters(recurse=False)):
                BasePolicy.init_weights(module, gain)
    return _VmappedExtractor(extractors), first.features_dim


def image_extractor(space: Space) -> type[BaseFeaturesExtractor]:
    """`NatureCNN`, which refuses what is not an image to stable-baselines3.

    Raises
    ------
    ValueError
        If images of bytes are too small for it.
    """
    if is_image_space(space) and not is_large_enough(space):
        raise ValueError(
            f"Images of {space.shape} bytes are too small for CnnPolicy, which takes images of "
            f"at least {MIN_IMAGE} x {MIN_IMAGE} pixels. Take MlpPolicy, or wrap the environment "
            "so that its observations are float, and take GridPolicy."
        )
    return NatureCNN


def is_large_enough(image: Any) -> bool:
    """Return whether `NatureCNN` can take such images, as stable-baselines3 reads their axes."""
    shape = image.shape or (0, 0, 0)
    return min(shape[1:] if is_image_space_channels_first(image) else shape[:2]) >= MIN_IMAGE


def default_arch(extractor: type[BaseFeaturesExtractor]) -> list[int]:
    """Widths of the hidden layers that follow the features."""
    return {GridCNN: [128], NatureCNN: []}.get(extractor, [100, 100])
