"""Displays of calibration: reliability diagram, audit, and distribution of confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from skuq.base import FloatArray
from skuq.labels import amount
from skuq.metrics import CalibrationTable, calibration_table, expected_calibration_error
from skuq.plotting import _display
from skuq.plotting._display import (
    COLOURS,
    Display,
    bars_over_bins,
    legend_above,
    listed,
    plain_text,
)
from skuq.validation import finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from skuq.audit import CalibrationAuditor
    from skuq.calibration import BinAudit

N_BINS = 20  # number of bins of the distribution of confidence
LINES = ("-", "--", "-.", ":")


class ReliabilityDisplay(Display):
    """Reliability diagram: accuracy against confidence per bin, with sample counts below it.

    The hatched part of a bar is the gap between accuracy and mean confidence of the bin.

    Parameters
    ----------
    table : CalibrationTable
        The bins.
    error : float
        Expected calibration error (ECE) over the bins.
    name : str, optional
        Title.

    Examples
    --------
    >>> from skuq.plotting import ReliabilityDisplay
    >>> display = ReliabilityDisplay.from_predictions([0, 1], [[0.75, 0.25], [0.25, 0.75]])
    >>> display.error
    0.25
    """

    size = (5.4, 5.6)

    def __init__(self, table: CalibrationTable, error: float, *, name: str | None = None) -> None:
        self.table, self.error, self.name = table, error, name

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: ArrayLike, **settings: Any) -> Self:
        """Predict probabilities with a fitted classifier, and draw their reliability diagram.

        `settings` are as in `from_predictions`. Default of `name`: the class of the estimator.
        """
        settings.setdefault("name", type(estimator).__name__)
        proba = estimator.predict_proba(X)
        return cls.from_predictions(y, proba, classes=estimator.classes_, **settings)

    @classmethod
    def from_predictions(  # type: ignore[override]  # parameters differ from those of the class
        cls,
        y_true: ArrayLike,
        proba: ArrayLike,
        *,
        name: str | None = None,
        ax: Axes | None = None,
        **bins: Any,
    ) -> Self:
        """Draw the reliability diagram of predicted probabilities, with a title.

        `y_true`, `proba`, `classes`, `n_bins` and `strategy` are as in
        `skuq.metrics.calibration_table`.
        """
        table = calibration_table(y_true, proba, **bins)
        error = expected_calibration_error(y_true, proba, **bins)
        return super().from_predictions(table, error, name=name, ax=ax)

    def description(self) -> str:
        bins = listed(self.table.confidence, self.table.accuracy)
        return f"Accuracy by confidence, with an ECE of {self.error:.3g}: {bins}."

    def _draw(self) -> None:
        self._plot_bars(self.ax_, self.table.accuracy, "accuracy", color=COLOURS[4])
        self._plot_bars(
            self.ax_,
            self.table.gap,
            f"gap (ECE = {self.error:.3g})",
            bottom=self.table.confidence,
            color="none",  # in an SVG, a face of the hatching's colour would hide the hatching
            edgecolor=COLOURS[1],
            linewidth=0.8,
            hatch="///",
        )
        self.ax_.plot([0, 1], [0, 1], "--", color="0.3", linewidth=1, label="calibrated")
        self.ax_.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
        legend_above(self.ax_, title=plain_text(self.name or ""))
        share = self.table.count / self.table.count.sum()
        # Round down: a share such as 99.97% must not appear as 100%, which would mean all samples.
        highest = f"{np.floor(1000 * share.max() + 1e-9) / 10:g}%"
        self.count_ax_ = _display.axes_below(self.ax_, share.max(), highest)
        self._plot_bars(self.count_ax_, share, "samples", color="0.6")
        self.count_ax_.set(xlabel="confidence", ylabel="samples")

    def _plot_bars(self, ax: Axes, height: FloatArray, label: str, **style: Any) -> None:
        bars_over_bins(ax, self.table.lower, self.table.upper, height, label=label, **style)


class CalibrationAuditDisplay(Display):
    """Accuracy against reported confidence per bin, with confidence intervals and tolerance.

    Each point is a bin at its mean confidence; the line through it is the confidence interval of
    the accuracy, corrected for all bins of the audit. Bins that belong to a finding have a
    different colour and marker: together they deviate by more than the shaded tolerance, even if
    the lines of some of them reach into it. The axes below show the number of samples.

    Parameters
    ----------
    bins : BinAudit
        Findings per bin.
    tolerance : float
        Tolerated difference between accuracy and confidence, in [0, 1].
    name : str, optional
        Title.

    Examples
    --------
    >>> from skuq import CalibrationAuditor
    >>> from skuq.plotting import CalibrationAuditDisplay
    >>> audit = CalibrationAuditor.from_predictions([0, 1] * 40, [[0.75, 0.25], [0.4, 0.6]] * 40)
    >>> display = CalibrationAuditDisplay.from_estimator(audit)
    >>> display.ax_.get_xlim()
    (np.float64(0.0), np.float64(1.0))
    """

    size = (5.4, 6.0)

    def __init__(self, bins: BinAudit, tolerance: float, *, name: str | None = None) -> None:
        self.bins, self.tolerance, self.name = bins, tolerance, name

    @classmethod
    def from_estimator(
        cls,
        auditor: CalibrationAuditor,
        group: str | None = None,
        *,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Draw the findings of a fitted auditor for all samples, or for one of the audited groups.

        `group` is the name of a group, such as ``"sex=female"``; it is the default of `name`.
        """
        check_is_fitted(auditor)
        if group is not None and group not in auditor.group_bins_:
            raise ValueError(
                f"`group` must be one of the audited groups {sorted(auditor.group_bins_)}, "
                f"got {group!r}."
            )
        bins = auditor.bins_ if group is None else auditor.group_bins_[group]
        name = group if name is None else name
        return cls.from_predictions(bins, auditor.settings_["tolerance"], name=name, ax=ax)

    def description(self) -> str:
        bins, found = self.bins, self.bins.significant
        values = listed(bins.confidence[~found], bins.accuracy[~found])
        deviating = listed(bins.confidence[found], bins.accuracy[found]) or "none"
        return f"Accuracy by reported confidence: {values}. Significant deviation: {deviating}."

    def _draw(self) -> None:
        ends = np.array([0.0, 1.0])
        label = f"tolerance ({100 * self.tolerance:.3g} points)"
        band = ends - self.tolerance, ends + self.tolerance
        self.ax_.fill_between(ends, *band, color="0.88", linewidth=0, label=label)
        self.ax_.plot(ends, ends, "--", color="0.3", linewidth=1, label="accuracy = confidence")
        bins, most = self.bins, self.bins.count.max()
        limits = bins.confidence + bins.gap_low, bins.confidence + bins.gap_high
        points = self.ax_, bins.confidence, bins.accuracy
        _display.points_with_limits(*points, limits, "bin", bins.significant)
        self.ax_.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
        legend_above(self.ax_, columns=2, title=plain_text(self.name or ""))
        self.count_ax_ = _display.axes_below(self.ax_, most, amount(most.item()).replace(",", ""))
        colours = np.where(bins.significant, COLOURS[1], "0.6").tolist()
        bars = bars_over_bins(self.count_ax_, bins.lower, bins.upper, bins.count, color=colours)
        for bar, significant in zip(bars, bins.significant, strict=True):
            # Draw significant bins last: if they are narrow, bars of other bins could cover them.
            bar.set_zorder(bar.get_zorder() + significant)
        self.count_ax_.set(xlabel="reported confidence", ylabel="samples")


class ConfidenceDensityDisplay(Display):
    """Distribution of reported confidence in several groups of samples.

    Each outline is a histogram over 20 bins on [0, 1] with area 1. Confidence that was lowered on
    purpose for some inputs forms a peak, which an honest model does not have.

    Parameters
    ----------
    groups : mapping of str to array-like of shape (n_samples,)
        Confidence of each named group, in [0, 1].
    threshold : float, optional
        Confidence in [0, 1] below which the model abstains; drawn as a line.
    marked : sequence of (float, float), default=()
        Ranges of confidence in [0, 1] to shade, such as suspicious bins.
    weights : mapping of str to array-like of shape (n_samples,), optional
        Number of samples that each value of a group represents. Weights are not negative, and not
        all 0 in any group. Default: 1 each.

    Attributes
    ----------
    bin_edges : ndarray of shape (21,)
        Edges of the shared bins.

    Examples
    --------
    >>> from skuq.plotting import ConfidenceDensityDisplay
    >>> display = ConfidenceDensityDisplay.from_predictions(
    ...     {"right": [0.9, 0.95, 0.6], "wrong": [0.55, 0.6]}, threshold=0.7
    ... )
    >>> display.ax_.get_xlabel()
    'reported confidence'
    """

    def __init__(
        self,
        groups: Mapping[str, ArrayLike],
        *,
        threshold: float | None = None,
        marked: Sequence[tuple[float, float]] = (),
        weights: Mapping[str, ArrayLike] | None = None,
    ) -> None:
        _display.check_groups(groups)
        self.groups = {name: _confidences(values, name) for name, values in groups.items()}
        self.threshold, self.marked, self.weights = threshold, marked, weights
        self.bin_edges = np.arange(N_BINS + 1) / N_BINS

    @classmethod
    def from_estimator(cls, estimator: Any, groups: Mapping[str, Any], **settings: Any) -> Self:
        """Predict the confidence of each named group of inputs with a classifier, and draw it.

        `settings` are parameters of the class, and `ax`.
        """
        _display.check_groups(groups)
        values = {
            name: np.asarray(estimator.predict_proba(X)).max(axis=1) for name, X in groups.items()
        }
        return cls.from_predictions(values, **settings)

    def description(self) -> str:
        phrased = _display.phrased_groups(self.groups, self.weights or {})
        return f"Density by reported confidence: {phrased}."

    def _draw(self) -> None:
        for k, (low, high) in enumerate(self.marked):
            label = "significant deviation" if k == 0 else None
            self.ax_.axvspan(low, high, color="0.85", linewidth=0, label=label)
        for k, (name, values) in enumerate(self.groups.items()):
            weights = None if self.weights is None else np.asarray(self.weights[name])
            # Round as an audit does, so that a value of 0.6 falls into the bin above the edge 0.6.
            decimal = np.round(values, 9)
            density = np.histogram(decimal, self.bin_edges, density=True, weights=weights)[0]
            # Dashes keep lines visible where lines of several groups coincide.
            style: dict[str, Any] = {"linestyle": LINES[k % len(LINES)], "label": plain_text(name)}
            colour = COLOURS[k % len(COLOURS)]
            self.ax_.stairs(density, self.bin_edges, color=colour, linewidth=1.8, **style)
        if self.threshold is not None:
            label = f"abstains below {100 * self.threshold:.4g}%"
            self.ax_.axvline(self.threshold, color="0.2", linestyle=":", label=label)
        self.ax_.set(xlim=(0, 1), xlabel="reported confidence", ylabel="density")
        self.ax_.set_ylim(bottom=0)
        legend_above(self.ax_, columns=2)


def _confidences(values: ArrayLike, name: str) -> FloatArray:
    checked = finite(values, name)
    bad = (checked < 0) | (checked > 1)
    if bad.any():
        raise ValueError(
            f"`{name}` must contain confidences in [0, 1], got {checked[bad][0]} in row "
            f"{bad.argmax()}."
        )
    return checked
