"""Uncertainty-aware deep Q-learning, and its anchored quantile regression for tables.

Parts that need stable-baselines3 (extra ``rl``) are imported when they are used. After
``import gymnasium``, ``gymnasium.make("skuq.uadqn:CliffWind-v0")`` finds the environment in any
process, such as those of stable-baselines3's `SubprocVecEnv`.
"""

from typing import TYPE_CHECKING, Any

from skuq.uadqn._estimator import UADQN
from skuq.uadqn._losses import (
    aleatoric_part,
    aleatoric_variance,
    bellman_targets,
    epistemic_variance,
    prior_scale,
    quantile_levels,
    quantile_loss,
    quantile_loss_gradient,
    quantile_variance,
    risk_adjusted_values,
)
from skuq.uadqn._optional_imports import HOME, register_ids, rl_object
from skuq.uadqn._regressor import AnchoredQuantileRegressor

if TYPE_CHECKING:
    from skuq.uadqn._algorithm import QuantileDQN, UADQNAlgorithm
    from skuq.uadqn._baselines import BootstrappedDQN, DQNAlgorithm
    from skuq.uadqn._callbacks import Episode, TrainingHistory, TrainingProgress
    from skuq.uadqn._checkpoint import (
        CheckpointError,
        ExactCheckpointCallback,
        latest_checkpoint,
        load_checkpoint,
        save_checkpoint,
    )
    from skuq.uadqn._envs import CliffWindEnv, make_env, play_episodes
    from skuq.uadqn._extractors import GridCNN
    from skuq.uadqn._film import Film, FilmError, estimate_action
    from skuq.uadqn._policies import CnnPolicy, GridPolicy, MlpPolicy, MultiInputPolicy
    from skuq.uadqn._run_configs import (
        GRIDWORLD,
        MINATAR,
        RunError,
        make_run_config,
        settings_for,
    )
    from skuq.uadqn._runs import last_saved_step, load_agent, train_run
    from skuq.uadqn._seeds import train_seeds

__all__ = [
    "GRIDWORLD",
    "MINATAR",
    "UADQN",
    "AnchoredQuantileRegressor",
    "BootstrappedDQN",
    "CheckpointError",
    "CliffWindEnv",
    "CnnPolicy",
    "DQNAlgorithm",
    "Episode",
    "ExactCheckpointCallback",
    "Film",
    "FilmError",
    "GridCNN",
    "GridPolicy",
    "MlpPolicy",
    "MultiInputPolicy",
    "QuantileDQN",
    "RunError",
    "TrainingHistory",
    "TrainingProgress",
    "UADQNAlgorithm",
    "aleatoric_part",
    "aleatoric_variance",
    "bellman_targets",
    "epistemic_variance",
    "estimate_action",
    "last_saved_step",
    "latest_checkpoint",
    "load_agent",
    "load_checkpoint",
    "make_env",
    "make_run_config",
    "play_episodes",
    "prior_scale",
    "quantile_levels",
    "quantile_loss",
    "quantile_loss_gradient",
    "quantile_variance",
    "risk_adjusted_values",
    "save_checkpoint",
    "settings_for",
    "train_run",
    "train_seeds",
]


register_ids()


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'skuq.uadqn' has no attribute {name!r}")
    return rl_object(name)
