"""Training of agents: checks of environments' outputs, history, devices and random states."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any, NamedTuple, Self, get_type_hints

import numpy as np
import pandas as pd
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from skuq._networks import resolve_device
from skuq.uadqn._envs import Trusted, check_spaces, refuse_unusable
from skuq.validation import warn_user

_GENERATORS = threading.RLock()


class CheckedAgent(Trusted, OffPolicyAlgorithm):
    """Mixin that raises for unsupported spaces, policies or numbers; warns if no update is made."""

    @classmethod
    def _accepts(cls, policy_class: Any, policy_kwargs: dict[str, Any]) -> bool:
        raise NotImplementedError

    def _setup_model(self) -> None:
        if not self._accepts(self.policy_class, self.policy_kwargs):
            raise ValueError(
                f"{type(self).__name__} cannot use the {self.policy_class.__name__} of a different "
                "algorithm. Pass the name of a policy, such as 'MlpPolicy'; load a saved agent "
                "with the algorithm that saved it."
            )
        super()._setup_model()

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        # Check spaces first: the wrapper of stable-baselines3 fails for spaces without a shape.
        check_spaces(env.observation_space, env.action_space)
        return OffPolicyAlgorithm._wrap_env(env, verbose, monitor_wrapper)

    @classmethod
    def load(cls, path: Any, *args: Any, **settings: Any) -> Self:
        """Load an agent; `settings` can be `trust`, and arguments of `load` or the constructor."""
        known = {"trust", *signature(OffPolicyAlgorithm.load).parameters}
        for owner in cls.__mro__:  # stable-baselines3 would set a misspelt name as an attribute
            known |= set(signature(owner.__init__).parameters)  # type: ignore[misc]
        if unknown := sorted(set(settings) - known):
            raise TypeError(f"{cls.__name__}.load does not accept {', '.join(unknown)}.")
        loaded: Self = super().load(path, *args, **settings)
        return loaded

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        reset_num_timesteps: bool = True,
        *args: Any,
        **options: Any,
    ) -> tuple[int, Any]:
        agent: Any = self
        if not reset_num_timesteps and self.num_timesteps and not agent.replay_buffer.size():
            warn_user(
                f"Training resumes at step {self.num_timesteps} with an empty replay buffer, so "
                "the first updates repeat a few new transitions. `save` does not store the buffer: "
                "save it with save_replay_buffer, and load it with load_replay_buffer before "
                "training resumes."
            )
        given = total_timesteps, callback, reset_num_timesteps
        result = super()._setup_learn(*given, *args, **options)
        self._refuse_unusable("observation", self._last_obs)
        end = int(agent.exploration_fraction * self._total_timesteps)
        starts, total = self.learning_starts, self._total_timesteps
        explores = agent.exploration_initial_eps > agent.exploration_final_eps
        if explores and max(end, self.num_timesteps) <= starts < total:
            warn_user(
                f"Exploration ends at step {end}, before the first update: after learning_starts="
                f"{starts} random steps, epsilon is {agent.exploration_final_eps:g}. Set an "
                f"exploration_fraction well above {starts / total:.2g}, or a lower learning_starts."
            )
        return result

    def _store_transition(
        self, replay_buffer: Any, action: Any, obs: Any, reward: Any, dones: Any, infos: Any
    ) -> None:
        # NaN observations would lead to NaN values, and infinite rewards to infinite targets.
        self._refuse_unusable("reward", reward)
        self._refuse_unusable("observation", obs)
        for i in np.flatnonzero(dones):  # `obs` already belongs to the next episode
            last = infos[i].get("terminal_observation")
            last = {"": last} if not isinstance(last, dict) else last
            batch = {key: np.asarray(part)[None] for key, part in last.items()}
            self._refuse_unusable("last observation", batch, first=int(i))
        super()._store_transition(replay_buffer, action, obs, reward, dones, infos)

    def _refuse_unusable(self, kind: str, values: Any, first: int = 0) -> None:
        """Raise for unusable values of consecutive environments, numbered from `first`."""
        at = f"At step {self.num_timesteps}, the {kind} of environment"
        refuse_unusable(values, lambda i: f"{at} {first + i}")

    def learn(self, *args: Any, **options: Any) -> Self:
        """Train for a number of steps; arguments are as in stable-baselines3."""
        super().learn(*args, **options)
        if not self._n_updates:
            warn_user(
                f"No update was made in {self.num_timesteps} steps, so the agent is untrained: "
                f"updates begin after learning_starts={self.learning_starts} steps. Train for more "
                "steps, or set a smaller learning_starts (in UADQN, a key of algorithm_kwargs)."
            )
        return self


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
      of the return; ``exploratory``: share of actions that do not maximise the agent's own values.
      All three are averaged over environments, and NaN for agents without attribute ``decision``.

    Examples
    --------
    >>> from skuq.uadqn import TrainingHistory, UADQNAlgorithm
    >>> history = TrainingHistory()
    >>> agent = UADQNAlgorithm("MlpPolicy", "CartPole-v1", learning_starts=32, seed=0)
    >>> agent = agent.learn(100, callback=history)
    >>> bool(history.to_frame().score.sum() <= 100)
    True
    """

    def __init__(self) -> None:
        super().__init__()
        self.episodes: list[Episode] = []  # finished episodes, oldest first
        self.running: np.ndarray | None = None  # sums over the steps of unfinished episodes
        self.left_at: Any = None  # last observation when training ended

    def _on_training_start(self) -> None:
        last = self.model._last_obs  # a different object from `left_at` after a reset
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
            counts = int(length), int(falls)
            self.episodes.append(Episode(self.num_timesteps, score, *counts, *means))
            self.running[i] = 0
        return True

    def to_frame(self) -> pd.DataFrame:
        """Return a DataFrame with one row for each episode."""
        return pd.DataFrame(self.episodes, columns=list(Episode._fields)).astype(DTYPES)


def move(algorithm: Any, device: str | torch.device) -> None:
    """Move the networks, optimiser and batches of an agent to a device."""
    # "auto" depends on the size of the value network, the first of the stacked networks.
    weights = [p.detach()[:1] for p in algorithm.quantile_net.trained()]
    there = resolve_device(device, nn.ParameterList(weights))
    there = torch.empty(0, device=there).device  # resolves "cuda" to "cuda:0"
    if algorithm.policy.device == there:
        return
    algorithm.policy.to(there)
    algorithm.device = algorithm.replay_buffer.device = there
    optimizer = algorithm.policy.optimizer
    optimizer.load_state_dict(optimizer.state_dict())  # moves Adam's moments to the device


@contextmanager
def random_states_kept() -> Iterator[None]:
    """After a block, restore the global random generators, from which stable-baselines3 draws.

    A lock admits one block at a time, as threads share Python's, numpy's and torch's generators.
    """
    with _GENERATORS:
        python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
        # Skip CUDA if it is not in use, because reading its states would initialise it.
        opened = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        cpu, cuda = torch.get_rng_state(), torch.cuda.get_rng_state_all() if opened else []
        cudnn = torch.backends.cudnn
        flags = cudnn.deterministic, cudnn.benchmark  # changed when an agent on a GPU is seeded
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002
            torch.set_rng_state(cpu)
            torch.cuda.set_rng_state_all(cuda)
            cudnn.deterministic, cudnn.benchmark = flags
