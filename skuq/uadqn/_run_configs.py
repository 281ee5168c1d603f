"""Configurations of training runs, in Python and in the folder of a run."""

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
LOCK = ".lock"  # held by the process that trains

N_SEEDS = 2**32  # 0 and above, which numpy takes

# Settings that agents without auxiliary networks, or without quantiles, do not take.
_UNCERTAIN = {"epistemic_factor", "aleatoric_factor"}
_QUANTILES = {"init_gain", "prior_gain", "levels"}
_NETWORKS = {"qrdqn": {"prior_gain"}, "dqn": _QUANTILES, "bootstrapped": _QUANTILES}
MINATAR_EXPLORATION = 100_000  # steps from epsilon 1 to its final value

# Table 1, and levels of quantiles as the paper prints them (see `quantile_levels`).
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

# Of the grid world of Sec. 3.1 the paper gives lambda alone; the rest are values with which
# its authors' code was released.
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
    """A run cannot begin or go on; the message says why and what to do."""


def settings_for(env_name: str) -> dict[str, Any]:
    """Parameters of `UADQN` that suit an environment: for MinAtar's games those of the paper.

    Parameters
    ----------
    env_name : str
        Id of the environment; ids that begin with ``MinAtar/`` get `MINATAR`, others `GRIDWORLD`.

    Returns
    -------
    dict
        A copy; arguments of the algorithm that are not parameters of `UADQN` are under
        ``"algorithm_kwargs"``.

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
    settings: dict[str, Any]  # of the algorithm, apart from policy, environment, seed and device

    def as_json(self) -> dict[str, Any]:
        """The configuration as it comes back from a file: lists for tuples, names for classes."""
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
    """Configure a run with the settings that suit its environment.

    Parameters
    ----------
    env : str
        Id of the environment.
    steps : int
        Steps in all, at least 1.
    seed : int, default=0
        Seed of networks, exploration and environment, from 0 to ``2**32 - 1``.
    method : {"uadqn", "qrdqn", "dqn", "bootstrapped"}, default="uadqn"
        The agent.
    epistemic_factor, aleatoric_factor : float, default=None
        Those of `UADQNAlgorithm`, and for it alone; None takes the one that suits the
        environment.

    Returns
    -------
    RunConfig
        A named tuple of ``env``, ``steps``, ``seed``, ``method`` and ``settings``: the arguments
        of the algorithm, apart from policy, environment, seed and device.

    Raises
    ------
    RunError
        If the method is unknown, a factor is given to an agent that has none, or steps or
        seed are out of range.
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
        raise RunError(f"There is no method {method!r}; known are {', '.join(METHODS)}.")
    # Plain numbers: those of numpy would not come back from a file as they were.
    steps, seed = operator.index(steps), operator.index(seed)
    if steps < 1:
        raise RunError(f"There must be at least one step, got {steps}.")
    check_seeds(seed)
    settings = settings_for(env)
    settings |= settings.pop("algorithm_kwargs", {})  # flat, as the algorithms take them
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
    """Refuse seeds, counted from the first one, that generators do not take."""
    if n_seeds < 1 or not 0 <= first <= N_SEEDS - n_seeds:
        raise RunError(
            f"There must be at least one seed, from 0 to {N_SEEDS - 1}; got {n_seeds} of them from "
            f"{first} on."
        )


def read_config(folder: Path) -> dict[str, Any] | None:
    """Configuration that a folder's run was begun with; None if the folder is new or empty."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder.")
    path = folder / CONFIG
    if not path.exists():
        ours = (LOCK, ".partial")
        if any(not entry.name.endswith(ours) for entry in folder.iterdir()):
            raise RunError(f"{folder} is not the folder of a run: it holds something else.")
        return None
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        config = RunConfig(**{name: stored[name] for name in RunConfig._fields})
        known = config.method in METHODS and isinstance(config.settings, dict)
        if not known or not isinstance(config.steps, int):
            raise ValueError(f"method {config.method!r}, steps {config.steps!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} does not describe a run ({error!r}).") from error
    return stored


def write_config(folder: Path, config: RunConfig) -> None:
    """Write the configuration, completely or not at all."""
    stored = config.as_json() | {"versions": installed_versions()}
    write_atomically(folder / CONFIG, json.dumps(stored, indent=2) + "\n")


def check_same(folder: Path, config: RunConfig, known: dict[str, Any]) -> None:
    """Refuse to continue a run with a different configuration from the one it was begun with.

    UA-DQN may get more steps: nothing in it depends on their number.
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
            f"{config.method!r} depends on their number; begin a new run in another folder."
        )
    for name in {**known["settings"], **wanted["settings"]}:
        begun, now = (each["settings"].get(name) for each in (known, wanted))
        _check_equal(folder, name, begun, now)


def _check_equal(folder: Path, name: str, begun: Any, wanted: Any) -> None:
    if begun != wanted:
        raise RunError(
            f"{folder} was begun with {name} {begun!r}, not {wanted!r}; go on with that, or "
            "name another folder."
        )
