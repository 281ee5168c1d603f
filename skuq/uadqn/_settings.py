"""Settings of the paper's experiments, for algorithms and estimators."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

# Algorithms that can be trained, by the names that commands and runs have for them.
METHODS = {
    "uadqn": "UADQNAlgorithm",
    "qrdqn": "QuantileDQN",
    "dqn": "DQNAlgorithm",
    "bootstrapped": "BootstrappedDQN",
}

# Table 1, and levels of quantiles as the paper prints them (see `quantile_levels`).
MINATAR: dict[str, Any] = {
    "learning_rate": 1e-4,
    "buffer_size": 100_000,
    "learning_starts": 5_000,
    "batch_size": 32,
    "gamma": 0.99,
    "target_update_interval": 1_000,
    "epistemic_factor": 0.2,
    "aleatoric_factor": 0.0,
    "policy_kwargs": {"levels": "paper"},
}

# Of the grid world of Sec. 3.1 the paper gives lambda alone; the rest are values with which
# its authors' code was released.
GRIDWORLD: dict[str, Any] = {
    "learning_rate": 2e-3,
    "buffer_size": 10_000,
    "learning_starts": 500,
    "batch_size": 64,
    "gamma": 1.0,
    "target_update_interval": 100,
    "epistemic_factor": 2.0,
    "aleatoric_factor": 0.5,
    "policy_kwargs": {"init_gain": 3.0, "prior_gain": 3.0},
}


def settings_for(env_name: str) -> dict[str, Any]:
    """Settings that suit an environment: those of MinAtar for its games, else the grid world's.

    Examples
    --------
    >>> from skuq.uadqn._settings import settings_for
    >>> settings_for("MinAtar/Breakout-v1")["batch_size"]
    32
    """
    return deepcopy(MINATAR if env_name.startswith("MinAtar/") else GRIDWORLD)
