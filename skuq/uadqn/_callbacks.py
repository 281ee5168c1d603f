"""Callbacks of training: its history, one row for each episode, and a progress bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import pandas as pd
from stable_baselines3.common.callbacks import BaseCallback
from tqdm.auto import tqdm


class Episode(NamedTuple):
    """One episode of training.

    Attributes
    ----------
    step : int
        Steps taken in all environments when it ended.
    score : float
        Undiscounted return, of rewards as they were before a `VecNormalize`.
    length : int
        Steps in it.
    falls : int
        Steps whose ``info["fell"]`` was true; 0 where environments do not report it.
    epistemic, aleatoric : float
        Mean variances of the chosen actions' returns, squared return; NaN for agents that
        do not estimate them. With several environments, means over all of them.
    exploratory : float
        Share of actions that were not the best by the agent's own values; likewise.
    """

    step: int
    score: float
    length: int
    falls: int
    epistemic: float
    aleatoric: float
    exploratory: float


DTYPES = get_type_hints(Episode)  # of columns, those of an empty table too


class TrainingHistory(BaseCallback):
    """Callback that keeps a row for each episode of training.

    Works with any algorithm of stable-baselines3; uncertainties are those of agents with an
    attribute ``decision``.

    Attributes
    ----------
    episodes : list of Episode
        Finished episodes, oldest first.

    Examples
    --------
    >>> from skuq.uadqn import TrainingHistory, UADQNAlgorithm
    >>> history = TrainingHistory()
    >>> agent = UADQNAlgorithm("MlpPolicy", "CartPole-v1", seed=0)
    >>> agent = agent.learn(100, callback=history)
    >>> bool(history.to_frame().score.sum() <= 100)
    True
    """

    def __init__(self, episodes: Sequence[Episode] = ()):
        super().__init__()
        self.episodes = list(episodes)
        self.running: np.ndarray | None = None  # sums of the unfinished episodes
        self.left_at: Any = None  # observation with which training ended

    def _on_training_start(self) -> None:
        last = self.model._last_obs  # another one after the environments were reset
        if self.model.num_timesteps == 0 or (self.left_at is not None and last is not self.left_at):
            self.running = None  # no episode is unfinished
        self.left_at = None

    def _on_training_end(self) -> None:
        self.left_at = self.model._last_obs

    def _on_step(self) -> bool:
        rewards, dones = self.locals["rewards"], self.locals["dones"]
        normalize = self.model.get_vec_normalize_env()
        if normalize is not None:
            rewards = normalize.get_original_reward()
        if self.running is None:
            self.running = np.zeros((len(rewards), 6))
        decision = getattr(self.model, "decision", (np.nan,) * 3)
        self.running[:, 0] += rewards
        self.running[:, 1] += 1
        self.running[:, 2] += [info.get("fell", False) for info in self.locals["infos"]]
        self.running[:, 3:] += decision
        for i in np.flatnonzero(dones):
            score, length, falls, *sums = self.running[i].tolist()
            means = [value / length for value in sums]
            self.episodes.append(
                Episode(self.num_timesteps, score, int(length), int(falls), *means)
            )
            self.running[i] = 0
        return True

    def to_frame(self) -> pd.DataFrame:
        """One row for each episode; columns are the fields of `Episode`."""
        return pd.DataFrame(self.episodes, columns=list(Episode._fields)).astype(DTYPES)


class TrainingProgress(BaseCallback):
    """Progress bar of training, with the mean score of the last episodes.

    Parameters
    ----------
    total_timesteps : int
        Steps at which training ends.
    """

    INTERVAL = 50  # steps from one update of the bar to the next

    def __init__(self, total_timesteps: int):
        super().__init__()
        self.total_timesteps = total_timesteps

    def _on_training_start(self) -> None:
        self.bar = tqdm(
            total=self.total_timesteps, initial=self.num_timesteps, unit="step", mininterval=1.0
        )

    def _on_step(self) -> bool:
        if self.n_calls % self.INTERVAL == 0:
            self._show()
        return True

    def _show(self) -> None:
        self.bar.update(self.num_timesteps - self.bar.n)
        scores = [info["r"] for info in self.model.ep_info_buffer or ()]
        if scores:
            self.bar.set_postfix(score=f"{np.mean(scores):.2f}", refresh=False)

    def _on_training_end(self) -> None:
        self._show()
        self.bar.close()
