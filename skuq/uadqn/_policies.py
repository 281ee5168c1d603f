"""Policies for stable-baselines3: feature extractors, and stacked value networks."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.qrdqn.policies import QRDQNPolicy
from stable_baselines3.common import torch_layers
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from skuq._networks import SWAPPING
from skuq.uadqn._envs import Trusted, refuse_unusable
from skuq.uadqn._networks import (
    AGENT_BIASES,
    FusedUpdate,
    StackedConv2d,
    draw_biases,
    evaluate_layers,
    stacked_mlp,
    weights_of,
)
from skuq.uadqn._quantiles import (
    epistemic_variance,
    prior_scale,
    quantile_levels,
    risk_adjusted_values,
    sampled_values,
)
from skuq.validation import checked_widths

Space = spaces.Space[Any]
Discrete: TypeAlias = "spaces.Discrete[Any]"  # quoted: generic only since gymnasium 1.3

DECISION_SETTINGS = ("epistemic_factor", "aleatoric_factor", "aleatoric")
MIN_GRID = 3  # minimum height and width in cells for `GridCNN`
MIN_IMAGE = 36  # minimum height and width in pixels for `NatureCNN` of stable-baselines3
# Layers whose outputs differ between the training mode and the evaluation mode.
MODAL = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


class GridCNN(BaseFeaturesExtractor):
    """Features of small grids such as MinAtar's: 16 filters of 3 x 3, then ReLU.

    Observations have shape (height, width, channels). uint8 images are not supported, because
    stable-baselines3 transposes their axes.
    """

    N_FILTERS, KERNEL = 16, MIN_GRID

    def __init__(self, observation_space: spaces.Box):
        if len(observation_space.shape) != 3 or is_image_space(observation_space):
            raise ValueError(
                "GridCNN needs grids (height, width, channels) of bool or float, got "
                f"{observation_space}. stable-baselines3 transposes the axes of uint8 images: "
                "convert them to float with a wrapper, or use a different feature extractor."
            )
        height, width, channels = observation_space.shape
        outputs = (height - self.KERNEL + 1) * (width - self.KERNEL + 1) * self.N_FILTERS
        super().__init__(observation_space, outputs)
        self.image_shape = (height, width, channels)
        self.convolution = nn.Conv2d(channels, self.N_FILTERS, self.KERNEL)

    def forward(self, observations: Tensor) -> Tensor:
        """Map (n_samples, height, width, channels) to (n_samples, features)."""
        maps = self.convolution(observations.permute(0, 3, 1, 2)).relu()
        return maps.permute(0, 2, 3, 1).flatten(1)


class DictExtractor(torch_layers.CombinedExtractor):
    """Features of dictionaries of observations; images too small for `NatureCNN` are flattened."""

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
                part = spaces.flatten_space(part)  # as a vector, it is not treated as an image
            parts[name] = part
        super().__init__(spaces.Dict(parts), cnn_output_dim, normalized_image)


class _VmappedExtractor(nn.Module):
    """Feature extractors of any type, one for each network, evaluated with `vmap`."""

    def __init__(self, extractors: Sequence[nn.Module]):
        super().__init__()
        parameters, buffers = stack_module_state(list(extractors))
        trained = {name: p.requires_grad for name, p in extractors[0].named_parameters()}
        # Keys of a ParameterDict must not contain dots.
        self.keys = {name: name.replace(".", "__") for name in [*parameters, *buffers]}
        self.stacked = nn.ParameterDict()
        for name, p in parameters.items():
            self.stacked[self.keys[name]] = nn.Parameter(p.detach().clone(), trained[name])
        self.constants = nn.Module()
        for name, buffer in buffers.items():
            self.constants.register_buffer(self.keys[name], buffer)
        # In a tuple, the template is not a submodule, so its unused parameters are not listed.
        self.template = (deepcopy(extractors[0]).to("meta"),)

    def forward(self, observations: Any) -> Tensor:
        def one(state: dict[str, Tensor]) -> Tensor:
            features: Tensor = functional_call(self.template[0], state, (observations,))
            return features

        tensors = dict(self.stacked.items()) | dict(self.constants.named_buffers())
        stacked = {name: tensors[key] for name, key in self.keys.items()}
        with SWAPPING:
            features: Tensor = vmap(one, randomness="different")(stacked)
        return features


def stack_extractors(
    make: Callable[[], BaseFeaturesExtractor], gains: Sequence[float], rectified: bool = True
) -> tuple[nn.Module, int]:
    """Build feature extractors of several networks as one module; also return its output width."""
    # Outputs have shape (n_members, n_samples, features); if the extractor has no trainable
    # weights, all networks share outputs (n_samples, features). For `GridCNN` and ReLU, outputs are
    # patches, to which `evaluate_layers` applies the filters. Frozen weights keep the values that
    # `make` has set; trainable weights of linear and convolutional layers are initialised again.
    first = make()
    if any(isinstance(module, MODAL) for module in first.modules()):
        raise ValueError(
            f"{type(first).__name__} has batch normalisation or dropout, which is not supported; "
            "use a feature extractor without such layers."
        )
    if not any(parameter.requires_grad for parameter in first.parameters()):
        return first, first.features_dim
    if type(first) is GridCNN and rectified:  # subclasses may override its computation
        convolution = StackedConv2d(first.image_shape, GridCNN.N_FILTERS, GridCNN.KERNEL, gains)
        return nn.Sequential(OrderedDict(convolution=convolution)), first.features_dim
    extractors = [make() for _ in gains]
    for extractor, gain in zip(extractors, gains, strict=True):
        for module in extractor.modules():
            if all(parameter.requires_grad for parameter in module.parameters(recurse=False)):
                BasePolicy.init_weights(module, gain)
    return _VmappedExtractor(extractors), first.features_dim


def image_extractor(space: Space) -> type[BaseFeaturesExtractor]:
    """Return `NatureCNN`; raise a ValueError if uint8 images are too small for it."""
    if is_image_space(space) and not is_large_enough(space):
        raise ValueError(
            f"Images of shape {space.shape} are too small for CnnPolicy, which needs at least "
            f"{MIN_IMAGE} x {MIN_IMAGE} pixels. Use MlpPolicy, or convert observations to float "
            "with a wrapper and use GridPolicy."
        )
    return NatureCNN


def is_large_enough(image: Any) -> bool:
    """Whether images, with channels on the first or last axis, are large enough for NatureCNN."""
    shape = image.shape or (0, 0, 0)
    return min(shape[1:] if is_image_space_channels_first(image) else shape[:2]) >= MIN_IMAGE


def checked_arch(net_arch: Any, extractor: type[BaseFeaturesExtractor]) -> list[int]:
    """Return the validated widths of hidden layers after the features, or the default widths."""
    if net_arch is None:
        net_arch = {GridCNN: [128], NatureCNN: []}.get(extractor, [100, 100])
    return list(checked_widths(net_arch, "net_arch"))


def _read_scale(networks: Any, _: Any = None) -> None:
    """Cache the prior's scale as a float, to avoid a synchronisation with a GPU at every update."""
    networks.scale_of_anchors = networks.prior_scale.item()


class StackedQuantileNetwork(Trusted, BasePolicy):
    """Value network and auxiliary networks that predict the quantiles of all actions' returns."""

    levels: Tensor
    prior_scale: Tensor
    scale_of_anchors: float

    def __init__(
        self,
        observation_space: Space,
        action_space: Discrete,
        *,
        n_quantiles: int,
        net_arch: list[int],
        activation_fn: type[nn.Module],
        gains: Sequence[float],  # initialisation gain of each network, the value network first
        levels: str,
        epistemic_factor: float = 0.0,
        aleatoric_factor: float = 0.0,
        aleatoric: str = "covariance",
        **base: Any,  # arguments of the base class: feature extractor, normalisation of images
    ):
        super().__init__(observation_space, action_space, **base)
        rectified = activation_fn is nn.ReLU
        extractor, n_features = stack_extractors(self.make_features_extractor, gains, rectified)
        self.features_extractor = extractor  # type: ignore[assignment]
        self.epistemic_factor, self.aleatoric_factor = epistemic_factor, aleatoric_factor
        self.aleatoric = aleatoric
        self.n_quantiles, self.n_actions = n_quantiles, int(action_space.n)
        # Settings from which `load` rebuilds the network.
        self.built_with = {
            "n_quantiles": n_quantiles,
            "net_arch": net_arch,
            "activation_fn": activation_fn,
            "gains": gains,
            "levels": levels,
        }
        sizes = [n_features, *net_arch, self.n_actions * n_quantiles]
        self.head = stacked_mlp(sizes, gains, activation_fn)
        self._activation = torch.relu_ if rectified else activation_fn()
        vmapped = isinstance(extractor, _VmappedExtractor)
        # Weights and biases of all stacked layers; listing them for each batch would be slow.
        self._stacked = list(self.head.parameters()) if vmapped else self.trained()
        self.is_rectified = rectified and not vmapped
        self.register_buffer("levels", quantile_levels(n_quantiles, levels), persistent=False)
        draw_biases(self, slice(1), relative_spread=AGENT_BIASES)
        if len(gains) > 1:
            draw_biases(self, slice(1, None), relative_spread=AGENT_BIASES)
            # The auxiliary networks' initial weights are the anchors of randomised MAP sampling.
            start = [p.detach()[1:].clone() for p in self.trained()]
            self.anchors = nn.ParameterList(nn.Parameter(p, requires_grad=False) for p in start)
            weights = weights_of(nn.ModuleList([self.features_extractor, self.head]))
            scale = prior_scale([w.detach()[1:] for w in weights]).mean()
            self.register_buffer("prior_scale", scale)
            _read_scale(self)
            self.register_load_state_dict_post_hook(_read_scale)  # type: ignore[no-untyped-call]

    def trained(self) -> list[nn.Parameter]:
        """Return the trainable parameters of all networks, without the anchors."""
        parameters = [*self.features_extractor.parameters(), *self.head.parameters()]
        return [parameter for parameter in parameters if parameter.requires_grad]

    def fixed(self) -> list[Tensor]:
        """Return frozen parameters and buffers of the feature extractor."""
        parameters = self.features_extractor.parameters()
        frozen = [parameter for parameter in parameters if not parameter.requires_grad]
        return [*frozen, *self.features_extractor.buffers()]

    def quantiles(self, obs: Any) -> Tensor:
        """Predict quantiles by all networks, (n_members, n_samples, n_actions, n_quantiles)."""
        outputs = self.evaluate(obs)[-1]
        return outputs.view(*outputs.shape[:2], self.n_actions, self.n_quantiles)

    def evaluate(self, obs: Any) -> list[Tensor]:
        """Return the inputs of each stacked layer, and the outputs of the last one."""
        inputs = self.extract_features(obs, self.features_extractor)
        return evaluate_layers(inputs, self._stacked, self._activation)

    def forward(self, obs: Any) -> Tensor:
        """Predict quantiles by the value network, (n_samples, n_quantiles, n_actions)."""
        return self.quantiles(obs)[0].transpose(1, 2)

    def _predict(self, observation: Any, deterministic: bool = True) -> Tensor:
        quantiles = self.quantiles(observation)
        actions = self.chosen(quantiles.cpu().numpy(), deterministic)
        return torch.as_tensor(actions, device=quantiles.device)

    def chosen(self, quantiles: np.ndarray, deterministic: bool = False) -> np.ndarray:
        """Choose actions by the highest value if `deterministic`, else by Thompson sampling."""
        # For so few numbers, numpy is faster than torch.
        values = risk_adjusted_values(quantiles, self.aleatoric_factor, self.aleatoric)
        if not deterministic and len(quantiles) > 1:
            # Draw from numpy's global generator, which stable-baselines3 seeds.
            noise = np.random.standard_normal(values.shape)  # noqa: NPY002
            epistemic = epistemic_variance(quantiles[1:])
            values = sampled_values(values, epistemic, self.epistemic_factor, noise)
        actions: np.ndarray = values.argmax(1)
        return actions

    def decision_settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in DECISION_SETTINGS}

    def _get_constructor_parameters(self) -> dict[str, Any]:
        names = ("features_extractor_class", "features_extractor_kwargs")
        own = {name: getattr(self, name) for name in names} | self.decision_settings()
        return super()._get_constructor_parameters() | own | self.built_with


class MlpPolicy(Trusted, QRDQNPolicy):
    """Policy of fully connected networks: a value network, and optionally auxiliary networks.

    ``predict`` chooses the action with the highest value if ``deterministic``, and the highest
    Thompson sample otherwise. `init_gain` and `prior_gain` are the gains of the orthogonal
    initialisation of the value network and of the auxiliary networks. The optimiser is torch's
    fused Adam, with epsilon 1e-8, by default.
    """

    EXTRACTOR: ClassVar[type[BaseFeaturesExtractor]] = torch_layers.FlattenExtractor
    quantile_net: StackedQuantileNetwork  # type: ignore[assignment]
    quantile_net_target: StackedQuantileNetwork  # type: ignore[assignment]

    def __init__(
        self,
        observation_space: Space,
        action_space: Discrete,
        lr_schedule: Any,
        n_quantiles: int = 50,
        levels: str = "midpoint",
        net_arch: list[int] | None = None,
        activation_fn: type[nn.Module] = nn.ReLU,
        init_gain: float = 2**0.5,
        prior_gain: float = 3.0,
        n_auxiliary: int = 0,
        epistemic_factor: float = 0.0,
        aleatoric_factor: float = 0.0,
        aleatoric: str = "covariance",
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
    ):
        if n_quantiles < 2:
            raise ValueError(f"n_quantiles must be at least 2, got {n_quantiles}.")
        extractor = features_extractor_class or self.EXTRACTOR
        if features_extractor_class is None and extractor is NatureCNN:
            image_extractor(observation_space)  # raises an error for small images
        if optimizer_kwargs is None and optimizer_class is torch.optim.Adam:
            optimizer_kwargs = {"fused": True}  # the fastest variant
        net_arch = checked_arch(net_arch, extractor)
        self.init_gain, self.prior_gain, self.n_auxiliary = init_gain, prior_gain, n_auxiliary
        self.levels = levels
        decision = epistemic_factor, aleatoric_factor, aleatoric
        self._decision_settings = dict(zip(DECISION_SETTINGS, decision, strict=True))
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            n_quantiles,
            net_arch,
            activation_fn,
            extractor,
            features_extractor_kwargs,
            normalize_images,
            optimizer_class,
            optimizer_kwargs,
        )

    def _build(self, lr_schedule: Any) -> None:
        self.quantile_net = self._networks(1 + self.n_auxiliary, **self._decision_settings)
        self.quantile_net_target = self._networks(1)
        self.update_target(1.0)
        options = {"lr": lr_schedule(1), **self.optimizer_kwargs}
        self.optimizer = self.optimizer_class(self.quantile_net.trained(), **options)
        self._update: FusedUpdate | None = None

    def _networks(self, n_members: int, **decision_settings: Any) -> StackedQuantileNetwork:
        arguments: dict[str, Any] = self.net_args | decision_settings
        return StackedQuantileNetwork(
            features_extractor_class=self.features_extractor_class,
            features_extractor_kwargs=self.features_extractor_kwargs,
            gains=[self.init_gain] + [self.prior_gain] * (n_members - 1),
            levels=self.levels,
            **arguments,
        ).to(self.device)

    @torch.no_grad()
    def update_target(self, tau: float) -> None:
        """Move the target network towards the value network; tau=1 copies it."""
        target, networks = self.quantile_net_target, self.quantile_net
        for old, new in zip(target.trained(), networks.trained(), strict=True):
            old.lerp_(new[:1], tau)
        for kept, own in zip(target.fixed(), networks.fixed(), strict=True):
            kept.copy_(own if kept.shape == own.shape else own[:1])

    def obs_to_tensor(self, observation: Any) -> tuple[Any, bool]:
        """Convert observations as stable-baselines3 does; raise if they are not finite."""
        refuse_unusable(observation, lambda _: "An observation")
        return super().obs_to_tensor(observation)

    def fused_update(self) -> FusedUpdate | None:
        """Return a `FusedUpdate`, or None if the networks or the optimiser need autograd."""
        optimizer, networks = self.optimizer, self.quantile_net
        if self._update is None or not self._update.is_of(optimizer):
            fused = type(optimizer) is torch.optim.Adam and self.optimizer_kwargs == {"fused": True}
            # The first update, by autograd, creates gradients and moments.
            begun = all(p in optimizer.state and p.grad is not None for p in networks.trained())
            permitted = fused and begun and networks.is_rectified and self.device.type == "cpu"
            anchors = getattr(networks, "anchors", [])
            self._update = FusedUpdate(optimizer, anchors) if permitted else None
        return self._update

    def set_training_mode(self, mode: bool) -> None:
        """Store the mode; no supported layer depends on the mode."""
        self.training = mode

    def _get_constructor_parameters(self) -> dict[str, Any]:
        names = ("levels", "init_gain", "prior_gain", "n_auxiliary")
        own = {name: getattr(self, name) for name in names} | self.quantile_net.decision_settings()
        return super()._get_constructor_parameters() | own


class CnnPolicy(MlpPolicy):
    """`MlpPolicy` for images as defined by stable-baselines3, with features from `NatureCNN`."""

    EXTRACTOR = NatureCNN


class GridPolicy(MlpPolicy):
    """`MlpPolicy` for small grids (height, width, channels), with features from `GridCNN`."""

    EXTRACTOR = GridCNN


class MultiInputPolicy(MlpPolicy):
    """`MlpPolicy` for dictionaries of observations."""

    EXTRACTOR = DictExtractor


def policy_for(space: Space) -> str:
    """Return the name of the policy for an observation space."""
    # As in stable-baselines3, images are uint8 arrays. A three-dimensional array of float or bool
    # is a grid (height, width, channels) if height and width are smaller than those of an image,
    # and the number of channels exceeds neither. All other arrays are flattened.
    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    if is_image_space(space):
        return "CnnPolicy" if is_large_enough(space) else "MlpPolicy"
    if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.dtype == np.uint8:
        return "MlpPolicy"
    height, width, channels = space.shape
    short, long = min(height, width), max(height, width)
    is_grid = short >= MIN_GRID and long < MIN_IMAGE and channels <= short
    return "GridPolicy" if is_grid else "MlpPolicy"
