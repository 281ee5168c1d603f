"""The global random states that stable-baselines3 draws from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_states() -> dict[str, Any]:
    """States of Python's, numpy's and torch's global generators."""
    # A GPU that nobody has used yet has no state worth keeping, and asking would open it.
    opened = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - the library's generator is this one
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if opened else [],
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Put back what `random_states` returned; states of GPUs that are not here are left."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    for device, state in enumerate(states["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(state, device)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Leave the global generators as they were, whatever the block draws or seeds."""
    states = random_states()
    cudnn = torch.backends.cudnn
    flags = cudnn.deterministic, cudnn.benchmark  # seeding for a GPU sets them
    try:
        yield
    finally:
        set_random_states(states)
        cudnn.deterministic, cudnn.benchmark = flags
