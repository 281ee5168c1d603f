"""Training in a folder that can be interrupted and continued.

The folder of a run holds ``config.json`` (its configuration), ``checkpoints`` (from which it is
continued), ``history.csv`` (one row for each episode) and, once it is finished, ``agent.zip``.
Checkpoints and agent hold pickled Python objects: load only what you trust.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
from filelock import FileLock, Timeout
from stable_baselines3.common.callbacks import BaseCallback

from skuq.files import atomic_path, remove_partials, write_atomically
from skuq.models import resolve_device
from skuq.uadqn._baselines import METHODS
from skuq.uadqn._callbacks import TrainingHistory
from skuq.uadqn._checkpoint import (
    ALGORITHM,
    CheckpointError,
    ExactCheckpointCallback,
    installed_versions,
    latest_checkpoint,
    load_checkpoint,
)
from skuq.uadqn._envs import make_env
from skuq.uadqn._policies import policy_for

CONFIG, HISTORY, AGENT, CHECKPOINTS = "config.json", "history.csv", "agent.zip", "checkpoints"
LOCK = ".lock"  # held by the process that trains

# Settings that agents without auxiliary networks, or without quantiles, do not take.
_UNCERTAIN = {"epistemic_factor", "aleatoric_factor"}
_QUANTILES = {"init_gain", "prior_gain", "levels"}
_NETWORKS = {"qrdqn": {"prior_gain"}, "dqn": _QUANTILES, "bootstrapped": _QUANTILES}
MINATAR_EXPLORATION = 100_000  # steps from epsilon 1 to its final value

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


class RunError(ValueError):
    """A run cannot begin or go on; the message says why and what to do."""


def settings_for(env_name: str) -> dict[str, Any]:
    """Settings that suit an environment: those of MinAtar for its games, else the grid world's.

    Examples
    --------
    >>> from skuq.uadqn import settings_for
    >>> settings_for("MinAtar/Breakout-v1")["batch_size"]
    32
    """
    return deepcopy(MINATAR if env_name.startswith("MinAtar/") else GRIDWORLD)


class RunConfig(NamedTuple):
    """Environment, length and agent of a training run.

    Attributes
    ----------
    env : str
        Id of the environment.
    steps : int
        Steps in all.
    seed : int
        Seed of networks, exploration and environment.
    method : str
        Key of `METHODS`.
    settings : dict
        Arguments of the algorithm, apart from policy, environment, seed and device.
    """

    env: str
    steps: int
    seed: int
    method: str
    settings: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The configuration as it comes back from a file: lists for tuples, names for classes."""
        described: dict[str, Any] = json.loads(json.dumps(self._asdict(), default=str))
        return described


def make_run_config(
    env: str, steps: int, seed: int = 0, method: str = "uadqn", **factors: float | None
) -> RunConfig:
    """Configure a run with the settings that suit its environment.

    Parameters
    ----------
    env : str
        Id of the environment.
    steps : int
        Steps in all.
    seed : int, default=0
        Seed of networks, exploration and environment.
    method : {"uadqn", "qrdqn", "dqn", "bootstrapped"}, default="uadqn"
        The agent.
    **factors
        ``epistemic_factor`` and ``aleatoric_factor``, for UA-DQN alone; None takes the one
        that suits the environment.

    Returns
    -------
    RunConfig

    Raises
    ------
    RunError
        If the method is unknown, or a factor is given to an agent that has none.

    Examples
    --------
    >>> from skuq.uadqn import make_run_config
    >>> config = make_run_config("MinAtar/Breakout-v1", 500_000, method="dqn")
    >>> config.settings["exploration_fraction"]
    0.2
    """
    if method not in METHODS:
        raise RunError(f"There is no method {method!r}; known are {', '.join(METHODS)}.")
    settings = settings_for(env)
    given = {name: value for name, value in factors.items() if value is not None}
    if method == "uadqn":
        return RunConfig(env, steps, seed, method, settings | given)
    if given:
        raise RunError(f"{' and '.join(given)} are of method 'uadqn'; {method!r} has none.")
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


def read_config(folder: Path) -> dict[str, Any] | None:
    """Configuration that a folder's run was begun with; None if the folder is new or empty.

    Raises
    ------
    RunError
        If it holds something else.
    """
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
    """Refuse to continue a run with another configuration than it was begun with.

    UA-DQN may get more steps: nothing in it depends on their number.
    """
    wanted = config.as_json()
    for name in ("env", "method", "seed"):
        _check_equal(folder, name, known[name], wanted[name])
    steps = known["steps"]
    if config.steps < steps:
        raise RunError(f"{folder} is a run of {steps} steps; ask for as many, or for more.")
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


class Outcome(NamedTuple):
    """Result of `train_run`.

    Attributes
    ----------
    begun_at : int
        Step from which it trained; the last one if there was nothing to do.
    steps : int
        Steps in all.
    history : pandas.DataFrame or None
        One row for each episode; None if there was nothing to do.
    """

    begun_at: int
    steps: int
    history: Any


def train_run(
    folder: Path,
    config: RunConfig,
    *,
    checkpoint_every: int = 10_000,
    device: str = "auto",
    callbacks: tuple[BaseCallback, ...] = (),
) -> Outcome:
    """Train in a folder, from where an earlier call with the same configuration was interrupted.

    An interrupted and continued run equals an uninterrupted one bit for bit, on the same
    machine and a device that computes deterministically, such as the CPU.

    Parameters
    ----------
    folder : Path
        Folder of the run; made if it is not there.
    config : RunConfig
        The run. Its steps may be more than before for UA-DQN, whose exploration does
        not depend on them.
    checkpoint_every : int, default=10_000
        Steps from one checkpoint to the next.
    device : str, default="auto"
        Where to train.
    callbacks : tuple of BaseCallback, default=()
        More callbacks of stable-baselines3.

    Returns
    -------
    Outcome

    Raises
    ------
    RunError
        If the folder holds something else, or a run of another configuration; then nothing was
        written. Also if another process trains in it, and if there is no such environment or
        device, or no agent for it.
    CheckpointError
        If the last checkpoint cannot be used.
    """
    device = _known_device(device)
    if is_finished(folder, config):
        return Outcome(config.steps, config.steps, None)
    with _locked(folder):
        if is_finished(folder, config):  # by a process that held the lock until now
            return Outcome(config.steps, config.steps, None)
        return _train(folder, config, checkpoint_every, device, callbacks)


def is_finished(folder: Path, config: RunConfig) -> bool:
    """Whether nothing is left to do; RunError if the folder holds anything but this run."""
    known = read_config(folder)
    if known is None:
        return False
    check_same(folder, config, known)
    return (folder / AGENT).exists() and known["steps"] == config.steps


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time train in a folder, which is made if it is not there.

    The lock ends with its process, however that ends. Its file stays: were it removed, another
    process could lock the removed file, and a third one a new file.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunError(
            f"Another process trains in {folder}. Wait until it ends, or name another folder."
        ) from error
    try:
        yield
    finally:
        # While the lock is held, so that the folder is nobody else's.
        if is_new and all(path.name == LOCK for path in folder.iterdir()):  # it was refused
            shutil.rmtree(folder)
        lock.release()


def _train(
    folder: Path,
    config: RunConfig,
    checkpoint_every: int,
    device: str,
    callbacks: tuple[BaseCallback, ...],
) -> Outcome:
    algorithm, history = _new_or_saved(folder, config, device)
    begun_at = algorithm.num_timesteps
    remove_partials(folder)
    remove_partials(folder / CHECKPOINTS)
    # In this order: a configuration of more steps is never beside an agent of fewer.
    (folder / AGENT).unlink(missing_ok=True)
    write_config(folder, config)
    if begun_at < config.steps:
        saver = _Saver(folder, checkpoint_every, history, config.env)
        algorithm.learn(
            config.steps - begun_at,
            callback=[history, saver, *callbacks],
            reset_num_timesteps=begun_at == 0,
        )
        saver.save()
    _finish(folder, config, algorithm, history)
    return Outcome(begun_at, config.steps, history.to_frame())


class _Saver(ExactCheckpointCallback):
    """Saves checkpoints, and the history for those who want to watch a run."""

    def __init__(self, folder: Path, save_freq: int, history: TrainingHistory, env_name: str):
        super().__init__(folder / CHECKPOINTS, save_freq, history, env_name)
        self.history_path = folder / HISTORY

    def save(self) -> None:
        super().save()
        _write_history(self.history_path, self.history)


def _write_history(path: Path, history: TrainingHistory) -> None:
    with atomic_path(path) as partial:
        history.to_frame().to_csv(partial, index=False)


def _finish(folder: Path, config: RunConfig, algorithm: Any, history: TrainingHistory) -> None:
    """Write history and agent; the agent last, for it says that the run is finished."""
    _write_history(folder / HISTORY, history)
    with atomic_path(folder / AGENT) as partial, partial.open("wb") as file:
        algorithm.save(file)
    if config.method != "uadqn":  # no run of these is extended, and buffers take much space
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _new_or_saved(folder: Path, config: RunConfig, device: str) -> tuple[Any, TrainingHistory]:
    checkpoint = latest_checkpoint(folder / CHECKPOINTS)
    if checkpoint is None:
        if (folder / AGENT).exists():
            raise RunError(
                f"{folder} has no checkpoint any more, so its run cannot be extended; begin a "
                "new one in another folder."
            )
        return _new_algorithm(config, device), TrainingHistory()
    with _refusing(f"{checkpoint} cannot be loaded"):
        algorithm, history = load_checkpoint(checkpoint, config.env, device)
    return algorithm, history


def _new_algorithm(config: RunConfig, device: str) -> Any:
    with _refusing(f"Environment {config.env!r} cannot be made"):
        env = make_env(config.env)
    with _refusing(f"Environment {config.env!r} cannot be pickled, so no checkpoint can be saved"):
        cloudpickle.dumps(env)  # better now than at the first checkpoint
    with _refusing(f"There is no agent for {config.env!r}"):
        policy = policy_for(env.observation_space)
        return METHODS[config.method](
            policy, env, seed=config.seed, device=device, **config.settings
        )


def _known_device(device: str) -> str:
    try:
        return str(resolve_device(device))
    except ValueError as error:
        raise RunError(str(error)) from error


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Raise RunError for whatever environments and files of others may raise."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise RunError(f"{what}: {error or type(error).__name__}") from error


def last_saved_step(folder: Path) -> int:
    """Step from which the run in a folder would continue."""
    checkpoint = latest_checkpoint(folder / CHECKPOINTS)
    return 0 if checkpoint is None else int(checkpoint.name.removeprefix("step-"))


class LoadedAgent(NamedTuple):
    """The agent of a run.

    Attributes
    ----------
    algorithm : stable_baselines3 algorithm
        The agent; it has no environment.
    config : dict
        Configuration that the run was begun with.
    finished : bool
        Whether the run is finished.
    """

    algorithm: Any
    config: dict[str, Any]
    finished: bool


def load_agent(folder: Path, device: str = "auto") -> LoadedAgent:
    """Load the agent of a run, or that of the last checkpoint of an unfinished run.

    Parameters
    ----------
    folder : Path
        Folder of the run.
    device : str, default="auto"
        Where it computes.

    Returns
    -------
    LoadedAgent

    Raises
    ------
    RunError
        If there is no such run or device, no agent yet, or one that cannot be loaded.
    """
    config = read_config(folder)
    if config is None:
        raise RunError(f"There is no run in {folder}; train one with `skuq train-agent`.")
    path = folder / AGENT
    finished = path.exists()
    if not finished:
        checkpoint = latest_checkpoint(folder / CHECKPOINTS)
        if checkpoint is None:
            raise RunError(f"The run in {folder} has no agent yet, and no checkpoint so far.")
        path = checkpoint / ALGORITHM
    device = _known_device(device)
    with _refusing(f"{path} cannot be loaded"):
        algorithm = METHODS[config["method"]].load(path, device=device)
    return LoadedAgent(algorithm, config, finished)
