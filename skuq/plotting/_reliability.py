"""Reliability diagram."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.calibration import Strategy
from skuq.metrics import CalibrationTable, calibration_table, expected_calibration_error
from skuq.plotting._drawing import (
    COLOURS,
    axes_below,
    axes_or_new,
    bars_over_bins,
    legend_above,
    plain_text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ReliabilityDisplay:
    """Accuracy against confidence per bin, with the number of samples in each below.

    The hatched part of a bar is the gap between the accuracy and the mean confidence.

    Parameters
    ----------
    table : CalibrationTable
        The bins.
    error : float
        Expected calibration error (ECE) over them.
    name : str, optional
        Title.

    Attributes
    ----------
    table, error, name
        As given.
    ax_, count_ax_, figure_ : matplotlib Axes, Axes and Figure
        Where it was drawn last: the bars, the counts below, and the figure.

    Examples
    --------
    >>> from skuq.plotting import ReliabilityDisplay
    >>> display = ReliabilityDisplay.from_predictions([0, 1], [[0.75, 0.25], [0.25, 0.75]])
    >>> display.error
    0.25
    """

    def __init__(self, table: CalibrationTable, error: float, *, name: str | None = None) -> None:
        self.table = table
        self.error = error
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        n_bins: int = 10,
        strategy: Strategy = "uniform",
        name: str | None = None,
        ax: Axes | None = None,
    ) -> ReliabilityDisplay:
        """Predict probabilities and draw their reliability diagram.

        Parameters
        ----------
        estimator : object
            Fitted classifier with `predict_proba`.
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            True labels.
        n_bins, strategy
            As in `skuq.metrics.calibration_table`.
        name : str, optional
            Title. Default: the class of the estimator.
        ax : matplotlib Axes, optional
            Where to draw. Default: a new figure.

        Returns
        -------
        ReliabilityDisplay
        """
        return cls.from_predictions(
            y,
            estimator.predict_proba(X),
            classes=estimator.classes_,
            n_bins=n_bins,
            strategy=strategy,
            name=type(estimator).__name__ if name is None else name,
            ax=ax,
        )

    @classmethod
    def from_predictions(
        cls,
        y_true: ArrayLike,
        proba: ArrayLike,
        *,
        classes: ArrayLike | None = None,
        n_bins: int = 10,
        strategy: Strategy = "uniform",
        name: str | None = None,
        ax: Axes | None = None,
    ) -> ReliabilityDisplay:
        """Draw the reliability diagram of given probabilities.

        Parameters
        ----------
        y_true, proba, classes, n_bins, strategy
            As in `skuq.metrics.calibration_table`.
        name : str, optional
            Title.
        ax : matplotlib Axes, optional
            Where to draw. Default: a new figure.

        Returns
        -------
        ReliabilityDisplay
        """
        bins: dict[str, Any] = {"classes": classes, "n_bins": n_bins, "strategy": strategy}
        table = calibration_table(y_true, proba, **bins)
        return cls(table, expected_calibration_error(y_true, proba, **bins), name=name).plot(ax)

    def plot(self, ax: Axes | None = None) -> ReliabilityDisplay:
        """Draw on `ax`, or on a new figure, and return the display."""
        self.ax_ = axes_or_new(ax, figsize=(5.4, 5.6))
        self.figure_ = self.ax_.figure
        self._plot_bars(self.ax_, self.table.accuracy, "accuracy", color=COLOURS[4])
        self._plot_bars(
            self.ax_,
            self.table.gap,
            f"gap (ECE = {self.error:.3g})",
            bottom=self.table.confidence,
            color="none",  # an SVG shows no hatching on a face of the same colour
            edgecolor=COLOURS[1],
            linewidth=0.8,
            hatch="///",
        )
        self.ax_.plot([0, 1], [0, 1], "--", color="0.3", linewidth=1, label="calibrated")
        self.ax_.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
        self.ax_.tick_params(labelbottom=False)
        legend_above(self.ax_, title=plain_text(self.name or ""))
        self._plot_counts()
        return self

    def _plot_counts(self) -> None:
        share = self.table.count / self.table.count.sum()
        # Rounded down: 100% would be all samples.
        highest = f"{np.floor(1000 * share.max() + 1e-9) / 10:g}%"
        self.count_ax_ = axes_below(self.ax_, share.max(), highest)
        self._plot_bars(self.count_ax_, share, "samples", color="0.6")
        self.count_ax_.set(xlabel="confidence", ylabel="samples")

    def _plot_bars(self, ax: Axes, height: FloatArray, label: str, **style: Any) -> None:
        bars_over_bins(ax, self.table.lower, self.table.upper, height, label=label, **style)
