"""Displays of predicted distributions: width and coverage of intervals, and PIT."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr
from scipy.stats import binom

from skuq import quantities
from skuq.base import BoolArray, FloatArray
from skuq.calibration import clopper_pearson
from skuq.labels import counted
from skuq.plotting import _display
from skuq.plotting._display import COLOURS, Display, legend_above, plain_text, with_unit
from skuq.validation import check_n_bins, check_same_length, finite

# The axis ends at FAR times the quantile of the half widths at level MOST.
FAR = 4.0
MOST = 0.95
WIDTH_DIGITS = 9  # number of decimals of relative widths; further decimals are rounding errors
POINTS = 5.0  # width of a character along an axis, in points
MISSED = 0.05  # probability with which limits may miss a group's coverage, or a bar leave the band


class IntervalsByWidthDisplay(Display):
    """Prediction intervals, sorted by width, with the true values inside or outside the intervals.

    Intervals are drawn relative to their midpoint. Values outside their interval have a different
    colour and marker; the legend shows their number. The axis ends at four times the 95% quantile
    of the half widths; values beyond it are drawn as triangles at the edge.

    Parameters
    ----------
    y_true, lower, upper, coverage
        As in `skuq.metrics.interval_score`; the limits are finite, the coverage is for the legend.
    unit, name : str, optional
        Unit of the target, and title.

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
        quantities.check_coverage(coverage)
        values = _drawable_intervals(y_true, lower, upper)
        width = values[2] - values[1]
        order = np.argsort((width / (width.max() or 1.0)).round(WIDTH_DIGITS), kind="stable")
        self.y_true, self.lower, self.upper = (each[order] for each in values)
        self.inside: BoolArray = (self.lower <= self.y_true) & (self.y_true <= self.upper)
        self.coverage, self.unit, self.name = coverage, unit, name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        coverage: float = 0.9,
        **settings: Any,
    ) -> Self:
        """Predict intervals and draw them by their width.

        The estimator is a fitted regressor with ``predict_interval(X, coverage=...)``, alone or in
        a pipeline or search. `settings` are those of the class, and `ax`. Default of `name`: the
        class of the estimator.
        """
        settings.setdefault("name", type(estimator).__name__)
        limits = quantities.predicted_interval(estimator, X, coverage)
        return cls.from_predictions(y, *limits, coverage=coverage, **settings)

    def description(self) -> str:
        width = self.upper / 2 - self.lower / 2
        return (
            f"Distance from the middle by width of the interval, {2 * width[0]:.3g} to "
            f"{2 * width[-1]:.3g}: {self.inside.mean():.1%} of {counted(len(width), 'row')} are "
            f"inside; the nominal coverage is {self.coverage:.1%}."
        )

    def _draw(self) -> None:
        middle = self.lower / 2 + self.upper / 2
        half, distance = self.upper / 2 - self.lower / 2, self.y_true - middle
        n, reach = len(half), _reach(half, distance)
        edges = np.arange(n + 1) + 0.5
        label = f"interval (mean width {_display.short_number(2 * half.mean())})"
        style: dict[str, Any] = {"fill": True, "color": COLOURS[4], "alpha": 0.4}
        self.ax_.stairs(half, edges, baseline=-half, label=label, **style)
        held = f"inside: {self.inside.mean():.1%}; nominal {100 * self.coverage:.5g}%"
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
    """Coverage of prediction intervals in groups of rows with similar predicted values.

    A point is the share of the values in a group that lie in their intervals. The line through it
    is an exact binomial confidence interval; with a probability of at least 95%, the lines of all
    groups contain the true coverage. Groups whose confidence interval does not contain the nominal
    coverage (dashed) have a different colour and marker. The axis shows the edges of the groups.

    Parameters
    ----------
    y_true, lower, upper, coverage
        As in `skuq.metrics.interval_score`; limits may be infinite.
    by : array-like of shape (n_samples,), optional
        Finite values that define the groups, such as the predictions, the widths of the intervals
        or a feature. Default: the midpoint of each interval, which must then be finite.
    n_groups : int, default=10
        Number of groups of about equal size; rows with equal values stay together.
    label : str, optional
        Name of `by`. Default: "prediction", or "middle of the interval" without `by`.
    unit, name : str, optional
        Unit of `by`, and title.

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
        quantities.check_coverage(coverage)
        truth, low, high = quantities.values_and_limits(y_true, lower, upper)
        if by is None:
            _drawable_intervals(truth, low, high)
            size = low / 2 + high / 2
        else:
            size = finite(by, "by")
            check_same_length(y_true=truth, by=size)
        group = _display.equal_groups(size, n_groups)
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
        self.unit, self.name = unit, name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        coverage: float = 0.9,
        **settings: Any,
    ) -> Self:
        """Predict values and intervals, and draw the coverage against the predicted value.

        Parameters are as in `IntervalsByWidthDisplay.from_estimator` and in the class.
        """
        settings = {"name": type(estimator).__name__, "coverage": coverage, **settings}
        limits = quantities.predicted_interval(estimator, X, coverage)
        return cls.from_predictions(y, *limits, estimator.predict(X), **settings)

    def description(self) -> str:
        shares = _display.listed(self.group_edges[:-1], self.covered)
        return f"Coverage by smallest {self.label}: {shares}; nominal {self.coverage:.1%}."

    def _draw(self) -> None:
        label = f"nominal {100 * self.coverage:.5g}%"
        self.ax_.axhline(self.coverage, linestyle="--", color="0.3", linewidth=1, label=label)
        limits = self.covered_low, self.covered_high
        off = (limits[1] < self.coverage) | (limits[0] > self.coverage)
        least, most = self.count.min(), self.count.max()
        rows = counted(most, "row") if least == most else f"{least} to {most} rows"
        places = np.arange(len(self.group_edges), dtype=float)
        middle = places[:-1] + 0.5
        _display.points_with_limits(self.ax_, middle, self.covered, limits, f"group of {rows}", off)
        lowest = min(self.covered_low.min(), self.coverage)
        names = [_display.short_number(edge) for edge in self.group_edges]
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


class PITDisplay(Display):
    """Histogram of the probability integral transform (PIT) of the true values.

    The PIT is the predicted distribution function at the true value. If the predicted distributions
    are right, the PIT is uniform, and all bars end in the shaded band with a probability of at
    least 95%. A U shape indicates distributions that are too narrow, a hump distributions that are
    too wide; a rising slope indicates predictions that are too low, a falling slope too high ones.

    Parameters
    ----------
    low, high : array-like of shape (n_samples,)
        Limits of the PIT of each sample, in [0, 1]; equal for continuous distributions. The limits
        differ if only some quantiles were predicted or many draws are equal. Such a sample is
        spread over the bins in proportion to their overlap with the range between its limits; the
        band is then conservative.
    n_bins : int, default=10
        Number of bins on [0, 1].
    name : str, optional
        Title.

    Attributes
    ----------
    share : ndarray of shape (n_bins,), float64
        Share of the samples in each bin.
    band : tuple of two floats
        Limits of the shaded band.

    References
    ----------
    Gneiting, Balabdaoui, Raftery, "Probabilistic Forecasts, Calibration and Sharpness", Journal of
    the Royal Statistical Society B 69(2), 2007; Czado, Gneiting, Held, "Predictive Model Assessment
    for Count Data", Biometrics 65(4), 2009 (samples spread over several bins).

    Examples
    --------
    >>> from skuq.plotting import PITDisplay
    >>> display = PITDisplay.from_predictions([0.0, 3.0], mean=[0.0, 1.0], std=[1.0, 1.0], n_bins=2)
    >>> display.share
    array([0., 1.])
    """

    def __init__(
        self, low: ArrayLike, high: ArrayLike, *, n_bins: int = 10, name: str | None = None
    ) -> None:
        check_n_bins(n_bins)
        self.low, self.high = finite(low, "low"), finite(high, "high")
        check_same_length(low=self.low, high=self.high)
        if (self.low < 0).any() or (self.low > self.high).any() or (self.high > 1).any():
            raise ValueError("`low` and `high` must satisfy 0 <= low <= high <= 1 in every row.")
        self.n_bins, self.name = n_bins, name
        self.share = _share_of_bins(self.low, self.high, n_bins)
        # Bonferroni correction over bars and sides.
        tail, n = MISSED / 2 / n_bins, len(self.low)
        least, most = binom.ppf([tail, 1 - tail], n, 1 / n_bins) / n
        self.band = (float(least), float(most))

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        levels: ArrayLike | None = None,
        **settings: Any,
    ) -> Self:
        """Predict distributions and draw the PIT of the true values.

        The estimator is a fitted regressor, alone or in a pipeline or search. It predicts Gaussian
        distributions, with ``predict(X, return_std=True)``, or quantiles at the given levels in
        (0, 1), with ``predict_quantiles(X, levels)``. `settings` are as in `from_predictions`.
        Default of `name`: the class of the estimator.
        """
        settings.setdefault("name", type(estimator).__name__)
        if levels is not None:
            quantiles = quantities.predicted_quantiles(estimator, X, levels)
            return cls.from_quantiles(y, quantiles, levels, **settings)
        try:
            gaussian = quantities.predicted_gaussian(estimator, X)
        except TypeError as error:
            raise TypeError(f"{error} For predicted quantiles pass `levels`.") from None
        return cls.from_predictions(y, *gaussian, **settings)

    @classmethod
    def from_predictions(  # type: ignore[override]  # parameters differ from those of the class
        cls, y_true: ArrayLike, mean: ArrayLike, std: ArrayLike, **settings: Any
    ) -> Self:
        """Draw the PIT of true values under Gaussian predictions.

        Arrays have shape (n_samples,) and the unit of the target; `std` is above 0 and includes the
        noise. `settings` are `n_bins` and `name` of the class, and `ax`.
        """
        truth, centre, scale = quantities.values_and_gaussian(y_true, mean, std)
        below = ndtr((truth - centre) / scale)
        return super().from_predictions(below, below, **settings)

    @classmethod
    def from_quantiles(
        cls, y_true: ArrayLike, y_quantiles: ArrayLike, levels: ArrayLike, **settings: Any
    ) -> Self:
        """Draw the PIT of true values under predicted quantiles.

        Samples of the predicted distributions can be used as quantiles: `m` sorted samples have the
        levels ``np.arange(1, m + 1) / (m + 1)``.

        Parameters
        ----------
        y_true, **settings
            As in `from_predictions`; more bins than levels add no information.
        y_quantiles : array-like of shape (n_samples, n_levels)
            Predicted quantiles, one column for each level; sorted within each row.
        levels : array-like of shape (n_levels,)
            Levels of the quantiles, in (0, 1).
        """
        truth, quantiles, asked = quantities.values_and_quantiles(y_true, y_quantiles, levels)
        steps = np.concatenate([[0.0], np.sort(asked), [1.0]])
        below = (quantiles < truth[:, None]).sum(axis=1)
        not_above = (quantiles <= truth[:, None]).sum(axis=1)
        low, high = steps[below], steps[not_above + 1]
        return super().from_predictions(low, high, **settings)

    def description(self) -> str:
        shares = ", ".join(f"{share:.3g}" for share in self.share)
        band = f"{self.band[0]:.3g} to {self.band[1]:.3g}"
        return f"Share of the rows by PIT, from 0 to 1: {shares}. Band of chance: {band}."

    def _draw(self) -> None:
        edges = np.arange(self.n_bins + 1) / self.n_bins
        chance = "uniform, with the band of chance"
        self.ax_.axhspan(*self.band, color="0.85", linewidth=0, label=chance)
        self.ax_.axhline(1 / self.n_bins, linestyle="--", color="0.3", linewidth=1)
        label = f"true values ({counted(len(self.low), 'row')})"
        _display.filled_steps(self.ax_, self.share, edges, COLOURS[0], label)
        self.ax_.set(
            xlim=(0, 1),
            ylim=(0, 1.08 * max(self.share.max(), self.band[1])),
            xlabel="predicted probability of a smaller value (PIT)",
            ylabel="share of the rows",
        )
        legend_above(self.ax_, columns=2, title=plain_text(self.name or ""))


def _drawable_intervals(
    y_true: ArrayLike, lower: ArrayLike, upper: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    truth, low, high = quantities.values_and_limits(y_true, lower, upper)
    _display.check_drawable(y_true=truth, lower=low, upper=high)
    return truth, low, high


def _marker_size(n_rows: int) -> float:
    return float(np.clip(4000 / n_rows, 4, 30))


def _reach(half: FloatArray, distance: FloatArray) -> float:
    largest = max(half.max(), np.abs(distance).max())
    limit = FAR * np.quantile(half, MOST)
    reach = largest if limit == 0 else min(largest, limit)
    return float(reach) if reach > 0 else 1.0


def _share_of_bins(low: FloatArray, high: FloatArray, n_bins: int) -> FloatArray:
    """Compute the share of samples per bin; a range of PIT is divided among bins by overlap."""
    exact = low == high
    where = np.minimum((low[exact] * n_bins).astype(np.int64), n_bins - 1)
    count = np.bincount(where, minlength=n_bins).astype(np.float64)
    edges = np.arange(n_bins + 1) / n_bins
    first, last = low[~exact, None], high[~exact, None]
    # Share of each range below each edge, (n_ranges, n_bins + 1).
    below = (np.clip(edges, first, last) - first) / (last - first)
    return (count + np.diff(below, axis=1).sum(axis=0)) / len(low)
