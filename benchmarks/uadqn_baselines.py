"""Baselines of UA-DQN in `benchmarks.uadqn_minatar`: DQN and bootstrapped DQN."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    FlattenExtractor,
)
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from skuq.uadqn import (
    AGENT_BIASES,
    CheckedAgent,
    GridCNN,
    QuantileDQN,
    UADQNAlgorithm,
    checked_arch,
    draw_biases,
    ensure_registered,
    stacked_mlp,
)


class DQNMlpPolicy(DQNPolicy):
    """Policy of DQN with the features, widths and optimiser of the other agents."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Discrete,
        lr_schedule: Any,
        net_arch: list[int] | None = None,
        activation_fn: type[nn.Module] = nn.ReLU,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ):
        extractor = features_extractor_class or self._default_extractor(observation_space)
        net_arch = checked_arch(net_arch, extractor)
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch=net_arch,
            activation_fn=activation_fn,
            features_extractor_class=extractor,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs or {"fused": True},
            **options,
        )

    @staticmethod
    def _default_extractor(observation_space: spaces.Space[Any]) -> type[BaseFeaturesExtractor]:
        return FlattenExtractor


class DQNGridPolicy(DQNMlpPolicy):
    """`DQNMlpPolicy` for small grids, with features from `GridCNN`."""

    @staticmethod
    def _default_extractor(observation_space: spaces.Space[Any]) -> type[BaseFeaturesExtractor]:
        return GridCNN


class DQNAlgorithm(CheckedAgent, DQN):
    """DQN of stable-baselines3 with the paper's settings (its Table 1) as defaults.

    The Huber loss and the initial weights are as in stable-baselines3; gradients are not clipped.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": DQNMlpPolicy,
        "GridPolicy": DQNGridPolicy,
    }

    def __init__(self, policy: str | type[DQNPolicy], env: Any, **options: Any):
        ensure_registered(env)
        paper = {
            "learning_rate": 1e-4,
            "buffer_size": 100_000,
            "learning_starts": 5_000,
            "train_freq": 1,
            "target_update_interval": 1_000,
            "exploration_fraction": 0.02,  # epsilon decreases in 100,000 of 5 million steps
            "exploration_final_eps": 0.03,
            "max_grad_norm": float("inf"),
        }
        super().__init__(policy, env, **(paper | options))

    @classmethod
    def _accepts(cls, policy_class: Any, policy_kwargs: dict[str, Any]) -> bool:
        heads = issubclass(policy_class, BootstrappedPolicy)
        return issubclass(policy_class, DQNPolicy) and not heads


class HeadsNetwork(QNetwork):
    """Values of all actions by several heads on shared features."""

    def __init__(self, n_members: int, **options: Any):
        super().__init__(**options)
        self.n_members = n_members
        sizes = [self.features_dim, *self.net_arch, int(self.action_space.n)]
        # Replace the single head of the base class by n_members heads. Outputs have shape
        # (n_members, n_samples, n_actions).
        self.q_net = stacked_mlp(sizes, [2**0.5] * n_members, self.activation_fn)
        draw_biases(self.q_net, relative_spread=AGENT_BIASES)

    def _predict(self, observation: Any, deterministic: bool = True) -> Tensor:
        return self(observation).mean(0).argmax(1)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"n_members": self.n_members}


class BootstrappedPolicy(DQNMlpPolicy):
    """Policy of bootstrapped DQN: several heads on shared features."""

    def __init__(self, *spaces_and_schedule: Any, n_members: int = 10, **options: Any):
        self.n_members = n_members
        super().__init__(*spaces_and_schedule, **options)

    def make_q_net(self) -> QNetwork:
        """Build a network with all heads: called for the online network and the target network."""
        options = self._update_features_extractor(self.net_args, features_extractor=None)
        return HeadsNetwork(self.n_members, **options).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return super()._get_constructor_parameters() | {"n_members": self.n_members}


class BootstrappedGridPolicy(BootstrappedPolicy):
    """`BootstrappedPolicy` for small grids, with features from `GridCNN`."""

    @staticmethod
    def _default_extractor(observation_space: spaces.Space[Any]) -> type[BaseFeaturesExtractor]:
        return GridCNN


class BootstrappedDQN(DQNAlgorithm):
    """Bootstrapped DQN [1]_ with the settings of the paper on UA-DQN (its Table 1).

    Several heads share features, and each head learns from the maximum of its own target head. At
    the start of each episode, one head is drawn and chooses all actions of the episode, in addition
    to epsilon-greedy exploration. `predict` chooses the action with the highest mean over heads.
    Osband et al. use a majority vote; the mean does not depend on how ties are broken.

    All heads are trained on all data, as in the Atari experiments of [1]_. In these experiments,
    bootstrap masks made no difference: random initial weights and separate targets keep the heads
    diverse.

    References
    ----------
    .. [1] Osband et al., "Deep Exploration via Bootstrapped DQN", NeurIPS 2016.
    """

    LOSS_INTERVAL: ClassVar[int] = QuantileDQN.LOSS_INTERVAL
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": BootstrappedPolicy,
        "GridPolicy": BootstrappedGridPolicy,
    }

    def __init__(
        self, policy: str | type[BootstrappedPolicy], env: Any, n_members: int = 10, **options: Any
    ):
        if n_members < 2:
            raise ValueError(f"n_members must be at least 2, got {n_members}.")
        policy_kwargs = options.get("policy_kwargs") or {}
        if "n_members" in policy_kwargs:
            raise ValueError("policy_kwargs must not contain n_members; set the parameter instead.")
        self.heads = np.empty(0, np.int64)
        options["policy_kwargs"] = policy_kwargs | {"n_members": n_members}
        super().__init__(policy, env, **options)

    @classmethod
    def _accepts(cls, policy_class: Any, policy_kwargs: dict[str, Any]) -> bool:
        return issubclass(policy_class, BootstrappedPolicy)

    def predict_q(self, observation: Any) -> np.ndarray:
        """Predict the values of all actions by each head, (n_members, n_samples, n_actions)."""
        self.policy.set_training_mode(False)
        obs, _ = self.policy.obs_to_tensor(observation)
        with torch.no_grad():
            return self.q_net(obs).cpu().numpy()

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Update all heads on the same transitions, `gradient_steps` times."""
        self.policy.set_training_mode(True)
        optimizer, buffer = self.policy.optimizer, cast(ReplayBuffer, self.replay_buffer)
        self._update_learning_rate(optimizer)
        for _ in range(gradient_steps):
            batch = buffer.sample(batch_size, self._vec_normalize_env)
            values = self.q_net(batch.observations)
            taken = batch.actions.long().expand(len(values), -1, 1)
            chosen, targets = values.gather(2, taken).squeeze(2), self._targets(batch)
            loss = smooth_l1_loss(chosen, targets, reduction="none").mean(1).sum()
            optimizer.zero_grad()
            loss.backward()
            # Osband et al. divide the gradient of the shared layers by the number of heads. This is
            # not necessary here, because a constant factor does not change the steps of Adam.
            if np.isfinite(self.max_grad_norm):
                torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            optimizer.step()
        self._n_updates += gradient_steps
        # Log the loss rarely, because reading its value has to wait for the GPU.
        if self._n_updates % self.LOSS_INTERVAL < gradient_steps:
            self.logger.record("train/loss", loss.item())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    @torch.no_grad()
    def _targets(self, batch: Any) -> Tensor:
        """Compute the target of each head, of shape (n_members, n_samples)."""
        discounts = batch.discounts if batch.discounts is not None else self.gamma
        ahead = self.q_net_target(batch.next_observations).amax(2, keepdim=True)
        targets: Tensor = batch.rewards + (1 - batch.dones) * discounts * ahead
        return targets.squeeze(2)

    def _setup_learn(self, total_timesteps: int, *args: Any, **options: Any) -> tuple[int, Any]:
        resumes = self._last_obs is not None and len(self.heads) == self.n_envs
        result = super()._setup_learn(total_timesteps, *args, **options)
        if not resumes or self.num_timesteps == 0:  # all environments were reset
            self.heads = self._draw_heads(self.n_envs)
        return result

    def _draw_heads(self, n_draws: int) -> np.ndarray:
        n_members: Any = self.policy.n_members
        return torch.randint(n_members, (n_draws,)).numpy()  # stable-baselines3 seeds torch

    def _sample_action(
        self, learning_starts: int, action_noise: Any = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        if self.num_timesteps < learning_starts:
            return super()._sample_action(learning_starts, action_noise, n_envs)
        values = self.predict_q(self._last_obs)
        actions = values[self.heads, np.arange(n_envs)].argmax(-1)
        for i in np.flatnonzero(torch.rand(n_envs).numpy() < self.exploration_rate):
            actions[i] = self.action_space.sample()
        return actions, actions

    def _store_transition(
        self, replay_buffer: Any, action: Any, obs: Any, reward: Any, dones: Any, infos: Any
    ) -> None:
        super()._store_transition(replay_buffer, action, obs, reward, dones, infos)
        self.heads[dones] = self._draw_heads(int(dones.sum()))


METHODS: dict[str, type[OffPolicyAlgorithm]] = {
    "uadqn": UADQNAlgorithm,
    "qrdqn": QuantileDQN,
    "dqn": DQNAlgorithm,
    "bootstrapped": BootstrappedDQN,
}
