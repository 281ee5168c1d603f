"""What UA-DQN is compared with: DQN with the paper's settings."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, NatureCNN
from stable_baselines3.dqn.policies import DQNPolicy, MultiInputPolicy

from skuq.uadqn.policies import GridCNN


class DQNCnnPolicy(DQNPolicy):
    """Policy of DQN for images (`NatureCNN`) and for small grids (`GridCNN`)."""

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        lr_schedule: Any,
        net_arch: list[int] | None = None,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        **options: Any,
    ):
        suited = NatureCNN if is_image_space(observation_space) else GridCNN
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch=[128] if net_arch is None and suited is GridCNN else net_arch,
            features_extractor_class=features_extractor_class or suited,
            **options,
        )


class DQNAlgorithm(DQN):
    """DQN of stable-baselines3 with the paper's settings (its Table 1) as defaults.

    Parameters
    ----------
    policy : {"MlpPolicy", "CnnPolicy", "MultiInputPolicy"} or type
        "CnnPolicy" takes images, and small grids such as MinAtar's.
    env : gymnasium.Env, VecEnv or str
        Environment with a discrete action space.
    **options
        Those of `stable_baselines3.DQN`.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": DQNPolicy,
        "CnnPolicy": DQNCnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }

    def __init__(self, policy: str | type[DQNPolicy], env: Any, **options: Any):
        paper = {
            "learning_rate": 1e-4,
            "buffer_size": 100_000,
            "learning_starts": 5_000,
            "train_freq": 1,
            "target_update_interval": 1_000,
            "exploration_final_eps": 0.03,
        }
        adam = {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"fused": True}}
        options["policy_kwargs"] = adam | (options.get("policy_kwargs") or {})
        super().__init__(policy, env, **(paper | options))
