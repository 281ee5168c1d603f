"""Episodes of a trained agent: one with uncertainty of actions, or many for their returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch

from skuq.base import FloatArray
from skuq.uadqn._envs import Env
from skuq.uadqn._estimates import aleatoric_part, epistemic_variance, quantile_variance

MAX_ENVS = 256  # that are played side by side
MAX_STEPS = 27_000  # of an episode without a limit of its own: half an hour of Atari


class ActionEstimate(NamedTuple):
    """Value and uncertainty of an action, as an agent estimates them.

    Attributes
    ----------
    value : float
        Expected return.
    epistemic, aleatoric : float
        Standard deviations of the return; NaN where the agent does not estimate them.
    """

    value: float
    epistemic: float = np.nan
    aleatoric: float = np.nan


def estimate_action(algorithm: Any, observation: Any, action: int) -> ActionEstimate:
    """Value and uncertainty of an action.

    Parameters
    ----------
    algorithm : stable_baselines3 algorithm
        One of those of `skuq.uadqn`.
    observation : ndarray, or dictionary of them
        One observation.
    action : int
        The action.

    Returns
    -------
    ActionEstimate
        UA-DQN estimates both uncertainties, QR-DQN the aleatoric one (epistemic uncertainty
        included), bootstrapped DQN the epistemic one, DQN none.
    """
    if not hasattr(algorithm, "predict_quantiles"):
        tensor, _ = algorithm.policy.obs_to_tensor(observation)
        with torch.no_grad():
            values = algorithm.q_net(tensor)[..., 0, action].cpu().double().numpy()
        spread = values.std(ddof=1) if values.ndim else np.nan  # over heads
        return ActionEstimate(float(values.mean()), epistemic=float(spread))
    quantiles = algorithm.predict_quantiles(observation)[:, 0, action].astype(np.float64)
    value, own = float(quantiles[0].mean()), float(quantile_variance(quantiles[0]))
    if len(quantiles) < 3:
        return ActionEstimate(value, aleatoric=own**0.5)
    aleatoric = float(aleatoric_part(quantiles, algorithm.aleatoric))
    return ActionEstimate(value, float(epistemic_variance(quantiles[1:])) ** 0.5, aleatoric**0.5)


class Played(NamedTuple):
    """One episode.

    Attributes
    ----------
    score : float
        Undiscounted return.
    steps : int
        Steps in it.
    falls : int or None
        Steps whose ``info["fell"]`` was true; None if the environment does not report it.
    epistemic, aleatoric : float
        Mean standard deviations of the chosen actions' returns; NaN where the agent does
        not estimate them.
    ended : bool
        Whether it came to an end, and was not cut by the limit of steps.
    """

    score: float
    steps: int
    falls: int | None
    epistemic: float
    aleatoric: float
    ended: bool


Watch = Callable[[Any, ActionEstimate | None, float], None]


def play_episode(
    algorithm: Any,
    env: Any,
    *,
    seed: int | None = None,
    max_steps: int = 10_000,
    watch: Watch | None = None,
) -> Played:
    """Play one episode with the actions of highest value, and estimate their uncertainty.

    `play_episodes` plays many at once, for their returns alone.

    Parameters
    ----------
    algorithm : stable_baselines3 algorithm
        One of those of `skuq.uadqn`.
    env : gymnasium.Env
        The environment it was trained in.
    seed : int, default=None
        Seed of the environment; None goes on with its random numbers.
    max_steps : int, default=10_000
        Steps after which it is cut.
    watch : callable, default=None
        Called before each step with the observation, the estimate of the action, and the
        return so far; once more at the end, with None for the estimate.

    Returns
    -------
    Played
    """
    observation, _ = env.reset(seed=seed)
    estimates: list[ActionEstimate] = []
    score, falls, done = 0.0, None, False
    while not done and len(estimates) < max_steps:
        action = int(algorithm.predict(observation, deterministic=True)[0])
        estimates.append(estimate_action(algorithm, observation, action))
        if watch is not None:
            watch(observation, estimates[-1], score)
        observation, reward, terminated, truncated, info = env.step(action)
        done = bool(terminated or truncated)
        score += float(reward)
        if "fell" in info:
            falls = (falls or 0) + int(info["fell"])
    if watch is not None:
        watch(observation, None, score)
    _, epistemic, aleatoric = np.mean(estimates, axis=0).tolist()
    return Played(score, len(estimates), falls, epistemic, aleatoric, done)


def play_episodes(
    make: Callable[[], Env],
    act: Callable[[Any], np.ndarray],
    seeds: Sequence[int],
) -> FloatArray:
    """Play one episode for each seed, many side by side, for their returns alone.

    Actions of all environments are computed in one batch, which is what makes scoring fast.
    `play_episode` follows a single episode, with the uncertainty of each
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
