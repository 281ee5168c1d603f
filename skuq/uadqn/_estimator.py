"""UA-DQN as a scikit-learn estimator."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    StrOptions,
    validate_parameter_constraints,
)
from sklearn.utils.validation import check_is_fitted

from skuq.base import FloatArray, IntArray, Uncertainty, UncertaintyMixin
from skuq.extras import import_optional
from skuq.files import atomic_path
from skuq.loading import untrusted
from skuq.networks import resolve_device
from skuq.uadqn._quantiles import aleatoric_part, epistemic_variance, risk_adjusted_values
from skuq.validation import warn_user

SAVED = "uadqn.pkl"  # what `UADQN.save` adds to the file of its algorithm
BATCH = 4096  # observations that are evaluated at once
# Parameters that the algorithm takes by the same name.
PASSED_ON = (
    "epistemic_factor",
    "aleatoric_factor",
    "aleatoric",
    "noise_scale",
    "learning_rate",
    "gamma",
)
# Arguments of the algorithm and its policy that a parameter of the estimator sets.
OWN = {name: name for name in (*PASSED_ON, "n_quantiles", "device", "verbose", "env", "policy")}
OWN["seed"] = "random_state"
# The paper's values are for millions of steps.
SMALL = {"learning_starts": 200, "target_update_interval": 200}


def rl_module(name: str) -> Any:
    """A module of this package that needs extra ``rl``, or an ImportError that names the extra."""
    for package in ("gymnasium", "stable_baselines3", "sb3_contrib"):
        import_optional(package, extra="rl")
    return import_module(f"skuq.uadqn.{name}")


class UADQN(UncertaintyMixin, BaseEstimator):
    """Deep Q-network that explores where it lacks experience and avoids risk.

    Uncertainty-aware deep Q-learning (UA-DQN) [1]_ as an estimator. It learns to act in an
    environment with finitely many actions, and predicts two variances of the return of each
    action: by chance (aleatoric, the risk) and for lack of experience (epistemic). ``X`` of
    `fit` and `score` are seeds of the environment, so that a search evaluates parameters on
    seeds not trained on; ``X`` of the other methods are observations. It needs extra ``rl``
    (stable-baselines3); `skuq.uadqn.UADQNAlgorithm` is the same agent for users of that
    library.

    Parameters
    ----------
    env : str, callable or gymnasium.Env
        Id ("CliffWind-v0", "MinAtar/Breakout-v1", any of gymnasium's), callable that makes
        a new environment, or an environment, which is copied. Actions must be discrete.
        Fitted agents are pickled with it, so a function of a module is better than a lambda.
    total_timesteps : int, default=10_000
        Steps of training.
    epistemic_factor : float, default=2.0
        Beta: the value of an action is sampled with this multiple of its epistemic standard
        deviation while learning. 2 is the authors' choice for the grid world, 0.2 the paper's
        for MinAtar.
    aleatoric_factor : float, default=0.0
        Lambda: multiple of the aleatoric standard deviation that is subtracted from the mean
        return of each action, while learning and after; 0 is risk-neutral.
    aleatoric : {"covariance", "variance"}, default="covariance"
        Unbiased estimate by Eq. 7, or variance of the value network's quantiles (the
        paper's variant 1), which counts epistemic uncertainty as risk.
    noise_scale : float, default=1.0
        Scale of the noise in the returns; the auxiliary networks keep closer to their prior
        the larger it is.
    learning_rate : float, default=1e-3
        Step size of Adam.
    gamma : float, default=0.99
        Discount factor.
    n_quantiles : int, default=50
        Quantiles of the return of each action; at least 2.
    policy : {"auto", "MlpPolicy", "CnnPolicy", "GridPolicy", "MultiInputPolicy"}, default="auto"
        Networks; "auto" goes by the observations. "CnnPolicy" takes images, "GridPolicy"
        small grids (height, width, channels).
    algorithm_kwargs : dict, default=None
        Further arguments of `skuq.uadqn.UADQNAlgorithm`, those of stable-baselines3's DQN
        included: ``buffer_size`` (100,000 transitions), ``learning_starts`` (steps before the
        first update, here 200; actions are chosen by uncertainty from the first step),
        ``batch_size`` (32), ``target_update_interval`` (steps, here 200), ``policy_kwargs``
        (``net_arch``, ``levels``, ``init_gain``, ``prior_gain``, ...), ``prior_scale``, and so
        on. Parameters of this estimator are refused in it.
    device : str, default="auto"
        Where networks learn and predict. "auto" takes CUDA if there is one and the value network
        has 32,768 weights or more, as for images; the CPU is faster for smaller ones.
    random_state : int, RandomState instance or None, default=None
        Seed of networks, exploration and replay. With the same seeds ``X``, an int makes
        runs equal bit for bit on one machine, where the device computes deterministically.
        Fits in threads wait for each other, because stable-baselines3 draws from global generators;
        processes do not.
    verbose : int, default=0
        1 shows progress.

    Attributes
    ----------
    algorithm_ : UADQNAlgorithm
        The agent, with everything stable-baselines3 offers.
    history_ : pandas.DataFrame
        One row for each episode of training; columns as in `skuq.uadqn.TrainingHistory`.
    observation_space_, action_space_ : gymnasium.spaces.Space
        Spaces of the environment.
    quantile_levels_ : ndarray of shape (n_quantiles,), float64
        Levels of the quantiles, see `skuq.uadqn.quantile_levels`.

    Notes
    -----
    Uncertainty is in squared return. It is about returns under greedy continuation by mean
    return, as QR-DQN learns them (limitations in Sec. 2.4 of [1]_). Defaults are for small
    environments; `skuq.uadqn.settings_for` has the paper's.

    References
    ----------
    .. [1] Clements et al., "Estimating Risk and Uncertainty in Deep Reinforcement
       Learning", 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import UADQN
    >>> seeds = np.arange(10)
    >>> agent = UADQN("CliffWind-v0", total_timesteps=300, random_state=0).fit(seeds)
    >>> observations = np.eye(10, dtype=np.float32)  # each cell of the grid
    >>> agent.predict(observations).shape
    (10,)
    >>> agent.predict_uncertainty(observations).epistemic.shape
    (10,)
    >>> agent.predict_quantiles(observations).shape  # cells, actions, quantiles
    (10, 4, 50)
    """

    # Networks take batches of no observations.
    _no_rows: ClassVar[dict[str, Any]] = dict.fromkeys(("predict", "predict_uncertainty"))

    _parameter_constraints: dict[str, list[Any]] = {
        "env": [str, callable, HasMethods(["reset", "step"])],
        "total_timesteps": [Interval(Integral, 1, None, closed="left")],
        "epistemic_factor": [Interval(Real, 0, None, closed="left")],
        "aleatoric_factor": [Interval(Real, 0, None, closed="left")],
        "aleatoric": [StrOptions({"covariance", "variance"})],
        "noise_scale": [Interval(Real, 0, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "gamma": [Interval(Real, 0, 1, closed="both")],
        "n_quantiles": [Interval(Integral, 2, None, closed="left")],
        "policy": [
            StrOptions({"auto", "MlpPolicy", "CnnPolicy", "GridPolicy", "MultiInputPolicy"})
        ],
        "algorithm_kwargs": [dict, None],
        "device": [str, torch.device],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }
    # Those of `algorithm_kwargs` that stable-baselines3 does not check.
    _algorithm_constraints: dict[str, list[Any]] = {
        "buffer_size": [Interval(Integral, 1, None, closed="left")],
        "learning_starts": [Interval(Integral, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "target_update_interval": [Interval(Integral, 1, None, closed="left")],
        "policy_kwargs": [dict, None],
    }

    def __init__(
        self,
        env: Any,
        *,
        total_timesteps: int = 10_000,
        epistemic_factor: float = 2.0,
        aleatoric_factor: float = 0.0,
        aleatoric: str = "covariance",
        noise_scale: float = 1.0,
        learning_rate: float = 1e-3,
        gamma: float = 0.99,
        n_quantiles: int = 50,
        policy: str = "auto",
        algorithm_kwargs: dict[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.env = env
        self.total_timesteps = total_timesteps
        self.epistemic_factor = epistemic_factor
        self.aleatoric_factor = aleatoric_factor
        self.aleatoric = aleatoric
        self.noise_scale = noise_scale
        self.learning_rate = learning_rate
        self.gamma = gamma
        self.n_quantiles = n_quantiles
        self.policy = policy
        self.algorithm_kwargs = algorithm_kwargs
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Train in the environment.

        Parameters
        ----------
        X : array-like of shape (n_seeds,) or (n_seeds, 1), of int
            Seeds of the environment to train with; episodes take them in turn.
        y : None
            Ignored.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter is out of range, seeds are not non-negative integers, there is no
            such environment, its actions are not discrete, or it gives an observation or a reward
            that is not finite, or beyond 1e18 in absolute value.
        ImportError
            If stable-baselines3 is not installed; the message names extra ``rl``.
        """
        envs, callbacks = rl_module("_envs"), rl_module("_checkpoint")
        seeds = envs.checked_seeds(X)
        options = self._algorithm_options()
        if options["learning_starts"] >= self.total_timesteps:
            warn_user(
                f"Nothing is learnt in total_timesteps={self.total_timesteps}: the first update "
                f"comes after learning_starts={options['learning_starts']} steps (a key of "
                "algorithm_kwargs)."
            )
        env = envs.SeededEpisodes(envs.make_env(self.env), seeds)
        policy = self._policy_for(env.observation_space)
        history = callbacks.TrainingHistory()
        shown = [callbacks.TrainingProgress(self.total_timesteps)] if self.verbose else []
        with callbacks.random_states_kept():
            try:
                algorithm = rl_module("_algorithm").UADQNAlgorithm(policy, env, **options)
            except AssertionError as error:  # how stable-baselines3 refuses observations
                raise ValueError(str(error)) from error
            rl_module("_algorithm").move_to_train(algorithm, self.device)
            algorithm.learn(self.total_timesteps, callback=[history, *shown])
        self.algorithm_, self.history_ = algorithm, history.to_frame()
        self.observation_space_, self.action_space_ = env.observation_space, env.action_space
        return self

    def _algorithm_options(self) -> dict[str, Any]:
        """Arguments of the algorithm: those of parameters, and `algorithm_kwargs`, checked."""
        given = SMALL | (self.algorithm_kwargs or {})
        policy_kwargs = given.get("policy_kwargs") or {}
        if twice := set(given) & set(OWN) | set(policy_kwargs) & {"n_quantiles"}:
            own = ", ".join(sorted({OWN[name] for name in twice}))
            raise ValueError(
                f"Leave {', '.join(sorted(twice))} out of algorithm_kwargs: parameters of UADQN "
                f"set it ({own})."
            )
        known = rl_module("_algorithm").names_of_arguments()
        if unknown := sorted(set(given) - set(known)):
            raise ValueError(
                f"algorithm_kwargs has {', '.join(unknown)}, which UADQNAlgorithm does not take; "
                f"known are {', '.join(name for name in known if name not in OWN)}."
            )
        validate_parameter_constraints(
            self._algorithm_constraints, given, caller_name="UADQN(algorithm_kwargs=...)"
        )
        return given | {
            **{name: getattr(self, name) for name in PASSED_ON},
            "seed": int(check_random_state(self.random_state).randint(2**31 - 1)),
            "device": "cpu" if self.device == "auto" else str(resolve_device(self.device)),
            "policy_kwargs": {**policy_kwargs, "n_quantiles": self.n_quantiles},
        }

    def _policy_for(self, observation_space: Any) -> str:
        if self.policy == "auto":
            name: str = rl_module("_policies").policy_for(observation_space)
            return name
        if self.policy == "MultiInputPolicy" and not hasattr(observation_space, "spaces"):
            raise ValueError(
                f"MultiInputPolicy takes dictionaries; for {observation_space} use 'auto'."
            )
        return self.policy

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

    def predict_uncertainty(self, X: Any, *, per_action: bool = False) -> Uncertainty:
        """Predict how uncertain the return is after each observation.

        Parameters
        ----------
        X : array-like of shape (n_samples, \\*observation_shape), or dict of them
            Observations.
        per_action : bool, default=False
            Whether to state it for all actions; else for the one that `predict` chooses.

        Returns
        -------
        Uncertainty
            Squared return. Aleatoric is Eq. 7, the covariance over quantiles of the two
            auxiliary networks (0 where the estimate is negative), or the variance of the
            value network's quantiles if ``aleatoric="variance"``; epistemic is Eq. 7, half
            their mean squared difference; total is the sum (Prop. 2.2). Arrays of shape
            (n_samples,), or (n_samples, n_actions) if `per_action`: then `to_frame` cannot show
            them, and ``DataFrame(u.total)`` shows one part.

        Raises
        ------
        ValueError
            If observations have another shape than the environment's, or are not finite.
        """
        quantiles, agent = self._all_quantiles(X), self.algorithm_
        if not per_action:
            values = risk_adjusted_values(quantiles, agent.aleatoric_factor, agent.aleatoric)
            quantiles = quantiles[:, np.arange(len(values)), values.argmax(-1)]
        aleatoric = aleatoric_part(quantiles, agent.aleatoric)
        epistemic = epistemic_variance(quantiles[1:])
        return Uncertainty.from_parts(aleatoric, epistemic)

    def predict_quantiles(self, X: Any) -> FloatArray:
        """Predict quantiles of the return of each action.

        Parameters
        ----------
        X : array-like of shape (n_samples, \\*observation_shape), or dict of them
            Observations.

        Returns
        -------
        ndarray of shape (n_samples, n_actions, n_quantiles), float64
            Quantiles of the value network at `quantile_levels_`, in rising order.
        """
        quantiles: FloatArray = np.sort(self._all_quantiles(X)[0], axis=-1)
        return quantiles

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean return of one episode for each seed, without exploration.

        Parameters
        ----------
        X : array-like of shape (n_seeds,) or (n_seeds, 1), of int
            Seeds of the environment.
        y : None
            Ignored.

        Returns
        -------
        float
            Undiscounted return, mean over seeds.

        Raises
        ------
        ValueError
            If the environment gives an observation or a reward that is not finite, or beyond 1e18.

        Warns
        -----
        UserWarning
            If an episode had to be cut after 27,000 steps.
        """
        check_is_fitted(self)
        envs = rl_module("_envs")
        seeds = envs.checked_seeds(X)
        self._move()
        played = envs.play_episodes(
            lambda: envs.make_env(self.env), self._act, seeds, max_steps=envs.MAX_STEPS
        )
        n_cut = sum(not episode.ended for episode in played)
        if n_cut:
            warn_user(
                f"{n_cut} of {len(played)} episodes had not ended after {envs.MAX_STEPS} steps and "
                "were cut; wrap the environment in gymnasium's TimeLimit."
            )
        return float(np.mean([episode.score for episode in played]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the fitted agent: parameters, networks and history, without the replay buffer.

        The file is a zip file of stable-baselines3, so `skuq.uadqn.UADQNAlgorithm.load` reads it,
        too.

        Parameters
        ----------
        path : path-like
            File; it is written completely or not at all.
        """
        check_is_fitted(self)
        state = self.__getstate__()
        _, algorithm = state.pop("algorithm_")
        with atomic_path(path) as partial:
            partial.write_bytes(algorithm)
            with zipfile.ZipFile(partial, "a") as archive:
                archive.writestr(SAVED, rl_module("_checkpoint").cloudpickle.dumps(state))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trust: bool = False) -> Self:
        """Load an agent that `save` has written.

        Parameters
        ----------
        path : path-like
            File.
        trust : bool, default=False
            Whether the file may run code of whoever made it, which all of them do: the objects in
            it are pickled. Without it, none is loaded.

        Returns
        -------
        UADQN
            The fitted agent, as it was.

        Raises
        ------
        ValueError
            If the file is not one of `save`, or one of another version of skuq; and without
            `trust`.
        """
        if not trust:
            raise ValueError(untrusted(path))
        content = Path(path).read_bytes()
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                state = pickle.loads(archive.read(SAVED))
        except (
            *(zipfile.BadZipFile, KeyError, pickle.UnpicklingError, EOFError),
            *(ImportError, AttributeError),  # what it names has moved
        ) as error:
            raise ValueError(
                f"{path} was not written by UADQN.save of this version; files of algorithms are "
                "loaded with skuq.uadqn.UADQNAlgorithm.load."
            ) from error
        agent = cls.__new__(cls)
        agent.__setstate__(
            state | {"algorithm_": (rl_module("_algorithm").UADQNAlgorithm, content)}
        )
        return agent

    @property
    def quantile_levels_(self) -> FloatArray:
        check_is_fitted(self)
        levels: FloatArray = self.algorithm_.quantile_net.levels.cpu().numpy().astype(np.float64)
        return levels

    def _all_quantiles(self, X: Any) -> FloatArray:
        """(n_members, n_samples, n_actions, n_quantiles), the value network first."""
        check_is_fitted(self)
        quantiles: FloatArray = self._in_batches(self.algorithm_.predict_quantiles, X, axis=1)
        return quantiles.astype(np.float64)

    def _act(self, observations: Any) -> IntArray:
        actions: IntArray = self.algorithm_.predict(observations, deterministic=True)[0]
        return actions.astype(np.int64)

    def _in_batches(self, function: Any, X: Any, axis: int = 0) -> Any:
        """Apply a function to checked observations, some at a time."""
        check_is_fitted(self)
        X = rl_module("_envs").checked_observations(X, self.observation_space_)
        self._move()
        if isinstance(X, dict):
            starts = _starts(len(next(iter(X.values()))))
            parts = [{key: x[i : i + BATCH] for key, x in X.items()} for i in starts]
        else:
            parts = [X[i : i + BATCH] for i in _starts(len(X))]
        return np.concatenate([function(part) for part in parts], axis=axis)

    def _move(self) -> None:
        """Move the agent to the device, which may have been set after `fit`."""
        module = rl_module("_algorithm")
        module.move(self.algorithm_, module.chosen_device(self.algorithm_, self.device))

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "algorithm_" in state:
            # Loggers and environments cannot be pickled; stable-baselines3's own format can.
            stream = io.BytesIO()
            state["algorithm_"].save(stream)
            state["algorithm_"] = (type(state["algorithm_"]), stream.getvalue())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "algorithm_" in state:
            cls, saved = state["algorithm_"]
            with rl_module("_checkpoint").random_states_kept():  # loading seeds them
                self.algorithm_ = cls.load(io.BytesIO(saved), device="cpu")


def _starts(n_samples: int) -> range:
    """First observations of batches; of no observations there is one batch without any."""
    return range(0, max(n_samples, 1), BATCH)
