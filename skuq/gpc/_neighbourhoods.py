"""Regions, tolerances and search limits as users describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_scalar

from skuq.base import FloatArray
from skuq.gpc.bounds._region_models import Limits
from skuq.gpc.bounds._regions import Region

_ORDERS = {"linf": np.inf, "l2": 2, "l1": 1}


class Around(TypedDict, total=False):
    """Keyword arguments that all methods for regions share; `RobustGPC` describes them."""

    region: Any
    norm: str
    features: Any
    domain: Any
    max_time: float | None
    max_regions: int | None


@dataclass(frozen=True)
class Neighbourhood:
    """Regions around points, as the keyword arguments of an estimator's method describe them."""

    radius: Any = None
    region: Any = None
    norm: str = "linf"
    features: Any = None
    domain: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.norm, str) or self.norm not in _ORDERS:
            raise ValueError(f"`norm` must be 'linf', 'l2' or 'l1', got {self.norm!r}.")

    @property
    def order(self) -> float:
        return _ORDERS[self.norm]

    def around(self, X: FloatArray, names: NDArray[Any] | None = None) -> Region:
        """Build the regions around points; `names` (n_features,) are accepted in `features`."""
        if (self.radius is None) == (self.region is None):
            raise ValueError("Pass exactly one of `radius` (a ball) and `region` (a box).")
        radii = None
        if self.radius is not None:
            radii = one_per_point(self.radius, len(X), "radius")
            lower, upper = X - radii[:, None], X + radii[:, None]
        else:
            if self.norm != "linf":
                raise ValueError(
                    f"norm={self.norm!r} has no effect with `region`, a box; pass `radius`."
                )
            lower, upper = _ends(self.region, X, "region")
        if self.domain is not None:
            least, most = _ends(self.domain, X, "domain")
            lower, upper = np.maximum(lower, least), np.minimum(upper, most)
        free = np.zeros(X.shape[1], dtype=bool)
        free[self.free(X.shape[1], names)] = True
        lower, upper = np.where(free, lower, X), np.where(free, upper, X)
        center, low, high = (torch.from_numpy(part.copy()) for part in (X, lower, upper))
        if radii is None or self.norm == "linf":
            return Region(center, low, high)
        return Region(center, low, high, torch.tensor(radii, device="cpu"), int(self.order))

    def free(self, n_features: int, names: NDArray[Any] | None) -> NDArray[np.intp]:
        """Indices of the features that vary, from indices, names, a mask, or None for all."""
        if self.features is None:
            return np.arange(n_features)
        indices = np.asarray(self.features)
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
        if (
            indices.ndim != 1
            or not np.issubdtype(indices.dtype, np.integer)
            or len(indices) == 0
            or indices.min() < -n_features
            or indices.max() >= n_features
        ):
            raise ValueError(
                f"`features` must be a list of at least one of the {n_features} features by index, "
                f"from 0 to {n_features - 1}, got {self.features!r}."
            )
        return np.unique(indices % n_features)

    def of_rows(self, X: FloatArray, rows: NDArray[np.intp], radii: FloatArray) -> Neighbourhood:
        domain = self.domain
        if domain is not None:
            domain = tuple(end[rows] for end in _ends(domain, X, "domain"))
        return Neighbourhood(radii, None, self.norm, self.features, domain)


def refuse_shape(around: Mapping[str, Any], *names: str) -> None:
    """Refuse keyword arguments of other methods."""
    if given := [name for name in names if name in around]:
        raise TypeError(f"No effect on this method: {', '.join(given)}.")


def one_per_point(value: Any, n: int, name: str, positive: bool = False) -> FloatArray:
    """Broadcast a radius or a tolerance, one number or one per point, to (n,)."""
    values = np.asarray(value, dtype=np.float64)
    if values.shape not in ((), (n,)):
        raise ValueError(
            f"`{name}` must be one number or one per point, shape ({n},); got shape {values.shape}."
        )
    if not np.isfinite(values).all() or (values < 0).any() or (positive and (values == 0).any()):
        least = "above 0" if positive else "not negative"
        raise ValueError(f"`{name}` must be finite and {least}, got {value!r}.")
    return np.broadcast_to(values, (n,)).astype(np.float64)


def _ends(pair: Any, X: FloatArray, name: str) -> tuple[FloatArray, FloatArray]:
    """Lower and upper limits of a box, broadcast to the shape of the points."""
    try:
        lower, upper = (
            np.broadcast_to(_with_open_end(limits, end), X.shape)
            for limits, end in zip(pair, (-np.inf, np.inf), strict=True)
        )
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be a pair (lower, upper) of numbers or arrays that broadcast to the "
            f"shape of `X`, {X.shape}."
        ) from error
    ends = np.array([lower, upper])
    if np.isnan(ends).any() or (name == "region" and np.isinf(ends).any()):
        raise ValueError(f"`{name}` must not contain NaN, and `region` must be finite everywhere.")
    outside = (lower > X) | (upper < X)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise ValueError(
            f"Point {row} lies outside the {name} in feature {column}: {X[row, column]:g} is not "
            f"between {lower[row, column]:g} and {upper[row, column]:g}. Limits per feature are "
            f"passed as `{name}`=(lower, upper) with two arrays, not as one pair per feature."
        )
    return lower, upper


def _with_open_end(limits: Any, end: float) -> FloatArray:
    """Convert limits to floats; None becomes `end`."""
    values = np.asarray(limits)
    if values.dtype == object:  # contains None, which would become NaN
        values = np.where(np.equal(values, np.array(None)), end, values)
    return values.astype(np.float64)


def check_number(value: Any, name: str, positive: bool = False) -> None:
    closed = "neither" if positive else "left"
    check_scalar(value, name, Real, min_val=0, include_boundaries=closed)
    if not np.isfinite(value):
        raise ValueError(f"`{name}` must be a finite number, got {value}.")


def read_limits(tol: float, max_time: float | None, max_regions: int | None) -> Limits:
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
