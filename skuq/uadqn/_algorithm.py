"""UA-DQN and QR-DQN as off-policy algorithms of stable-baselines3."""

from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from sb3_contrib import QRDQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.utils import obs_as_tensor
from torch import Tensor

from skuq.uadqn._envs import ensure_registered
from skuq.uadqn._policies import (
    DECISION_SETTINGS,
    CnnPolicy,
    GridPolicy,
    MlpPolicy,
    MultiInputPolicy,
    StackedQuantileNetwork,
)
from skuq.uadqn._quantiles import (
    aleatoric_part,
    bellman_targets,
    check_estimate,
    epistemic_variance,
    quantile_loss,
    quantile_loss_gradient,
    quantile_variance,
    risk_adjusted_values,
)
from skuq.uadqn._training import CheckedAgent

# Settings of the paper (its Table 1) that differ from the defaults of sb3-contrib.
PAPER: dict[str, Any] = {
    "learning_rate": 1e-4,
    "buffer_size": 100_000,
    "learning_starts": 5_000,
    "train_freq": 1,
    "target_update_interval": 1_000,
    "exploration_fraction": 0.02,
    "exploration_final_eps": 0.03,
}
# Options of epsilon-greedy exploration.
EPSILON = {"exploration_fraction", "exploration_initial_eps", "exploration_final_eps"}


class QuantileDQN(CheckedAgent, QRDQN):
    """QR-DQN of sb3-contrib with the quantile loss of the paper and a faster update.

    The loss is Eq. 1, without the Huber smoothing of sb3-contrib. Exploration is epsilon-greedy, as
    in sb3-contrib. `UADQNAlgorithm` trains its value network in the same way.

    Parameters
    ----------
    policy, env
        As in `UADQNAlgorithm`.
    **options
        Options of `sb3_contrib.QRDQN`. Some defaults are the paper's (its Table 1), not those of
        sb3-contrib, which are in parentheses:
        ``learning_rate`` 0.0001 (0.00005), ``buffer_size`` 100,000 (1,000,000),
        ``learning_starts`` 5,000 (100), ``train_freq`` 1 (4), ``target_update_interval`` 1,000
        (10,000), ``exploration_fraction`` 0.02 (0.005) and ``exploration_final_eps`` 0.03 (0.01).

    Examples
    --------
    >>> from skuq.uadqn import QuantileDQN
    >>> options = {"learning_starts": 32, "exploration_fraction": 0.8}
    >>> agent = QuantileDQN("MlpPolicy", "CartPole-v1", seed=0, **options)
    >>> agent.learn(64).num_timesteps
    64
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "GridPolicy": GridPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    LOSS_INTERVAL: ClassVar[int] = 100  # number of updates between logged losses
    policy: MlpPolicy
    replay_buffer: ReplayBuffer
    quantile_net: StackedQuantileNetwork  # type: ignore[assignment]
    quantile_net_target: StackedQuantileNetwork  # type: ignore[assignment]

    def __init__(self, policy: str | type[MlpPolicy], env: Any, **options: Any):
        ensure_registered(env)
        # Without this entry, sb3-contrib would insert its own optimiser.
        networks = {"optimizer_class": torch.optim.Adam} | (options.get("policy_kwargs") or {})
        super().__init__(policy, env, **(PAPER | options | {"policy_kwargs": networks}))

    @classmethod
    def _accepts(cls, policy_class: Any, policy_kwargs: dict[str, Any]) -> bool:
        return issubclass(policy_class, MlpPolicy) and not policy_kwargs.get("n_auxiliary")

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Update all networks on the same targets, `gradient_steps` times."""
        self._update_learning_rate(self.policy.optimizer)
        for _ in range(gradient_steps):
            update = self.policy.fused_update() if self.max_grad_norm is None else None
            batch = self.replay_buffer.sample(batch_size, self._vec_normalize_env)
            self._n_updates += 1
            with torch.inference_mode(update is not None):
                *reached, outputs = self.quantile_net.evaluate(batch.observations)
                slope = self._loss_gradient(outputs.detach(), batch)
                if update is None:
                    self._update_by_autograd(outputs, slope)
                else:
                    update(reached, slope, self._pull())
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def _update_by_autograd(self, outputs: Tensor, slope: Tensor) -> None:
        networks, optimizer = self.quantile_net, self.policy.optimizer
        optimizer.zero_grad()
        torch.autograd.backward(outputs, slope)
        pull, anchors = self._pull(), getattr(networks, "anchors", [])
        for parameter, anchor in zip(networks.trained(), anchors, strict=False):
            if parameter.grad is not None:  # None if the parameter affects no output
                parameter.grad[1:].add_(parameter.detach()[1:], alpha=pull).sub_(anchor, alpha=pull)
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(networks.trained(), self.max_grad_norm)
        optimizer.step()

    def _loss_gradient(self, outputs: Tensor, batch: Any) -> Tensor:
        """Compute the gradient of the mean loss (Eq. 1) with respect to all networks' outputs."""
        quantiles = outputs.view(*outputs.shape[:2], -1, self.n_quantiles)
        taken = torch.arange(len(outputs[0]), device=outputs.device), batch.actions[:, 0].long()
        given = quantiles[:, *taken], self._targets(batch), self.quantile_net.levels
        if self._n_updates % self.LOSS_INTERVAL == 0:  # the loss itself is only logged
            self.logger.record("train/loss", quantile_loss(*given).mean(1).sum().item())
        slope = torch.zeros_like(quantiles)
        slope[:, *taken] = quantile_loss_gradient(*given) / len(outputs[0])
        return slope.view_as(outputs)

    def predict_quantiles(self, observation: Any) -> np.ndarray:
        """Predict quantiles of the return of each action, by each network.

        Observations are an array (n_samples, \\*observation_shape), or a dictionary of arrays. The
        result (n_members, n_samples, n_actions, n_quantiles) is float32; network 0 predicts values.
        """
        with torch.no_grad():
            observations, _ = self.policy.obs_to_tensor(observation)
            return self.quantile_net.quantiles(observations).cpu().numpy()

    @torch.no_grad()
    def _targets(self, batch: Any) -> Tensor:
        discounts = batch.discounts if batch.discounts is not None else self.gamma
        ahead = self.quantile_net_target.quantiles(batch.next_observations)[0]
        return bellman_targets(ahead, batch.rewards, batch.dones, discounts)

    def _pull(self) -> float:
        """Return the factor of the prior's gradient; 0, because a value network has no prior."""
        return 0.0

    def _on_step(self) -> None:
        self._n_calls += 1
        if self._n_calls % max(self.target_update_interval // self.n_envs, 1) == 0:
            self.policy.update_target(self.tau)
        self.exploration_rate = self.exploration_schedule(self._current_progress_remaining)
        self.logger.record("rollout/exploration_rate", self.exploration_rate)


class Decision(NamedTuple):
    """Uncertainty of the chosen actions' returns, averaged over environments."""

    epistemic: float  # variance in squared units of the return (Eq. 7)
    aleatoric: float  # variance in squared units of the return (Eq. 7)
    exploratory: float  # share of actions that do not maximise the risk-adjusted value


def _setting_of_the_policy(name: str) -> Any:
    """Build a property for a setting that is stored in networks, and thus in exported policies."""

    def get(algorithm: QuantileDQN) -> Any:
        return getattr(algorithm.quantile_net, name)

    def change(algorithm: QuantileDQN, value: Any) -> None:
        _check_settings({name: value})
        setattr(algorithm.quantile_net, name, value)
        algorithm.policy_kwargs[name] = value  # stored by `save`

    return property(get, change)


def _check_settings(settings: dict[str, Any]) -> None:
    """Raise if a setting is out of range, or configures epsilon-greedy exploration."""
    if "aleatoric" in settings:
        check_estimate(settings["aleatoric"])
    for name in {"epistemic_factor", "aleatoric_factor", "noise_scale"} & set(settings):
        if not 0 <= settings[name] < np.inf:  # this form also rejects NaN
            raise ValueError(f"{name} must be non-negative and finite, got {settings[name]}.")
    if refused := EPSILON & set(settings):
        raise TypeError(
            f"UADQNAlgorithm does not accept {', '.join(sorted(refused))}: it explores by "
            "posterior sampling. Set the strength of exploration with epistemic_factor."
        )


class UADQNAlgorithm(QuantileDQN):
    """Uncertainty-aware deep Q-network (UA-DQN) [1]_ for stable-baselines3.

    A value network learns quantiles of returns as in QR-DQN. Two auxiliary networks are trained on
    the same targets, each regularised towards its own random initialisation (randomised MAP
    sampling [2]_). From the first step on, actions are chosen by Thompson sampling: values are
    drawn with mean ``mean - aleatoric_factor * sigma_aleatoric`` and variance
    ``epistemic_factor**2 * sigma_epistemic**2``. Epsilon-greedy exploration is not used.

    Parameters
    ----------
    policy : {"MlpPolicy", "CnnPolicy", "GridPolicy", "MultiInputPolicy"} or type
        "CnnPolicy" is for images, "GridPolicy" for small grids such as MinAtar's,
        "MultiInputPolicy" for dictionaries. Pass the arguments of the policy (``n_quantiles``,
        ``net_arch``, ``init_gain``, ``prior_gain``, ``levels``) as `policy_kwargs`.
    env : gymnasium.Env, VecEnv or str
        Environment with a discrete action space.
    epistemic_factor, aleatoric_factor, aleatoric, noise_scale
        As in `skuq.UADQN`; the default of `epistemic_factor` is 0.2.
    **options
        Options of `QuantileDQN` (`sb3_contrib.QRDQN`), except ``exploration_fraction``,
        ``exploration_initial_eps`` and ``exploration_final_eps``. Defaults are those of
        `QuantileDQN`, not of sb3-contrib: the first update follows after ``learning_starts`` =
        5,000 steps. ``max_grad_norm`` clips the joint gradient of all three networks.

    Attributes
    ----------
    decision : Decision
        Uncertainty of the most recent actions in training, averaged over environments:
        ``epistemic`` and ``aleatoric`` are variances of the chosen actions' returns (Eq. 7), and
        ``exploratory`` is the share of actions that do not maximise the risk-adjusted value.

    References
    ----------
    .. [1] Clements et al., "Estimating Risk and Uncertainty in Deep Reinforcement
       Learning", 2019, Sec. 2.4 and Algorithm 1.
    .. [2] Pearce et al., "Uncertainty in Neural Networks: Approximately Bayesian
       Ensembling", AISTATS 2020.

    Examples
    --------
    >>> from skuq.uadqn import UADQNAlgorithm
    >>> agent = UADQNAlgorithm("MlpPolicy", "CartPole-v1", learning_starts=32, seed=0)
    >>> agent = agent.learn(64)
    >>> agent.decision.epistemic > 0
    True
    """

    DECISION_INTERVAL: ClassVar[int] = 10  # number of steps between logged decisions
    epistemic_factor = _setting_of_the_policy("epistemic_factor")
    aleatoric_factor = _setting_of_the_policy("aleatoric_factor")
    aleatoric = _setting_of_the_policy("aleatoric")

    def __init__(
        self,
        policy: str | type[MlpPolicy],
        env: Any,
        epistemic_factor: float = 0.2,
        aleatoric_factor: float = 0.0,
        aleatoric: str = "covariance",
        noise_scale: float = 1.0,
        policy_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ):
        given = epistemic_factor, aleatoric_factor, aleatoric
        decision = dict(zip(DECISION_SETTINGS, given, strict=True))
        _check_settings(decision | {"noise_scale": noise_scale} | options)
        networks = {"n_auxiliary": 2} | (policy_kwargs or {})
        if networks["n_auxiliary"] < 2:
            raise ValueError(f"n_auxiliary must be at least 2, got {networks['n_auxiliary']}.")
        super().__init__(
            policy,
            env,
            # Disable epsilon-greedy exploration.
            exploration_initial_eps=0.0,
            exploration_final_eps=0.0,
            policy_kwargs=dict(**networks, **decision),  # raises if both contain the same key
            **options,
        )
        self.noise_scale = noise_scale
        # Quantiles and actions of the most recent step, which the property `decision` uses.
        self._last_choice: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def _accepts(cls, policy_class: Any, policy_kwargs: dict[str, Any]) -> bool:
        return issubclass(policy_class, MlpPolicy) and policy_kwargs.get("n_auxiliary", 0) >= 2

    @classmethod
    def load(cls, path: Any, *args: Any, **settings: Any) -> Self:
        """Load a saved agent; arguments are `trust` and those of `sb3_contrib.QRDQN.load`.

        Loading a file can run code: ``trust=True`` states that you trust whoever made the file. Any
        argument of the constructor can be overridden, such as ``aleatoric_factor=1.0``.
        """
        _check_settings(settings)
        decision = {name: settings.pop(name) for name in DECISION_SETTINGS if name in settings}
        algorithm = super().load(path, *args, **settings)
        for name, value in decision.items():
            setattr(algorithm, name, value)
        return algorithm

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        """Choose actions by Thompson sampling or, if `deterministic`, by the highest value."""
        return self.policy.predict(observation, state, episode_start, deterministic)

    def _sample_action(
        self, learning_starts: int, action_noise: Any = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        # Sample from the posterior even before the first update: random actions would ignore risk.
        assert self._last_obs is not None  # set when the environments were reset
        with torch.no_grad():
            observations = obs_as_tensor(self._last_obs, self.device)
            quantiles = self.quantile_net.quantiles(observations).cpu().numpy()
        actions = self.quantile_net.chosen(quantiles)
        self._last_choice = quantiles, actions
        if self.num_timesteps % self.DECISION_INTERVAL < n_envs:
            for name, value in self.decision._asdict().items():
                self.logger.record_mean(f"rollout/{name}", value)
        return actions, actions

    @property
    def decision(self) -> Decision:
        """Uncertainty of the most recent actions in training."""
        if self._last_choice is None:
            return Decision(np.nan, np.nan, np.nan)
        quantiles, actions = self._last_choice
        values = risk_adjusted_values(quantiles, self.aleatoric_factor, self.aleatoric)
        exploratory = float((actions != values.argmax(-1)).mean())
        quantiles = quantiles[:, np.arange(len(actions)), actions]
        epistemic = epistemic_variance(quantiles[1:])  # Eq. 7
        aleatoric = aleatoric_part(quantiles, self.aleatoric)  # Eq. 7
        return Decision(float(epistemic.mean()), float(aleatoric.mean()), exploratory)

    def _pull(self) -> float:
        # The prior adds the loss noise**2 / (prior**2 * n) * |theta - theta_0|**2, where `prior` is
        # the standard deviation of initial weights. Its gradient is `_pull` * (theta - theta_0).
        n_kept = self.replay_buffer.size() * self.n_envs
        return 2 * self.noise_scale**2 / (self.quantile_net.scale_of_anchors**2 * n_kept)

    def learn(self, *args: Any, **options: Any) -> Self:
        """Train for a number of steps; arguments are as in `sb3_contrib.QRDQN.learn`."""
        return super().learn(*args, **{"tb_log_name": "UADQN", **options})


class ActionEstimate(NamedTuple):
    """An agent's estimates of the value and the uncertainty of an action."""

    value: float  # expected return
    epistemic: float  # standard deviation of the return; NaN if it is not estimated
    aleatoric: float  # standard deviation of the return


def estimate_action(algorithm: QuantileDQN, observation: Any, action: int) -> ActionEstimate:
    """Estimate the value and the uncertainty of an action, given one observation.

    Returns
    -------
    ActionEstimate
        The expected return ``value``, and two standard deviations of the return, ``epistemic`` and
        ``aleatoric``. `QuantileDQN` estimates only ``aleatoric``, which then includes epistemic
        uncertainty; ``epistemic`` is NaN.

    Examples
    --------
    >>> from skuq.uadqn import QuantileDQN, estimate_action
    >>> agent = QuantileDQN("MlpPolicy", "CartPole-v1", seed=0)
    >>> estimate_action(agent, agent.get_env().reset()[0], action=1).epistemic
    nan
    """
    quantiles = algorithm.predict_quantiles(observation)[:, 0, action].astype(np.float64)
    value = float(quantiles[0].mean())
    if len(quantiles) < 3:
        return ActionEstimate(value, np.nan, float(quantile_variance(quantiles[0])) ** 0.5)
    aleatoric = aleatoric_part(quantiles, algorithm.policy.quantile_net.aleatoric)
    epistemic = epistemic_variance(quantiles[1:])
    return ActionEstimate(value, float(epistemic) ** 0.5, float(aleatoric) ** 0.5)
