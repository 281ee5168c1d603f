"""Training in a folder that can be interrupted and continued; and of several seeds side by side.

The folder of a run holds ``config.json`` (its configuration), ``checkpoints`` (from which it is
continued), ``history.csv`` (one row for each episode) and, once it is finished, ``agent.zip``.
Checkpoints and agent hold pickled Python objects, which run code when they are loaded: without
``trust=True`` none is loaded.

Several seeds are trained in processes. Stacked into one computation instead, a CartPole agent's
update would take a third less time, one of MinAtar's games no less (``benchmarks.uadqn_seeds``);
and rounding would make each seed's result depend on the others.
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

from skuq.files import atomic_path, remove_partials
from skuq.loading import untrusted
from skuq.networks import resolve_device
from skuq.table_files import write_table
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

    begun_at: int  # step from which it trained; the last one if there was nothing to do
    steps: int  # in all; fewer than configured if a callback stopped training
    history: Any  # data frame with one row for each episode; None if there was nothing to do


def train_run(
    folder: str | Path,
    config: RunConfig,
    *,
    checkpoint_every: int = 10_000,
    device: str = "auto",
    callbacks: tuple[BaseCallback, ...] = (),
    trust: bool = False,
) -> Outcome:
    """Train in a folder, from where an earlier call with the same configuration was interrupted.

    An interrupted and continued run equals an uninterrupted one bit for bit, on the same
    machine and a device that computes deterministically, such as the CPU.

    Parameters
    ----------
    folder : str or Path
        Folder of the run; made if it is not there.
    config : RunConfig
        The run. Its steps may be more than before for UA-DQN, whose exploration does
        not depend on them.
    checkpoint_every : int, default=10_000
        Steps from one checkpoint to the next, at least 1.
    device : str, default="auto"
        Where to train.
    callbacks : tuple of BaseCallback, default=()
        More callbacks of stable-baselines3. If one of them stops training, the run is not
        finished: it goes on from the last checkpoint, as after any other interruption.
    trust : bool, default=False
        Whether a run that was begun may be continued: its checkpoint is loaded, which runs code
        of whoever wrote it.

    Returns
    -------
    Outcome
        The step that training was ``begun_at``, the number of ``steps`` in all, and its
        ``history``, a data frame with one row for each episode; None if there was nothing to do.

    Raises
    ------
    RunError
        If the folder holds something else, or a run of another configuration; then nothing was
        written. Also if another process trains in it, if there is no such environment or
        device, or no agent for it, and if the run was begun and there is no `trust`.
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
        if is_finished(folder, config, trust=trust):  # by a process that held the lock until now
            return Outcome(config.steps, config.steps, None)
        return _train(folder, config, checkpoint_every, device, callbacks)


def is_finished(folder: Path, config: RunConfig, *, trust: bool) -> bool:
    """Whether nothing is left to do; RunError if the folder holds anything but this run.

    Also if the run would be continued, from a checkpoint that may run code, without `trust`.
    """
    known = read_config(folder)
    if known is not None:
        check_same(folder, config, known)
        if (folder / AGENT).exists() and known["steps"] == config.steps:
            return True
    checkpoint = latest_checkpoint(folder / CHECKPOINTS)
    if checkpoint is not None and not trust:
        raise RunError(untrusted(checkpoint, "Or begin a new run in another folder."))
    return False


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
        refused = is_new and all(path.name == LOCK for path in folder.iterdir())
        removed = refused and _removed(folder)
        lock.release()
        if refused and not removed:  # by Windows, which keeps what any process has open
            _removed(folder)


def _removed(folder: Path) -> bool:
    """Whether a folder that holds nothing but a lock could be removed."""
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
            if saver.completed < config.steps:  # a callback stopped it, in the middle of a step
                return Outcome(begun_at, algorithm.num_timesteps, history.to_frame())
            saver.save()
        _finish(folder, config, algorithm, history)
    return Outcome(begun_at, config.steps, history.to_frame())


class _Saver(ExactCheckpointCallback):
    """Saves checkpoints, and the history for those who want to watch a run."""

    def __init__(self, folder: Path, save_freq: int, history: TrainingHistory, env_name: str):
        super().__init__(folder / CHECKPOINTS, save_freq, history, env_name)
        self.history_path = folder / HISTORY
        self.completed = 0  # steps that are stored, and not only taken

    def _on_rollout_end(self) -> None:  # which a callback that stops training prevents
        self.completed = self.num_timesteps

    def save(self) -> None:
        super().save()
        _write_history(self.history_path, self.history)


def _write_history(path: Path, history: TrainingHistory) -> None:
    write_table(path, [history.to_frame()])


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
                f"{folder} no longer has a checkpoint, so its run cannot be extended; begin a "
                "new one in another folder."
            )
        return _new_algorithm(config, device), TrainingHistory()
    with _refusing(f"{checkpoint} cannot be loaded"):
        algorithm, history = load_checkpoint(
            checkpoint, config.env, _first_device(device), trust=True
        )  # as `is_finished` has checked
    return algorithm, history


def _new_algorithm(config: RunConfig, device: str) -> Any:
    with _refusing(f"Environment {config.env!r} cannot be made"):
        env = make_env(config.env)
    with ExitStack() as refused:
        refused.callback(env.close)
        unsaved = f"Environment {config.env!r} cannot be pickled, so no checkpoint can be saved"
        with _refusing(unsaved):
            cloudpickle.dumps(env)  # better now than at the first checkpoint
        with _refusing(f"There is no agent for {config.env!r}"):
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
    """Where an agent is made or loaded, whose size then decides what "auto" is."""
    return "cpu" if device == "auto" else device


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Raise RunError for whatever environments and files of others may raise."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        reason = str(error)
        if not reason or isinstance(error, KeyError):  # "'rows'" alone would say nothing
            reason = repr(error)
        raise RunError(f"{what}: {reason}") from error


def last_saved_step(folder: str | Path) -> int:
    """Step from which the run in a folder would continue, 0 if it has no checkpoint.

    Parameters
    ----------
    folder : str or Path
        Folder of the run.

    Returns
    -------
    int
        Number of steps of its last checkpoint.
    """
    checkpoint = latest_checkpoint(Path(folder) / CHECKPOINTS)
    return 0 if checkpoint is None else int(checkpoint.name.removeprefix("step-"))


class LoadedAgent(NamedTuple):
    """The agent of a run."""

    algorithm: Any  # it has no environment
    config: dict[str, Any]  # that the run was begun with
    finished: bool


def load_agent(folder: str | Path, device: str = "auto", *, trust: bool = False) -> LoadedAgent:
    """Load the agent of a run, or that of the last checkpoint of an unfinished run.

    Parameters
    ----------
    folder : str or Path
        Folder of the run.
    device : str, default="auto"
        Where it computes.
    trust : bool, default=False
        Whether the agent may run code of whoever made it, which all agents do: some of its
        objects are pickled. Without it, none is loaded.

    Returns
    -------
    LoadedAgent
        The ``algorithm`` of stable-baselines3, without an environment; the ``config`` that the run
        was begun with, as a dict; and whether the run is ``finished``.

    Raises
    ------
    RunError
        If there is no such run or device, no agent yet, or one that cannot be loaded; and without
        `trust`.
    """
    folder = Path(folder)
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
    if not trust:
        raise RunError(untrusted(path))
    with _refusing(f"{path} cannot be loaded"):
        algorithm = METHODS[config["method"]].load(path, device=_first_device(device))
    move(algorithm, chosen_device(algorithm, device))
    return LoadedAgent(algorithm, config, finished)


class SeedOutcome(NamedTuple):
    """One of the runs of `train_seeds`."""

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
    """Train one agent with several seeds, each in a process and a folder of its own.

    Each run is that of `train_run` with its seed; an interrupted call is continued by the
    same call. Runs are trained while their results are asked for. Results are those of a run
    alone with as many threads as a process gets: one for each core that its process has to
    itself.

    Parameters
    ----------
    folder : str or Path
        Folder whose subfolders ``seed-0``, ``seed-1`` and so on are those of the runs.
    config : RunConfig
        The run with the first seed; the others have the seeds that follow.
    n_seeds : int
        Number of seeds, at least 1; none may be above ``2**32 - 1``.
    n_jobs : int, default=None
        Number of runs trained at once, as in joblib; -1 takes all cores.
    checkpoint_every, device, trust
        As `train_run` takes them.

    Returns
    -------
    iterator of SeedOutcome
        Each run as it is finished: its ``seed``, its ``folder``, which every command for runs
        takes, and its ``history``, a data frame with one row for each episode.

    Raises
    ------
    RunError
        If there are no such seeds, or a folder holds something else, a run of another
        configuration, or without `trust` one that was begun, at once and before anything is
        trained; else as `train_run`.

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
        raise RunError(f"{folder} is the folder of one run; name another one for several seeds.")
    configs = [config._replace(seed=config.seed + i) for i in range(n_seeds)]
    folders = [folder / f"seed-{each.seed}" for each in configs]
    for path, each in zip(folders, configs, strict=True):
        is_finished(path, each, trust=trust)  # refuses what cannot be continued
    # Processes that are started for the runs know no id that only this one has registered.
    spec = gym.registry.get(config.env)
    jobs = [
        delayed(_train_seed)(path, each, checkpoint_every, device, trust, spec)
        for path, each in zip(folders, configs, strict=True)
    ]
    return _finished(folder, jobs, n_jobs)


def _finished(folder: Path, jobs: list[Any], n_jobs: int | None) -> Iterator[SeedOutcome]:
    # One by one, so that none waits in the queue of a process that is busy.
    parallel = Parallel(n_jobs=n_jobs, batch_size=1, return_as="generator_unordered")
    try:
        yield from parallel(jobs)
    finally:
        if folder.is_dir() and not any(folder.iterdir()):  # all were refused
            folder.rmdir()


def _train_seed(
    folder: Path,
    config: RunConfig,
    checkpoint_every: int,
    device: str,
    trust: bool,
    spec: EnvSpec | None,
) -> SeedOutcome:
    if spec is not None:  # in the place of an earlier one: processes are used again
        gym.registry[spec.id] = spec
    options: dict[str, Any] = {"checkpoint_every": checkpoint_every, "device": device}
    outcome = train_run(folder, config, trust=trust, **options)
    history = outcome.history
    if history is None:
        history = pd.read_csv(folder / HISTORY, dtype=DTYPES)
    return SeedOutcome(config.seed, folder, history)
