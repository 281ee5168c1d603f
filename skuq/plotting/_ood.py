"""Display of out-of-distribution detection: p-values of groups, and shares of flagged inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.plotting._display import COLOURS, Display, check_groups, plain_text
from skuq.validation import finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BINS_TO_LIMIT = 8
MOST_BINS = 200


class OODDisplay(Display):
    """Distribution of conformal p-values in groups of inputs, with the threshold for flagging.

    The axis is logarithmic, with small p-values on the right. At most a share `false_alarm_rate` of
    in-distribution inputs is expected beyond the dashed line; the legend shows the flagged share of
    each group. The smallest possible p-value is ``1 / (n_held_out + 1)``, so inputs that are more
    unusual than all held-out inputs are in the last bar.

    Parameters
    ----------
    groups : mapping of str to array-like of shape (n_samples,)
        P-values of each named group, in (0, 1].
    false_alarm_rate : float, default=0.05
        Threshold: inputs with a p-value up to this value are flagged.

    Attributes
    ----------
    groups : dict of str to ndarray
        The p-values, as given.
    false_alarm_rate : float
        As given.
    flagged : dict of str to float
        Flagged share of each group.
    bin_edges : ndarray of shape (n_bins + 1,)
        Edges of the shared bins of ``-log10(p)``. One of the edges is the threshold.
    ax_, figure_ : matplotlib Axes and Figure
        Axes and figure of the last plot.

    Examples
    --------
    >>> from skuq.plotting import OODDisplay
    >>> display = OODDisplay.from_predictions({"test": [0.9, 0.3, 0.04], "OOD": [0.01, 0.01]})
    >>> display.flagged["OOD"]
    1.0
    """

    def __init__(self, groups: Mapping[str, ArrayLike], *, false_alarm_rate: float = 0.05) -> None:
        check_groups(groups)
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
        cls,
        detector: Any,
        X: Any,
        X_ood: Any = None,
        *,
        ax: Axes | None = None,
    ) -> Self:
        """Compute p-values of inputs, and draw them.

        Parameters
        ----------
        detector : OODDetector
            Fitted detector.
        X : array-like of shape (n_samples, n_features) or (n_samples, ...)
            In-distribution inputs that were not used in training, or inputs to be tested.
        X_ood : array-like like `X`, or mapping of str to array-like, default=None
            Out-of-distribution inputs, or a mapping from names to several kinds of such inputs.
        ax : matplotlib Axes, optional
            Default: a new figure.
        """
        # A DataFrame is one group, although it maps names to columns.
        named = isinstance(X_ood, Mapping)
        others = {} if X_ood is None else X_ood if named else {"OOD": X_ood}
        groups = {"inputs": X, **others}
        values = {name: detector.p_values(rows) for name, rows in groups.items()}
        return cls.from_predictions(values, false_alarm_rate=detector.false_alarm_rate, ax=ax)

    def _edges(self) -> FloatArray:
        """Edges of bins that cover all p-values; one edge is the threshold."""
        smallest = min(values.min() for values in self.groups.values())
        limit = -np.log10(self.false_alarm_rate)
        longest = max(-np.log10(smallest), limit)
        width = max(limit / BINS_TO_LIMIT, longest / MOST_BINS)
        below = np.linspace(0, limit, max(1, round(limit / width)) + 1)
        # The largest value lies inside the last bin.
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
            colour = COLOURS[k % len(COLOURS)]
            label = f"{plain_text(name)}: {self.flagged[name]:.1%} flagged"
            ax.stairs(share, self.bin_edges, fill=True, color=colour, alpha=0.3)
            ax.stairs(share, self.bin_edges, color=colour, linewidth=1.5, label=label)
        line = f"limit: p = {self.false_alarm_rate:g}"
        ax.axvline(limit, color="0.3", linestyle="--", linewidth=1.2, label=line)
        decades = np.arange(np.floor(self.bin_edges[-1]) + 1)
        every = max(1, len(decades) // 6)
        ax.set_xticks(decades[::every], [f"{10.0**-k:g}" for k in decades[::every]])
        ax.set(xlabel="conformal p-value", ylabel="share of the group")
        ax.set_xlim(0, self.bin_edges[-1])
        # The legend is nearly opaque, since the threshold line may pass behind it.
        ax.legend(loc="upper left", facecolor="white", framealpha=0.9, edgecolor="none")
