"""Import of the modules that need stable-baselines3, when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from skuq.extras import import_optional

# Modules of the public names that need stable-baselines3.
HOME = {
    "BootstrappedDQN": "_baselines",
    "CheckpointCallback": "_checkpoint",
    "CheckpointError": "_checkpoint",
    "CliffWindEnv": "_envs",
    "CnnPolicy": "_policies",
    "DQNAlgorithm": "_baselines",
    "Episode": "_history",
    "GridCNN": "_policies",
    "GridPolicy": "_policies",
    "MlpPolicy": "_policies",
    "MultiInputPolicy": "_policies",
    "QuantileDQN": "_algorithm",
    "TrainingHistory": "_history",
    "UADQNAlgorithm": "_algorithm",
    "latest_checkpoint": "_checkpoint",
    "load_agent": "_runs",
    "load_checkpoint": "_checkpoint",
    "make_env": "_envs",
    "make_run_config": "_run_config",
    "save_checkpoint": "_checkpoint",
    "train_run": "_runs",
}


def rl_module(name: str) -> Any:
    """Import ``skuq.uadqn.<name>``.

    Raises
    ------
    ImportError
        If a package of extra ``rl`` is missing; the message names the extra.
    """
    for package in ("gymnasium", "stable_baselines3", "sb3_contrib"):
        import_optional(package, extra="rl")
    return import_module(f"skuq.uadqn.{name}")


def rl_object(name: str) -> Any:
    """Import the public class or function of that name, one of `HOME`.

    Raises
    ------
    ImportError
        As `rl_module`.
    """
    return getattr(rl_module(HOME[name]), name)
