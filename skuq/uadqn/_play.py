"""Single episodes of a trained agent, with value and uncertainty of each action."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from skuq.uadqn._estimates import aleatoric_part, epistemic_variance, quantile_variance


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

    `skuq.uadqn._env_seeds.play_episodes` plays many at once, for their returns alone.

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
