"""Checks of environment seeds and of observations."""

from __future__ import annotations

from typing import Any

import numpy as np

from skuq.base import IntArray


def checked_seeds(X: Any) -> IntArray:
    """Seeds as an array (n_seeds,), or a ValueError that says what they should be."""
    seeds = np.asarray(X)
    if seeds.ndim == 2 and seeds.shape[1] == 1:
        seeds = seeds[:, 0]
    if seeds.ndim != 1 or not len(seeds):
        raise ValueError(
            "X must be seeds of the environment, of shape (n_seeds,) or (n_seeds, 1) with at "
            f"least one seed, got shape {np.shape(X)}."
        )
    try:
        whole = [int(seed) for seed in seeds.tolist()] if seeds.dtype.kind in "iufO" else []
    except (TypeError, ValueError, OverflowError):
        whole = []
    if whole != seeds.tolist() or min(whole) < 0 or max(whole) >= 2**63:
        raise ValueError(
            f"Seeds of an environment are integers from 0 to 2**63 - 1, got {seeds[:5]}..."
        )
    return seeds.astype(np.int64)


def checked_observations(X: Any, space: Any) -> Any:
    """Observations of the space's shape and dtype, or a ValueError that says what is wrong."""
    if hasattr(space, "spaces"):
        if not isinstance(X, dict) or set(X) != set(space.spaces):
            raise ValueError(f"Observations must be a dict with keys {sorted(space.spaces)}.")
        parts = {key: checked_observations(X[key], part) for key, part in space.spaces.items()}
        if len({len(part) for part in parts.values()}) > 1:
            sizes = {key: len(part) for key, part in parts.items()}
            raise ValueError(f"Observations have different numbers of samples: {sizes}.")
        return parts
    X = np.asarray(X)
    if X.shape[1:] != space.shape or not X.size:
        hint = "; one observation needs a first axis of length 1" if X.shape == space.shape else ""
        raise ValueError(
            f"Observations must have the shape (n_samples, {', '.join(map(str, space.shape))}) "
            f"with at least one sample, got {X.shape}{hint}."
        )
    if X.dtype.kind not in "biuf":
        raise ValueError(f"Observations must be numbers, got dtype {X.dtype}.")
    return _converted(X, space)


def _converted(X: np.ndarray, space: Any) -> np.ndarray:
    """Numbers in the dtype of a space, which must hold them."""
    with np.errstate(over="ignore", invalid="ignore"):
        converted = X.astype(space.dtype)
    if not np.all(np.isfinite(X)) or not np.all(np.isfinite(converted)):
        raise ValueError(f"Observations contain NaN, or infinity as {space.dtype}.")
    counted = converted.dtype.kind in "iu"  # states or pixels: whole, and among those there are
    if counted and not (np.array_equal(converted, X) and all(map(space.contains, converted))):
        raise ValueError(f"Observations must be elements of {space}, got other values.")
    return converted
