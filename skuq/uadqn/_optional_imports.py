"""Import of the modules that need stable-baselines3, when they are used."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from skuq.extras import import_optional

# Modules of the public names that need stable-baselines3.
HOME = {
    name: module
    for module, names in {
        "_algorithm": ("QuantileDQN", "UADQNAlgorithm"),
        "_baselines": ("BootstrappedDQN", "DQNAlgorithm"),
        "_callbacks": ("Episode", "TrainingHistory", "TrainingProgress"),
        "_checkpoint": (
            "CheckpointError",
            "ExactCheckpointCallback",
            "latest_checkpoint",
            "load_checkpoint",
            "save_checkpoint",
        ),
        "_envs": ("CliffWindEnv", "make_env", "play_episodes"),
        "_extractors": ("GridCNN",),
        "_film": ("Film", "FilmError", "estimate_action"),
        "_policies": ("CnnPolicy", "GridPolicy", "MlpPolicy", "MultiInputPolicy"),
        "_run_configs": ("GRIDWORLD", "MINATAR", "RunError", "make_run_config", "settings_for"),
        "_runs": ("last_saved_step", "load_agent", "train_run"),
        "_seeds": ("train_seeds",),
    }.items()
    for name in names
}


def register_ids() -> None:
    """Register the ids of `skuq.uadqn` with gymnasium, if that is imported already.

    Else it is done as soon as an object of `HOME` is used: nobody waits for a package that
    nothing uses.
    """
    gym = sys.modules.get("gymnasium")
    if gym is not None and "CliffWind-v0" not in gym.registry:
        gym.register("CliffWind-v0", "skuq.uadqn._envs:CliffWindEnv", max_episode_steps=15)


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
    """Import the public object of that name, one of `HOME`.

    Raises
    ------
    ImportError
        As `rl_module`.
    """
    return getattr(rl_module(HOME[name]), name)
