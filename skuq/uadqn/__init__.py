"""Uncertainty-aware deep Q-learning, and anchored quantile regression for tables.

Names that need stable-baselines3 (extra ``rl``) are imported at the first access. After
``import gymnasium``, ``gymnasium.make("skuq.uadqn:CliffWind-v0")`` finds the environment in any
process, such as the worker processes of stable-baselines3's `SubprocVecEnv`.
"""

import sys
from typing import TYPE_CHECKING

from skuq.imports import import_optional, lazy_names

import_optional("torch", extra=None)
from skuq.uadqn._estimator import GRIDWORLD, UADQN, rl_module
from skuq.uadqn._quantiles import aleatoric_variance, epistemic_variance
from skuq.uadqn._quantiles import bellman_targets as bellman_targets
from skuq.uadqn._quantiles import quantile_levels as quantile_levels
from skuq.uadqn._quantiles import quantile_loss as quantile_loss
from skuq.uadqn._quantiles import quantile_loss_gradient as quantile_loss_gradient
from skuq.uadqn._regressor import AnchoredQuantileRegressor

if TYPE_CHECKING:
    from skuq.uadqn._algorithm import QuantileDQN, UADQNAlgorithm, estimate_action
    from skuq.uadqn._training import TrainingHistory

__all__ = [
    "GRIDWORLD",
    "UADQN",
    "AnchoredQuantileRegressor",
    "QuantileDQN",
    "TrainingHistory",
    "UADQNAlgorithm",
    "aleatoric_variance",
    "epistemic_variance",
    "estimate_action",
]

# Names that need stable-baselines3, by module; benchmarks use those that are not in `__all__`.
_MODULES = {
    "_algorithm": ("QuantileDQN", "UADQNAlgorithm", "estimate_action"),
    "_envs": ("CliffWindEnv", "ensure_registered", "make_env", "play_episodes"),
    "_networks": ("AGENT_BIASES", "draw_biases", "stacked_mlp"),
    "_policies": ("DictExtractor", "GridCNN", "checked_arch", "image_extractor"),
    "_training": ("CheckedAgent", "TrainingHistory"),
}
__getattr__ = lazy_names(__name__, _MODULES, load=rl_module)

if sys.modules.get("gymnasium") is not None:
    # Importing `_envs` registers the windy cliff. If gymnasium has not been imported yet,
    # registration waits for the first use of a name in `_MODULES`, to keep `import skuq` fast.
    from skuq.uadqn import _envs as _envs
