"""Uncertainty-aware deep Q-learning, and its anchored quantile regression for tables.

Parts that need stable-baselines3 (extra ``rl``) are imported when they are used.
"""

from typing import TYPE_CHECKING, Any

from skuq.uadqn._estimator import UADQN
from skuq.uadqn._regressor import AnchoredQuantileRegressor
from skuq.uadqn._rl import rl_module

if TYPE_CHECKING:
    from skuq.uadqn._algorithm import QuantileDQN, UADQNAlgorithm
    from skuq.uadqn._baselines import BootstrappedDQN, DQNAlgorithm
    from skuq.uadqn._envs import CliffWindEnv, make_env

_HOME = {
    "BootstrappedDQN": "_baselines",
    "CliffWindEnv": "_envs",
    "DQNAlgorithm": "_baselines",
    "QuantileDQN": "_algorithm",
    "UADQNAlgorithm": "_algorithm",
    "make_env": "_envs",
}

__all__ = [
    "UADQN",
    "AnchoredQuantileRegressor",
    "BootstrappedDQN",
    "CliffWindEnv",
    "DQNAlgorithm",
    "QuantileDQN",
    "UADQNAlgorithm",
    "make_env",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'skuq.uadqn' has no attribute {name!r}")
    return getattr(rl_module(_HOME[name]), name)
