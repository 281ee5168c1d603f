"""Regions around points as users specify them: balls, boxes, free features and a domain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skuq.base import FloatArray

NORMS = {"linf": None, "l2": 2, "l1": 1}


@dataclass(frozen=True)
class Neighbourhoods:
    """One region around each point: a box, cut by a ball if the norm is not the maximum norm.

    Attributes
    ----------
    points : ndarray of shape (n, n_features)
        Points that lie in their regions.
    lower, upper : ndarray of shape (n, n_features)
        Boxes.
    radius : ndarray of shape (n,) or None
        Radii of the balls, whose centres are the points.
    norm : int or None
        1 or 2 with a radius.
    """

    points: FloatArray
    lower: FloatArray
    upper: FloatArray
    radius: FloatArray | None
    norm: int | None

    @property
    def free(self) -> NDArray[np.intp]:
        """Indices of the features that vary in any region; the first if there are none."""
        moving = np.flatnonzero((self.upper > self.lower).any(axis=0))
        return moving if len(moving) else np.zeros(1, dtype=np.intp)

    def project(self, points: FloatArray) -> FloatArray:
        """Move points into their regions."""
        points = np.clip(points, self.lower, self.upper)
        if self.radius is None:
            return points
        offset = points - self.points
        distance = np.linalg.norm(offset, ord=self.norm, axis=1)
        share = self.radius * (1 - 1e-12) / np.maximum(distance, 1e-300)
        inside = (distance <= self.radius)[:, None]
        return np.where(inside, points, self.points + share[:, None] * offset)

    def steepest(self, gradient: FloatArray) -> FloatArray:
        """The step within each region along which a function of this gradient grows most."""
        if self.radius is None:
            return np.sign(gradient) * (self.upper - self.lower)
        slope = np.where(self.upper > self.lower, gradient, 0)
        if self.norm == 2:
            size = np.linalg.norm(slope, axis=1, keepdims=True)
            scaled: FloatArray = slope / np.maximum(size, 1e-300) * self.radius[:, None]
            return scaled
        step = np.zeros_like(slope)
        rows, largest = np.arange(len(slope)), np.abs(slope).argmax(axis=1)
        step[rows, largest] = np.sign(slope[rows, largest]) * self.radius
        return step

    def select(self, rows: Any) -> Neighbourhoods:
        """The regions of some of the points."""
        radius = None if self.radius is None else self.radius[rows]
        return Neighbourhoods(
            self.points[rows], self.lower[rows], self.upper[rows], radius, self.norm
        )


def around(
    X: FloatArray,
    radius: Any = None,
    region: Any = None,
    norm: str = "linf",
    features: Any = None,
    domain: Any = None,
) -> Neighbourhoods:
    """Build the regions around points.

    Parameters
    ----------
    X : ndarray of shape (n, n_features)
        Points.
    radius : float or array-like of shape (n,), default=None
        Radius of the ball around each point, in the units of the features.
    region : tuple (lower, upper), default=None
        Boxes instead of balls; each a number or an array that broadcasts to the shape of `X`.
    norm : {"linf", "l2", "l1"}, default="linf"
        Norm of the ball.
    features : array-like of int, default=None
        Indices of the features that vary; the others keep their values. None is all.
    domain : tuple (lower, upper), default=None
        Limits of meaningful inputs, to which regions are clipped.

    Returns
    -------
    Neighbourhoods

    Raises
    ------
    ValueError
        If both or neither of `radius` and `region` are given, if a radius is negative or not
        finite, if a point is outside its region or the domain, or if shapes or features do
        not fit.

    Examples
    --------
    >>> around(np.array([[0.1, 0.5]]), radius=0.25, features=[0], domain=(0, 1)).lower
    array([[0. , 0.5]])
    """
    if (radius is None) == (region is None):
        raise ValueError("Give either `radius` (a ball) or `region` (a box), and not both.")
    check_norm(norm)
    radii = None
    if radius is not None:
        radii = _radii(radius, len(X))
        lower, upper = X - radii[:, None], X + radii[:, None]
    else:
        if norm != "linf":
            raise ValueError(f"`norm`={norm!r} needs a `radius`; a `region` is a box.")
        lower, upper = _limits(region, X, "region")
    if domain is not None:
        least, most = _limits(domain, X, "domain")
        lower, upper = np.maximum(lower, least), np.minimum(upper, most)
    fixed = np.ones(X.shape[1], dtype=bool)
    fixed[_feature_indices(features, X.shape[1])] = False
    lower, upper = np.where(fixed, X, lower), np.where(fixed, X, upper)
    balls = NORMS[norm] is not None
    return Neighbourhoods(X, lower, upper, radii if balls else None, NORMS[norm])


def check_norm(norm: Any) -> None:
    """Raise if this is not the name of a norm."""
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


def _limits(pair: Any, X: FloatArray, name: str) -> tuple[FloatArray, FloatArray]:
    try:
        lower, upper = (np.broadcast_to(np.asarray(end, np.float64), X.shape) for end in pair)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be a pair (lower, upper) of numbers or arrays that broadcast to the "
            f"shape of `X`, {X.shape}."
        ) from error
    if np.isnan(lower).any() or np.isnan(upper).any() or (lower > upper).any():
        raise ValueError(f"`{name}` must have lower limits that do not exceed the upper ones.")
    if name == "region" and not (np.isfinite(lower).all() and np.isfinite(upper).all()):
        raise ValueError("`region` must be finite: no bound is known over unbounded boxes.")
    outside = (lower > X) | (upper < X)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise ValueError(
            f"Point {row} lies outside the {name} in feature {column}: {X[row, column]:g} is not "
            f"between {lower[row, column]:g} and {upper[row, column]:g}."
        )
    return lower, upper


def _feature_indices(features: Any, n_features: int) -> NDArray[np.intp]:
    if features is None:
        return np.arange(n_features)
    indices = np.asarray(features)
    if indices.dtype == bool and indices.shape == (n_features,):
        indices = np.flatnonzero(indices)
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(f"`features` must be a list of feature indices, got {features!r}.")
    if len(indices) == 0 or indices.min() < -n_features or indices.max() >= n_features:
        raise ValueError(
            f"`features` must name at least one of the {n_features} features by its index, got "
            f"{features!r}."
        )
    return np.unique(indices % n_features)
