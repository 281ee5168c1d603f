"""Training and scoring on given seeds of an environment."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium as gym
import numpy as np

from skuq.base import FloatArray
from skuq.uadqn._envs import Env

MAX_ENVS = 256  # that are played side by side
MAX_STEPS = 27_000  # of an episode without a limit of its own: half an hour of Atari


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


def play_episodes(
    make: Callable[[], Env],
    act: Callable[[Any], np.ndarray],
    seeds: Sequence[int],
) -> FloatArray:
    """Play one episode for each seed, many side by side, for their returns alone.

    Actions of all environments are computed in one batch, which is what makes scoring fast.
    `skuq.uadqn._play.play_episode` follows a single episode, with the uncertainty of each
    action.

    Parameters
    ----------
    make : callable
        Makes an environment.
    act : callable
        Maps a batch of observations (array, or dict of arrays) to actions (n_samples,).
    seeds : sequence of int
        Seed of each episode.

    Returns
    -------
    ndarray of shape (n_seeds,), float64
        Undiscounted returns.

    Warns
    -----
    UserWarning
        If an episode had to be cut after 27,000 steps.
    """
    returns = np.empty(len(seeds))
    for i in range(0, len(seeds), MAX_ENVS):
        returns[i : i + MAX_ENVS] = _play_together(make, act, seeds[i : i + MAX_ENVS])
    return returns


def _play_together(
    make: Callable[[], Env], act: Callable[[Any], np.ndarray], seeds: Sequence[int]
) -> FloatArray:
    with ExitStack() as closing:
        envs = [make() for _ in seeds]
        for env in envs:
            closing.callback(env.close)
        return _returns(envs, act, seeds)


def _returns(
    envs: Sequence[Env], act: Callable[[Any], np.ndarray], seeds: Sequence[int]
) -> FloatArray:
    if len({id(env.unwrapped) for env in envs}) < len(envs):
        raise ValueError("`env` returns the same environment at each call; let it make a new one.")
    observations = [env.reset(seed=int(seed))[0] for env, seed in zip(envs, seeds, strict=True)]
    returns = np.zeros(len(envs))
    running = list(range(len(envs)))
    for _ in range(MAX_STEPS):
        actions = act(_batch([observations[i] for i in running]))
        for i, action in zip(tuple(running), actions, strict=True):
            observations[i], reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += float(reward)
            if terminated or truncated:
                running.remove(i)
        if not running:
            break
    else:
        warnings.warn(
            f"{len(running)} of {len(envs)} episodes had not ended after {MAX_STEPS} steps and "
            "were cut; wrap the environment in gymnasium's TimeLimit.",
            stacklevel=5,
        )
    return returns


def _batch(observations: list[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([o[key] for o in observations]) for key in observations[0]}
    return np.stack(observations)
