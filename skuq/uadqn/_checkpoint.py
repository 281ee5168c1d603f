"""Training callbacks: history, progress bar, and checkpoints.

Training that is resumed from a checkpoint is bit-identical to uninterrupted training.
stable-baselines3 saves only networks and settings. These checkpoints also contain the replay
buffer, the environments in the middle of their episodes, and the states of all random generators. A
checkpoint is a folder that is written atomically. Because it contains pickled Python objects, which
can run code, it is loaded only with ``trust=True``.
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
from skuq.stored import untrusted
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


DTYPES = get_type_hints(Episode)  # dtypes of the columns, needed for an empty table


class TrainingHistory(BaseCallback):
    """Callback that records one row for each training episode.

    It works with any algorithm of stable-baselines3. Columns of `to_frame`:

    - ``step``: number of steps in all environments at the end of the episode;
    - ``score``: undiscounted return, of rewards before normalisation by `VecNormalize`;
    - ``length``: number of steps of the episode;
    - ``falls``: number of steps with a true ``info["fell"]``; 0 if the environment does not report
      it;
    - ``epistemic``, ``aleatoric``: mean variances of the chosen actions' returns, in squared units
      of the return. NaN for agents that do not estimate variances; such agents have no attribute
      ``decision``. Averaged over all environments if there are several;
    - ``exploratory``: share of actions that do not maximise the agent's own values. Averaged over
      environments, and NaN for agents that do not estimate variances.

    Parameters
    ----------
    episodes : sequence of episodes, default=()
        Earlier episodes, if training is resumed.

    Attributes
    ----------
    episodes : list
        Finished episodes, oldest first: named tuples with the columns of `to_frame`.

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
        self.left_at: Any = None  # last observation when training ended

    def _on_training_start(self) -> None:
        last = self.model._last_obs  # not the object in `left_at` if the environments were reset
        if self.model.num_timesteps == 0 or (self.left_at is not None and last is not self.left_at):
            self.running = None  # new episodes begin
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
        """Return a DataFrame with one row for each episode."""
        return pd.DataFrame(self.episodes, columns=list(Episode._fields)).astype(DTYPES)


class TrainingProgress(BaseCallback):
    """Progress bar of training, with the mean score of recent episodes.

    Parameters
    ----------
    total_timesteps : int
        Total number of training steps.
    """

    INTERVAL = 50  # steps between updates of the bar

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
    """Error for a checkpoint that cannot be used; the message states the reason and a remedy."""


def save_checkpoint(
    folder: str | Path, algorithm: Any, history: TrainingHistory, env_name: str
) -> Path:
    """Save a checkpoint from which training can be resumed; call it between two steps."""
    # The checkpoint is the folder "step-NNN" in `folder`. It replaces a checkpoint of the same
    # step. Checkpoints of other steps are removed when the new checkpoint is complete. If the new
    # checkpoint cannot be written, they are kept.
    name = type(algorithm).__name__
    if ALGORITHMS.get(name) is not type(algorithm):
        raise CheckpointError(f"Checkpoints do not support {name}, only {', '.join(ALGORITHMS)}.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    complete = folder / f"step-{algorithm.num_timesteps:012d}"
    # Flush to disk before older checkpoints are removed; otherwise a power cut could destroy both
    # the new and the older checkpoints.
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
    except Exception as error:  # an environment may raise any exception when it is pickled
        raise CheckpointError(
            f"The environment cannot be pickled ({error}), so no checkpoint can be saved. "
            "Environments in other processes (SubprocVecEnv) cannot be pickled either; use "
            "DummyVecEnv."
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
    """Separate the innermost environment from its wrappers; `_put_together` is the inverse.

    Some wrappers of stable-baselines3 cannot be pickled; others can be pickled only without the
    environment that they wrap.
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
        members = dict(inspect.getmembers(cls))  # set by `VecEnvWrapper.__init__`
        vars(wrapper).update(state, venv=env, class_attributes=members)
        env = wrapper
    return env


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Return the checkpoint with the most steps in a folder.

    Parameters
    ----------
    folder : str or Path
        Folder that an `ExactCheckpointCallback` saves to.

    Returns
    -------
    Path or None
        Folder of the checkpoint; None if the folder contains no checkpoint.
    """
    found = sorted(Path(folder).glob("step-*"))
    return found[-1] if found else None


def load_checkpoint(
    checkpoint: str | Path, env_name: str, device: str = "auto", *, trust: bool = False
) -> tuple[Any, Any]:
    """Load a checkpoint and restore the states of the global random generators.

    Parameters
    ----------
    checkpoint : str or Path
        Folder of the checkpoint, see `latest_checkpoint`.
    env_name : str
        Expected name of the environment.
    device : str, default="auto"
        Device for training.
    trust : bool, default=False
        Whether you trust the author of the checkpoint. Because it contains pickled objects, which
        can run arbitrary code, it is loaded only with ``trust=True``.

    Returns
    -------
    algorithm : stable_baselines3 algorithm
        The agent; continue with ``learn(steps_left, reset_num_timesteps=False)``.
    history : TrainingHistory
        Callback to pass to ``learn``.

    Raises
    ------
    CheckpointError
        If the checkpoint is incomplete or damaged, or was written with a different environment or
        different versions of packages, or `trust` is False.
    """
    checkpoint = Path(checkpoint)
    manifest = _checked_manifest(checkpoint, env_name)
    if not trust:
        raise CheckpointError(untrusted(checkpoint))
    cls = ALGORITHMS[manifest["algorithm"]]
    state = cloudpickle.loads((checkpoint / STATE).read_bytes())
    # Do not force a reset: the environments must stay in the middle of their episodes.
    env = _put_together(state["env"], state["wrappers"])
    algorithm: Any = cls.load(checkpoint / ALGORITHM, env=env, device=device, force_reset=False)
    # By default, a hindsight replay buffer would truncate the unfinished episode.
    algorithm.load_replay_buffer(checkpoint / BUFFER, truncate_last_traj=False)
    algorithm.replay_buffer.device = algorithm.device
    algorithm.action_space = state["action_space"]  # loading reseeds it
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
        raise CheckpointError(
            f"{checkpoint} was saved with environment {env!r}, but {env_name!r} was expected."
        )
    other = {name: v for name, v in versions.items() if installed_versions().get(name) != v}
    if other:
        wanted = " ".join(f"{name}=={v}" for name, v in other.items())
        raise CheckpointError(
            f"{checkpoint} was written with different versions of packages; to resume it, install "
            f"{wanted}."
        )
    for name in (ALGORITHM, BUFFER, STATE):
        if not (checkpoint / name).is_file() or _digest(checkpoint / name) != digests.get(name):
            raise CheckpointError(f"{checkpoint / name} is missing, or was changed after saving.")
    if named not in ALGORITHMS:
        raise CheckpointError(f"{checkpoint} has an unknown algorithm {named!r}.")
    return manifest


def installed_versions() -> dict[str, str]:
    return {"skuq": skuq.__version__} | {name: version(name) for name in LIBRARIES}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ExactCheckpointCallback(BaseCallback):
    """Save checkpoints from which training resumes bit-identically.

    stable-baselines3's own `CheckpointCallback` saves only networks and settings. The newest
    checkpoint is the folder ``step-NNN`` in `save_path`; older checkpoints are removed after it is
    complete.

    Parameters
    ----------
    save_path : str or Path
        Folder of the checkpoints.
    save_freq : int
        Number of steps between checkpoints, summed over all environments.
    history : TrainingHistory
        Callback that records the same run. It must precede this callback in the list of callbacks.
    env_name : str
        Name of the environment, which `load_checkpoint` compares with its argument.

    Raises
    ------
    CheckpointError
        During training, if the algorithm is not one of `skuq.uadqn` (subclasses are not supported
        either), or if its environments cannot be pickled, such as environments in other processes.

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
    ...     checkpoint = latest_checkpoint(folder)  # written above, so it can be trusted
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
        # Save here and not in `_on_step`: only now is the last step in the replay buffer, and the
        # training after this step is complete.
        if self.num_timesteps - self.saved >= self.save_freq:
            self.save()

    def save(self) -> None:
        """Save a checkpoint of the current step."""
        save_checkpoint(self.save_path, self.model, self.history, self.env_name)
        self.saved = self.num_timesteps

    def _on_step(self) -> bool:
        return True


def random_states() -> dict[str, Any]:
    """Return the states of Python's, numpy's and torch's global generators."""
    # Omit CUDA's states if CUDA is not initialised, because reading them would initialise it.
    opened = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - used by stable-baselines3
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if opened else [],
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Restore the states that `random_states` returned, except states of absent GPUs."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    for device, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, device)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Restore the states of the global random generators at the end of a block.

    Because threads share the generators, a lock admits one block at a time.
    """
    with _GENERATORS:
        states = random_states()
        cudnn = torch.backends.cudnn
        flags = cudnn.deterministic, cudnn.benchmark  # changed when an agent on a GPU is seeded
        try:
            yield
        finally:
            set_random_states(states)
            cudnn.deterministic, cudnn.benchmark = flags
