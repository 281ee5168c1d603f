"""Checkpoints from which training continues bit for bit.

stable-baselines3 saves networks and settings. Identical continuation also needs the replay
buffer, the environments in the middle of their episodes, and all random generators.

A checkpoint is a folder, complete or not there at all. It holds pickled Python objects: load
only what you trust.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

import skuq
from skuq.files import atomic_folder
from skuq.uadqn._baselines import METHODS
from skuq.uadqn._callbacks import TrainingHistory

MANIFEST, ALGORITHM, BUFFER, STATE = "manifest.json", "algorithm.zip", "buffer.pkl", "state.pkl"
ALGORITHMS = {cls.__name__: cls for cls in METHODS.values()}
LIBRARIES = ("stable-baselines3", "sb3-contrib", "gymnasium", "torch", "numpy")
_GENERATORS = threading.RLock()


class CheckpointError(ValueError):
    """A checkpoint cannot be used; the message says why and what to do."""


def save_checkpoint(
    folder: str | Path, algorithm: Any, history: TrainingHistory, env_name: str
) -> Path:
    """Save everything that is needed to continue training.

    Call it between two steps, as `ExactCheckpointCallback` does.

    Parameters
    ----------
    folder : str or Path
        Folder of the checkpoints; this one is ``step-NNN`` in it. Others are removed once it
        is complete, and one of the same step is replaced.
    algorithm : stable_baselines3 off-policy algorithm
        One of those of `skuq.uadqn`, no subclass of them; its environments must live in this
        process.
    history : TrainingHistory
        Episodes so far.
    env_name : str
        Name of the environment, which `load_checkpoint` compares.

    Returns
    -------
    Path
        The checkpoint.

    Raises
    ------
    CheckpointError
        If the algorithm is another one, or the environments cannot be pickled; then those
        that were saved before stay.
    """
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
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


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
    """The checkpoint with the most steps in a folder; None if there is none."""
    found = sorted(Path(folder).glob("step-*"))
    return found[-1] if found else None


def load_checkpoint(checkpoint: str | Path, env_name: str, device: str = "auto") -> tuple[Any, Any]:
    """Load a checkpoint, and put the global random generators where they were.

    Parameters
    ----------
    checkpoint : str or Path
        What `save_checkpoint` returned.
    env_name : str
        Environment that is expected.
    device : str, default="auto"
        Where to train.

    Returns
    -------
    algorithm : stable_baselines3 algorithm
        Goes on with ``learn(steps_left, reset_num_timesteps=False)``.
    history : TrainingHistory
        Callback for it.

    Raises
    ------
    CheckpointError
        If it is incomplete or damaged, or of another environment or other versions.
    """
    checkpoint = Path(checkpoint)
    manifest = _checked_manifest(checkpoint, env_name)
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
        manifest: dict[str, Any] = json.loads((checkpoint / MANIFEST).read_text())
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

    stable-baselines3's own `CheckpointCallback` saves networks and settings alone.

    Parameters
    ----------
    save_path : str or Path
        Folder of the checkpoints.
    save_freq : int
        Steps from one to the next, those of all environments together.
    history : TrainingHistory
        Callback of the same run; it must come before this one.
    env_name : str
        Name of the environment.
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
