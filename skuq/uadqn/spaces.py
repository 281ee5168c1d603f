"""Which networks suit which observations."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces


def policy_for(observation_space: spaces.Space[Any]) -> str:
    """Name of the policy that suits an observation space.

    Examples
    --------
    >>> from gymnasium.spaces import Box
    >>> from skuq.uadqn.spaces import policy_for
    >>> policy_for(Box(0, 1, (10, 10, 4)))
    'CnnPolicy'
    """
    if isinstance(observation_space, spaces.Dict):
        return "MultiInputPolicy"
    if len(observation_space.shape or ()) == 3:
        return "CnnPolicy"
    return "MlpPolicy"
