"""Choice of the policy for an observation space."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

MIN_GRID = 3  # cells that `skuq.uadqn._policies.GridCNN` needs each way
MIN_IMAGE = 36  # pixels that `NatureCNN` of stable-baselines3 does


def policy_for(observation_space: spaces.Space[Any]) -> str:
    """Name of the policy that suits an observation space.

    Examples
    --------
    >>> from gymnasium.spaces import Box
    >>> from skuq.uadqn._spaces import policy_for
    >>> policy_for(Box(0, 1, (10, 10, 4)))
    'CnnPolicy'
    """
    if isinstance(observation_space, spaces.Dict):
        return "MultiInputPolicy"
    shape = observation_space.shape or ()
    smallest = MIN_IMAGE if observation_space.dtype == np.uint8 else MIN_GRID
    if len(shape) == 3 and sorted(shape)[-2] >= smallest:
        return "CnnPolicy"
    return "MlpPolicy"
