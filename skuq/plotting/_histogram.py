"""Histogram of uncertainty in groups of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.metrics import predicted_part
from skuq.plotting._drawing import COLOURS, axes_or_new, plain_text, with_unit
from skuq.validation import finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

N_BINS = 40
LOG_RATIO = 100.0  # a longer tail than this hides everything else on a linear axis
LARGEST = 1e300  # beyond, an axis around the values is too wide for floating-point numbers
LOG_RANGE = 1e12  # values this far below the largest are rounding noise


class UncertaintyHistogramDisplay:
    """Distribution of uncertainty in several groups of inputs, over shared bins.

    Meant for inputs of the training distribution against out-of-distribution ones. The axis
    is logarithmic if no value is negative and the largest is more than 100 times the
    median of the positive ones; zeros, and values more than 12 orders of magnitude below
    the largest, are then counted in the lowest bin.

    Parameters
    ----------
    groups : mapping of str to array-like of shape (n_samples,)
        Finite uncertainty of each named group, within plus and minus 1e300.
    label : str, default="uncertainty"
        What is measured.
    unit : str, optional
        Its unit, such as ``"nats"``.

    Attributes
    ----------
    groups : dict of str to ndarray
        The values, as given.
    bin_edges : ndarray of shape (n_bins + 1,)
        Edges of the shared bins.
    log : bool
        Whether bins and axis are logarithmic.
    ax_, figure_ : matplotlib Axes and Figure
        Where it was drawn last.

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
        _check_groups(groups)
        self.groups = {name: finite(values, name) for name, values in groups.items()}
        together = np.concatenate(list(self.groups.values()))
        if (largest := np.abs(together).max()) > LARGEST:
            raise ValueError(
                f"The values of `groups` must lie within plus and minus {LARGEST}, got "
                f"{largest:.3g} in absolute value; divide them by a constant."
            )
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
    ) -> UncertaintyHistogramDisplay:
        """Predict the uncertainty of each group of inputs and draw it.

        Parameters
        ----------
        estimator : object
            Fitted estimator, as `skuq.predict_uncertainty` takes it.
        groups : mapping of str to array-like of shape (n_samples, n_features)
            Inputs of each named group.
        part : {"total", "aleatoric", "epistemic"}, default="epistemic"
            Which part of the uncertainty.
        unit : str, optional
            Unit of the estimator's uncertainty.
        ax : matplotlib Axes, optional
            Where to draw. Default: a new figure.

        Returns
        -------
        UncertaintyHistogramDisplay
        """
        _check_groups(groups)
        values = {name: predicted_part(estimator, X, part) for name, X in groups.items()}
        return cls(values, label=f"{part} uncertainty", unit=unit).plot(ax)

    @classmethod
    def from_predictions(
        cls,
        groups: Mapping[str, ArrayLike],
        *,
        label: str = "uncertainty",
        unit: str | None = None,
        ax: Axes | None = None,
    ) -> UncertaintyHistogramDisplay:
        """Draw given uncertainties; parameters are those of the class, and `ax`."""
        return cls(groups, label=label, unit=unit).plot(ax)

    def plot(self, ax: Axes | None = None) -> UncertaintyHistogramDisplay:
        """Draw on `ax`, or on a new figure, and return the display."""
        self.ax_ = axes_or_new(ax)
        self.figure_ = self.ax_.figure
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
        return self


def _check_groups(groups: Mapping[str, Any]) -> None:
    if not isinstance(groups, Mapping):
        raise TypeError(f"`groups` must map names to arrays, got {type(groups).__name__}.")
    if not groups:
        raise ValueError("`groups` must have at least one group, got none.")


def _histogram_bins(values: FloatArray) -> tuple[FloatArray, bool]:
    """Edges of bins that hold all values, and whether they are spaced logarithmically."""
    positive = values[values > 0]
    log = len(positive) > 0 and values.min() >= 0
    if log and positive.max() / np.median(positive) > LOG_RATIO:
        low = max(positive.min(), positive.max() / LOG_RANGE)
        return np.geomspace(low, positive.max(), N_BINS + 1), True
    low, high = values.min(), values.max()
    finest = 2 * N_BINS * np.spacing(np.abs(values).max())
    if high - low < finest:  # equal but for rounding: there are no bins that narrow
        low, high = low - max(0.5, finest), high + max(0.5, finest)
    return np.linspace(low, high, N_BINS + 1), False
