"""Base class of all Displays, with shared axes, colours, labels and legends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.imports import import_optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure

# Okabe and Ito's colours, distinguishable with all common forms of colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")

MIN_WIDTH = 0.005  # minimum width of a bar, even if the bin is narrower
LONGEST_NAME = 32  # longer names from the user are shortened to this number of characters
LONGEST_LABEL = 48  # longer labels of an axis are shortened to this number of characters
LARGEST = 1e300  # larger values are rejected, because the limits of an axis would overflow
BESIDE = 1.3  # maximum width of a legend, as a multiple of the width of the axes
LOW, BETWEEN = 0.2, 0.04  # height of the lower axes and of the gap, relative to the upper axes


class Display(ABC):
    """Base class of Displays: `__init__` checks the values, `_draw` draws them on `self.ax_`."""

    ax_: Axes
    figure_: Figure
    size: tuple[float, float] = (6.0, 4.2)  # size of a new figure, in inches

    @classmethod
    def from_predictions(cls, *values: Any, ax: Axes | None = None, **settings: Any) -> Self:
        """Draw given values; parameters are those of the class and `ax` (default: a new figure)."""
        return cls(*values, **settings).plot(ax)

    def plot(self, ax: Axes | None = None) -> Self:
        """Draw on `ax`, or on a new figure, and return the display."""
        if ax is None:
            pyplot = import_optional("matplotlib.pyplot", extra="plot")
            _, ax = pyplot.subplots(figsize=self.size, layout="constrained")
        self.ax_ = cast("Axes", ax)
        self.figure_ = cast("Figure", self.ax_.figure)
        self._draw()
        return self

    @abstractmethod
    def description(self) -> str:
        """Describe the plot in words and numbers, for readers who cannot see it."""

    @abstractmethod
    def _draw(self) -> None: ...


def check_groups(groups: Mapping[str, Any]) -> None:
    if not isinstance(groups, Mapping) or not groups:
        raise TypeError(f"`groups` must map at least one name to an array, got {type(groups)}.")


def check_drawable(**arrays: FloatArray) -> None:
    for name, values in arrays.items():
        if (largest := np.abs(values).max()) > LARGEST:
            raise ValueError(
                f"The values of `{name}` must be at most {LARGEST} in absolute value, got "
                f"{largest:.3g}; divide them by a constant, or remove unbounded intervals."
            )


def equal_groups(values: FloatArray, n_groups: int) -> IntArray:
    """Assign samples to groups of similar size, by value; equal values share a group."""
    if not isinstance(n_groups, int | np.integer) or n_groups < 1:
        raise ValueError(f"`n_groups` must be an integer >= 1, got {n_groups!r}.")
    _, block, size = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(size) - size / 2  # middle rank of each block of equal values
    group = (middle * n_groups / len(values)).astype(np.int64)
    numbered: IntArray = np.unique(group, return_inverse=True)[1]
    return numbered[block]


def points_with_limits(
    ax: Axes, x: FloatArray, y: FloatArray, ends: Any, label: str, significant: BoolArray
) -> None:
    """Draw points with vertical confidence intervals `ends`; highlight significant points."""
    # Clip at 0: rounding can make lengths negative, and matplotlib refuses negative lengths.
    reach = np.maximum([y - ends[0], ends[1] - y], 0)
    style: dict[str, Any] = {"markersize": 6, "capsize": 3, "linewidth": 1.5, "linestyle": "none"}
    for drawn, text, marker, colour in (
        (~significant, label, "o", COLOURS[0]),
        (significant, "significant deviation", "D", COLOURS[1]),
    ):
        if (drawn := drawn & np.isfinite(y)).any():
            style |= {"fmt": marker, "color": colour, "label": text}
            ax.errorbar(x[drawn], y[drawn], reach[:, drawn], zorder=3, clip_on=False, **style)


def filled_steps(ax: Axes, share: FloatArray, edges: FloatArray, colour: str, label: str) -> None:
    ax.stairs(share, edges, fill=True, color=colour, alpha=0.3)
    ax.stairs(share, edges, color=colour, linewidth=1.5, label=label)


def listed(x: FloatArray, y: FloatArray) -> str:
    return ", ".join(f"{b:.3g} at {a:.3g}" for a, b in zip(x, y, strict=True) if np.isfinite(b))


def phrased_groups(groups: Mapping[str, FloatArray], weights: Mapping[str, Any]) -> str:
    """Describe the range and the mean of each group in words."""
    phrases = []
    for name, values in groups.items():
        weight = np.asarray(weights.get(name, np.ones(len(values))))
        held, mean = values[weight > 0], np.average(values, weights=weight)
        phrases.append(f"{name}: {held.min():.3g} to {held.max():.3g}, mean {mean:.3g}")
    return "; ".join(phrases)


def short_number(value: float) -> str:
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"


def with_unit(label: str, unit: str | None) -> str:
    return plain_text(label if unit is None else f"{label} ({unit})", LONGEST_LABEL)


def plain_text(name: object, longest: int = LONGEST_NAME) -> str:
    """Shorten a name, and escape characters that matplotlib would interpret."""
    name = str(name)
    short = name if len(name) <= longest else f"{name[: longest - 1]}…"
    visible = "".join(c if c.isprintable() else " " for c in short).replace("$", r"\$")
    # A legend omits labels that begin with an underscore.
    return f" {visible}" if visible.startswith("_") else visible


def bars_over_bins(
    ax: Axes, lower: FloatArray, upper: FloatArray, height: Any, **style: Any
) -> BarContainer:
    """Draw one bar per bin, as wide as the bin but at least `MIN_WIDTH`."""
    width = np.maximum(upper - lower, MIN_WIDTH)
    # White edges would cover bars that are hardly wider than the edges.
    edges = np.where(width < 4 * MIN_WIDTH, 0.0, 0.8)
    style = {"edgecolor": "white", "linewidth": edges, **style}
    return ax.bar(upper - width, height, width, align="edge", **style)


def axes_below(ax: Axes, highest: float, label: str) -> Axes:
    """Add short axes with the same x axis below `ax`, for the number of samples per bin."""
    cell, figure = ax.get_subplotspec(), cast("Figure", ax.figure)
    if cell is not None and figure.get_layout_engine() is None:  # a layout engine makes room itself
        place, legend = cell.get_position(figure), ax.get_legend()
        above = 0.0 if legend is None else legend.get_window_extent().height / figure.bbox.height
        height = (place.height - above) / (1 + LOW + BETWEEN)
        ax.set_position((place.x0, place.y0 + (LOW + BETWEEN) * height, place.width, height))
    ax.tick_params(labelbottom=False)
    below = ax.inset_axes((0.0, -LOW - BETWEEN, 1.0, LOW), sharex=ax)
    ticks = {0: "0", highest: label}  # without samples, `highest` is 0, and the ticks are one
    below.set_yticks(list(ticks), list(ticks.values()))
    return below


def legend_above(ax: Axes, columns: int = 5, title: str = "", **style: Any) -> None:
    """Place the legend in rows above the axes, so that it hides no data; the title goes on top."""
    engine, place = ax.figure.get_layout_engine(), ax.get_window_extent()
    room = place.width
    if engine is not None:  # a layout engine shrinks the axes, but does not move their left edge
        room = min(BESIDE * room, ax.figure.bbox.x1 - place.x0)
    style = {"frameon": False, "handlelength": 1.8, "columnspacing": 1.2, **style}
    for count in range(columns, 0, -1):
        legend = ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=count, **style)
        extent = legend.get_window_extent()
        if extent.width <= room:
            break
    if title:  # without `title`, keep an existing title of the axes
        ax.set_title(title, pad=10 + 72 * extent.height / ax.figure.dpi)
