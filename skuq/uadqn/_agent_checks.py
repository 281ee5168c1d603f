"""Checks for all algorithms: of saved agents and of the options of `load`; training warnings."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any, Self

from stable_baselines3.common.logger import HumanOutputFormat, Logger
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from skuq.uadqn._finite import FiniteExperience
from skuq.validation import warn_user

# Name of the algorithm for the name of each policy: a saved agent contains its policy, but not the
# name of its algorithm.
_ALGORITHM_OF = {
    "MlpPolicy": "QuantileDQN",
    "BootstrappedPolicy": "BootstrappedDQN",
    "DQNMlpPolicy": "DQNAlgorithm",
    "DQNPolicy": "DQN",
    "QRDQNPolicy": "QRDQN",
}
# Attributes that the arguments of `load`, but not those of the constructors, can set.
_ATTRIBUTES = {"n_envs", "num_timesteps"}


class UnsuitablePolicyError(ValueError):
    """Error for a policy that an algorithm cannot train."""

    def __init__(self, policy_class: type, algorithm: str, own: str):
        super().__init__(
            f"{algorithm} cannot use {policy_class.__name__}, the policy of {own}. Pass the name "
            "of a policy, such as 'MlpPolicy'."
        )
        self.own = own  # algorithm to which the policy belongs


class CheckedAgent(FiniteExperience):
    """Mixin that refuses agents of other algorithms and unknown options, and warns after training.

    It warns of an agent that was never updated, and of training that resumes without its replay
    buffer.
    """

    @classmethod
    def _accepts(cls, policy_class: Any, policy_kwargs: dict[str, Any]) -> bool:
        """Whether a policy is one that the algorithm creates, or a subclass of it."""
        raise NotImplementedError

    @classmethod
    def _arguments(cls) -> set[str]:
        """Names of all arguments of the constructor, except policy and env."""
        names: set[str] = set()
        for owner in cls.__mro__:
            if "__init__" in vars(owner):
                parameters = signature(vars(owner)["__init__"]).parameters.values()
                named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
                names |= {each.name for each in parameters if each.kind in named}
                if all(each.kind is not Parameter.VAR_KEYWORD for each in parameters):
                    break  # without **kwargs, this constructor passes no further arguments on
        return names - {"self", "policy", "env", "_init_setup_model"}

    def _setup_model(self) -> None:
        policy, kwargs = self.policy_class, self.policy_kwargs
        if not self._accepts(policy, kwargs):
            own = _algorithm_of(policy, kwargs)
            raise UnsuitablePolicyError(policy, type(self).__name__, own)
        super()._setup_model()

    @classmethod
    def load(cls, path: Any, *args: Any, **options: Any) -> Self:
        """Load a saved agent; arguments are as in stable-baselines3.

        Any argument of the constructor can be overridden.
        """
        of_load = set(signature(OffPolicyAlgorithm.load).parameters) - {"path", "kwargs"}
        known = cls._arguments() | _ATTRIBUTES | of_load
        for name in options:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                meant = f"Did you mean {close[0]}?" if close else f"It accepts {sorted(known)}."
                raise TypeError(f"{cls.__name__}.load does not accept {name!r}. {meant}")
        loaded: Self
        try:
            loaded = super().load(path, *args, **options)
        except UnsuitablePolicyError as error:
            file = path if isinstance(path, str | os.PathLike) else "The file"
            raise ValueError(
                f"{file} holds an agent of {error.own}, which {cls.__name__} cannot load. Load it "
                f"with {error.own}, or train a {cls.__name__} anew."
            ) from error
        return loaded

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: Any = None,
        reset_num_timesteps: bool = True,
        *args: Any,
        **options: Any,
    ) -> tuple[int, Any]:
        buffer: Any = self.replay_buffer
        if not reset_num_timesteps and self.num_timesteps and not buffer.size():
            warn_user(
                f"Training resumes at step {self.num_timesteps} with an empty replay buffer, so "
                "the first updates repeat a few new transitions. `save` does not store the buffer: "
                "save it with save_replay_buffer, and load it with load_replay_buffer before "
                "training resumes."
            )
        custom = self._custom_logger
        if not custom and self.tensorboard_log is None and "SB3_LOGDIR" not in os.environ:
            # The default logger of stable-baselines3 writes no file either, but leaves an empty
            # folder among the temporary files for each training.
            self.set_logger(Logger(None, [HumanOutputFormat(sys.stdout)] if self.verbose else []))
        try:
            return super()._setup_learn(
                total_timesteps, callback, reset_num_timesteps, *args, **options
            )
        finally:
            self._custom_logger = custom

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


def _algorithm_of(policy_class: Any, policy_kwargs: dict[str, Any]) -> str:
    """Name of the algorithm whose agents have the given policy."""
    if policy_kwargs.get("n_auxiliary"):
        return "UADQNAlgorithm"
    names = [each.__name__ for each in policy_class.__mro__]
    known = (_ALGORITHM_OF[name] for name in names if name in _ALGORITHM_OF)
    return next(known, f"the algorithm that uses {names[0]}")
