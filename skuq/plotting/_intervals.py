"""Displays of the width and coverage of prediction intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import BoolArray, FloatArray
from skuq.calibration import clopper_pearson
from skuq.labels import counted
from skuq.plotting._display import (
    COLOURS,
    Display,
    check_drawable,
    equal_groups,
    legend_above,
    listed,
    plain_text,
    points_with_limits,
    short_number,
    with_unit,
)
from skuq.quantities import check_coverage, predicted_interval, values_and_limits
from skuq.validation import check_same_length, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The axis ends at FAR times the quantile of the half widths at level MOST.
FAR = 4.0
MOST = 0.95
WIDTH_DIGITS = 9  # number of decimals of relative widths; further decimals are rounding errors
POINTS = 5.0  # width of a character along an axis, in points
MISSED = 0.05  # probability that any of the confidence intervals misses the true coverage


class IntervalsByWidthDisplay(Display):
    """Prediction intervals, sorted by width, with the true values inside or outside the intervals.

    Intervals are drawn relative to their midpoint; intervals of equal width form a rectangle.
    Values outside their interval have a different colour and marker; the legend shows their number.
    The axis ends at four times the 95% quantile of the half widths. Values beyond its end are drawn
    as triangles at the edge, and longer intervals are cut off there.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True values.
    lower, upper : array-like of shape (n_samples,)
        Finite limits of the intervals, in units of the target.
    coverage : float, default=0.9
        Nominal coverage of the intervals, for the legend.
    unit : str, optional
        Unit of the target.
    name : str, optional
        Title.

    Attributes
    ----------
    y_true, lower, upper : ndarray of shape (n_samples,)
        The values, sorted by increasing width of the interval.
    inside : ndarray of shape (n_samples,), bool
        Whether the interval contains the value, in the same order.

    Examples
    --------
    >>> from skuq.plotting import IntervalsByWidthDisplay
    >>> display = IntervalsByWidthDisplay.from_predictions(
    ...     [1.0, 2.0, 5.0], lower=[0.0, 1.5, 1.0], upper=[2.0, 2.5, 4.0], unit="m"
    ... )
    >>> display.inside
    array([ True,  True, False])
    """

    def __init__(
        self,
        y_true: ArrayLike,
        lower: ArrayLike,
        upper: ArrayLike,
        *,
        coverage: float = 0.9,
        unit: str | None = None,
        name: str | None = None,
    ) -> None:
        check_coverage(coverage)
        values = _drawable_intervals(y_true, lower, upper)
        width = values[2] - values[1]
        order = np.argsort((width / (width.max() or 1.0)).round(WIDTH_DIGITS), kind="stable")
        self.y_true, self.lower, self.upper = (each[order] for each in values)
        self.inside: BoolArray = (self.lower <= self.y_true) & (self.y_true <= self.upper)
        self.coverage = coverage
        self.unit = unit
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        coverage: float = 0.9,
        unit: str | None = None,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Predict intervals and draw them by their width.

        Parameters
        ----------
        estimator : object
            Fitted regressor with ``predict_interval(X, coverage=...)``, alone or in a pipeline or
            search.
        X, y : array-like of shape (n_samples, n_features) and (n_samples,)
            Inputs, and true values.
        coverage : float, default=0.9
            Nominal coverage of the predicted intervals, in (0, 1).
        unit, name, ax : optional
            Unit, title (default: the class of the estimator), and axes.
        """
        limits = predicted_interval(estimator, X, coverage)
        name = type(estimator).__name__ if name is None else name
        return cls.from_predictions(y, *limits, coverage=coverage, unit=unit, name=name, ax=ax)

    def description(self) -> str:
        width = self.upper / 2 - self.lower / 2
        return (
            f"Distance from the middle by width of the interval, {2 * width[0]:.3g} to "
            f"{2 * width[-1]:.3g}: {self.inside.mean():.1%} of {counted(len(width), 'row')} are "
            f"inside; {self.coverage:.1%} were asked."
        )

    def _draw(self) -> None:
        middle = self.lower / 2 + self.upper / 2
        half, distance = self.upper / 2 - self.lower / 2, self.y_true - middle
        n, reach = len(half), _reach(half, distance)
        edges = np.arange(n + 1) + 0.5
        self.ax_.stairs(
            half,
            edges,
            baseline=-half,
            fill=True,
            color=COLOURS[4],
            alpha=0.4,
            label=f"interval (mean width {short_number(2 * half.mean())})",
        )
        held = f"inside: {self.inside.mean():.1%} ({self.coverage:.3%} asked)".replace(".000%", "%")
        self._plot_values(distance, self.inside, reach, COLOURS[0], "o", held)
        missed = f"outside: {np.count_nonzero(~self.inside)} of {n}"
        self._plot_values(distance, ~self.inside, reach, COLOURS[1], "D", missed)
        self.ax_.set(
            xlim=(0.5, n + 0.5),
            ylim=(-1.05 * reach, 1.05 * reach),
            xlabel="rows, from the narrowest interval to the widest",
            ylabel=with_unit("distance from the middle", self.unit),
        )
        larger = np.sqrt(20 / _marker_size(n))  # enlarge markers for the legend
        legend_above(self.ax_, columns=2, title=plain_text(self.name or ""), markerscale=larger)

    def _plot_values(
        self,
        distance: FloatArray,
        chosen: BoolArray,
        reach: float,
        colour: str,
        marker: str,
        label: str,
    ) -> None:
        """Plot the values of the chosen rows; values beyond the axis are placed at its edge."""
        n, row = len(distance), np.arange(1, len(distance) + 1)
        size = _marker_size(n)
        style: dict[str, Any] = {"color": colour, "linewidths": 0, "rasterized": n > 1000}
        drawn = chosen & (np.abs(distance) <= reach)
        self.ax_.scatter(row[drawn], distance[drawn], size, marker=marker, label=label, **style)
        style |= {"s": 20, "clip_on": False}
        for edge, at in (("^", reach), ("v", -reach)):
            beyond = row[chosen & (np.sign(at) * distance > reach)]
            if len(beyond):
                label = f"beyond the axis: {len(beyond)}"
                self.ax_.scatter(
                    beyond, np.full(len(beyond), at), marker=edge, label=label, **style
                )


class CoverageBySizeDisplay(Display):
    """Coverage of prediction intervals in groups of rows, ordered by their predicted values.

    A point is the share of the values in a group that lie in their intervals. The line through the
    point is an exact binomial confidence interval for the coverage. With a probability of at least
    95%, the confidence intervals of all groups contain the true coverage. The dashed line is the
    nominal coverage. Groups whose confidence interval does not contain the nominal coverage have a
    different colour and marker. The axis shows the edges of the groups.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True values.
    lower, upper : array-like of shape (n_samples,)
        Limits of the intervals, in units of the target; an open side is infinite.
    by : array-like of shape (n_samples,), optional
        Finite values that define the groups, such as the predictions, the widths of the intervals
        or a feature. Default: the midpoint of each interval, which must then be finite.
    coverage : float, default=0.9
        Nominal coverage of the intervals, in (0, 1).
    n_groups : int, default=10
        Number of groups of about equal size; rows with equal values stay together.
    label : str, optional
        Name of `by`. Default: "prediction", or "middle of the interval" without `by`.
    unit : str, optional
        Unit of `by`.
    name : str, optional
        Title.

    Attributes
    ----------
    count : ndarray of shape (n_groups,), int64
        Number of rows of each group; ties reduce the number of groups.
    covered : ndarray of shape (n_groups,), float64
        Coverage of each group.
    covered_low, covered_high : ndarray of shape (n_groups,), float64
        Confidence limits of the coverage.
    group_edges : ndarray of shape (n_groups + 1,), float64
        Smallest value of `by` in each group, and the largest value in the last group.

    Examples
    --------
    >>> from skuq.plotting import CoverageBySizeDisplay
    >>> display = CoverageBySizeDisplay.from_predictions(
    ...     [1.0, 2.0, 30.0, 45.0], [0.0, 1.0, 31.0, 40.0], [2.0, 3.0, 33.0, 42.0], n_groups=2
    ... )
    >>> display.covered
    array([1., 0.])
    """

    def __init__(
        self,
        y_true: ArrayLike,
        lower: ArrayLike,
        upper: ArrayLike,
        by: ArrayLike | None = None,
        *,
        coverage: float = 0.9,
        n_groups: int = 10,
        label: str | None = None,
        unit: str | None = None,
        name: str | None = None,
    ) -> None:
        check_coverage(coverage)
        truth, low, high = values_and_limits(y_true, lower, upper)
        if by is None:
            _drawable_intervals(truth, low, high)
            size = low / 2 + high / 2
        else:
            size = finite(by, "by")
            check_same_length(y_true=truth, by=size)
        group = equal_groups(size, n_groups)
        held = np.bincount(group, weights=(low <= truth) & (truth <= high))
        self.count = np.bincount(group)
        self.covered: FloatArray = held / self.count
        tail = MISSED / 2 / len(self.count)
        self.covered_low, self.covered_high = clopper_pearson(held, self.count, tail)
        first = [size[group == k].min() for k in range(len(self.count))]
        self.group_edges = np.array([*first, size.max()])
        self.coverage = coverage
        default = "middle of the interval" if by is None else "prediction"
        self.label = default if label is None else label
        self.unit = unit
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        coverage: float = 0.9,
        n_groups: int = 10,
        unit: str | None = None,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Predict values and intervals, and draw the coverage against the predicted value.

        Parameters
        ----------
        estimator, X, y, coverage, name, ax
            As in `IntervalsByWidthDisplay.from_estimator`.
        n_groups, unit
            As in the class.
        """
        limits = predicted_interval(estimator, X, coverage)
        return cls.from_predictions(
            y,
            *limits,
            estimator.predict(X),
            coverage=coverage,
            n_groups=n_groups,
            unit=unit,
            name=type(estimator).__name__ if name is None else name,
            ax=ax,
        )

    def description(self) -> str:
        shares = listed(self.group_edges[:-1], self.covered)
        return f"Coverage by {self.label}, from the value on: {shares}; {self.coverage:.1%} asked."

    def _draw(self) -> None:
        asked = f"{self.coverage:.3%} asked".replace(".000%", "%")
        self.ax_.axhline(self.coverage, linestyle="--", color="0.3", linewidth=1, label=asked)
        limits = self.covered_low, self.covered_high
        off = (limits[1] < self.coverage) | (limits[0] > self.coverage)
        least, most = self.count.min(), self.count.max()
        rows = counted(most, "row") if least == most else f"{least} to {most} rows"
        places = np.arange(len(self.group_edges), dtype=float)
        middle = places[:-1] + 0.5
        points_with_limits(self.ax_, middle, self.covered, limits, f"group of {rows}", off)
        lowest = min(self.covered_low.min(), self.coverage)
        names = [short_number(edge) for edge in self.group_edges]
        width = 72 * self.ax_.get_window_extent().width / self.figure_.dpi  # in points
        turned = POINTS * sum(len(each) + 1 for each in names) > width
        self.ax_.set_xticks(
            places, names, rotation=30 if turned else 0, ha="right" if turned else "center"
        )
        self.ax_.set(
            xlim=(0, places[-1]),
            ylim=(max(0.0, lowest - 0.05) - 0.02, 1.02),
            xlabel=with_unit(self.label, self.unit),
            ylabel="share of values in their interval",
        )
        legend_above(self.ax_, columns=3, title=plain_text(self.name or ""))


def _drawable_intervals(
    y_true: ArrayLike, lower: ArrayLike, upper: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Check that true values and interval limits are finite and not too large to draw."""
    truth, low, high = values_and_limits(y_true, lower, upper)
    check_drawable(y_true=truth, lower=low, upper=high)
    return truth, low, high


def _marker_size(n_rows: int) -> float:
    return float(np.clip(4000 / n_rows, 4, 30))


def _reach(half: FloatArray, distance: FloatArray) -> float:
    largest = max(half.max(), np.abs(distance).max())
    limit = FAR * np.quantile(half, MOST)
    reach = largest if limit == 0 else min(largest, limit)
    return float(reach) if reach > 0 else 1.0
