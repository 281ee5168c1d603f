"""Uncertainty-aware deep Q-learning, and its anchored quantile regression for tables.

What needs stable-baselines3 (extra ``rl``) is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from skuq.uadqn._rl import rl_module
from skuq.uadqn.agents import BootstrappedDQNAgent, DQNAgent, QRDQNAgent
from skuq.uadqn.estimator import UADQN
from skuq.uadqn.regressor import AnchoredQuantileRegressor

if TYPE_CHECKING:
    from skuq.uadqn.algorithm import QuantileDQN, UADQNAlgorithm
    from skuq.uadqn.baselines import BootstrappedDQN, DQNAlgorithm
    from skuq.uadqn.envs import CliffWindEnv, make_env

_HOME = {
    "BootstrappedDQN": "baselines",
    "CliffWindEnv": "envs",
    "DQNAlgorithm": "baselines",
    "QuantileDQN": "algorithm",
    "UADQNAlgorithm": "algorithm",
    "make_env": "envs",
}

__all__ = [
    "UADQN",
    "AnchoredQuantileRegressor",
    "BootstrappedDQN",
    "BootstrappedDQNAgent",
    "CliffWindEnv",
    "DQNAgent",
    "DQNAlgorithm",
    "QRDQNAgent",
    "QuantileDQN",
    "UADQNAlgorithm",
    "make_env",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'skuq.uadqn' has no attribute {name!r}")
    return getattr(rl_module(_HOME[name]), name)
