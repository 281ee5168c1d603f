"""What skorch made, told without importing it."""

from __future__ import annotations

import sys
from typing import Any


def is_skorch_net(model: Any, kind: str = "NeuralNet") -> bool:
    """Whether this is a net of skorch, of the class with that name.

    A net exists only where skorch was imported. To import it for the question alone would make
    each start longer, by seconds where other libraries are installed that skorch looks for.
    """
    skorch = sys.modules.get("skorch")
    return skorch is not None and isinstance(model, getattr(skorch, kind))
