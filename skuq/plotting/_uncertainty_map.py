"""Display of uncertainty as a map over two features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from skuq.base import FloatArray
from skuq.metrics import predicted_part
from skuq.plotting._display import LONGEST_LABEL, Display, legend_above, plain_text, with_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINT_COLOURS = ("#D55E00", "#56B4E9", "#CC79A7", "#E69F00", "#000000")  # visible on viridis
MANY_CLASSES = 5  # with more labels, the legend has a small font
MOST_CLASSES = 20  # points of more labels than this are drawn alike, without a legend
MARGIN = 0.3  # width of the border around the points, as a share of their range
FLAT = 1e-9  # relative range up to which a feature counts as constant
MARKERS = ("o", "^", "s", "D", "v", "P", "X")


class UncertaintyMapDisplay(Display):
    """Map of the uncertainty over two features, with the training points on it.

    Parameters
    ----------
    xx0, xx1 : array-like of shape (n_rows, n_columns)
        First and second feature on a grid, as from `numpy.meshgrid`.
    uncertainty : array-like of shape (n_rows, n_columns)
        Uncertainty at each point of the grid.
    label, unit : str
        Label of the colour bar, and unit of the uncertainty, such as ``"nats"``.
    feature_names : pair of str, default=("feature 0", "feature 1")
        Labels of the axes.
    X : array-like of shape (n_samples, 2), optional
        Points to draw on the map.
    y : array-like of shape (n_samples,), optional
        Labels of the points; each label has its own colour and marker. With more than 20 distinct
        labels, as for the targets of a regressor, all points look the same.

    Attributes
    ----------
    mesh_, colorbar_ : matplotlib QuadMesh and Colorbar
        The map and its colour bar.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.plotting import UncertaintyMapDisplay
    >>> xx0, xx1 = np.meshgrid(np.linspace(-1, 1, 5), np.linspace(-1, 1, 4))
    >>> display = UncertaintyMapDisplay.from_predictions(xx0, xx1, xx0**2 + xx1**2)
    >>> display.mesh_.get_array().shape
    (4, 5)
    """

    def __init__(
        self,
        xx0: ArrayLike,
        xx1: ArrayLike,
        uncertainty: ArrayLike,
        *,
        label: str = "uncertainty",
        unit: str | None = None,
        feature_names: tuple[str, str] = ("feature 0", "feature 1"),
        X: Any = None,
        y: ArrayLike | None = None,
    ) -> None:
        self.xx0, self.xx1 = np.asarray(xx0, np.float64), np.asarray(xx1, np.float64)
        self.uncertainty = np.asarray(uncertainty, np.float64)
        shapes = [array.shape for array in (self.xx0, self.xx1, self.uncertainty)]
        if len(set(shapes)) > 1 or self.xx0.ndim != 2:
            raise ValueError(
                "`xx0`, `xx1` and `uncertainty` must be grids of the same shape "
                f"(n_rows, n_columns), got {', '.join(map(str, shapes))}."
            )
        self.label, self.unit, self.feature_names = label, unit, feature_names
        self.X = None if X is None else _two_columns(X)
        self.y = None if y is None else _labels(y, 0 if self.X is None else len(self.X))

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike | None = None,
        *,
        part: str = "epistemic",
        grid_resolution: int = 80,
        unit: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Predict uncertainty on a grid around the points, and draw the map and the points.

        Parameters
        ----------
        estimator : object
            Estimator of two features that `skuq.predict_uncertainty` accepts.
        X, y : array-like of shape (n_samples, 2) and (n_samples,)
            Points on the map, which determine its range, and their labels. Column names become
            labels of the axes.
        part : {"total", "aleatoric", "epistemic"}, default="epistemic"
            Part of the uncertainty.
        grid_resolution : int, default=80
            Number of grid points along each feature.
        unit, ax : optional
            Unit of the uncertainty, and axes.
        """
        xx0, xx1 = _grid(_two_columns(X), grid_resolution)
        grid: Any = np.column_stack([xx0.ravel(), xx1.ravel()])
        names = getattr(X, "columns", getattr(estimator, "feature_names_in_", None))
        if names is not None:  # an estimator fitted on a DataFrame expects the same columns
            grid = pd.DataFrame(grid, columns=names)
        return cls.from_predictions(
            xx0,
            xx1,
            predicted_part(estimator, grid, part).reshape(xx0.shape),
            X=X,
            y=y,
            label=f"{part} uncertainty",
            unit=unit,
            feature_names=("feature 0", "feature 1") if names is None else tuple(names),
            ax=ax,
        )

    def description(self) -> str:
        low, high = self.uncertainty.min(), self.uncertainty.max()
        features = " and ".join(map(str, self.feature_names))
        return f"Map of {self.label} by {features}: values from {low:.3g} to {high:.3g}."

    def _draw(self) -> None:
        self.mesh_ = self.ax_.pcolormesh(
            self.xx0, self.xx1, self.uncertainty, cmap="viridis", shading="gouraud", rasterized=True
        )
        self.colorbar_ = self.figure_.colorbar(
            self.mesh_, ax=self.ax_, label=with_unit(self.label, self.unit)
        )
        xlabel, ylabel = (plain_text(name, LONGEST_LABEL) for name in self.feature_names)
        self.ax_.set(xlabel=xlabel, ylabel=ylabel)
        if self.X is not None:
            self._plot_points(self.X)

    def _plot_points(self, points: FloatArray) -> None:
        labels = np.zeros(len(points)) if self.y is None else self.y
        classes = np.unique(labels)
        named = self.y is not None and len(classes) <= MOST_CLASSES
        if len(classes) > MOST_CLASSES:
            labels, classes = np.zeros(len(points)), np.zeros(1)
        style: dict[str, Any] = {"s": 30, "edgecolors": "white", "linewidths": 0.8}
        for k, label in enumerate(classes):
            style |= {"marker": MARKERS[k % len(MARKERS)], "label": plain_text(label)}
            colour = POINT_COLOURS[k % len(POINT_COLOURS)] if named else "0.1"
            self.ax_.scatter(*points[labels == label].T, color=colour, **style)
        if named:
            # Use a small font for many classes: a legend of many rows would shrink the map.
            size = "small" if len(classes) > MANY_CLASSES else None
            legend_above(self.ax_, handlelength=1.0, fontsize=size)


def _labels(y: ArrayLike, n_points: int) -> NDArray[Any]:
    labels = np.asarray(y)
    if labels.shape != (n_points,):
        raise ValueError(f"`y` must label the {n_points} points of `X`, got shape {labels.shape}.")
    # Look for NaN in an array of objects: an array of strings would contain the text "nan" instead.
    missing = np.flatnonzero(pd.isna(np.asarray(y, object)))
    if len(missing):
        raise ValueError(
            f"`y` has a missing label in row {missing[0]}; remove such points, or omit `y`."
        )
    return labels


def _two_columns(X: Any) -> FloatArray:
    points = np.asarray(X, np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
        raise ValueError(
            f"`X` must have shape (n_samples, 2), got {points.shape}; a map needs two features."
        )
    return points


def _grid(points: FloatArray, resolution: int) -> tuple[FloatArray, FloatArray]:
    low, high = points.min(axis=0), points.max(axis=0)
    flat = 0.5 * np.maximum(1.0, np.abs(low))
    border = np.where(high - low > FLAT * flat, MARGIN * (high - low), flat)
    sides = np.linspace(low - border, high + border, resolution).T  # (2, resolution)
    xx0, xx1 = np.meshgrid(*sides)
    return xx0, xx1
