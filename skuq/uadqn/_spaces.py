"""Choice of the policy for an observation space."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space

MIN_GRID = 3  # cells that `skuq.uadqn._policies.GridCNN` needs each way
MIN_IMAGE = 36  # pixels that `NatureCNN` of stable-baselines3 does


def policy_for(observation_space: spaces.Space[Any]) -> str:
    """Name of the policy that suits an observation space.

    Images are those of stable-baselines3: bytes from 0 to 255. Three-dimensional arrays of float
    or bool are grids of (height, width, channels) if they cannot be anything else: smaller than
    an image each way, with no more channels than cells on either side. All others are flattened.

    Examples
    --------
    >>> from gymnasium.spaces import Box
    >>> from skuq.uadqn._spaces import policy_for
    >>> policy_for(Box(0, 1, (10, 10, 4)))
    'GridPolicy'
    """
    if isinstance(observation_space, spaces.Dict):
        return "MultiInputPolicy"
    if is_image_space(observation_space):
        return "CnnPolicy" if is_large_enough(observation_space) else "MlpPolicy"
    return "GridPolicy" if _is_grid(observation_space) else "MlpPolicy"


def is_large_enough(image: spaces.Space[Any]) -> bool:
    """Return whether `NatureCNN` can take images of these shapes, wherever their channels are."""
    return sorted(image.shape or (0, 0))[-2] >= MIN_IMAGE


def _is_grid(space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or len(space.shape) != 3 or space.dtype == np.uint8:
        return False
    height, width, channels = space.shape
    sides = min(height, width), max(height, width)
    return sides[0] >= MIN_GRID and sides[1] < MIN_IMAGE and channels <= sides[0]
