"""Displays of scores: risk-coverage curve, histogram of uncertainty, and conformal p-values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.metrics import RiskCoverage, area_under_risk_coverage, predicted_part, risk_coverage_curve
from skuq.plotting import _display
from skuq.plotting._display import COLOURS, Display, filled_steps, plain_text, with_unit
from skuq.validation import Loss, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_RISK = 1e-9  # smaller error rates are rounding errors of 0
LONGEST_UNIT = 16  # longer units of a risk are shortened to this number of characters
RISKS = {
    "zero_one": "error rate",
    "squared_error": "mean squared error",
    "absolute_error": "mean absolute error",
}
# Constants of the histogram:
N_BINS = 40
LOG_RATIO = 100.0  # the axis is logarithmic if largest value / median is above this ratio
LOG_RANGE = 1e12  # values below the largest value divided by LOG_RANGE are rounding errors
# For the histogram of p-values: number of bins up to the threshold, and maximum number of bins.
BINS_TO_LIMIT = 8
MOST_BINS = 200


class RiskCoverageDisplay(Display):
    """Risk-coverage curve: mean loss of the least uncertain samples, against their share.

    Several curves of the same loss can be drawn on the same axes. The dashed line is the mean loss
    over all samples.

    Parameters
    ----------
    curve : RiskCoverage
        Points of the curve.
    area : float
        Area under the curve (AURC).
    loss : {"zero_one", "squared_error", "absolute_error"}, default="zero_one"
        Loss whose mean is the risk, as in `skuq.metrics.risk_coverage_curve`.
    unit, name : str, optional
        Unit of the target, if it is a quantity, and name in the legend.

    Examples
    --------
    >>> from skuq.plotting import RiskCoverageDisplay
    >>> display = RiskCoverageDisplay.from_predictions(
    ...     [0, 1, 1, 0], [0, 1, 1, 1], [0.1, 0.3, 0.2, 0.8], name="model"
    ... )
    >>> display.area
    0.0625
    """

    def __init__(
        self,
        curve: RiskCoverage,
        area: float,
        *,
        loss: Loss = "zero_one",
        unit: str | None = None,
        name: str | None = None,
    ) -> None:
        self.curve, self.area, self.loss, self.unit, self.name = curve, area, loss, unit, name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        part: str = "total",
        **settings: Any,
    ) -> Self:
        """Predict labels or quantities and their uncertainty, and draw the risk-coverage curve.

        The fitted estimator is one that `skuq.predict_uncertainty` accepts; `part` ("total",
        "aleatoric" or "epistemic") ranks the samples. `settings` are as in `from_predictions`.
        Default of `name`: the class of the estimator.
        """
        settings.setdefault("name", type(estimator).__name__)
        uncertainty = predicted_part(estimator, X, part)
        return cls.from_predictions(y, estimator.predict(X), uncertainty, **settings)

    @classmethod
    def from_predictions(  # type: ignore[override]  # other parameters than in Display
        cls,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        uncertainty: ArrayLike,
        *,
        loss: Loss = "zero_one",
        **settings: Any,
    ) -> Self:
        """Draw the risk-coverage curve of given predictions.

        `y_true`, `y_pred`, `uncertainty` and `loss` are as in `skuq.metrics.risk_coverage_curve`,
        `settings` are `unit` and `name` of the class, and `ax`.
        """
        curve = risk_coverage_curve(y_true, y_pred, uncertainty, loss=loss)
        area = area_under_risk_coverage(y_true, y_pred, uncertainty, loss=loss)
        return super().from_predictions(curve, area, loss=loss, **settings)

    def description(self) -> str:
        return (
            f"{RISKS[self.loss]} by share answered: from {self.curve.risk[0]:.3g} to "
            f"{self.curve.risk[-1]:.3g} if all are answered; area under the curve {self.area:.3g}."
        )

    def _draw(self) -> None:
        reference = f"{RISKS[self.loss]} if all are answered"
        labels = self.ax_.get_legend_handles_labels()[1]
        drawn = [label for label in labels if label != reference]
        if reference not in labels:  # one entry explains the dashed lines of all curves
            self.ax_.plot([], [], "--", color="0.4", linewidth=1, label=reference)
        colour = COLOURS[len(drawn) % len(COLOURS)]
        # Below the coverage of the first tie block, the expected risk equals the risk of the block.
        coverage = np.concatenate([[0.0], self.curve.coverage])
        risk = np.concatenate([self.curve.risk[:1], self.curve.risk])
        area = f"AURC = {self.area:.3g}"
        label = area if self.name is None else f"{plain_text(self.name)} ({area})"
        self.ax_.plot(coverage, risk, color=colour, linewidth=2, label=label)
        self.ax_.axhline(self.curve.risk[-1], linestyle="--", linewidth=1, color=colour)
        unit = "" if self.unit is None else f", {plain_text(self.unit, LONGEST_UNIT)}"
        if self.unit and self.loss != "absolute_error":
            unit = f"{unit}²" if self.unit.isalpha() else f", ({unit[2:]})²"
        risk_name = f"selective risk ({RISKS[self.loss]}{unit})"
        self.ax_.set(xlabel="share answered", ylabel=risk_name, xlim=(0, 1))
        headroom = 1.2 + 0.09 * (len(drawn) + 1)  # for the legend, above all curves
        highest = self.ax_.dataLim.ymax
        # NO_RISK applies to error rates only; losses of a regression can be tiny because of the
        # unit of the target.
        least = NO_RISK if self.loss == "zero_one" else 0.0
        self.ax_.set_ylim(0, headroom * (highest if highest > least else 1.0))
        self.ax_.legend(loc="upper left", frameon=False)


class UncertaintyHistogramDisplay(Display):
    """Distribution of uncertainty in several groups of inputs, over shared bins.

    The axis is logarithmic if no value is negative and the largest value is more than 100 times the
    median of the positive values. The lowest bin then includes zeros and values more than 12 orders
    of magnitude below the largest value.

    Parameters
    ----------
    groups : mapping of str to array-like of shape (n_samples,)
        Finite uncertainty of each named group, within plus and minus 1e300.
    label, unit : str
        Label of the axis, and unit of the uncertainty, such as ``"nats"``.

    Attributes
    ----------
    bin_edges : ndarray of shape (n_bins + 1,)
        Edges of the shared bins.
    log : bool
        Whether bins and axis are logarithmic.

    Examples
    --------
    >>> from skuq.plotting import UncertaintyHistogramDisplay
    >>> display = UncertaintyHistogramDisplay.from_predictions(
    ...     {"test": [0.1, 0.2, 0.2], "OOD": [0.6, 0.9]}, unit="nats"
    ... )
    >>> display.ax_.get_xlabel()
    'uncertainty (nats)'
    """

    def __init__(
        self,
        groups: Mapping[str, ArrayLike],
        *,
        label: str = "uncertainty",
        unit: str | None = None,
    ) -> None:
        _display.check_groups(groups)
        self.groups = {name: finite(values, name) for name, values in groups.items()}
        together = np.concatenate(list(self.groups.values()))
        _display.check_drawable(groups=together)
        self.label, self.unit = label, unit
        self.bin_edges, self.log = _histogram_bins(together)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        groups: Mapping[str, Any],
        *,
        part: str = "epistemic",
        unit: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Predict one part of the uncertainty of each named group of inputs, and draw it.

        The fitted estimator is one that `skuq.predict_uncertainty` accepts; `part` is "total",
        "aleatoric" or "epistemic", `unit` the unit of its uncertainty.
        """
        _display.check_groups(groups)
        values = {name: predicted_part(estimator, X, part) for name, X in groups.items()}
        return cls.from_predictions(values, label=f"{part} uncertainty", unit=unit, ax=ax)

    def description(self) -> str:
        return f"Share of the group by {self.label}: {_display.phrased_groups(self.groups, {})}."

    def _draw(self) -> None:
        for k, (name, values) in enumerate(self.groups.items()):
            inside = np.clip(values, self.bin_edges[0], self.bin_edges[-1])
            share = np.histogram(inside, self.bin_edges)[0] / len(values)
            filled_steps(
                self.ax_, share, self.bin_edges, COLOURS[k % len(COLOURS)], plain_text(name)
            )
        if self.log:
            self.ax_.set_xscale("log")
        self.ax_.set(xlabel=with_unit(self.label, self.unit), ylabel="share of the group")
        self.ax_.legend(frameon=False)


def _histogram_bins(values: FloatArray) -> tuple[FloatArray, bool]:
    positive = values[values > 0]
    log = len(positive) > 0 and values.min() >= 0
    if log and positive.max() / np.median(positive) > LOG_RATIO:
        low = max(positive.min(), positive.max() / LOG_RANGE)
        return np.geomspace(low, positive.max(), N_BINS + 1), True
    low, high = values.min(), values.max()
    finest = 2 * N_BINS * np.spacing(np.abs(values).max())
    if high - low < finest:
        # The values are equal up to rounding: between them, there are too few floats for bin edges.
        low, high = low - max(0.5, finest), high + max(0.5, finest)
    return np.linspace(low, high, N_BINS + 1), False


class OODDisplay(Display):
    """Distribution of conformal p-values in groups of inputs, with the threshold for flagging.

    The axis is logarithmic, with small p-values on the right. At most a share `false_alarm_rate` of
    in-distribution inputs is expected beyond the dashed line; the legend shows the flagged share of
    each group. The smallest possible p-value is ``1 / (n_held_out + 1)``.

    Parameters
    ----------
    groups : mapping of str to array-like of shape (n_samples,)
        P-values of each named group, in (0, 1].
    false_alarm_rate : float, default=0.05
        Threshold: inputs with a p-value up to this value are flagged.

    Attributes
    ----------
    flagged : dict of str to float
        Flagged share of each group.
    bin_edges : ndarray of shape (n_bins + 1,)
        Edges of the shared bins of ``-log10(p)``. One of the edges is the threshold.

    Examples
    --------
    >>> from skuq.plotting import OODDisplay
    >>> display = OODDisplay.from_predictions({"test": [0.9, 0.3, 0.04], "OOD": [0.01, 0.01]})
    >>> display.flagged["OOD"]
    1.0
    """

    def __init__(self, groups: Mapping[str, ArrayLike], *, false_alarm_rate: float = 0.05) -> None:
        _display.check_groups(groups)
        if not 0 < false_alarm_rate < 1:
            raise ValueError(
                f"`false_alarm_rate` must lie strictly between 0 and 1, got {false_alarm_rate}."
            )
        self.groups = {name: finite(values, name) for name, values in groups.items()}
        for name, values in self.groups.items():
            if values.min() <= 0 or values.max() > 1:
                raise ValueError(
                    f"`{name}` must contain p-values in (0, 1], got values in [{values.min():.3g}, "
                    f"{values.max():.3g}]."
                )
        self.false_alarm_rate = false_alarm_rate
        self.flagged = {
            name: float((values <= false_alarm_rate).mean()) for name, values in self.groups.items()
        }
        self.bin_edges = self._edges()

    @classmethod
    def from_estimator(
        cls, detector: Any, X: Any, X_ood: Any = None, *, ax: Axes | None = None
    ) -> Self:
        """Compute the p-values of inputs with a fitted `OODDetector`, and draw them.

        `X` are in-distribution inputs that were not used in training, or inputs to be tested.
        `X_ood` are out-of-distribution inputs, or a mapping from names to inputs of several kinds.
        """
        # A DataFrame is one group, although it maps names to columns.
        named = isinstance(X_ood, Mapping)
        others = {} if X_ood is None else X_ood if named else {"OOD": X_ood}
        groups = {"inputs": X, **others}
        values = {name: detector.p_values(rows) for name, rows in groups.items()}
        return cls.from_predictions(values, false_alarm_rate=detector.false_alarm_rate, ax=ax)

    def _edges(self) -> FloatArray:
        smallest = min(values.min() for values in self.groups.values())
        limit = -np.log10(self.false_alarm_rate)
        longest = max(-np.log10(smallest), limit)
        width = max(limit / BINS_TO_LIMIT, longest / MOST_BINS)
        below = np.linspace(0, limit, max(1, round(limit / width)) + 1)
        # The last edge lies beyond the largest value.
        beyond = limit + width * np.arange(1, (longest - limit) // width + 2)
        return np.concatenate([below, beyond])

    def description(self) -> str:
        shares = "; ".join(f"{name}: {share:.1%}" for name, share in self.flagged.items())
        return f"Groups by conformal p-value; flagged at {self.false_alarm_rate:g}: {shares}."

    def _draw(self) -> None:
        ax, limit = self.ax_, -np.log10(self.false_alarm_rate)
        for k, (name, values) in enumerate(self.groups.items()):
            surprise = -np.log10(values)
            # Move p-values equal to the threshold into the flagged bin, despite rounding.
            surprise[values <= self.false_alarm_rate] += 1e-9
            share = np.histogram(surprise, self.bin_edges)[0] / len(values)
            label = f"{plain_text(name)}: {self.flagged[name]:.1%} flagged"
            filled_steps(ax, share, self.bin_edges, COLOURS[k % len(COLOURS)], label)
        line = f"limit: p = {self.false_alarm_rate:g}"
        ax.axvline(limit, color="0.3", linestyle="--", linewidth=1.2, label=line)
        decades = np.arange(np.floor(self.bin_edges[-1]) + 1)
        every = max(1, len(decades) // 6)
        ax.set_xticks(decades[::every], [f"{10.0**-k:g}" for k in decades[::every]])
        ax.set(xlabel="conformal p-value", ylabel="share of the group")
        ax.set_xlim(0, self.bin_edges[-1])
        # The legend is nearly opaque, since the threshold line may pass behind it.
        ax.legend(loc="upper left", facecolor="white", framealpha=0.9, edgecolor="none")
