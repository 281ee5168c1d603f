"""Validation that all observations and rewards of an agent are finite.

Without this validation, a NaN observation would make all values NaN, and an infinite reward would
make all targets infinite, without an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv

from skuq.uadqn._envs import LARGEST, LARGEST_FLOAT, check_spaces, refuse_unusable


class FiniteExperience(OffPolicyAlgorithm):
    """Mixin that makes algorithms raise for unsupported spaces and non-finite experience."""

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        # Check before stable-baselines3 wraps the environment, because wrapping fails for spaces
        # without a shape.
        check_spaces(env.observation_space, env.action_space)
        return OffPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    def _setup_learn(self, *args: Any, **options: Any) -> tuple[int, Any]:
        result = super()._setup_learn(*args, **options)
        self._check_arrived("observation", self._last_obs)
        if self._vec_normalize_env is not None:
            self._check_arrived("observation", self._last_original_obs, LARGEST_FLOAT)
        return result

    def _store_transition(
        self, replay_buffer: Any, action: Any, obs: Any, reward: Any, dones: Any, infos: Any
    ) -> None:
        # Check the original values, because VecNormalize clips infinite values.
        if self._vec_normalize_env is not None:
            original = self._vec_normalize_env.get_original_obs()
            self._check_arrived("observation", original, LARGEST_FLOAT)
            self._check_arrived("reward", self._vec_normalize_env.get_original_reward())
        self._check_arrived("reward", reward)
        self._check_arrived("observation", obs)
        for i in np.flatnonzero(dones):  # `obs` already belongs to the next episode
            last = infos[i].get("terminal_observation")
            if last is not None:
                self._check_arrived("last observation", _one(last), first=int(i))
        super()._store_transition(replay_buffer, action, obs, reward, dones, infos)

    def _check_arrived(
        self, kind: str, values: Any, largest: float = LARGEST, first: int = 0
    ) -> None:
        """Raise if values from consecutive environments, beginning with `first`, are unusable."""

        def name(i: int) -> str:
            where = environment_name(self.env, first + i)
            return f"At step {self.num_timesteps}, the {kind} of {where}"

        refuse_unusable(values, name, largest)

    def load_replay_buffer(self, path: Any, truncate_last_traj: bool = True) -> None:
        """Load a replay buffer as stable-baselines3 does; raise if its contents are not finite."""
        super().load_replay_buffer(path, truncate_last_traj)
        buffer: Any = self.replay_buffer
        for kind in ("observations", "next_observations", "rewards"):
            kept = getattr(buffer, kind, {})  # absent in memory-optimised buffers
            parts = kept if isinstance(kept, dict) else {"": kept}
            stored = {key: part[: buffer.size()] for key, part in parts.items()}
            refuse_unusable(stored, (kind + "[{}] of the replay buffer").format)


class FiniteObservations(BasePolicy):
    """Mixin that makes policies raise for non-finite observations."""

    def obs_to_tensor(self, observation: Any) -> tuple[Any, bool]:
        """Convert observations as stable-baselines3 does; raise if they are not finite."""
        refuse_unusable(observation, lambda _: "An observation")
        return super().obs_to_tensor(observation)


def environment_name(env: Any, i: int) -> str:
    """Name an environment by its id, if it has one, and its number in a vectorised environment."""
    try:
        spec = env.get_attr("spec", i)[0]
    except (AttributeError, NotImplementedError):  # not a VecEnv of stable-baselines3
        spec = None
    return f"environment {i}" + (f" ({spec.id})" if spec is not None else "")


def _one(observation: Any) -> Any:
    """Convert one observation to a batch of size 1."""
    if isinstance(observation, dict):
        return {key: np.asarray(part)[None] for key, part in observation.items()}
    return np.asarray(observation)[None]
