"""Policies for stable-baselines3 whose networks are computed as one stacked module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib.qrdqn.policies import QRDQNPolicy
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    FlattenExtractor,
)
from torch import Tensor, nn

from skuq.uadqn._extractors import (
    MIN_GRID,
    MIN_IMAGE,
    DictExtractor,
    GridCNN,
    default_arch,
    image_extractor,
    is_large_enough,
    stack_extractors,
)
from skuq.uadqn._losses import (
    check_estimate,
    epistemic_variance,
    prior_scale,
    quantile_levels,
    risk_adjusted_values,
    sampled_values,
)
from skuq.uadqn._networks import stacked_mlp, weights_of

Space = spaces.Space[Any]
Discrete = spaces.Discrete[Any]

DECISION_SETTINGS = ("epistemic_factor", "aleatoric_factor", "aleatoric")


def checked_setting(name: str, value: Any) -> Any:
    """Return a setting of the choice of actions, or a strength, if it can be one.

    Raises
    ------
    ValueError
        For a number that is negative or not finite, or an unknown estimate.
    """
    if name == "aleatoric":
        check_estimate(value)
    elif not 0 <= value < np.inf:  # NaN is refused, too
        raise ValueError(f"{name} must not be negative, and finite, got {value}.")
    return value


def optimizer_options(
    optimizer_class: type[torch.optim.Optimizer], options: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Options of the optimiser: those given, or the fastest form of Adam."""
    if options is None and optimizer_class is torch.optim.Adam:
        return {"fused": True}
    return options


def _read_scale(networks: Any, _: Any = None) -> None:
    """Keep the prior's scale as a number: each update would wait for a GPU to read it."""
    networks.scale_of_anchors = networks.prior_scale.item()


class StackedQuantileNetwork(BasePolicy):
    """Value network and auxiliary networks for the quantiles of all actions' returns.

    Parameters
    ----------
    observation_space, action_space : gymnasium.spaces.Space
        Spaces of the environment.
    features_extractor_class, features_extractor_kwargs
        Feature extractor of one network, as in stable-baselines3.
    n_quantiles : int
        Number of quantiles.
    net_arch : list of int
        Widths of hidden layers after the features.
    activation_fn : type of torch.nn.Module
        Activation between them.
    gains : sequence of float
        Gain of each network's orthogonal initialisation; the value network comes first.
    levels : {"midpoint", "paper"}
        Levels of the quantiles, see `skuq.uadqn.quantile_levels`.
    epistemic_factor, aleatoric_factor, aleatoric
        Choice of actions, see `MlpPolicy`.
    normalize_images : bool, default=True
        Whether images are divided by 255.
    """

    levels: Tensor
    prior_scale: Tensor
    scale_of_anchors: float

    def __init__(
        self,
        observation_space: Space,
        action_space: Discrete,
        features_extractor_class: type[BaseFeaturesExtractor],
        features_extractor_kwargs: dict[str, Any],
        n_quantiles: int,
        net_arch: list[int],
        activation_fn: type[nn.Module],
        gains: Sequence[float],
        levels: str,
        epistemic_factor: float = 0.0,
        aleatoric_factor: float = 0.0,
        aleatoric: str = "covariance",
        normalize_images: bool = True,
    ):
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class,
            features_extractor_kwargs,
            normalize_images=normalize_images,
        )
        extractor, n_features = stack_extractors(self.make_features_extractor, gains)
        self.features_extractor = extractor  # type: ignore[assignment]
        self.epistemic_factor, self.aleatoric_factor = epistemic_factor, aleatoric_factor
        self.aleatoric = aleatoric
        self.n_quantiles, self.n_actions = n_quantiles, int(action_space.n)
        # Settings from which `load` builds the network again.
        self.built_with = {
            "n_quantiles": n_quantiles,
            "net_arch": net_arch,
            "activation_fn": activation_fn,
            "gains": gains,
            "levels": levels,
        }
        sizes = [n_features, *net_arch, self.n_actions * n_quantiles]
        self.head = stacked_mlp(len(gains), sizes, gains, activation_fn)
        self.register_buffer("levels", quantile_levels(n_quantiles, levels), persistent=False)
        if len(gains) > 1:
            self._drop_anchors()

    def _drop_anchors(self) -> None:
        """Store the auxiliary networks' initial weights, the anchors of randomised MAP sampling."""
        start = [p.detach()[1:].clone() for p in self.trained()]
        self.anchors = nn.ParameterList(nn.Parameter(p, requires_grad=False) for p in start)
        weights = weights_of(nn.ModuleList([self.features_extractor, self.head]))
        self.register_buffer("prior_scale", prior_scale([w.detach()[1:] for w in weights]).mean())
        _read_scale(self)
        self.register_load_state_dict_post_hook(_read_scale)  # type: ignore[no-untyped-call]

    def trained(self) -> list[nn.Parameter]:
        """Parameters of all networks, without the anchors."""
        parameters = [*self.features_extractor.parameters(), *self.head.parameters()]
        return [parameter for parameter in parameters if parameter.requires_grad]

    def fixed(self) -> list[Tensor]:
        """Frozen parameters and buffers of the extractor."""
        parameters = self.features_extractor.parameters()
        frozen = [parameter for parameter in parameters if not parameter.requires_grad]
        return [*frozen, *self.features_extractor.buffers()]

    def quantiles(self, obs: Any) -> Tensor:
        """Quantiles by all networks, (n_members, n_samples, n_actions, n_quantiles)."""
        outputs: Tensor = self.head(self.extract_features(obs, self.features_extractor))
        return outputs.view(*outputs.shape[:2], self.n_actions, self.n_quantiles)

    def forward(self, obs: Any) -> Tensor:
        """Quantiles by the value network, (n_samples, n_quantiles, n_actions)."""
        return self.quantiles(obs)[0].transpose(1, 2)

    def _predict(self, observation: Any, deterministic: bool = True) -> Tensor:
        quantiles = self.quantiles(observation)
        values = risk_adjusted_values(quantiles, self.aleatoric_factor, self.aleatoric)
        if not deterministic and self.epistemic_factor > 0:
            # The generator that stable-baselines3 seeds and draws from.
            drawn = np.random.standard_normal(values.shape)  # noqa: NPY002
            noise = torch.as_tensor(drawn, dtype=values.dtype, device=values.device)
            epistemic = epistemic_variance(quantiles[1:])
            values = sampled_values(values, epistemic, self.epistemic_factor, noise)
        return values.argmax(1)

    def decision_settings(self) -> dict[str, Any]:
        """Settings of the choice of actions."""
        return {name: getattr(self, name) for name in DECISION_SETTINGS}

    def _get_constructor_parameters(self) -> dict[str, Any]:
        extractor = {
            "features_extractor_class": self.features_extractor_class,
            "features_extractor_kwargs": self.features_extractor_kwargs,
        }
        own = extractor | self.built_with | self.decision_settings()
        return super()._get_constructor_parameters() | own


class MlpPolicy(QRDQNPolicy):
    """Policy of a value network, and of auxiliary networks if the algorithm has them.

    ``predict`` takes the action of the highest value, or the highest Thompson sample if it is not
    ``deterministic``.

    Parameters
    ----------
    observation_space, action_space, lr_schedule
        As stable-baselines3 passes them.
    n_quantiles : int, default=50
        Number of quantiles.
    levels : {"midpoint", "paper"}, default="midpoint"
        Levels of the quantiles, see `skuq.uadqn.quantile_levels`.
    net_arch : list of int, default=None
        Widths of hidden layers after the features; None is [128] after `GridCNN`, none
        after `NatureCNN`, else [100, 100].
    activation_fn : type of torch.nn.Module, default=torch.nn.ReLU
        Activation between them.
    init_gain : float, default=2**0.5
        Gain of the value network's orthogonal initialisation.
    prior_gain : float, default=3.0
        Gain of the auxiliary networks' initialisation: how far apart they start.
    n_auxiliary : int, default=0
        Number of auxiliary networks; the algorithm sets it.
    epistemic_factor, aleatoric_factor : float, default=0.0
        Strength of exploration and of aversion to risk, see `UADQNAlgorithm`, which sets them;
        without auxiliary networks there is neither.
    aleatoric : {"covariance", "variance"}, default="covariance"
        Estimate of the risk, likewise.
    features_extractor_class : type, default=None
        None takes the one of the policy.
    features_extractor_kwargs, normalize_images
        As in stable-baselines3.
    optimizer_class, optimizer_kwargs
        As in stable-baselines3; the default is torch's fused Adam, with epsilon 1e-8.
    """

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
        for name, gain in (("init_gain", init_gain), ("prior_gain", prior_gain)):
            if not 0 < gain < np.inf:  # NaN is refused, too
                raise ValueError(f"{name} must be positive and finite, got {gain}.")
        needs_two = epistemic_factor or (aleatoric_factor and aleatoric == "covariance")
        if needs_two and n_auxiliary < 2:
            raise ValueError(
                "epistemic_factor and aleatoric_factor need two auxiliary networks, which "
                "UADQNAlgorithm has; this agent has a value network alone."
            )
        extractor = features_extractor_class or self._default_extractor(observation_space)
        self.init_gain, self.prior_gain, self.n_auxiliary = init_gain, prior_gain, n_auxiliary
        self.levels = levels
        self._decision_settings = {
            "epistemic_factor": epistemic_factor,
            "aleatoric_factor": aleatoric_factor,
            "aleatoric": aleatoric,
        }
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            n_quantiles,
            default_arch(extractor) if net_arch is None else net_arch,
            activation_fn,
            extractor,
            features_extractor_kwargs,
            normalize_images,
            optimizer_class,
            optimizer_options(optimizer_class, optimizer_kwargs),
        )

    @staticmethod
    def _default_extractor(observation_space: Space) -> type[BaseFeaturesExtractor]:
        return FlattenExtractor

    def _build(self, lr_schedule: Any) -> None:
        self.quantile_net = self._networks(1 + self.n_auxiliary, **self._decision_settings)
        self.quantile_net_target = self._networks(1)
        self.update_target(1.0)
        self.optimizer = self.optimizer_class(
            self.quantile_net.trained(),
            lr=lr_schedule(1),  # type: ignore[call-arg]
            **self.optimizer_kwargs,
        )

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
        """Move the target network towards the value network; 1 copies it."""
        target, networks = self.quantile_net_target, self.quantile_net
        for old, new in zip(target.trained(), networks.trained(), strict=True):
            old.lerp_(new[:1], tau)
        for kept, own in zip(target.fixed(), networks.fixed(), strict=True):
            kept.copy_(own if kept.shape == own.shape else own[:1])

    def set_training_mode(self, mode: bool) -> None:
        """Note the mode; no layer that is allowed here depends on it."""
        self.training = mode

    def _get_constructor_parameters(self) -> dict[str, Any]:
        names = ("levels", "init_gain", "prior_gain", "n_auxiliary")
        own = {name: getattr(self, name) for name in names} | self.quantile_net.decision_settings()
        return super()._get_constructor_parameters() | own


class CnnPolicy(MlpPolicy):
    """The same for images, which `NatureCNN` reads; their spaces are stable-baselines3's."""

    @staticmethod
    def _default_extractor(observation_space: Space) -> type[BaseFeaturesExtractor]:
        return image_extractor(observation_space)


class GridPolicy(MlpPolicy):
    """The same for small grids of shape (height, width, channels), which `GridCNN` reads."""

    @staticmethod
    def _default_extractor(observation_space: Space) -> type[BaseFeaturesExtractor]:
        return GridCNN


class MultiInputPolicy(MlpPolicy):
    """The same for dictionaries of observations."""

    @staticmethod
    def _default_extractor(observation_space: Space) -> type[BaseFeaturesExtractor]:
        return DictExtractor


def policy_for(observation_space: spaces.Space[Any]) -> str:
    """Name of the policy that suits an observation space.

    Images are those of stable-baselines3: bytes from 0 to 255. Three-dimensional arrays of float
    or bool are grids of (height, width, channels) if they cannot be anything else: smaller than
    an image each way, with no more channels than cells on either side. All others are flattened.

    Examples
    --------
    >>> from gymnasium.spaces import Box
    >>> from skuq.uadqn._policies import policy_for
    >>> policy_for(Box(0, 1, (10, 10, 4)))
    'GridPolicy'
    """
    if isinstance(observation_space, spaces.Dict):
        return "MultiInputPolicy"
    if is_image_space(observation_space):
        return "CnnPolicy" if is_large_enough(observation_space) else "MlpPolicy"
    return "GridPolicy" if _is_grid(observation_space) else "MlpPolicy"


def _is_grid(space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.dtype == np.uint8:
        return False
    height, width, channels = space.shape
    sides = min(height, width), max(height, width)
    return sides[0] >= MIN_GRID and sides[1] < MIN_IMAGE and channels <= sides[0]
