"""UA-DQN as a scikit-learn estimator."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from skuq.base import FloatArray, Uncertainty, UncertaintyMixin
from skuq.uadqn._agent import AGENT_PARAMETERS, Agent, with_quantiles
from skuq.uadqn._estimates import aleatoric_part, epistemic_variance, risk_adjusted_values
from skuq.uadqn._rl import rl_module


class UADQN(UncertaintyMixin, Agent):
    """Deep Q-network that explores what it does not know and avoids what it knows to be risky.

    Uncertainty-aware deep Q-learning (UA-DQN) [1]_ as an estimator. It learns to act in an
    environment with finitely many actions, and says of each action how
    risky its return is (aleatoric) and how little is known about it (epistemic). ``X`` of
    `fit` and `score` are seeds of the environment, so that a search judges parameters on
    worlds not trained on; ``X`` of the other methods are observations. It takes extra ``rl``
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
    n_quantiles : int, default=50
        Quantiles of the return of each action; at least 2.
    epistemic_factor : float, default=2.0
        Beta: standard deviations by which ignorance moves the value of an action while
        learning. 2 is the authors' choice for the grid world, 0.2 the paper's for MinAtar.
    aleatoric_factor : float, default=0.0
        Lambda: standard deviations that are taken off the mean return of each action,
        while learning and after; 0 is risk-neutral.
    aleatoric : {"covariance", "variance"}, default="covariance"
        Unbiased estimate by Eq. 7, or variance of the value network's quantiles (the
        paper's variant 1), which takes ignorance for risk.
    noise_scale : float, default=1.0
        Scale of the noise in the returns; the auxiliary networks keep closer to their prior
        the larger it is.
    learning_rate : float, default=1e-3
        Step size of Adam.
    gamma : float, default=0.99
        Discount factor.
    buffer_size : int, default=100_000
        Transitions kept for learning.
    learning_starts : int, default=200
        Steps before the first update. Actions are chosen by uncertainty from the first.
    batch_size : int, default=32
        Transitions of an update; there is one update per step.
    target_update_interval : int, default=200
        Steps between updates of the target network.
    policy : {"auto", "MlpPolicy", "CnnPolicy", "MultiInputPolicy"}, default="auto"
        Networks; "auto" goes by the shape of observations.
    policy_kwargs : dict, default=None
        Arguments of the policy: ``net_arch``, ``levels``, ``init_gain``, ``prior_gain``, ...
    device : str, default="auto"
        "auto" takes a GPU if there is one.
    random_state : int, RandomState instance or None, default=None
        Seed of networks, exploration and replay. With the same seeds ``X``, an int makes
        runs equal bit for bit on one machine, where the device computes deterministically.
    verbose : int, default=0
        1 shows progress.

    Attributes
    ----------
    algorithm_ : UADQNAlgorithm
        The agent, with everything stable-baselines3 offers.
    history_ : pandas.DataFrame
        One row for each episode of training; columns as `skuq.uadqn._history.Episode`.
    observation_space_, action_space_ : gymnasium.spaces.Space
        Spaces of the environment.
    quantile_levels_ : ndarray of shape (n_quantiles,), float64
        Levels of the quantiles, see `skuq.uadqn._losses.quantile_levels`.

    Notes
    -----
    Uncertainty is in squared return. It refers to returns under the greedy continuation by
    mean return, as QR-DQN learns them (Sec. 2.4 of [1]_ says what that leaves out).
    Defaults are for small environments; `skuq.uadqn._settings` has the paper's.

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

    _parameter_constraints: dict[str, list[Any]] = {
        **AGENT_PARAMETERS,
        "n_quantiles": [Interval(Integral, 2, None, closed="left")],
        "epistemic_factor": [Interval(Real, 0, None, closed="left")],
        "aleatoric_factor": [Interval(Real, 0, None, closed="left")],
        "aleatoric": [StrOptions({"covariance", "variance"})],
        "noise_scale": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        env: Any,
        *,
        total_timesteps: int = 10_000,
        n_quantiles: int = 50,
        epistemic_factor: float = 2.0,
        aleatoric_factor: float = 0.0,
        aleatoric: str = "covariance",
        noise_scale: float = 1.0,
        learning_rate: float = 1e-3,
        gamma: float = 0.99,
        buffer_size: int = 100_000,
        learning_starts: int = 200,
        batch_size: int = 32,
        target_update_interval: int = 200,
        policy: str = "auto",
        policy_kwargs: dict[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.env = env
        self.total_timesteps = total_timesteps
        self.n_quantiles = n_quantiles
        self.epistemic_factor = epistemic_factor
        self.aleatoric_factor = aleatoric_factor
        self.aleatoric = aleatoric
        self.noise_scale = noise_scale
        self.learning_rate = learning_rate
        self.gamma = gamma
        self.buffer_size = buffer_size
        self.learning_starts = learning_starts
        self.batch_size = batch_size
        self.target_update_interval = target_update_interval
        self.policy = policy
        self.policy_kwargs = policy_kwargs
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _make_algorithm(self, policy: str, env: Any, options: dict[str, Any]) -> Any:
        options["policy_kwargs"] = with_quantiles(options["policy_kwargs"], self.n_quantiles)
        return rl_module("_algorithm").UADQNAlgorithm(
            policy,
            env,
            epistemic_factor=self.epistemic_factor,
            aleatoric_factor=self.aleatoric_factor,
            aleatoric=self.aleatoric,
            noise_scale=self.noise_scale,
            **options,
        )

    @property
    def quantile_levels_(self) -> FloatArray:
        check_is_fitted(self)
        levels: FloatArray = self.algorithm_.quantile_net.levels.cpu().numpy().astype(np.float64)
        return levels

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
            value network's quantiles if ``aleatoric="variance"``; epistemic is Eq. 6, half
            their mean squared difference; total is the sum (Prop. 2.2). Arrays of shape
            (n_samples,), or (n_samples, n_actions) if `per_action`.

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

    def _all_quantiles(self, X: Any) -> FloatArray:
        """(n_networks, n_samples, n_actions, n_quantiles), the value network first."""
        check_is_fitted(self)
        quantiles: FloatArray = self._in_batches(self.algorithm_.predict_quantiles, X, axis=1)
        return quantiles.astype(np.float64)
