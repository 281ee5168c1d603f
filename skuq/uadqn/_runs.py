"""Resumable training in a folder, and training of several seeds in parallel.

The folder of a run contains ``config.json`` (its configuration), ``checkpoints`` (from which it is
resumed), ``history.csv`` (one row for each episode) and, after the last step, ``agent.zip``.
Because checkpoints and agents contain pickled Python objects, which can run code, they are loaded
only with ``trust=True``.

Each seed is trained in a separate process. If all seeds were stacked into one computation, an
update would take a third less time for CartPole, but not less for MinAtar's games
(``benchmarks.uadqn_seeds``). Moreover, rounding would make the result of each seed depend on the
other seeds.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import gymnasium as gym
import pandas as pd
from filelock import FileLock, Timeout
from gymnasium.envs.registration import EnvSpec
from joblib import Parallel, delayed
from stable_baselines3.common.callbacks import BaseCallback

from skuq._networks import resolve_device
from skuq._table_files import write_table
from skuq.files import atomic_path, remove_partials
from skuq.stored import untrusted
from skuq.uadqn._algorithm import chosen_device, move, move_to_train
from skuq.uadqn._baselines import METHODS
from skuq.uadqn._checkpoint import (
    ALGORITHM,
    DTYPES,
    CheckpointError,
    ExactCheckpointCallback,
    TrainingHistory,
    latest_checkpoint,
    load_checkpoint,
)
from skuq.uadqn._envs import make_env
from skuq.uadqn._policies import policy_for
from skuq.uadqn._run_configs import (
    CONFIG,
    LOCK,
    RunConfig,
    RunError,
    check_same,
    check_seeds,
    read_config,
    write_config,
)

HISTORY, AGENT, CHECKPOINTS = "history.csv", "agent.zip", "checkpoints"


class Outcome(NamedTuple):
    """Result of `train_run`."""

    begun_at: int  # step at which training started; equal to `steps` if the run was finished
    steps: int  # total number of steps; fewer than configured if a callback stopped training
    history: Any  # data frame with one row for each episode; None if the run was finished


def train_run(
    folder: str | Path,
    config: RunConfig,
    *,
    checkpoint_every: int = 10_000,
    device: str = "auto",
    callbacks: tuple[BaseCallback, ...] = (),
    trust: bool = False,
) -> Outcome:
    """Train in a folder, resuming an interrupted run with the same configuration.

    On the same machine, a resumed run is bit-identical to an uninterrupted run if the device
    computes deterministically, as the CPU does.

    Parameters
    ----------
    folder : str or Path
        Folder of the run, which is created if it does not exist.
    config : RunConfig
        Configuration of the run. For UA-DQN, the number of steps may be larger than in the earlier
        call, because its exploration does not depend on the number of steps.
    checkpoint_every : int, default=10_000
        Number of steps between checkpoints, at least 1.
    device : str, default="auto"
        Device for training.
    callbacks : tuple of BaseCallback, default=()
        Further callbacks of stable-baselines3. If a callback stops training, the run is unfinished
        and can be resumed from the last checkpoint, as after any other interruption.
    trust : bool, default=False
        Whether you trust the author of an existing run. Resuming loads its checkpoint, which can
        run arbitrary code.

    Returns
    -------
    Outcome
        The step ``begun_at`` at which training started, the total number of ``steps``, and the
        ``history``, a data frame with one row for each episode (None if the run was finished).

    Raises
    ------
    RunError
        If the folder contains other files or a run with a different configuration (nothing is
        written to such a folder); if another process is training in the folder; if the environment
        or the device does not exist or is not supported; or if a run would be resumed without
        `trust`.
    CheckpointError
        If the last checkpoint cannot be used.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from skuq.uadqn import load_agent, make_run_config, train_run
    >>> config = make_run_config("CliffWind-v0", 30)
    >>> with TemporaryDirectory() as folder:
    ...     outcome = train_run(f"{folder}/run", config)
    ...     agent = load_agent(f"{folder}/run", trust=True)
    >>> outcome.begun_at, outcome.steps, agent.finished
    (0, 30, True)
    """
    if checkpoint_every < 1:
        raise RunError(f"checkpoint_every must be at least 1, got {checkpoint_every}.")
    folder = Path(folder)
    device = _known_device(device)
    if is_finished(folder, config, trust=trust):
        return Outcome(config.steps, config.steps, None)
    with _locked(folder):
        # The process that held the lock before may have finished the run.
        if is_finished(folder, config, trust=trust):
            return Outcome(config.steps, config.steps, None)
        return _train(folder, config, checkpoint_every, device, callbacks)


def is_finished(folder: Path, config: RunConfig, *, trust: bool) -> bool:
    """Whether the run is finished; raise a RunError if the folder contains a different run.

    Also raise if the run would have to be resumed from a checkpoint without `trust`.
    """
    known = read_config(folder)
    if known is not None:
        check_same(folder, config, known)
        if (folder / AGENT).exists() and known["steps"] == config.steps:
            return True
    checkpoint = latest_checkpoint(folder / CHECKPOINTS)
    if checkpoint is not None and not trust:
        raise RunError(
            untrusted(checkpoint, "Alternatively, start a new run in a different folder.")
        )
    return False


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Create a folder if necessary, and lock it so that only one process trains in it.

    The operating system releases the lock when the process ends. The lock file is kept: if it were
    removed, a second process could lock the removed file while a third process locks a new file.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise RunError(
            f"Another process is training in {folder}. Wait until it ends, or use a different "
            "folder."
        ) from error
    try:
        yield
    finally:
        # Look at the folder before the lock is released, while no other process can use it.
        refused = is_new and all(path.name == LOCK for path in folder.iterdir())
        removed = refused and _removed(folder)
        lock.release()
        if refused and not removed:  # Windows cannot remove the lock file while it is open
            _removed(folder)


def _removed(folder: Path) -> bool:
    """Remove a folder that contains only a lock file; return whether that succeeded."""
    with suppress(OSError):
        (folder / LOCK).unlink(missing_ok=True)
        folder.rmdir()
    return not folder.exists()


def _train(
    folder: Path,
    config: RunConfig,
    checkpoint_every: int,
    device: str,
    callbacks: tuple[BaseCallback, ...],
) -> Outcome:
    algorithm, history = _new_or_saved(folder, config, device)
    move_to_train(algorithm, device)
    with closing(algorithm.env):
        begun_at = algorithm.num_timesteps
        remove_partials(folder)
        remove_partials(folder / CHECKPOINTS)
        # Remove the finished agent before the configuration is written: the number of steps in the
        # configuration must never exceed that of a finished agent in the same folder.
        (folder / AGENT).unlink(missing_ok=True)
        write_config(folder, config)
        if begun_at < config.steps:
            saver = _Saver(folder, checkpoint_every, history, config.env)
            algorithm.learn(
                config.steps - begun_at,
                callback=[history, saver, *callbacks],
                reset_num_timesteps=begun_at == 0,
            )
            if saver.completed < config.steps:  # stopped by a callback during a step
                return Outcome(begun_at, algorithm.num_timesteps, history.to_frame())
            saver.save()
        _finish(folder, config, algorithm, history)
    return Outcome(begun_at, config.steps, history.to_frame())


class _Saver(ExactCheckpointCallback):
    """Callback that saves checkpoints, and writes the history to let users monitor the run."""

    def __init__(self, folder: Path, save_freq: int, history: TrainingHistory, env_name: str):
        super().__init__(folder / CHECKPOINTS, save_freq, history, env_name)
        self.history_path = folder / HISTORY
        self.completed = 0  # number of steps whose transitions are in the replay buffer

    def _on_rollout_end(self) -> None:  # not called if a callback stops training
        self.completed = self.num_timesteps

    def save(self) -> None:
        super().save()
        _write_history(self.history_path, self.history)


def _write_history(path: Path, history: TrainingHistory) -> None:
    write_table(path, [history.to_frame()])


def _finish(folder: Path, config: RunConfig, algorithm: Any, history: TrainingHistory) -> None:
    """Write the history, and then the agent, whose existence marks the run as finished."""
    _write_history(folder / HISTORY, history)
    with atomic_path(folder / AGENT) as partial, partial.open("wb") as file:
        algorithm.save(file)
    if config.method != "uadqn":  # these runs cannot be extended
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


def _new_or_saved(folder: Path, config: RunConfig, device: str) -> tuple[Any, TrainingHistory]:
    checkpoint = latest_checkpoint(folder / CHECKPOINTS)
    if checkpoint is None:
        if (folder / AGENT).exists():
            raise RunError(
                f"The run in {folder} has no checkpoint any more, so it cannot be extended; start "
                "a new run in a different folder."
            )
        return _new_algorithm(config, device), TrainingHistory()
    with _refusing(f"{checkpoint} cannot be loaded"):
        algorithm, history = load_checkpoint(
            checkpoint, config.env, _first_device(device), trust=True
        )  # checked by `is_finished`
    return algorithm, history


def _new_algorithm(config: RunConfig, device: str) -> Any:
    with _refusing(f"Environment {config.env!r} cannot be created"):
        env = make_env(config.env)
    with ExitStack() as refused:
        refused.callback(env.close)
        unsaved = f"Environment {config.env!r} cannot be pickled, so no checkpoint can be saved"
        with _refusing(unsaved):
            cloudpickle.dumps(env)  # raise errors before training, not at the first checkpoint
        with _refusing(f"The agent for {config.env!r} cannot be created"):
            policy = policy_for(env.observation_space)
            algorithm = METHODS[config.method](
                policy, env, seed=config.seed, device=_first_device(device), **config.settings
            )
        refused.pop_all()
    return algorithm


def _known_device(device: str) -> str:
    try:
        return device if device == "auto" else str(resolve_device(device))
    except ValueError as error:
        raise RunError(str(error)) from error


def _first_device(device: str) -> str:
    """Device on which to create or load an agent; "auto" is resolved later, by network size."""
    return "cpu" if device == "auto" else device


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Convert any exception of third-party environments and files to a RunError."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        reason = str(error)
        if not reason or isinstance(error, KeyError):  # a bare key is not informative
            reason = repr(error)
        raise RunError(f"{what}: {reason}") from error


def last_saved_step(folder: str | Path) -> int:
    """Return the step from which the run in a folder would resume; 0 if there is no checkpoint.

    Parameters
    ----------
    folder : str or Path
        Folder of the run.

    Returns
    -------
    int
        Number of steps of the last checkpoint.
    """
    checkpoint = latest_checkpoint(Path(folder) / CHECKPOINTS)
    return 0 if checkpoint is None else int(checkpoint.name.removeprefix("step-"))


class LoadedAgent(NamedTuple):
    """The agent of a run, with its configuration."""

    algorithm: Any  # without an environment
    config: dict[str, Any]  # configuration of the run
    finished: bool


def load_agent(folder: str | Path, device: str = "auto", *, trust: bool = False) -> LoadedAgent:
    """Load the agent of a run; for an unfinished run, the agent of the last checkpoint.

    Parameters
    ----------
    folder : str or Path
        Folder of the run.
    device : str, default="auto"
        Device of the agent.
    trust : bool, default=False
        Whether you trust the author of the agent. Because it contains pickled objects, which can
        run arbitrary code, it is loaded only with ``trust=True``.

    Returns
    -------
    LoadedAgent
        The ``algorithm`` of stable-baselines3, without an environment; the ``config`` of the run,
        as a dict; and whether the run is ``finished``.

    Raises
    ------
    RunError
        If the run or the device does not exist, the run has no agent yet, the agent cannot be
        loaded, or `trust` is False.
    """
    folder = Path(folder)
    config = read_config(folder)
    if config is None:
        raise RunError(f"{folder} does not contain a run; train one with `skuq train-agent`.")
    path = folder / AGENT
    finished = path.exists()
    if not finished:
        checkpoint = latest_checkpoint(folder / CHECKPOINTS)
        if checkpoint is None:
            raise RunError(
                f"The run in {folder} has neither an agent nor a checkpoint yet; continue training."
            )
        path = checkpoint / ALGORITHM
    device = _known_device(device)
    if not trust:
        raise RunError(untrusted(path))
    with _refusing(f"{path} cannot be loaded"):
        algorithm = METHODS[config["method"]].load(path, device=_first_device(device))
    move(algorithm, chosen_device(algorithm, device))
    return LoadedAgent(algorithm, config, finished)


class SeedOutcome(NamedTuple):
    """Result of one run of `train_seeds`."""

    seed: int
    folder: Path
    history: pd.DataFrame  # one row for each episode


def train_seeds(
    folder: str | Path,
    config: RunConfig,
    n_seeds: int,
    *,
    n_jobs: int | None = None,
    checkpoint_every: int = 10_000,
    device: str = "auto",
    trust: bool = False,
) -> Iterator[SeedOutcome]:
    """Train an agent with several seeds, each in a separate process and folder.

    The result of each run equals the result of `train_run` with the same seed. To resume after an
    interruption, repeat the call. The iterator is lazy: runs are trained while you iterate over it.
    The number of threads per process is the number of cores divided by the number of processes.
    Each result equals the result of a single run with this number of threads.

    Parameters
    ----------
    folder : str or Path
        Folder that will contain the folders of the runs: ``seed-0``, ``seed-1`` and so on.
    config : RunConfig
        Configuration of the run with the first seed; the other runs have consecutive seeds.
    n_seeds : int
        Number of seeds, at least 1; the largest seed must not exceed ``2**32 - 1``.
    n_jobs : int, default=None
        Number of runs trained at the same time, as in joblib; -1 uses all cores.
    checkpoint_every, device, trust
        As in `train_run`.

    Returns
    -------
    iterator of SeedOutcome
        One result per run, in the order of completion: its ``seed``; its ``folder``, which can be
        passed to every command for runs; and its ``history``, a data frame with one row for each
        episode.

    Raises
    ------
    RunError
        Before any training, if a seed is out of range, a folder contains other files or a run with
        a different configuration, or a run would be resumed without `trust`. During training, as
        in `train_run`.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from skuq.uadqn import make_run_config, train_seeds
    >>> config = make_run_config("CliffWind-v0", 30)
    >>> with TemporaryDirectory() as out:
    ...     [run.folder.name for run in train_seeds(Path(out), config, 2)]
    ['seed-0', 'seed-1']
    """
    folder = Path(folder)
    check_seeds(config.seed, n_seeds)
    if (folder / CONFIG).exists():
        raise RunError(f"{folder} contains a single run; use a different folder for several seeds.")
    configs = [config._replace(seed=config.seed + i) for i in range(n_seeds)]
    folders = [folder / f"seed-{each.seed}" for each in configs]
    for path, each in zip(folders, configs, strict=True):
        is_finished(path, each, trust=trust)  # raises if the run cannot be resumed
    # Worker processes do not have environments that only this process has registered.
    spec = gym.registry.get(config.env)
    jobs = [
        delayed(_train_seed)(path, each, checkpoint_every, device, trust, spec)
        for path, each in zip(folders, configs, strict=True)
    ]
    return _finished(folder, jobs, n_jobs)


def _finished(folder: Path, jobs: list[Any], n_jobs: int | None) -> Iterator[SeedOutcome]:
    # Send runs to the processes one at a time. In a batch, a run would wait for the other runs of
    # the batch, which the same process trains.
    parallel = Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator_unordered")
    try:
        yield from parallel(jobs)
    finally:
        if folder.is_dir() and not any(folder.iterdir()):  # no run could be started
            folder.rmdir()


def _train_seed(
    folder: Path,
    config: RunConfig,
    checkpoint_every: int,
    device: str,
    trust: bool,
    spec: EnvSpec | None,
) -> SeedOutcome:
    # A worker process may still have an earlier registration of this name; replace it.
    if spec is not None:
        gym.registry[spec.id] = spec
    options: dict[str, Any] = {"checkpoint_every": checkpoint_every, "device": device}
    outcome = train_run(folder, config, trust=trust, **options)
    history = outcome.history
    if history is None:
        history = pd.read_csv(folder / HISTORY, dtype=DTYPES)
    return SeedOutcome(config.seed, folder, history)
