"""Callbacks of training: its history, a progress bar, and checkpoints.

From a checkpoint, training continues bit for bit. stable-baselines3 saves networks and settings.
Identical continuation also needs the replay buffer, the environments in the middle of their
episodes, and all random generators. A checkpoint is a folder, complete or not there at all, of
pickled Python objects, which run code: it is loaded with ``trust=True`` alone.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import cloudpickle
import numpy as np
import pandas as pd
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from tqdm.auto import tqdm

import skuq
from skuq.files import atomic_folder
from skuq.loading import untrusted
from skuq.uadqn._baselines import METHODS

MANIFEST, ALGORITHM, BUFFER, STATE = "manifest.json", "algorithm.zip", "buffer.pkl", "state.pkl"
ALGORITHMS = {cls.__name__: cls for cls in METHODS.values()}
LIBRARIES = ("stable-baselines3", "sb3-contrib", "gymnasium", "torch", "numpy")
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


DTYPES = get_type_hints(Episode)  # of columns, those of an empty table too


class TrainingHistory(BaseCallback):
    """Callback that keeps a row for each episode of training.

    It works with any algorithm of stable-baselines3. Columns of `to_frame`:

    - ``step``: steps taken in all environments when the episode ended;
    - ``score``: undiscounted return, of rewards as they were before a `VecNormalize`;
    - ``length``: steps in it;
    - ``falls``: steps whose ``info["fell"]`` was true; 0 where environments do not report it;
    - ``epistemic``, ``aleatoric``: mean variances of the chosen actions' returns, squared return;
      NaN for agents that do not estimate them (those without an attribute ``decision``). With
      several environments, means over all of them;
    - ``exploratory``: share of actions that were not the best by the agent's own values; likewise.

    Parameters
    ----------
    episodes : sequence of episodes, default=()
        Those of a training that is continued.

    Attributes
    ----------
    episodes : list
        Finished episodes, oldest first: named tuples with these fields.

    Examples
    --------
    >>> from skuq.uadqn import TrainingHistory, UADQNAlgorithm
    >>> history = TrainingHistory()
    >>> agent = UADQNAlgorithm("MlpPolicy", "CartPole-v1", seed=0)
    >>> agent = agent.learn(100, callback=history)
    >>> bool(history.to_frame().score.sum() <= 100)
    True
    """

    def __init__(self, episodes: Sequence[Episode] = ()):
        super().__init__()
        self.episodes = list(episodes)
        self.running: np.ndarray | None = None  # sums of the unfinished episodes
        self.left_at: Any = None  # observation with which training ended

    def _on_training_start(self) -> None:
        last = self.model._last_obs  # another one after the environments were reset
        if self.model.num_timesteps == 0 or (self.left_at is not None and last is not self.left_at):
            self.running = None  # no episode is unfinished
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
        """DataFrame with one row for each episode."""
        return pd.DataFrame(self.episodes, columns=list(Episode._fields)).astype(DTYPES)


class TrainingProgress(BaseCallback):
    """Progress bar of training, with the mean score of the last episodes.

    Parameters
    ----------
    total_timesteps : int
        Steps at which training ends.
    """

    INTERVAL = 50  # steps from one update of the bar to the next

    def __init__(self, total_timesteps: int):
        super().__init__()
        self.total_timesteps = total_timesteps

    def _on_training_start(self) -> None:
        self.bar = tqdm(
            total=self.total_timesteps, initial=self.num_timesteps, unit="step", mininterval=1.0
        )

    def _on_step(self) -> bool:
        if self.n_calls % self.INTERVAL == 0:
            self._show()
        return True

    def _show(self) -> None:
        self.bar.update(self.num_timesteps - self.bar.n)
        scores = [info["r"] for info in self.model.ep_info_buffer or ()]
        if scores:
            self.bar.set_postfix(score=f"{np.mean(scores):.2f}", refresh=False)

    def _on_training_end(self) -> None:
        self._show()
        self.bar.close()


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message says why and what to do."""


def save_checkpoint(
    folder: str | Path, algorithm: Any, history: TrainingHistory, env_name: str
) -> Path:
    """Save everything that is needed to continue training, between two steps."""
    # The folder is "step-NNN" in `folder`. Others are removed once it is complete, and one of the
    # same step is replaced; if it cannot be written, those that were saved before stay.
    name = type(algorithm).__name__
    if ALGORITHMS.get(name) is not type(algorithm):
        raise CheckpointError(
            f"{name} could not be loaded again; checkpoints are of {', '.join(ALGORITHMS)}."
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    complete = folder / f"step-{algorithm.num_timesteps:012d}"
    # Durable: before the older ones go, a power cut must not take this one.
    with atomic_folder(complete, durable=True) as partial:
        _write_checkpoint(partial, algorithm, history, env_name)
    for other in folder.glob("step-*"):
        if other != complete:
            shutil.rmtree(other)
    return complete


def _write_checkpoint(
    partial: Path, algorithm: Any, history: TrainingHistory, env_name: str
) -> None:
    algorithm.save(partial / ALGORITHM)
    algorithm.save_replay_buffer(partial / BUFFER)
    env, wrappers = _taken_apart(algorithm.env)
    state = {
        "env": env,
        "wrappers": wrappers,
        "action_space": algorithm.action_space,
        "history": (history.episodes, history.running),
        "random": random_states(),
    }
    try:
        (partial / STATE).write_bytes(cloudpickle.dumps(state))
    except Exception as error:  # environments may refuse in any way
        raise CheckpointError(
            f"The environment cannot be pickled ({error}), so a run cannot be continued from "
            "the middle of an episode. Environments in other processes (SubprocVecEnv) cannot."
        ) from error
    manifest = {
        "algorithm": type(algorithm).__name__,
        "env": env_name,
        "step": algorithm.num_timesteps,
        "versions": installed_versions(),
        "sha256": {name: _digest(partial / name) for name in (ALGORITHM, BUFFER, STATE)},
    }
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _taken_apart(env: VecEnv) -> tuple[VecEnv, list[tuple[type, dict[str, Any]]]]:
    """Environments and what is around them, as `_put_together` takes them.

    Wrappers of stable-baselines3 cannot be pickled, or only without what they wrap.
    """
    wrappers = []
    while isinstance(env, VecEnvWrapper):
        left_out = ("venv", "class_attributes")
        state = {name: value for name, value in vars(env).items() if name not in left_out}
        wrappers.append((type(env), state))
        env = env.venv
    return env, wrappers


def _put_together(env: VecEnv, wrappers: list[tuple[type, dict[str, Any]]]) -> VecEnv:
    for cls, state in reversed(wrappers):
        wrapper = cls.__new__(cls)
        members = dict(inspect.getmembers(cls))  # which its own `__init__` looks up
        vars(wrapper).update(state, venv=env, class_attributes=members)
        env = wrapper
    return env


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The checkpoint with the most steps in a folder.

    Parameters
    ----------
    folder : str or Path
        Folder that an `ExactCheckpointCallback` saves to.

    Returns
    -------
    Path or None
        Folder of the checkpoint; None if there is none.
    """
    found = sorted(Path(folder).glob("step-*"))
    return found[-1] if found else None


def load_checkpoint(
    checkpoint: str | Path, env_name: str, device: str = "auto", *, trust: bool = False
) -> tuple[Any, Any]:
    """Load a checkpoint, and put the global random generators where they were.

    Parameters
    ----------
    checkpoint : str or Path
        Folder of the checkpoint, see `latest_checkpoint`.
    env_name : str
        Environment that is expected.
    device : str, default="auto"
        Where to train.
    trust : bool, default=False
        Whether the checkpoint may run code of whoever made it, which all checkpoints do: its
        objects are pickled. Without it, none is loaded.

    Returns
    -------
    algorithm : stable_baselines3 algorithm
        Goes on with ``learn(steps_left, reset_num_timesteps=False)``.
    history : TrainingHistory
        Callback for it.

    Raises
    ------
    CheckpointError
        If it is incomplete or damaged, or of another environment or other versions; and without
        `trust`.
    """
    checkpoint = Path(checkpoint)
    manifest = _checked_manifest(checkpoint, env_name)
    if not trust:
        raise CheckpointError(untrusted(checkpoint))
    cls = ALGORITHMS[manifest["algorithm"]]
    state = cloudpickle.loads((checkpoint / STATE).read_bytes())
    # Its observation is still the last one: a forced reset would begin another episode.
    env = _put_together(state["env"], state["wrappers"])
    algorithm: Any = cls.load(checkpoint / ALGORITHM, env=env, device=device, force_reset=False)
    # The unfinished episode goes on, which a buffer for hindsight would end.
    algorithm.load_replay_buffer(checkpoint / BUFFER, truncate_last_traj=False)
    algorithm.replay_buffer.device = algorithm.device
    algorithm.action_space = state["action_space"]  # loading has seeded it anew
    history = TrainingHistory(state["history"][0])
    history.running, history.left_at = state["history"][1], algorithm._last_obs
    set_random_states(state["random"])
    return algorithm, history


def _checked_manifest(checkpoint: Path, env_name: str) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
        named, env = manifest["algorithm"], manifest["env"]
        versions, digests = manifest["versions"], manifest["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{checkpoint} is not a checkpoint: {error!r}.") from error
    if not isinstance(versions, dict) or not isinstance(digests, dict):
        raise CheckpointError(f"{checkpoint} is not a checkpoint: its manifest is malformed.")
    if env != env_name:
        raise CheckpointError(f"{checkpoint} is of environment {env!r}, not {env_name!r}.")
    other = {name: v for name, v in versions.items() if installed_versions().get(name) != v}
    if other:
        wanted = " ".join(f"{name}=={v}" for name, v in other.items())
        raise CheckpointError(
            f"{checkpoint} was written with other versions; to continue it as it began, "
            f"install {wanted}."
        )
    for name in (ALGORITHM, BUFFER, STATE):
        if not (checkpoint / name).is_file() or _digest(checkpoint / name) != digests.get(name):
            raise CheckpointError(f"{checkpoint / name} is missing, or not as it was written.")
    if named not in ALGORITHMS:
        raise CheckpointError(f"{checkpoint} is of an unknown algorithm {named!r}.")
    return manifest


def installed_versions() -> dict[str, str]:
    return {"skuq": skuq.__version__} | {name: version(name) for name in LIBRARIES}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ExactCheckpointCallback(BaseCallback):
    """Save checkpoints from which training continues bit for bit.

    stable-baselines3's own `CheckpointCallback` saves networks and settings alone. The last
    checkpoint is ``step-NNN`` in the folder; older ones are removed once it is complete.

    Parameters
    ----------
    save_path : str or Path
        Folder of the checkpoints.
    save_freq : int
        Steps from one to the next, those of all environments together.
    history : TrainingHistory
        Callback of the same run; it must come before this one.
    env_name : str
        Name of the environment, which `load_checkpoint` compares.

    Raises
    ------
    CheckpointError
        While training, if the algorithm is none of those of `skuq.uadqn` (a subclass neither), or
        its environments cannot be pickled, such as those in other processes.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from skuq.uadqn import (
    ...     ExactCheckpointCallback, TrainingHistory, UADQNAlgorithm, latest_checkpoint,
    ...     load_checkpoint,
    ... )
    >>> agent, history = UADQNAlgorithm("MlpPolicy", "CartPole-v1", seed=0), TrainingHistory()
    >>> with TemporaryDirectory() as folder:
    ...     saver = ExactCheckpointCallback(folder, 50, history, "CartPole-v1")
    ...     agent = agent.learn(80, callback=[history, saver])
    ...     checkpoint = latest_checkpoint(folder)  # of one's own
    ...     agent, history = load_checkpoint(checkpoint, "CartPole-v1", trust=True)
    >>> agent.num_timesteps
    50
    >>> agent.learn(30, callback=history, reset_num_timesteps=False).num_timesteps
    80
    """

    def __init__(
        self, save_path: str | Path, save_freq: int, history: TrainingHistory, env_name: str
    ):
        super().__init__()
        self.save_path, self.save_freq = save_path, save_freq
        self.history, self.env_name = history, env_name
        self.saved = 0

    def _on_training_start(self) -> None:
        self.saved = self.num_timesteps

    def _on_rollout_start(self) -> None:
        # Here the last step is stored and learnt from; in `_on_step` it is not yet.
        if self.num_timesteps - self.saved >= self.save_freq:
            self.save()

    def save(self) -> None:
        """Save now."""
        save_checkpoint(self.save_path, self.model, self.history, self.env_name)
        self.saved = self.num_timesteps

    def _on_step(self) -> bool:
        return True


def random_states() -> dict[str, Any]:
    """States of Python's, numpy's and torch's global generators."""
    # A GPU that nobody has used yet has no state worth keeping, and asking would open it.
    opened = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - the library's generator is this one
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if opened else [],
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Put back what `random_states` returned; states of GPUs that are not here are left."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    for device, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, device)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Leave the global generators as they were, whatever the block draws or seeds.

    One block at a time: another thread would draw from the same generators.
    """
    with _GENERATORS:
        states = random_states()
        cudnn = torch.backends.cudnn
        flags = cudnn.deterministic, cudnn.benchmark  # seeding for a GPU sets them
        try:
            yield
        finally:
            set_random_states(states)
            cudnn.deterministic, cudnn.benchmark = flags
