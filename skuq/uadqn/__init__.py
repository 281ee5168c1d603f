"""Uncertainty-aware deep Q-learning, and anchored quantile regression for tables.

Names that need stable-baselines3 (extra ``rl``) are imported at the first access. After
``import gymnasium``, ``gymnasium.make("skuq.uadqn:CliffWind-v0")`` finds the environment in any
process, such as the worker processes of stable-baselines3's `SubprocVecEnv`.
"""

import sys
from typing import TYPE_CHECKING

from skuq.extras import import_optional, lazy_names

import_optional("torch", extra=None)
from skuq.uadqn._estimator import UADQN, rl_module
from skuq.uadqn._quantiles import (
    aleatoric_variance,
    bellman_targets,
    epistemic_variance,
    quantile_levels,
    quantile_loss,
    quantile_loss_gradient,
    quantile_variance,
)
from skuq.uadqn._regressor import AnchoredQuantileRegressor

if TYPE_CHECKING:
    from skuq.uadqn._algorithm import QuantileDQN, UADQNAlgorithm
    from skuq.uadqn._baselines import BootstrappedDQN, DQNAlgorithm
    from skuq.uadqn._checkpoint import (
        CheckpointError,
        ExactCheckpointCallback,
        TrainingHistory,
        TrainingProgress,
        latest_checkpoint,
        load_checkpoint,
    )
    from skuq.uadqn._envs import CliffWindEnv, make_env, play_episodes
    from skuq.uadqn._film import Film, FilmError, estimate_action
    from skuq.uadqn._policies import CnnPolicy, GridCNN, GridPolicy, MlpPolicy, MultiInputPolicy
    from skuq.uadqn._run_configs import (
        GRIDWORLD,
        MINATAR,
        RunError,
        make_run_config,
        settings_for,
    )
    from skuq.uadqn._runs import last_saved_step, load_agent, train_run, train_seeds

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
    "quantile_levels",
    "quantile_loss",
    "quantile_loss_gradient",
    "quantile_variance",
    "settings_for",
    "train_run",
    "train_seeds",
]

# Public names that need stable-baselines3, by module.
_MODULES = {
    "_algorithm": ("QuantileDQN", "UADQNAlgorithm"),
    "_baselines": ("BootstrappedDQN", "DQNAlgorithm"),
    "_checkpoint": (
        "CheckpointError",
        "ExactCheckpointCallback",
        "TrainingHistory",
        "TrainingProgress",
        "latest_checkpoint",
        "load_checkpoint",
    ),
    "_envs": ("CliffWindEnv", "make_env", "play_episodes"),
    "_film": ("Film", "FilmError", "estimate_action"),
    "_policies": ("CnnPolicy", "GridCNN", "GridPolicy", "MlpPolicy", "MultiInputPolicy"),
    "_run_configs": ("GRIDWORLD", "MINATAR", "RunError", "make_run_config", "settings_for"),
    "_runs": ("last_saved_step", "load_agent", "train_run", "train_seeds"),
}
__getattr__ = lazy_names(__name__, _MODULES, load=rl_module)

if sys.modules.get("gymnasium") is not None:
    # Importing `_envs` registers the windy cliff. If gymnasium has not been imported yet,
    # registration waits for the first use of a name in `_MODULES`, to keep `import skuq` fast.
    from skuq.uadqn import _envs as _envs
