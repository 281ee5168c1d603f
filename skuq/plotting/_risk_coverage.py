"""Risk-coverage curve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from skuq.metrics import RiskCoverage, area_under_risk_coverage, predicted_part, risk_coverage_curve
from skuq.plotting._drawing import COLOURS, axes_or_new, plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NO_RISK = 1e-9  # error rates below are 0 but for rounding


class RiskCoverageDisplay:
    """Error rate among the least uncertain samples against their share of all samples.

    Several curves can be drawn on the same axes. The dashed line is the error rate if
    every sample is answered.

    Parameters
    ----------
    curve : RiskCoverage
        Points of the curve.
    area : float
        Area under it (AURC).
    name : str, optional
        Name in the legend.

    Attributes
    ----------
    curve, area, name
        As given.
    ax_, figure_ : matplotlib Axes and Figure
        Where it was drawn last.

    Examples
    --------
    >>> from skuq.plotting import RiskCoverageDisplay
    >>> display = RiskCoverageDisplay.from_predictions(
    ...     [0, 1, 1, 0], [0, 1, 1, 1], [0.1, 0.3, 0.2, 0.8], name="model"
    ... )
    >>> display.area
    0.0625
    """

    def __init__(self, curve: RiskCoverage, area: float, *, name: str | None = None) -> None:
        self.curve = curve
        self.area = area
        self.name = name

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        part: str = "total",
        name: str | None = None,
        ax: Axes | None = None,
    ) -> RiskCoverageDisplay:
        """Predict labels and uncertainty, and draw their risk-coverage curve.

        Parameters
        ----------
        estimator : object
            Fitted classifier, as `skuq.predict_uncertainty` takes it.
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            True labels.
        part : {"total", "aleatoric", "epistemic"}, default="total"
            Which part of the uncertainty ranks the samples.
        name : str, optional
            Name in the legend. Default: the class of the estimator.
        ax : matplotlib Axes, optional
            Where to draw. Default: a new figure.

        Returns
        -------
        RiskCoverageDisplay
        """
        name = type(estimator).__name__ if name is None else name
        uncertainty = predicted_part(estimator, X, part)
        return cls.from_predictions(y, estimator.predict(X), uncertainty, name=name, ax=ax)

    @classmethod
    def from_predictions(
        cls,
        y_true: ArrayLike,
        y_pred: ArrayLike,
        uncertainty: ArrayLike,
        *,
        name: str | None = None,
        ax: Axes | None = None,
    ) -> RiskCoverageDisplay:
        """Draw the risk-coverage curve of given predictions.

        Parameters
        ----------
        y_true, y_pred : array-like of shape (n_samples,)
            True and predicted labels.
        uncertainty : array-like of shape (n_samples,)
            Finite, larger where the prediction is less certain.
        name : str, optional
            Name in the legend.
        ax : matplotlib Axes, optional
            Where to draw. Default: a new figure.

        Returns
        -------
        RiskCoverageDisplay
        """
        curve = risk_coverage_curve(y_true, y_pred, uncertainty)
        area = area_under_risk_coverage(y_true, y_pred, uncertainty)
        return cls(curve, area, name=name).plot(ax)

    def plot(self, ax: Axes | None = None) -> RiskCoverageDisplay:
        """Draw on `ax`, or on a new figure, and return the display."""
        self.ax_ = axes_or_new(ax)
        self.figure_ = self.ax_.figure
        reference = "error rate if all are answered"
        labels = self.ax_.get_legend_handles_labels()[1]
        drawn = [label for label in labels if label != reference]
        if reference not in labels:  # one entry explains the dashed lines of all curves
            self.ax_.plot([], [], "--", color="0.4", linewidth=1, label=reference)
        colour = COLOURS[len(drawn) % len(COLOURS)]
        # Below the first threshold the expected risk is that of its tie block.
        coverage = np.concatenate([[0.0], self.curve.coverage])
        risk = np.concatenate([self.curve.risk[:1], self.curve.risk])
        area = f"AURC = {self.area:.3g}"
        label = area if self.name is None else f"{plain_text(self.name)} ({area})"
        self.ax_.plot(coverage, risk, color=colour, linewidth=2, label=label)
        self.ax_.axhline(self.curve.risk[-1], linestyle="--", linewidth=1, color=colour)
        self.ax_.set(xlabel="coverage", ylabel="selective risk (error rate)", xlim=(0, 1))
        headroom = 1.2 + 0.09 * (len(drawn) + 1)  # for the legend, above every curve
        highest = self.ax_.dataLim.ymax
        self.ax_.set_ylim(0, headroom * (highest if highest > NO_RISK else 1.0))
        self.ax_.legend(loc="upper left", frameon=False)
        return self
