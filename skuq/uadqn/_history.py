"""History of training episodes, and protection of the global random generators."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, get_type_hints

import numpy as np
import pandas as pd
import torch
from stable_baselines3.common.callbacks import BaseCallback

_GENERATORS = threading.RLock()


class Episode(NamedTuple):
    """One episode of training."""

    step: int
    score: float
    length: int
    falls: int
    epistemic: float
    aleatoric: float
    exploratory: float


DTYPES = get_type_hints(Episode)  # dtypes of the columns, needed for an empty table


class TrainingHistory(BaseCallback):
    """Callback that records one row for each training episode.

    It works with any algorithm of stable-baselines3. Columns of `to_frame`:

    - ``step``: number of steps in all environments at the end of the episode;
    - ``score``: undiscounted return, of rewards before normalisation by `VecNormalize`;
    - ``length``: number of steps of the episode;
    - ``falls``: number of steps with a true ``info["fell"]``; 0 if the environment does not report
      it;
    - ``epistemic``, ``aleatoric``: mean variances of the chosen actions' returns, in squared units
      of the return; ``exploratory``: share of actions that do not maximise the agent's own values.
      All three are averaged over environments, and NaN for agents without attribute ``decision``.

    Examples
    --------
    >>> from skuq.uadqn import TrainingHistory, UADQNAlgorithm
    >>> history = TrainingHistory()
    >>> agent = UADQNAlgorithm("MlpPolicy", "CartPole-v1", learning_starts=32, seed=0)
    >>> agent = agent.learn(100, callback=history)
    >>> bool(history.to_frame().score.sum() <= 100)
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.episodes: list[Episode] = []  # finished episodes, oldest first
        self.running: np.ndarray | None = None  # sums of the unfinished episodes
        self.left_at: Any = None  # last observation when training ended

    def _on_training_start(self) -> None:
        last = self.model._last_obs  # not the object in `left_at` if the environments were reset
        if self.model.num_timesteps == 0 or (self.left_at is not None and last is not self.left_at):
            self.running = None  # new episodes begin
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
        """Return a DataFrame with one row for each episode."""
        return pd.DataFrame(self.episodes, columns=list(Episode._fields)).astype(DTYPES)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the states of Python's, numpy's and torch's global generators after a block.

    stable-baselines3 draws from these generators. Because threads share them, a lock admits one
    block at a time.
    """
    with _GENERATORS:
        python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
        # Reading CUDA's states would initialise CUDA.
        opened = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        cpu, cuda = torch.get_rng_state(), torch.cuda.get_rng_state_all() if opened else []
        cudnn = torch.backends.cudnn
        flags = cudnn.deterministic, cudnn.benchmark  # changed when an agent on a GPU is seeded
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
            torch.set_rng_state(cpu)
            torch.cuda.set_rng_state_all(cuda)
            cudnn.deterministic, cudnn.benchmark = flags
