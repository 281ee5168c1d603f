"""Displays of uncertainty as a score: risk-coverage curve, and histogram of groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.metrics import RiskCoverage, area_under_risk_coverage, predicted_part, risk_coverage_curve
from skuq.plotting._display import (
    COLOURS,
    Display,
    check_drawable,
    check_groups,
    phrased_groups,
    plain_text,
    with_unit,
)
from skuq.validation import Loss, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_RISK = 1e-9  # smaller error rates are rounding errors
LONGEST_UNIT = 16  # number of characters of a unit that fit next to the name of a risk
RISKS = {
    "zero_one": "error rate",
    "squared_error": "mean squared error",
    "absolute_error": "mean absolute error",
}
# Constants of the histogram:
N_BINS = 40
LOG_RATIO = 100.0  # the axis is logarithmic if largest value / median is above this ratio
LOG_RANGE = 1e12  # values below the largest value divided by LOG_RANGE are rounding errors


class RiskCoverageDisplay(Display):
    """Risk-coverage curve: mean loss of the least uncertain samples, against the coverage.

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
    unit : str, optional
        Unit of the target, if the target is a quantity.
    name : str, optional
        Name in the legend.

    Attributes
    ----------
    curve, area, loss, unit, name
        As given.
    ax_, figure_ : matplotlib Axes and Figure
        Axes and figure of the last plot.

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
        self.curve = curve
        self.area = area
        self.loss = loss
        self.unit = unit
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        part: str = "total",
        loss: Loss = "zero_one",
        unit: str | None = None,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Predict labels or quantities and their uncertainty, and draw the risk-coverage curve.

        Parameters
        ----------
        estimator : object
            Fitted estimator that `skuq.predict_uncertainty` accepts.
        X, y : array-like of shape (n_samples, n_features) and (n_samples,)
            Inputs, and true labels or quantities.
        part : {"total", "aleatoric", "epistemic"}, default="total"
            Part of the uncertainty that ranks the samples.
        loss, unit
            As in the class; for quantities, `loss` must be set.
        name, ax : optional
            Name in the legend (default: the class of the estimator), and axes (default: a new
            figure).
        """
        name = type(estimator).__name__ if name is None else name
        uncertainty = predicted_part(estimator, X, part)
        settings: dict[str, Any] = {"loss": loss, "unit": unit, "name": name, "ax": ax}
        return cls.from_predictions(y, estimator.predict(X), uncertainty, **settings)

    @classmethod
    def from_predictions(  # type: ignore[override]  # parameters differ from those of the class
        cls,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        uncertainty: ArrayLike,
        *,
        loss: Loss = "zero_one",
        unit: str | None = None,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> Self:
        """Draw the risk-coverage curve of given predictions.

        Parameters
        ----------
        y_true, y_pred : array-like of shape (n_samples,)
            True and predicted labels, or quantities.
        uncertainty : array-like of shape (n_samples,)
            Finite score, larger for less certain predictions.
        loss, unit
            As in the class; for quantities, `loss` must be set.
        name, ax : optional
            Name in the legend, and axes (default: a new figure).
        """
        curve = risk_coverage_curve(y_true, y_pred, uncertainty, loss=loss)
        area = area_under_risk_coverage(y_true, y_pred, uncertainty, loss=loss)
        return super().from_predictions(curve, area, loss=loss, unit=unit, name=name, ax=ax)

    def description(self) -> str:
        return (
            f"Selective risk ({RISKS[self.loss]}) by coverage: from {self.curve.risk[0]:.3g} to "
            f"{self.curve.risk[-1]:.3g} if all are answered; area under the curve {self.area:.3g}."
        )

    def _draw(self) -> None:
        reference = f"{RISKS[self.loss]} if all are answered"
        labels = self.ax_.get_legend_handles_labels()[1]
        drawn = [label for label in labels if label != reference]
        if reference not in labels:  # one entry explains the dashed lines of all curves
            self.ax_.plot([], [], "--", color="0.4", linewidth=1, label=reference)
        colour = COLOURS[len(drawn) % len(COLOURS)]
        # At a coverage below that of the first tie block, the expected risk is the block's risk.
        coverage = np.concatenate([[0.0], self.curve.coverage])
        risk = np.concatenate([self.curve.risk[:1], self.curve.risk])
        area = f"AURC = {self.area:.3g}"
        label = area if self.name is None else f"{plain_text(self.name)} ({area})"
        self.ax_.plot(coverage, risk, color=colour, linewidth=2, label=label)
        self.ax_.axhline(self.curve.risk[-1], linestyle="--", linewidth=1, color=colour)
        risk_name = f"selective risk ({RISKS[self.loss]}{self._unit_of_risk()})"
        self.ax_.set(xlabel="coverage", ylabel=risk_name, xlim=(0, 1))
        headroom = 1.2 + 0.09 * (len(drawn) + 1)  # for the legend, above all curves
        highest = self.ax_.dataLim.ymax
        # NO_RISK applies to error rates only: regression losses may be small because of the unit of
        # the target.
        least = NO_RISK if self.loss == "zero_one" else 0.0
        self.ax_.set_ylim(0, headroom * (highest if highest > least else 1.0))
        self.ax_.legend(loc="upper left", frameon=False)

    def _unit_of_risk(self) -> str:
        if self.unit is None:
            return ""
        unit = plain_text(self.unit, LONGEST_UNIT)
        if self.loss == "absolute_error":
            return f", {unit}"
        return f", {unit}²" if self.unit.isalpha() else f", ({unit})²"


class UncertaintyHistogramDisplay(Display):
    """Distribution of uncertainty in several groups of inputs, over shared bins.

    Typically, the groups are in-distribution and out-of-distribution inputs. The axis is
    logarithmic if no value is negative and the largest value is more than 100 times the median of
    the positive values. The lowest bin then includes zeros and values more than 12 orders of
    magnitude below the largest value.

    Parameters
    ----------
    groups : mapping of str to array-like of shape (n_samples,)
        Finite uncertainty of each named group, within plus and minus 1e300.
    label : str, default="uncertainty"
        Label of the axis.
    unit : str, optional
        Unit of the uncertainty, such as ``"nats"``.

    Attributes
    ----------
    groups : dict of str to ndarray
        The values, as given.
    bin_edges : ndarray of shape (n_bins + 1,)
        Edges of the shared bins.
    log : bool
        Whether bins and axis are logarithmic.
    ax_, figure_ : matplotlib Axes and Figure
        Axes and figure of the last plot.

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
        check_groups(groups)
        self.groups = {name: finite(values, name) for name, values in groups.items()}
        together = np.concatenate(list(self.groups.values()))
        check_drawable(groups=together)
        self.label = label
        self.unit = unit
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
        """Predict the uncertainty of each group of inputs and draw it.

        Parameters
        ----------
        estimator : object
            Fitted estimator that `skuq.predict_uncertainty` accepts.
        groups : mapping of str to array-like of shape (n_samples, n_features)
            Inputs of each named group.
        part : {"total", "aleatoric", "epistemic"}, default="epistemic"
            Part of the uncertainty.
        unit : str, optional
            Unit of the estimator's uncertainty.
        ax : matplotlib Axes, optional
            Default: a new figure.
        """
        check_groups(groups)
        values = {name: predicted_part(estimator, X, part) for name, X in groups.items()}
        return cls.from_predictions(values, label=f"{part} uncertainty", unit=unit, ax=ax)

    def description(self) -> str:
        return f"Share of the group by {self.label}: {phrased_groups(self.groups, {})}."

    def _draw(self) -> None:
        for k, (name, values) in enumerate(self.groups.items()):
            inside = np.clip(values, self.bin_edges[0], self.bin_edges[-1])
            share = np.histogram(inside, self.bin_edges)[0] / len(values)
            colour = COLOURS[k % len(COLOURS)]
            self.ax_.stairs(share, self.bin_edges, fill=True, color=colour, alpha=0.3)
            label = plain_text(name)
            self.ax_.stairs(share, self.bin_edges, color=colour, linewidth=1.5, label=label)
        if self.log:
            self.ax_.set_xscale("log")
        self.ax_.set(xlabel=with_unit(self.label, self.unit), ylabel="share of the group")
        self.ax_.legend(frameon=False)


def _histogram_bins(values: FloatArray) -> tuple[FloatArray, bool]:
    """Edges of bins that cover all values, and whether they are spaced logarithmically."""
    positive = values[values > 0]
    log = len(positive) > 0 and values.min() >= 0
    if log and positive.max() / np.median(positive) > LOG_RATIO:
        low = max(positive.min(), positive.max() / LOG_RANGE)
        return np.geomspace(low, positive.max(), N_BINS + 1), True
    low, high = values.min(), values.max()
    finest = 2 * N_BINS * np.spacing(np.abs(values).max())
    if high - low < finest:
        # The values are equal up to rounding; floats between them are too few for the bins.
        low, high = low - max(0.5, finest), high + max(0.5, finest)
    return np.linspace(low, high, N_BINS + 1), False
