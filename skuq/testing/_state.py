"""State that a check compares before and after: random streams, and any object's content."""

from __future__ import annotations

import io
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from sklearn.neighbors import BallTree, KDTree


class Stream(NamedTuple):
    """A global random stream: how its state is read, restored and moved on."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    draw: Callable[[], Any]


def global_streams() -> Iterator[Stream]:
    """Those of Python, numpy and, where it is loaded, torch."""
    yield Stream("random", random.getstate, random.setstate, random.random)
    legacy = np.random  # the point is whether anything uses this global state
    yield Stream("numpy.random", legacy.get_state, legacy.set_state, legacy.random_sample)
    torch = sys.modules.get("torch")  # not imported: nothing can have used it
    if torch is not None:
        yield Stream(
            "torch",
            lambda: torch.get_rng_state().numpy(),
            lambda state: torch.set_rng_state(torch.from_numpy(state)),
            lambda: torch.rand(1),
        )


class _ContentPickler(pickle.Pickler):
    """Pickles by content, except search trees: those count their own calls."""

    def persistent_id(self, obj: Any) -> str | None:
        return type(obj).__name__ if isinstance(obj, BallTree | KDTree) else None


def content(value: Any) -> bytes:
    """Bytes that differ before and after if `value` was changed in between."""
    stream = io.BytesIO()
    _ContentPickler(stream).dump(value)
    return stream.getvalue()
