"""Runs that differ in their seed alone, trained side by side in processes.

Stacked into one computation instead, a CartPole agent's update would take a third less time, one
of MinAtar's games no less (``benchmarks.uadqn_seeds``); and rounding would make each seed's
result depend on its company.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import pandas as pd
from gymnasium.envs.registration import EnvSpec
from joblib import Parallel, delayed

from skuq.uadqn._callbacks import DTYPES
from skuq.uadqn._run_configs import CONFIG, RunConfig, RunError, check_seeds
from skuq.uadqn._runs import HISTORY, is_finished, train_run


class SeedOutcome(NamedTuple):
    """One of the runs of `train_seeds`.

    Attributes
    ----------
    seed : int
        Its seed.
    folder : Path
        Its folder, which every command for runs takes.
    history : pandas.DataFrame
        One row for each episode.
    """

    seed: int
    folder: Path
    history: pd.DataFrame


def train_seeds(
    folder: str | Path,
    config: RunConfig,
    n_seeds: int,
    *,
    n_jobs: int | None = None,
    checkpoint_every: int = 10_000,
    device: str = "auto",
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
    checkpoint_every, device
        As `train_run` takes them.

    Returns
    -------
    iterator of SeedOutcome
        Each run as it is finished.

    Raises
    ------
    RunError
        If there are no such seeds, or a folder holds something else, or a run of another
        configuration, at once and before anything is trained; else as `train_run`.

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
        is_finished(path, each)  # refuses what cannot be continued
    # Processes that are started for the runs know no id that only this one has registered.
    spec = gym.registry.get(config.env)
    jobs = [
        delayed(_train)(path, each, checkpoint_every, device, spec)
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


def _train(
    folder: Path, config: RunConfig, checkpoint_every: int, device: str, spec: EnvSpec | None
) -> SeedOutcome:
    if spec is not None:  # in the place of an earlier one: processes are used again
        gym.registry[spec.id] = spec
    outcome = train_run(folder, config, checkpoint_every=checkpoint_every, device=device)
    history = outcome.history
    if history is None:
        history = pd.read_csv(folder / HISTORY, dtype=DTYPES)
    return SeedOutcome(config.seed, folder, history)
