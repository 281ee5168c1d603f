"""Episodes of an environment on given seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from skuq.uadqn._envs import Env


class SeededEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Episodes that take given seeds in turn.

    In the first round, episode i is reset with seed i itself. In later rounds each seed is
    replaced by one derived from it and the round: otherwise an agent would meet the same
    random events again and again, and learn them as certain.

    Parameters
    ----------
    env : gymnasium.Env
        Environment.
    seeds : sequence of int
        Seeds of the environment.
    """

    def __init__(self, env: Env, seeds: Sequence[int]):
        super().__init__(env)
        self.seeds = [int(seed) for seed in seeds]
        self.n_episodes = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode; `seed` is ignored."""
        turn, position = divmod(self.n_episodes, len(self.seeds))
        self.n_episodes += 1
        seed = self.seeds[position]
        if turn:
            seed = int(np.random.SeedSequence([seed, turn]).generate_state(1)[0] >> 1)
        return self.env.reset(seed=seed, options=options)
