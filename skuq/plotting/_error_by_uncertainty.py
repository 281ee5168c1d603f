"""Display of prediction errors against predicted standard deviations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import chi2

from skuq.base import FloatArray, IntArray
from skuq.plotting._display import (
    COLOURS,
    Display,
    check_drawable,
    equal_groups,
    legend_above,
    plain_text,
    with_unit,
)
from skuq.quantities import predicted_gaussian, values_and_gaussian

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MISSED = 0.05  # probability that any group lies outside its bar by chance
# Axes are logarithmic if the standard deviations, or the errors, of the groups differ by more than
# this factor.
LOG_RATIO = 10.0
BEYOND = 1e6  # factor by which the dashed line extends beyond the groups


class ErrorByUncertaintyDisplay(Display):
    """Prediction errors of a regressor against predicted standard deviations.

    Each dot is a row. Each point is a group of rows with similar predicted standard deviations: the
    root mean squared error of the group against the root mean square of its predicted standard
    deviations. On the dashed line, errors are as large as predicted. Above this line, errors are
    larger than predicted: the model is overconfident. For Gaussian errors, all points lie within
    the vertical bars around the dashed line with a probability of at least 95%. A point far above
    the other points may be due to a single row. Axes are logarithmic if the groups differ by more
    than a factor of ten.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,)
        True and predicted values.
    std : array-like of shape (n_samples,)
        Predicted standard deviations of the values, including noise, in units of the target;
        ``std > 0``.
    n_groups : int, default=10
        Number of groups of about equal size; rows with equal `std` are in the same group.
    unit : str, optional
        Unit of the target.
    name : str, optional
        Title.

    Attributes
    ----------
    error, std : ndarray of shape (n_samples,), float64
        Absolute errors, and the predicted standard deviations as given.
    group_error, group_std : ndarray of shape (n_groups,), float64
        Root mean square of the errors, and of the standard deviations, in each group. Ties can
        reduce the number of groups.
    count : ndarray of shape (n_groups,), int64
        Number of rows of each group.
    log : bool
        Whether the axes are logarithmic.
    unit, name
        As given.
    ax_, figure_ : matplotlib Axes and Figure
        Axes and figure of the last plot.

    References
    ----------
    .. [1] Levi, Gispan, Giladi, Fetaya, "Evaluating and Calibrating Uncertainty Prediction in
       Regression Tasks", Sensors 22(15), 2022.

    Examples
    --------
    >>> from skuq.plotting import ErrorByUncertaintyDisplay
    >>> display = ErrorByUncertaintyDisplay.from_predictions(
    ...     [1.0, 2.0, 8.0, 5.0], [1.5, 2.0, 4.0, 9.0], std=[1.0, 1.0, 4.0, 5.0], n_groups=2
    ... )
    >>> display.group_error.round(2), display.group_std.round(2)
    (array([0.35, 4.  ]), array([1.  , 4.53]))
    """

    size = (5.4, 5.4)

    def __init__(
        self,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        std: ArrayLike,
        *,
        n_groups: int = 10,
        unit: str | None = None,
        name: str | None = None,
    ) -> None:
        truth, predicted, self.std = values_and_gaussian(y_true, y_pred, std, mean_name="y_pred")
        check_drawable(y_true=truth, y_pred=predicted, std=self.std)
        self.error: FloatArray = np.abs(truth - predicted)
        group = equal_groups(self.std, n_groups)
        self.count = np.bincount(group)
        self.group_error, self.group_std = (
            _root_mean_squares(values, group, self.count) for values in (self.error, self.std)
        )
        positive = np.concatenate([self.group_error[self.group_error > 0], self.group_std])
        self.log = bool(positive.max() > LOG_RATIO * positive.min())
        self.unit = unit
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        n_groups: int = 10,
        unit: str | None = None,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Predict means and standard deviations, and draw errors against standard deviations.

        Parameters
        ----------
        estimator : object
            Fitted regressor with ``predict(X, return_std=True)``, alone or in a pipeline or search.
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            True values.
        n_groups, unit
            As in the class.
        name : str, optional
            Title. Default: the class of the estimator.
        ax : matplotlib Axes, optional
            Where to draw. Default: a new figure.

        Returns
        -------
        ErrorByUncertaintyDisplay
        """
        gaussian = predicted_gaussian(estimator, X)
        name = type(estimator).__name__ if name is None else name
        return cls.from_predictions(y, *gaussian, n_groups=n_groups, unit=unit, name=name, ax=ax)

    def _draw(self) -> None:
        from matplotlib.lines import Line2D

        n = len(self.error)
        self.ax_.scatter(
            self.std,
            self.error,
            s=np.clip(4000 / n, 4, 25),
            color="0.55",
            linewidths=0,
            alpha=0.5,
            rasterized=n > 1000,
            label="row",
        )
        tail = MISSED / 2 / len(self.count)
        low, high = (self.group_std * np.sqrt(chi2.ppf(p, self.count) / self.count)
                     for p in (tail, 1 - tail))  # fmt: skip
        self.ax_.vlines(
            self.group_std, low, high, color=COLOURS[4], linewidth=7, alpha=0.5, label="chance"
        )
        self.ax_.plot(
            self.group_std,
            self.group_error,
            "o-",
            color=COLOURS[0],
            linewidth=1.5,
            zorder=3,
            label="group of rows",
        )
        ends = [self.group_std.min() / BEYOND, self.group_std.max() * BEYOND]
        style: dict[str, Any] = {"linestyle": "--", "color": "0.3", "linewidth": 1}
        # Add an artist instead of data: the line must not affect the limits of the axes.
        self.ax_.add_artist(Line2D(ends, ends, label="error = deviation", **style))
        self._set_axes(max(high.max(), self.group_error.max()))
        legend_above(self.ax_, columns=2, title=plain_text(self.name or ""))

    def _set_axes(self, highest: float) -> None:
        """Set limits that contain all groups; rows with zero error lie below a logarithmic axis."""
        right, top = 1.05 * self.std.max(), 1.05 * max(highest, self.error.max())
        if self.log:
            positive = self.group_error[self.group_error > 0]
            bottom = min(self.group_std.min(), *positive) / 10
            self.ax_.set(xscale="log", yscale="log", ylim=(bottom, 1.2 * top))
        else:
            spread = self.std.max() - self.std.min()
            left = max(0.0, self.std.min() - max(0.05 * spread, 0.05 * self.std.min()))
            self.ax_.set(xlim=(left, right), ylim=(0, top))
        self.ax_.set(
            xlabel=with_unit("predicted standard deviation", self.unit),
            ylabel=with_unit("absolute error, RMSE of groups", self.unit),
        )


def _root_mean_squares(values: FloatArray, group: IntArray, count: IntArray) -> FloatArray:
    """Root mean square in each group, computed such that squares do not overflow."""
    unit = values.max() or 1.0
    mean: FloatArray = np.bincount(group, weights=(values / unit) ** 2) / count
    return unit * np.sqrt(mean)
