"""Distribution of reported confidence in groups of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.plotting._drawing import COLOURS, axes_or_new, legend_above, plain_text
from skuq.plotting._histogram import _check_groups
from skuq.validation import finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

N_BINS = 20
LINES = ("-", "--", "-.", ":")


class ConfidenceDensityDisplay:
    """Distribution of reported confidence in several groups of samples.

    Each outline is a histogram over 20 bins on [0, 1] whose area is 1. Confidence that was
    lowered for some inputs shows as a peak where an honest model has none.

    Parameters
    ----------
    groups : mapping of str to array-like of shape (n_samples,)
        Confidence of each named group, in [0, 1].
    threshold : float, optional
        Confidence below which the model abstains; drawn as a line.
    marked : sequence of (float, float), default=()
        Ranges of confidence to shade, such as suspicious bins.
    weights : mapping of str to array-like of shape (n_samples,), optional
        Number of samples that each value of a group stands for, not negative and in each
        group not all 0. Default: 1 each.

    Attributes
    ----------
    groups : dict of str to ndarray
        The values, as given.
    threshold, marked, weights
        As given.
    bin_edges : ndarray of shape (21,)
        Edges of the shared bins.
    ax_, figure_ : matplotlib Axes and Figure
        Where it was drawn last.

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
        _check_groups(groups)
        self.groups = {name: _confidences(values, name) for name, values in groups.items()}
        self.threshold = threshold
        self.marked = marked
        self.weights = weights
        if weights is not None:
            for name, values in self.groups.items():
                _check_weights(weights, name, len(values))
        self.bin_edges = np.arange(N_BINS + 1) / N_BINS

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        groups: Mapping[str, Any],
        *,
        threshold: float | None = None,
        marked: Sequence[tuple[float, float]] = (),
        ax: Axes | None = None,
    ) -> ConfidenceDensityDisplay:
        """Predict the confidence of each group of inputs and draw it.

        Parameters
        ----------
        estimator : object
            Fitted classifier with `predict_proba`.
        groups : mapping of str to array-like of shape (n_samples, n_features)
            Inputs of each named group.
        threshold, marked
            As in the class.
        ax : matplotlib Axes, optional
            Where to draw. Default: a new figure.

        Returns
        -------
        ConfidenceDensityDisplay
        """
        _check_groups(groups)
        values = {
            name: np.asarray(estimator.predict_proba(X)).max(axis=1) for name, X in groups.items()
        }
        return cls(values, threshold=threshold, marked=marked).plot(ax)

    @classmethod
    def from_predictions(
        cls,
        groups: Mapping[str, ArrayLike],
        *,
        threshold: float | None = None,
        marked: Sequence[tuple[float, float]] = (),
        weights: Mapping[str, ArrayLike] | None = None,
        ax: Axes | None = None,
    ) -> ConfidenceDensityDisplay:
        """Draw given confidences; parameters are those of the class, and `ax`."""
        return cls(groups, threshold=threshold, marked=marked, weights=weights).plot(ax)

    def plot(self, ax: Axes | None = None) -> ConfidenceDensityDisplay:
        """Draw on `ax`, or on a new figure, and return the display."""
        self.ax_ = axes_or_new(ax)
        self.figure_ = self.ax_.figure
        for k, (low, high) in enumerate(self.marked):
            label = "significant deviation" if k == 0 else None
            self.ax_.axvspan(low, high, color="0.85", linewidth=0, label=label)
        for k, (name, values) in enumerate(self.groups.items()):
            weights = None if self.weights is None else np.asarray(self.weights[name])
            # As in an audit, a recorded 0.6 is in the bin above that edge, however it was got.
            decimal = np.round(values, 9)
            density = np.histogram(decimal, self.bin_edges, density=True, weights=weights)[0]
            # Lines of groups that agree lie on each other; dashes let those below show.
            self.ax_.stairs(
                density,
                self.bin_edges,
                color=COLOURS[k % len(COLOURS)],
                linestyle=LINES[k % len(LINES)],
                linewidth=1.8,
                label=plain_text(name),
            )
        if self.threshold is not None:
            label = f"abstains below {100 * self.threshold:.4g}%"
            self.ax_.axvline(self.threshold, color="0.2", linestyle=":", label=label)
        self.ax_.set(xlim=(0, 1), xlabel="reported confidence", ylabel="density")
        self.ax_.set_ylim(bottom=0)
        legend_above(self.ax_, columns=2)
        return self


def _confidences(values: ArrayLike, name: str) -> FloatArray:
    checked = finite(values, name)
    bad = (checked < 0) | (checked > 1)
    if bad.any():
        raise ValueError(
            f"`{name}` must hold confidences in [0, 1], got {checked[bad][0]} in row "
            f"{bad.argmax()}."
        )
    return checked


def _check_weights(weights: Mapping[str, ArrayLike], name: str, count: int) -> None:
    if name not in weights:
        raise ValueError(f"`weights` must have weights for each group, none for `{name}`.")
    weight = finite(weights[name], f"weights[{name!r}]")
    if len(weight) != count or (weight < 0).any() or weight.sum() == 0:
        raise ValueError(
            f"`weights` of `{name}` must be {count} numbers >= 0 that are not all 0, one for "
            "each value."
        )
