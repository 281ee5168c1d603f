"""UA-DQN as a scikit-learn estimator."""

import io
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from numbers import Integral, Real
from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, _fit_context
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from skuq._networks import resolve_device
from skuq._progress import progress
from skuq.base import FloatArray, IntArray, Uncertainty, UncertaintyMixin, with_index_of
from skuq.imports import import_optional
from skuq.uadqn._quantiles import aleatoric_part, epistemic_variance, risk_adjusted_values
from skuq.validation import warn_user

BATCH = 4096  # maximum number of observations per forward pass
# Settings for the grid world of Sec. 3.1: the paper states only lambda; the other values come from
# the authors' released code.
GRIDWORLD: dict[str, Any] = {
    "epistemic_factor": 2.0,
    "aleatoric_factor": 0.5,
    "learning_rate": 2e-3,
    "gamma": 1.0,
    "algorithm_kwargs": {
        "buffer_size": 10_000,
        "learning_starts": 500,
        "batch_size": 64,
        "target_update_interval": 100,
        "policy_kwargs": {"init_gain": 3.0, "prior_gain": 3.0},
    },
}
# Parameters of `UADQN` that are passed to the algorithm under the same name.
PASSED_ON = (
    "epistemic_factor",
    "aleatoric_factor",
    "aleatoric",
    "noise_scale",
    "learning_rate",
    "gamma",
)
# Arguments that `algorithm_kwargs` must not contain, because parameters of `UADQN` set them.
OWN = {*PASSED_ON, "n_quantiles", "device", "verbose", "env", "policy", "seed"}
_MOVING = Lock()  # only one thread at a time may move an agent to its device for prediction
# Defaults for short runs. The values in the paper are meant for runs of millions of steps.
SMALL = {"learning_starts": 200, "target_update_interval": 200}


def rl_module(name: str) -> Any:
    """Import a module that needs extra ``rl``; raise an ImportError that names the extra."""
    for package in ("gymnasium", "stable_baselines3", "sb3_contrib"):
        import_optional(package, extra="rl")
    return import_module(f"skuq.uadqn.{name}")


@dataclass(repr=False, eq=False)
class UADQN(UncertaintyMixin, BaseEstimator):
    """Deep Q-network that separates risk from lack of experience.

    Uncertainty-aware deep Q-learning (UA-DQN) [1]_ as an estimator. The agent learns to act in an
    environment with a finite set of actions, and predicts two variances of the return of each
    action: aleatoric (the risk due to chance) and epistemic (due to lack of experience). ``X`` of
    `fit` and `score` contains environment seeds; a grid search thus scores hyperparameters on
    held-out seeds. ``X`` of the other methods contains observations. Requires extra ``rl``
    (stable-baselines3). `skuq.uadqn.UADQNAlgorithm` provides the same agent with the interface of
    stable-baselines3.

    Parameters
    ----------
    env : str, callable or gymnasium.Env
        Gymnasium id ("CliffWind-v0", "MinAtar/Breakout-v1", ...), callable that returns a new
        environment, or an environment, which is copied. Actions must be discrete. A fitted agent is
        pickled together with `env`; a lambda as `env` prevents pickling.
    total_timesteps : int, default=10_000
        Number of training steps.
    epistemic_factor : float, default=2.0
        Beta: during training, the value of an action is sampled with this multiple of its
        epistemic standard deviation. The authors use 2 for the grid world and 0.2 for MinAtar.
    aleatoric_factor : float, default=0.0
        Lambda: this multiple of the aleatoric standard deviation is subtracted from the mean
        return of each action, in training and in prediction; 0 is risk-neutral.
    aleatoric : {"covariance", "variance"}, default="covariance"
        Estimate of the aleatoric variance. "covariance" is unbiased (Eq. 7). "variance" is the
        variance over the quantiles of the value network (the paper's variant 1), which counts
        epistemic uncertainty as risk.
    noise_scale : float, default=1.0
        Scale of the assumed noise in returns. A larger scale regularises the auxiliary networks
        more strongly towards their initial weights; 0 switches this prior off.
    learning_rate, gamma : float, default=1e-3 and 0.99
        Learning rate of Adam, and discount factor.
    n_quantiles : int, default=50
        Number of quantiles of the return of each action, at least 2.
    policy : {"auto", "MlpPolicy", "CnnPolicy", "GridPolicy", "MultiInputPolicy"}, default="auto"
        Type of the networks. "CnnPolicy" is for images, "GridPolicy" for small grids (height,
        width, channels). "auto" chooses by the observation space.
    algorithm_kwargs : dict, default=None
        Further arguments of `skuq.uadqn.UADQNAlgorithm`, including arguments of stable-baselines3's
        DQN: ``buffer_size`` (100,000 transitions), ``learning_starts`` (steps before the first
        update, here 200; actions are chosen by uncertainty from the first step), ``batch_size``
        (32), ``target_update_interval`` (steps, here 200), ``policy_kwargs`` (``net_arch``,
        ``levels``, ``init_gain``, ``prior_gain``, ...), and so on.
    device : str, default="auto"
        Device for training and prediction. "auto" is CUDA if it is present and the value network
        has at least 32,768 weights, as for images. Otherwise, it is the CPU, which is then faster.
    random_state : int, RandomState instance or None, default=None
        Seed of networks, exploration and replay. With an int and the same seeds ``X``, runs on one
        machine are bit-identical if the device computes deterministically. Fits in threads run one
        after the other, because stable-baselines3 draws from global generators.
    verbose : int, default=0
        1 shows a progress bar.

    Attributes
    ----------
    algorithm_ : skuq.uadqn.UADQNAlgorithm
        The agent.
    history_ : pandas.DataFrame
        One row for each episode of training; for the columns, see `skuq.uadqn.TrainingHistory`.
    observation_space_, action_space_ : gymnasium.spaces.Space
        Spaces of the environment.
    quantile_levels_ : ndarray of shape (n_quantiles,), float64
        Levels of the quantiles.

    Notes
    -----
    Uncertainty is in squared units of the return. As in QR-DQN, the return is that of a policy
    whose later actions all maximise the mean return (for limitations, see Sec. 2.4 of [1]_).
    Defaults suit small environments.

    References
    ----------
    .. [1] Clements et al., "Estimating Risk and Uncertainty in Deep Reinforcement
       Learning", 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq import UADQN
    >>> agent = UADQN("CliffWind-v0", total_timesteps=300, random_state=0).fit(range(10))
    >>> observations = np.eye(10, dtype=np.float32)  # each cell of the grid
    >>> agent.predict_quantiles(observations).shape  # cells, actions, quantiles
    (10, 4, 50)
    """

    env: Any
    _: KW_ONLY
    total_timesteps: int = 10_000
    epistemic_factor: float = 2.0
    aleatoric_factor: float = 0.0
    aleatoric: str = "covariance"
    noise_scale: float = 1.0
    learning_rate: float = 1e-3
    gamma: float = 0.99
    n_quantiles: int = 50
    policy: str = "auto"
    algorithm_kwargs: dict[str, Any] | None = None
    device: str = "auto"
    random_state: Any = None
    verbose: int = 0

    _parameter_constraints: ClassVar[dict[str, Any]] = {
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

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any = None) -> Self:
        """Train the agent in the environment.

        Parameters
        ----------
        X : array-like of shape (n_seeds,) or (n_seeds, 1), of int
            Environment seeds to train with; episodes cycle through them.
        """
        envs, training = rl_module("_envs"), rl_module("_training")
        seeds = envs.checked_seeds(X)
        options = self._algorithm_options()
        env = envs.SeededEpisodes(envs.make_env(self.env), seeds)
        policy = self.policy
        if policy == "auto":
            policy = rl_module("_policies").policy_for(env.observation_space)
        history = training.TrainingHistory()
        with (
            training.random_states_kept(),
            progress(total=self.total_timesteps, desc="UADQN", verbose=self.verbose) as bar,
        ):
            algorithm = rl_module("_algorithm").UADQNAlgorithm(policy, env, **options)
            training.move(algorithm, self.device)
            if algorithm.device.type == "cuda":
                # stable-baselines3 sets these flags only for an agent that is created on a GPU.
                torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
            callbacks = import_module("stable_baselines3.common.callbacks")
            shown = callbacks.ConvertCallback(lambda *_: bar.update() or True)
            algorithm.learn(self.total_timesteps, callback=[history, shown])
        self.algorithm_, self.history_ = algorithm, history.to_frame()
        self.observation_space_, self.action_space_ = env.observation_space, env.action_space
        return self

    def _algorithm_options(self) -> dict[str, Any]:
        given = SMALL | (self.algorithm_kwargs or {})
        policy_kwargs = given.get("policy_kwargs") or {}
        if twice := set(given) & OWN | set(policy_kwargs) & {"n_quantiles"}:
            raise ValueError(
                f"algorithm_kwargs must not contain {', '.join(sorted(twice))}; set the parameter "
                "of UADQN instead (random_state for the seed)."
            )
        return given | {
            **{name: getattr(self, name) for name in PASSED_ON},
            "seed": int(check_random_state(self.random_state).randint(2**31 - 1)),
            "device": "cpu" if self.device == "auto" else str(resolve_device(self.device)),
            "policy_kwargs": {**policy_kwargs, "n_quantiles": self.n_quantiles},
        }

    def predict(self, X: Any) -> IntArray:
        """Choose the best action (int64) for each observation, without exploration.

        Observations are an array (n_samples, \\*observation_shape), or a dictionary of arrays.
        """
        actions: IntArray = self._in_batches(self._act, X)
        return actions

    def predict_uncertainty(self, X: Any, *, per_action: bool = False) -> Uncertainty:
        """Predict the uncertainty of the return for each observation.

        Parameters
        ----------
        X : array-like of shape (n_samples, \\*observation_shape), or dict of arrays
            Observations.
        per_action : bool, default=False
            Whether to return the uncertainty of all actions. False: only the uncertainty of the
            action that `predict` chooses.

        Returns
        -------
        Uncertainty
            Variances in squared units of the return. Aleatoric: see the parameter `aleatoric`; a
            negative estimate counts as 0. Epistemic (Eq. 7): half the mean squared difference of
            the auxiliary networks. Total: the sum (Prop. 2.2). Arrays have shape (n_samples,); or,
            if `per_action`, shape (n_samples, n_actions), which `to_frame` does not support.
        """
        quantiles, agent = self._all_quantiles(X), self.algorithm_
        if not per_action:
            values = risk_adjusted_values(quantiles, agent.aleatoric_factor, agent.aleatoric)
            quantiles = quantiles[:, np.arange(len(values)), values.argmax(-1)]
        aleatoric = aleatoric_part(quantiles, agent.aleatoric)
        epistemic = epistemic_variance(quantiles[1:])
        return with_index_of(X, Uncertainty.from_parts(aleatoric, epistemic))

    def predict_quantiles(self, X: Any) -> FloatArray:
        """Predict quantiles of each action's return by the value network, in increasing order.

        Shape (n_samples, n_actions, n_quantiles), float64, for the levels `quantile_levels_`;
        observations are as in `predict`.
        """
        return np.sort(self._all_quantiles(X)[0], axis=-1)

    def score(self, X: Any, y: Any = None) -> float:
        """Average the undiscounted returns of one episode per seed in `X`, without exploration."""
        check_is_fitted(self)
        envs = rl_module("_envs")
        seeds = envs.checked_seeds(X)
        self._move()
        played = envs.play_episodes(
            lambda: envs.make_env(self.env), self._act, seeds, max_steps=envs.MAX_STEPS
        )
        if n_cut := sum(not episode.ended for episode in played):
            warn_user(
                f"{n_cut} of {len(played)} episodes had not ended after {envs.MAX_STEPS} steps and "
                "were truncated; wrap the environment in gymnasium's TimeLimit."
            )
        return float(np.mean([episode.score for episode in played]))

    @property
    def quantile_levels_(self) -> FloatArray:
        check_is_fitted(self)
        levels: FloatArray = self.algorithm_.quantile_net.levels.cpu().numpy().astype(np.float64)
        return levels

    def _all_quantiles(self, X: Any) -> FloatArray:
        """Predict quantiles (n_members, n_samples, n_actions, n_quantiles), value network first."""
        check_is_fitted(self)  # checked here, too, because the next line reads `algorithm_`
        quantiles: FloatArray = self._in_batches(self.algorithm_.predict_quantiles, X, axis=1)
        return quantiles.astype(np.float64)

    def _act(self, observations: Any) -> IntArray:
        actions: IntArray = self.algorithm_.predict(observations, deterministic=True)[0]
        return actions.astype(np.int64)

    def _in_batches(self, function: Any, X: Any, axis: int = 0) -> Any:
        check_is_fitted(self)
        X = rl_module("_envs").checked_observations(X, self.observation_space_)
        self._move()
        n_samples = len(next(iter(X.values()))) if isinstance(X, dict) else len(X)
        found = []
        for i in range(0, max(n_samples, 1), BATCH):  # an empty X gives one empty batch
            rows = slice(i, i + BATCH)
            is_dict = isinstance(X, dict)
            found.append(function({key: x[rows] for key, x in X.items()} if is_dict else X[rows]))
        return np.concatenate(found, axis=axis)

    def _move(self) -> None:
        with _MOVING:
            rl_module("_training").move(self.algorithm_, self.device)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "algorithm_" in state:
            # Loggers and environments cannot be pickled; stable-baselines3's format omits them.
            stream = io.BytesIO()
            state["algorithm_"].save(stream)
            state["algorithm_"] = (type(state["algorithm_"]), stream.getvalue())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "algorithm_" in state:
            cls, saved = state["algorithm_"]
            with rl_module("_training").random_states_kept():  # `load` reseeds them
                self.algorithm_ = cls.load(io.BytesIO(saved), device="cpu", trust=True)
