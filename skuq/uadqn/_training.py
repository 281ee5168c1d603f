"""Training of an agent on given env seeds, with global random states left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from skuq.uadqn._env_seeds import SeededEpisodes
from skuq.uadqn._envs import EnvLike, make_env
from skuq.uadqn._history import TrainingHistory, TrainingProgress
from skuq.uadqn._random import random_states_kept
from skuq.uadqn._spaces import policy_for


def train(
    make_algorithm: Callable[[str, Any], Any],
    env: EnvLike,
    seeds: Sequence[int],
    total_timesteps: int,
    *,
    policy: str,
    verbose: int = 0,
) -> tuple[Any, pd.DataFrame]:
    """Train an algorithm on env seeds.

    Parameters
    ----------
    make_algorithm : callable
        Makes the algorithm from the name of its policy and an environment.
    env : str, callable or gymnasium.Env
        As `make_env` takes it.
    seeds : sequence of int
        Seeds of the environment.
    total_timesteps : int
        Steps of training.
    policy : str
        Name of the policy, or "auto".
    verbose : int, default=0
        Whether progress is shown.

    Returns
    -------
    algorithm : stable_baselines3 algorithm
        Trained.
    history : pandas.DataFrame
        One row for each episode.

    Raises
    ------
    ValueError
        If the policy does not take the observations.
    """
    seeded_env = SeededEpisodes(make_env(env), seeds)
    if policy == "auto":
        policy = policy_for(seeded_env.observation_space)
    elif policy == "MultiInputPolicy" and not hasattr(seeded_env.observation_space, "spaces"):
        raise ValueError(
            f"MultiInputPolicy takes dictionaries; for {seeded_env.observation_space} use 'auto'."
        )
    history = TrainingHistory()
    callbacks = [history, *([TrainingProgress(total_timesteps)] if verbose else [])]
    with random_states_kept():
        try:
            algorithm = make_algorithm(policy, seeded_env)
        except AssertionError as error:  # how stable-baselines3 refuses observations
            raise ValueError(str(error)) from error
        algorithm.learn(total_timesteps, callback=callbacks)
    return algorithm, history.to_frame()
