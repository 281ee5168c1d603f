"""Validation of user-specified regions, norms, tolerances and search limits."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_scalar

from skuq.base import FloatArray
from skuq.gpc.bounds._probability_model import Limits
from skuq.gpc.bounds._regions import Region

NORMS = {"linf": None, "l2": 2, "l1": 1}


def around(
    X: FloatArray,
    radius: Any = None,
    region: Any = None,
    norm: str = "linf",
    features: Any = None,
    domain: Any = None,
    names: NDArray[Any] | None = None,
) -> Region:
    """Build the regions around points from the arguments of methods that bound predictions.

    Shapes: `X` (n, n_features); `names` (n_features,), the names accepted in `features`.
    """
    if (radius is None) == (region is None):
        raise ValueError("Pass exactly one of `radius` (a ball) and `region` (a box).")
    check_norm(norm)
    radii = None
    if radius is not None:
        radii = _radii(radius, len(X))
        lower, upper = X - radii[:, None], X + radii[:, None]
    else:
        if norm != "linf":
            raise ValueError(
                f"norm={norm!r} has no effect with `region`, which is a box; pass `radius`."
            )
        lower, upper = limits_of(region, X, "region")
    if domain is not None:
        least, most = limits_of(domain, X, "domain")
        lower, upper = np.maximum(lower, least), np.minimum(upper, most)
    fixed = np.ones(X.shape[1], dtype=bool)
    fixed[feature_indices(features, X.shape[1], names)] = False
    lower, upper = np.where(fixed, X, lower), np.where(fixed, X, upper)
    boxes, order = [torch.from_numpy(part.copy()) for part in (X, lower, upper)], NORMS[norm]
    if radii is None or order is None:
        return Region(*boxes)
    return Region(*boxes, torch.tensor(radii, device="cpu"), order)


def check_norm(norm: Any) -> None:
    """Raise unless this is the name of a norm."""
    if not isinstance(norm, str) or norm not in NORMS:
        raise ValueError(f"`norm` must be 'linf', 'l2' or 'l1', got {norm!r}.")


def _radii(radius: Any, n: int) -> FloatArray:
    values = np.asarray(radius, dtype=np.float64)
    if values.shape not in ((), (n,)):
        raise ValueError(
            f"`radius` must be one number or one per point, shape ({n},); got shape {values.shape}."
        )
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(f"`radius` must be finite and not negative, got {radius!r}.")
    return np.broadcast_to(values, (n,)).astype(np.float64)


def tolerances_of(tolerance: Any, n: int) -> FloatArray:
    """Validate tolerances, one number or one per point, and broadcast them to (n,)."""
    values = np.asarray(tolerance, dtype=np.float64)
    if values.shape not in ((), (n,)):
        raise ValueError(
            f"`tolerance` must be one number or one per point, shape ({n},); got shape "
            f"{values.shape}."
        )
    if not np.isfinite(values).all() or (values <= 0).any():
        raise ValueError(f"`tolerance` must be finite and above 0, got {tolerance!r}.")
    return np.broadcast_to(values, (n,)).astype(np.float64)


def limits_of(pair: Any, X: FloatArray, name: str) -> tuple[FloatArray, FloatArray]:
    """Validate lower and upper limits, and broadcast them to the shape of the points."""
    try:
        lower, upper = pair
        lower = np.broadcast_to(_with_open_ends(lower, -np.inf), X.shape)
        upper = np.broadcast_to(_with_open_ends(upper, np.inf), X.shape)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be a pair (lower, upper) of numbers or arrays that broadcast to the "
            f"shape of `X`, {X.shape}."
        ) from error
    if np.isnan(lower).any() or np.isnan(upper).any():
        hint = "None means no limit" if name == "domain" else "pass numbers"
        raise ValueError(f"`{name}` contains NaN; {hint}.")
    if (lower > upper).any():
        raise ValueError(f"`{name}` must have lower limits that do not exceed the upper ones.")
    if name == "region" and not (np.isfinite(lower).all() and np.isfinite(upper).all()):
        raise ValueError(
            "`region` must be finite, because predictions cannot be bounded over unbounded boxes; "
            "pass numbers instead of infinity or None."
        )
    outside = (lower > X) | (upper < X)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise ValueError(
            f"Point {row} lies outside the {name} in feature {column}: {X[row, column]:g} is not "
            f"between {lower[row, column]:g} and {upper[row, column]:g}. Limits per feature are "
            f"passed as `{name}`=(lower, upper) with two arrays, not as one pair per feature."
        )
    return lower, upper


def _with_open_ends(limits: Any, end: float) -> FloatArray:
    """Convert limits to floats; None becomes infinite."""
    values = np.asarray(limits)
    if values.dtype == object:  # contains None, which would become NaN
        values = np.where(np.equal(values, np.array(None)), end, values)
    return values.astype(np.float64)


def feature_indices(features: Any, n_features: int, names: NDArray[Any] | None) -> NDArray[np.intp]:
    """Convert indices, names or a mask of features to indices; None means all features."""
    if features is None:
        return np.arange(n_features)
    indices = np.asarray(features)
    if indices.dtype.kind in "UO" and indices.ndim == 1:
        known = [] if names is None else list(names)
        unknown = [name for name in indices.tolist() if name not in known]
        if unknown:
            raise ValueError(
                f"`features` contains unknown columns {unknown}; the known columns are {known}."
            )
        indices = np.array([known.index(name) for name in indices.tolist()], dtype=np.intp)
    if indices.dtype == bool and indices.shape == (n_features,):
        indices = np.flatnonzero(indices)
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(f"`features` must be a list of feature indices, got {features!r}.")
    if len(indices) == 0 or indices.min() < -n_features or indices.max() >= n_features:
        raise ValueError(
            f"`features` must select at least one of the {n_features} features by index, from 0 to "
            f"{n_features - 1}, got {features!r}."
        )
    return np.unique(indices % n_features)


def check_no_radius(y: Any, method: str, name: str) -> None:
    """Raise if a number was passed in place of labels."""
    if isinstance(y, Real):
        raise TypeError(
            f"`y` must hold a label for each point, got the number {y}. If this number is "
            f"`{name}`, pass it by name: {method}(X, {name}={y})."
        )


def check_number(value: Any, name: str, positive: bool = False) -> None:
    """Raise unless a value is a finite number >= 0 (or > 0 if `positive`)."""
    closed = "neither" if positive else "left"
    check_scalar(value, name, Real, min_val=0, include_boundaries=closed)
    if not np.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, got {value}.")


def read_limits(tol: float, max_time: float | None, max_regions: int | None) -> Limits:
    """Validate the limits of a search; None means unlimited."""
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
