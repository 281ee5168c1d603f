"""Reliability diagram of an audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skuq.base import BoolArray
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

    from skuq.audit import CalibrationAuditor
    from skuq.calibration import BinAudit


class CalibrationAuditDisplay:
    """Accuracy against reported confidence per bin, with exact limits and the tolerance.

    A bin is a point at its mean confidence; its line reaches over all accuracies that the
    samples do not rule out, for all bins of the audit together. Bins of a finding have their
    own colour and marker: together they deviate by more than the shaded tolerance, though the
    line of each may reach into it. Below, the number of samples. Bins without samples are
    not drawn.

    Parameters
    ----------
    bins : BinAudit
        Findings per bin.
    alpha : float
        Tolerated distance between accuracy and confidence, in [0, 1].
    name : str, optional
        Title.

    Attributes
    ----------
    bins, alpha, name
        As given.
    ax_, count_ax_, figure_ : matplotlib Axes, Axes and Figure
        Where it was drawn last: the points, the counts below, and the figure.

    Examples
    --------
    >>> from skuq import CalibrationAuditor
    >>> from skuq.plotting import CalibrationAuditDisplay
    >>> audit = CalibrationAuditor.from_predictions([0, 1] * 40, [[0.75, 0.25], [0.4, 0.6]] * 40)
    >>> display = CalibrationAuditDisplay.from_estimator(audit)
    >>> display.ax_.get_xlim()
    (np.float64(0.0), np.float64(1.0))
    """

    def __init__(self, bins: BinAudit, alpha: float, *, name: str | None = None) -> None:
        self.bins = bins
        self.alpha = alpha
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        auditor: CalibrationAuditor,
        group: str | None = None,
        *,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> CalibrationAuditDisplay:
        """Draw the findings of an audit.

        Parameters
        ----------
        auditor : CalibrationAuditor
            Fitted auditor.
        group : str, optional
            One of the audited groups, such as ``"sex=female"``. Default: all samples.
        name : str, optional
            Title. Default: the group.
        ax : matplotlib Axes, optional
            Where to draw. Default: a new figure.

        Returns
        -------
        CalibrationAuditDisplay

        Raises
        ------
        ValueError
            If there is no such group.
        """
        check_is_fitted(auditor)
        if group is not None and group not in auditor.group_bins_:
            raise ValueError(
                f"`group` must be one of the audited groups {sorted(auditor.group_bins_)}, "
                f"got {group!r}."
            )
        bins = auditor.bins_ if group is None else auditor.group_bins_[group]
        return cls(bins, auditor.settings_["alpha"], name=group if name is None else name).plot(ax)

    def plot(self, ax: Axes | None = None) -> CalibrationAuditDisplay:
        """Draw on `ax`, or on a new figure, and return the display."""
        self.ax_ = axes_or_new(ax, figsize=(5.4, 6.0))
        self.figure_ = self.ax_.figure
        ends = np.array([0.0, 1.0])
        self.ax_.fill_between(
            ends,
            ends - self.alpha,
            ends + self.alpha,
            color="0.88",
            linewidth=0,
            label=f"tolerance ({100 * self.alpha:.3g} points)",
        )
        self.ax_.plot(ends, ends, "--", color="0.3", linewidth=1, label="accuracy = confidence")
        filled, significant = self.bins.count > 0, self.bins.significant
        self._plot_points(filled & ~significant, "bin", COLOURS[0], "o")
        self._plot_points(significant, "significant deviation", COLOURS[1], "D")
        self.ax_.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
        self.ax_.tick_params(labelbottom=False)
        legend_above(self.ax_, columns=2, title=plain_text(self.name or ""))
        self._plot_counts()
        return self

    def _plot_points(self, chosen: BoolArray, label: str, colour: str, marker: str) -> None:
        if not chosen.any():
            return
        x, y = self.bins.confidence[chosen], self.bins.accuracy[chosen]
        low, high = x + self.bins.gap_low[chosen], x + self.bins.gap_high[chosen]
        # Differences of limits and accuracy may be negative by rounding, which is an error.
        reach = np.maximum([y - low, high - y], 0)
        self.ax_.errorbar(
            x,
            y,
            reach,
            fmt=marker,
            color=colour,
            markersize=6,
            capsize=3,
            linewidth=1.5,
            linestyle="none",
            zorder=3,
            clip_on=False,
            label=label,
        )

    def _plot_counts(self) -> None:
        bins, most = self.bins, self.bins.count.max()
        self.count_ax_ = axes_below(self.ax_, most, str(most))
        colours = np.where(bins.significant, COLOURS[1], "0.6").tolist()
        bars = bars_over_bins(self.count_ax_, bins.lower, bins.upper, bins.count, color=colours)
        for bar, significant in zip(bars, bins.significant, strict=True):
            bar.set_zorder(bar.get_zorder() + significant)  # narrow bins hide each other
        self.count_ax_.set(xlabel="reported confidence", ylabel="samples")
