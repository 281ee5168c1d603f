"""Agents to compare UA-DQN with, behind the same interface."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from skuq.base import FloatArray, Uncertainty, UncertaintyMixin
from skuq.uadqn._agent import AGENT_PARAMETERS, Agent, with_quantiles
from skuq.uadqn._estimates import quantile_variance
from skuq.uadqn._rl import rl_module


class DQNAgent(Agent):
    """Deep Q-network of stable-baselines3 as an estimator; it states no uncertainty.

    Parameters
    ----------
    env, total_timesteps, learning_rate, gamma, buffer_size, learning_starts, batch_size
        As `skuq.UADQN` has them.
    target_update_interval, policy, policy_kwargs, device, random_state, verbose
        As `skuq.UADQN` has them.
    exploration_fraction : float, default=0.2
        Share of the training over which epsilon falls from 1 to its final value.
    exploration_final_eps : float, default=0.05
        Share of random actions after that.

    Attributes
    ----------
    algorithm_, history_, observation_space_, action_space_
        As `skuq.UADQN` has them.

    Examples
    --------
    >>> from skuq.uadqn import DQNAgent
    >>> agent = DQNAgent("CliffWind-v0", total_timesteps=300, random_state=0).fit([0, 1])
    >>> agent.predict([[0, 0, 0, 0, 0, 1, 0, 0, 0, 0]]).shape
    (1,)
    """

    _parameter_constraints: dict[str, list[Any]] = {
        **AGENT_PARAMETERS,
        "exploration_fraction": [Interval(Real, 0, 1, closed="right")],
        "exploration_final_eps": [Interval(Real, 0, 1, closed="both")],
    }
    _algorithm = ("baselines", "DQNAlgorithm")

    def __init__(
        self,
        env: Any,
        *,
        total_timesteps: int = 10_000,
        exploration_fraction: float = 0.2,
        exploration_final_eps: float = 0.05,
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
        self.exploration_fraction = exploration_fraction
        self.exploration_final_eps = exploration_final_eps
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
        module, name = self._algorithm
        return getattr(rl_module(module), name)(
            policy,
            env,
            exploration_fraction=self.exploration_fraction,
            exploration_final_eps=self.exploration_final_eps,
            **options,
        )


class BootstrappedDQNAgent(UncertaintyMixin, DQNAgent):
    """Bootstrapped DQN [1]_ with ten heads: epistemic uncertainty alone.

    Parameters and attributes are those of `DQNAgent`.

    References
    ----------
    .. [1] Osband et al., "Deep Exploration via Bootstrapped DQN", NeurIPS 2016.
    """

    _algorithm = ("baselines", "BootstrappedDQN")

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Variance over heads of the value of the action that `predict` chooses.

        Parameters
        ----------
        X : array-like of shape (n_samples, \\*observation_shape), or dict of them
            Observations.

        Returns
        -------
        Uncertainty
            Squared return, arrays of shape (n_samples,); the aleatoric part is 0, for heads
            learn means alone.
        """
        best = self.predict(X)
        values = self._in_batches(self.algorithm_.predict_q, X, axis=1)
        epistemic = values.var(0, ddof=1)[np.arange(len(best)), best]
        return Uncertainty.from_parts(np.zeros(len(best)), epistemic)


class QRDQNAgent(UncertaintyMixin, DQNAgent):
    """QR-DQN as an estimator: aleatoric uncertainty alone.

    Parameters
    ----------
    env, total_timesteps, learning_rate, gamma, buffer_size, learning_starts, batch_size
        As `skuq.UADQN` has them.
    target_update_interval, policy, policy_kwargs, device, random_state, verbose
        As `skuq.UADQN` has them.
    exploration_fraction, exploration_final_eps
        As `DQNAgent` has them.
    n_quantiles : int, default=50
        Quantiles of the return of each action; at least 2.

    Attributes
    ----------
    algorithm_, history_, observation_space_, action_space_
        As `skuq.UADQN` has them.
    """

    _parameter_constraints: dict[str, list[Any]] = {
        **DQNAgent._parameter_constraints,
        "n_quantiles": [Interval(Integral, 2, None, closed="left")],
    }
    _algorithm = ("algorithm", "QuantileDQN")

    def __init__(
        self,
        env: Any,
        *,
        total_timesteps: int = 10_000,
        n_quantiles: int = 50,
        exploration_fraction: float = 0.2,
        exploration_final_eps: float = 0.05,
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
        super().__init__(
            env,
            total_timesteps=total_timesteps,
            exploration_fraction=exploration_fraction,
            exploration_final_eps=exploration_final_eps,
            learning_rate=learning_rate,
            gamma=gamma,
            buffer_size=buffer_size,
            learning_starts=learning_starts,
            batch_size=batch_size,
            target_update_interval=target_update_interval,
            policy=policy,
            policy_kwargs=policy_kwargs,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.n_quantiles = n_quantiles

    def _make_algorithm(self, policy: str, env: Any, options: dict[str, Any]) -> Any:
        options["policy_kwargs"] = with_quantiles(options["policy_kwargs"], self.n_quantiles)
        return super()._make_algorithm(policy, env, options)

    def predict_quantiles(self, X: Any) -> FloatArray:
        """Quantiles of the return of each action, (n_samples, n_actions, n_quantiles)."""
        check_is_fitted(self)
        (quantiles,) = self._in_batches(self.algorithm_.predict_quantiles, X, axis=1)
        ordered: FloatArray = np.sort(quantiles.astype(np.float64), axis=-1)
        return ordered

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Variance of the quantiles of the action that `predict` chooses.

        Parameters
        ----------
        X : array-like of shape (n_samples, \\*observation_shape), or dict of them
            Observations.

        Returns
        -------
        Uncertainty
            Squared return, arrays of shape (n_samples,); the epistemic part is 0: one
            network claims none, so that what it does not know counts as risk.
        """
        best = self.predict(X)
        variance = quantile_variance(self.predict_quantiles(X))[np.arange(len(best)), best]
        return Uncertainty.from_parts(variance, np.zeros(len(best)))
