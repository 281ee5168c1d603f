"""Uncertainty-aware deep Q-learning, and its anchored quantile regression for tables.

What needs stable-baselines3 (extra ``rl``) is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from skuq.extras import import_optional

if TYPE_CHECKING:
    from skuq.uadqn.algorithm import QuantileDQN, UADQNAlgorithm
    from skuq.uadqn.baselines import DQNAlgorithm

_HOME = {
    "DQNAlgorithm": "skuq.uadqn.baselines",
    "QuantileDQN": "skuq.uadqn.algorithm",
    "UADQNAlgorithm": "skuq.uadqn.algorithm",
}

__all__ = ["DQNAlgorithm", "QuantileDQN", "UADQNAlgorithm"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'skuq.uadqn' has no attribute {name!r}")
    return getattr(import_optional(_HOME[name], extra="rl"), name)
