"""Labels as text and as codes."""

from __future__ import annotations

from typing import Any

import numpy as np


def as_text(value: Any) -> str:
    """Text of a value; a whole number is written without point, as it is without a hole."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)
