"""Configurations of training runs, and their storage in the folder of a run."""

from __future__ import annotations

import json
import operator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from skuq.files import write_atomically
from skuq.uadqn._baselines import METHODS
from skuq.uadqn._checkpoint import installed_versions

CONFIG = "config.json"
LOCK = ".lock"  # file that the training process locks

N_SEEDS = 2**32  # numpy accepts seeds from 0 to N_SEEDS - 1

# Settings only for agents with auxiliary networks, and settings only for agents with quantiles.
_UNCERTAIN = {"epistemic_factor", "aleatoric_factor"}
_QUANTILES = {"init_gain", "prior_gain", "levels"}
_NETWORKS = {"qrdqn": {"prior_gain"}, "dqn": _QUANTILES, "bootstrapped": _QUANTILES}
MINATAR_EXPLORATION = 100_000  # steps in which epsilon decreases from 1 to its final value

# Table 1, with quantile levels as the paper prints them (see `quantile_levels`).
MINATAR: dict[str, Any] = {
    "epistemic_factor": 0.2,
    "aleatoric_factor": 0.0,
    "learning_rate": 1e-4,
    "gamma": 0.99,
    "algorithm_kwargs": {
        "buffer_size": 100_000,
        "learning_starts": 5_000,
        "batch_size": 32,
        "target_update_interval": 1_000,
        "policy_kwargs": {"levels": "paper"},
    },
}

# For the grid world of Sec. 3.1, the paper states only lambda; the other values come from the
# authors' released code.
GRIDWORLD: dict[str, Any] = {
    "epistemic_factor": 2.0,
    "aleatoric_factor": 0.5,
    "learning_rate": 2e-3,
    "gamma": 1.0,
    "algorithm_kwargs": {
        "buffer_size": 10_000,
        "learning_starts": 500,
        "batch_size": 64,
        "target_update_interval": 100,
        "policy_kwargs": {"init_gain": 3.0, "prior_gain": 3.0},
    },
}


class RunError(ValueError):
    """Error for a run that cannot start or resume; the message states the reason and a remedy."""


def settings_for(env_name: str) -> dict[str, Any]:
    """Return the recommended parameters of `UADQN` for an environment.

    Parameters
    ----------
    env_name : str
        Id of the environment. If it begins with ``MinAtar/``, the paper's settings for MinAtar are
        returned; for any other id, the authors' settings for their grid world.

    Returns
    -------
    dict
        Keyword arguments of `UADQN`. Arguments of the algorithm that are not parameters of `UADQN`
        are in ``"algorithm_kwargs"``.

    Examples
    --------
    >>> from skuq.uadqn import settings_for
    >>> settings_for("MinAtar/Breakout-v1")["algorithm_kwargs"]["batch_size"]
    32
    """
    return deepcopy(MINATAR if env_name.startswith("MinAtar/") else GRIDWORLD)


class RunConfig(NamedTuple):
    """Environment, length and agent of a training run."""

    env: str
    steps: int
    seed: int
    method: str  # key of `METHODS`
    settings: dict[str, Any]  # arguments of the algorithm, except policy, env, seed and device

    def as_json(self) -> dict[str, Any]:
        """Return the configuration with JSON types: lists for tuples, names for classes."""
        described: dict[str, Any] = json.loads(json.dumps(self._asdict(), default=str))
        return described


def make_run_config(
    env: str,
    steps: int,
    seed: int = 0,
    method: str = "uadqn",
    *,
    epistemic_factor: float | None = None,
    aleatoric_factor: float | None = None,
) -> RunConfig:
    """Configure a run with the recommended settings for its environment.

    Parameters
    ----------
    env : str
        Id of the environment.
    steps : int
        Total number of training steps, at least 1.
    seed : int, default=0
        Seed of networks, exploration and environment, from 0 to ``2**32 - 1``.
    method : {"uadqn", "qrdqn", "dqn", "bootstrapped"}, default="uadqn"
        The agent.
    epistemic_factor, aleatoric_factor : float, default=None
        Factors of `UADQNAlgorithm`, allowed only for method "uadqn". None: the recommended value
        for the environment.

    Returns
    -------
    RunConfig
        A named tuple of ``env``, ``steps``, ``seed``, ``method`` and ``settings``. The settings are
        arguments of the algorithm, except policy, environment, seed and device.

    Raises
    ------
    RunError
        If the method is unknown, a factor is set for a different method, or steps or seed are out
        of range.
    TypeError
        If steps or seed are not integers.

    Examples
    --------
    >>> from skuq.uadqn import make_run_config
    >>> config = make_run_config("MinAtar/Breakout-v1", 500_000, method="dqn")
    >>> config.settings["exploration_fraction"]
    0.2
    """
    if method not in METHODS:
        raise RunError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    # Convert numpy integers, which JSON cannot store, to int.
    steps, seed = operator.index(steps), operator.index(seed)
    if steps < 1:
        raise RunError(f"steps must be at least 1, got {steps}.")
    check_seeds(seed)
    settings = settings_for(env)
    settings |= settings.pop("algorithm_kwargs", {})  # all are arguments of the algorithm
    factors = {"epistemic_factor": epistemic_factor, "aleatoric_factor": aleatoric_factor}
    given = {name: float(value) for name, value in factors.items() if value is not None}
    if method == "uadqn":
        return RunConfig(env, steps, seed, method, settings | given)
    if given:
        verb = "apply" if len(given) > 1 else "applies"
        raise RunError(f"{' and '.join(given)} {verb} only to method='uadqn', not to {method!r}.")
    settings = {name: value for name, value in settings.items() if name not in _UNCERTAIN}
    networks = settings.pop("policy_kwargs", None) or {}
    networks = {name: v for name, v in networks.items() if name not in _NETWORKS[method]}
    if networks:
        settings["policy_kwargs"] = networks
    fraction = 0.2
    if env.startswith("MinAtar/"):
        fraction = min(1.0, MINATAR_EXPLORATION / steps)
    exploration = {"exploration_fraction": fraction, "exploration_final_eps": 0.03}
    return RunConfig(env, steps, seed, method, settings | exploration)


def check_seeds(first: int, n_seeds: int = 1) -> None:
    """Raise if one of the consecutive seeds from `first` on is out of range."""
    if n_seeds < 1 or not 0 <= first <= N_SEEDS - n_seeds:
        raise RunError(
            f"At least one seed is needed, and all seeds must be between 0 and {N_SEEDS - 1}; got "
            f"{n_seeds} seeds starting at {first}."
        )


def read_config(folder: Path) -> dict[str, Any] | None:
    """Read the configuration of the run in a folder; None if the folder is new or empty."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder.")
    path = folder / CONFIG
    if not path.exists():
        ours = (LOCK, ".partial")
        if any(not entry.name.endswith(ours) for entry in folder.iterdir()):
            raise RunError(f"{folder} is not the folder of a run: it contains other files.")
        return None
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        config = RunConfig(**{name: stored[name] for name in RunConfig._fields})
        known = config.method in METHODS and isinstance(config.settings, dict)
        if not known or not isinstance(config.steps, int):
            raise ValueError(f"method {config.method!r}, steps {config.steps!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not a valid run configuration ({error!r}).") from error
    return stored


def write_config(folder: Path, config: RunConfig) -> None:
    """Write the configuration atomically."""
    stored = config.as_json() | {"versions": installed_versions()}
    write_atomically(folder / CONFIG, json.dumps(stored, indent=2) + "\n")


def check_same(folder: Path, config: RunConfig, known: dict[str, Any]) -> None:
    """Raise if a run would be resumed with a configuration that differs from the stored one.

    For UA-DQN, the number of steps may increase, because the algorithm does not depend on the
    number of steps.
    """
    wanted = config.as_json()
    for name in ("env", "method", "seed"):
        _check_equal(folder, name, known[name], wanted[name])
    steps = known["steps"]
    if config.steps < steps:
        raise RunError(f"{folder} is a run of {steps} steps; request at least {steps} steps.")
    if config.steps > steps and config.method != "uadqn":
        raise RunError(
            f"{folder} is a run of {steps} steps, and the exploration of method "
            f"{config.method!r} depends on the number of steps; start a new run in a different "
            "folder."
        )
    for name in {**known["settings"], **wanted["settings"]}:
        begun, now = (each["settings"].get(name) for each in (known, wanted))
        _check_equal(folder, name, begun, now)


def _check_equal(folder: Path, name: str, begun: Any, wanted: Any) -> None:
    if begun != wanted:
        raise RunError(
            f"The run in {folder} has {name} {begun!r}, not {wanted!r}; resume it with {begun!r}, "
            "or use a different folder."
        )
