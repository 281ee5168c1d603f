"""Checks of the numbers that certificates are asked for with."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_scalar

from skuq.gpc.bounds._certifier import Limits


def check_number(value: Any, name: str, positive: bool = False) -> None:
    """Raise if a value is no finite number of at least 0, or above 0."""
    closed = "neither" if positive else "left"
    check_scalar(value, name, Real, min_val=0, include_boundaries=closed)
    if not np.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, got {value}.")


def read_limits(tol: float, max_time: float | None, max_regions: int | None) -> Limits:
    """Limits of a search from what a user gave, in which None is no limit."""
    check_number(tol, "tol", positive=True)
    if max_time is not None:
        check_number(max_time, "max_time")
    if max_regions is not None:
        check_scalar(max_regions, "max_regions", Integral, min_val=1)
    return Limits(
        float(tol),
        np.iinfo(np.int64).max if max_regions is None else int(max_regions),
        np.inf if max_time is None else float(max_time),
    )
