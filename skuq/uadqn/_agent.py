"""What agents have in common as estimators: environments, seeds, observations."""

from __future__ import annotations

import io
import warnings
from abc import abstractmethod
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from skuq.base import IntArray
from skuq.models import resolve_device
from skuq.uadqn._rl import rl_module

BATCH = 4096  # observations that are evaluated at once

AGENT_PARAMETERS: dict[str, list[Any]] = {
    "env": [str, callable, HasMethods(["reset", "step"])],
    "total_timesteps": [Interval(Integral, 1, None, closed="left")],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "gamma": [Interval(Real, 0, 1, closed="both")],
    "buffer_size": [Interval(Integral, 1, None, closed="left")],
    "learning_starts": [Interval(Integral, 0, None, closed="left")],
    "batch_size": [Interval(Integral, 1, None, closed="left")],
    "target_update_interval": [Interval(Integral, 1, None, closed="left")],
    "policy": [StrOptions({"auto", "MlpPolicy", "CnnPolicy", "MultiInputPolicy"})],
    "policy_kwargs": [dict, None],
    "device": [str, torch.device],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}
# Parameters that every algorithm takes by the same name.
PASSED_ON = (
    "learning_rate",
    "gamma",
    "buffer_size",
    "learning_starts",
    "batch_size",
    "target_update_interval",
)


class Agent(BaseEstimator):
    """Base of agents; subclasses say which algorithm of stable-baselines3 they train."""

    @abstractmethod
    def _make_algorithm(self, policy: str, env: Any, options: dict[str, Any]) -> Any:
        """Build the algorithm, untrained, with options that all of them take."""

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Train in the environment.

        Parameters
        ----------
        X : array-like of shape (n_seeds,) or (n_seeds, 1), of int
            Seeds of the worlds to train in; episodes take them in turn.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter is out of range, seeds are no non-negative integers, there is no
            such environment, or its actions are not discrete.
        ImportError
            If stable-baselines3 is not installed; the message names extra ``rl``.
        """
        seeds = checked_seeds(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        options = {name: getattr(self, name) for name in PASSED_ON}
        options |= {"seed": seed, "device": str(resolve_device(self.device))}
        if self.learning_starts >= self.total_timesteps:
            warnings.warn(
                f"Nothing is learnt in total_timesteps={self.total_timesteps}: the first update "
                f"comes after learning_starts={self.learning_starts} steps.",
                stacklevel=3,  # past scikit-learn's own wrapper
            )
        algorithm, history = rl_module("_training").train(
            lambda policy, env: self._make_algorithm(
                policy, env, options | {"policy_kwargs": dict(self.policy_kwargs or {})}
            ),
            self.env,
            seeds,
            self.total_timesteps,
            policy=self.policy,
            verbose=self.verbose,
        )
        env = algorithm.get_env().envs[0]
        self.algorithm_, self.history_ = algorithm, history
        self.observation_space_, self.action_space_ = env.observation_space, env.action_space
        return self

    def predict(self, X: Any) -> IntArray:
        """Choose the best action after each observation, without exploration.

        Parameters
        ----------
        X : array-like of shape (n_samples, \\*observation_shape), or dict of them
            Observations.

        Returns
        -------
        ndarray of shape (n_samples,), int64
            Actions.

        Raises
        ------
        ValueError
            If observations have another shape than the environment's, or are not finite.
        """
        actions: IntArray = self._in_batches(self._act, X)
        return actions

    def score(self, X: Any, y: Any = None) -> float:
        """Mean return of one episode for each seed, without exploration.

        Parameters
        ----------
        X : array-like of shape (n_seeds,) or (n_seeds, 1), of int
            Seeds of the worlds.
        y : None
            Ignored.

        Returns
        -------
        float
            Undiscounted return, mean over seeds.
        """
        check_is_fitted(self)
        seeds = checked_seeds(X)
        make_env, play = rl_module("_envs").make_env, rl_module("_env_seeds").play_episodes
        return float(play(lambda: make_env(self.env), self._act, seeds).mean())

    def _act(self, observations: Any) -> IntArray:
        actions: IntArray = self.algorithm_.predict(observations, deterministic=True)[0]
        return actions.astype(np.int64)

    def _in_batches(self, function: Any, X: Any, axis: int = 0) -> Any:
        """Apply a function to checked observations, some at a time."""
        check_is_fitted(self)
        X = checked_observations(X, self.observation_space_)
        if isinstance(X, dict):
            n_samples = len(next(iter(X.values())))
            starts = range(0, n_samples, BATCH)
            parts = [{key: x[i : i + BATCH] for key, x in X.items()} for i in starts]
        else:
            parts = [X[i : i + BATCH] for i in range(0, len(X), BATCH)]
        return np.concatenate([function(part) for part in parts], axis=axis)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "algorithm_" in state:
            # Loggers and environments cannot be pickled; the library's own format can.
            stream = io.BytesIO()
            state["algorithm_"].save(stream)
            state["algorithm_"] = (type(state["algorithm_"]), stream.getvalue())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if "algorithm_" in state:
            cls, saved = state["algorithm_"]
            try:
                device = str(resolve_device(state["device"]))
            except ValueError:  # it was trained on a GPU that is not here
                device = "cpu"
            with rl_module("_random").random_states_kept():  # loading seeds them
                state["algorithm_"] = cls.load(io.BytesIO(saved), device=device)
        super().__setstate__(state)


def with_quantiles(policy_kwargs: dict[str, Any], n_quantiles: int) -> dict[str, Any]:
    """Arguments of a policy with the number of quantiles, which must not be there already."""
    if "n_quantiles" in policy_kwargs:
        raise ValueError("n_quantiles is a parameter of its own; leave it out of policy_kwargs.")
    return policy_kwargs | {"n_quantiles": n_quantiles}


def checked_seeds(X: Any) -> IntArray:
    """Seeds as an array (n_seeds,), or a ValueError that says what they should be."""
    seeds = np.asarray(X)
    if seeds.ndim == 2 and seeds.shape[1] == 1:
        seeds = seeds[:, 0]
    if seeds.ndim != 1 or not len(seeds):
        raise ValueError(
            "X must be seeds of the environment, of shape (n_seeds,) or (n_seeds, 1) with at "
            f"least one seed, got shape {np.shape(X)}."
        )
    try:
        whole = [int(seed) for seed in seeds.tolist()] if seeds.dtype.kind in "iufO" else []
    except (TypeError, ValueError, OverflowError):
        whole = []
    if whole != seeds.tolist() or min(whole) < 0 or max(whole) >= 2**63:
        raise ValueError(
            f"Seeds of an environment are integers from 0 to 2**63 - 1, got {seeds[:5]}..."
        )
    return seeds.astype(np.int64)


def checked_observations(X: Any, space: Any) -> Any:
    """Observations of the space's shape and dtype, or a ValueError that says what is wrong."""
    if hasattr(space, "spaces"):
        if not isinstance(X, dict) or set(X) != set(space.spaces):
            raise ValueError(f"Observations must be a dict with keys {sorted(space.spaces)}.")
        parts = {key: checked_observations(X[key], part) for key, part in space.spaces.items()}
        if len({len(part) for part in parts.values()}) > 1:
            sizes = {key: len(part) for key, part in parts.items()}
            raise ValueError(f"Observations have different numbers of samples: {sizes}.")
        return parts
    X = np.asarray(X)
    if X.shape[1:] != space.shape or not X.size:
        hint = "; one observation needs a first axis of length 1" if X.shape == space.shape else ""
        raise ValueError(
            f"Observations must have the shape (n_samples, {', '.join(map(str, space.shape))}) "
            f"with at least one sample, got {X.shape}{hint}."
        )
    if X.dtype.kind not in "biuf":
        raise ValueError(f"Observations must be numbers, got dtype {X.dtype}.")
    return _converted(X, space)


def _converted(X: np.ndarray, space: Any) -> np.ndarray:
    """Numbers in the dtype of a space, which must hold them."""
    with np.errstate(over="ignore", invalid="ignore"):
        converted = X.astype(space.dtype)
    if not np.all(np.isfinite(X)) or not np.all(np.isfinite(converted)):
        raise ValueError(f"Observations contain NaN, or infinity as {space.dtype}.")
    counted = converted.dtype.kind in "iu"  # states or pixels: whole, and among those there are
    if counted and not (np.array_equal(converted, X) and all(map(space.contains, converted))):
        raise ValueError(f"Observations must be elements of {space}, got other values.")
    return converted
