"""Base of all Displays, and what they share: axes, colours, labels and legends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from skuq.base import FloatArray, IntArray
from skuq.extras import import_optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with every common form of colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")

MIN_WIDTH = 0.005  # of a bar, where bins are this narrow
LONGEST_NAME = 32  # characters of a name that was not chosen here
LONGEST_LABEL = 48  # characters that fit along an axis
LARGEST = 1e300  # beyond, an axis around the values is too wide for floating-point numbers
BESIDE = 1.3  # widest legend, as a multiple of the axes; a layout gives them more room
LOW, BETWEEN = 0.2, 0.04  # height of axes below others and of the gap, as shares of theirs


class Display(ABC):
    """Base of all Displays: `__init__` checks the values, `_draw` draws them on `self.ax_`."""

    ax_: Axes
    figure_: Figure
    size: tuple[float, float] = (6.0, 4.2)  # of a new figure, inches

    @classmethod
    def from_predictions(cls, *values: Any, ax: Axes | None = None, **settings: Any) -> Self:
        """Draw given values; parameters are those of the class, and `ax`."""
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
    def _draw(self) -> None: ...


def check_groups(groups: Mapping[str, Any]) -> None:
    """Refuse what is not a mapping of names to arrays, or is empty."""
    if not isinstance(groups, Mapping):
        raise TypeError(f"`groups` must map names to arrays, got {type(groups).__name__}.")
    if not groups:
        raise ValueError("`groups` must have at least one group, got none.")


def too_large(names: str, largest: float) -> str:
    """Message for values that no axis can show."""
    return (
        f"The {names} must lie within plus and minus {LARGEST}, got {largest:.3g} in absolute "
        "value; divide them by a constant."
    )


def check_drawable(**arrays: FloatArray) -> None:
    """Refuse values that no axis can show."""
    for name, values in arrays.items():
        if (largest := np.abs(values).max()) > LARGEST:
            raise ValueError(too_large(f"values of `{name}`", largest))


def equal_groups(values: FloatArray, n_groups: int) -> IntArray:
    """Number from 0 of the group of each sample, of about equally many; equal values stay together.

    Ties make fewer groups.
    """
    if not isinstance(n_groups, int | np.integer) or n_groups < 1:
        raise ValueError(f"`n_groups` must be an integer >= 1, got {n_groups!r}.")
    _, block, size = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(size) - size / 2  # of each block of equal values, counted in samples
    group = (middle * n_groups / len(values)).astype(np.int64)
    numbered: IntArray = np.unique(group, return_inverse=True)[1]
    return numbered[block]


def counted_rows(n: int) -> str:
    """Number of rows in words."""
    return f"{n} row" if n == 1 else f"{n} rows"


def short_number(value: float) -> str:
    """Number of about three digits, as ticks show it."""
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"


def with_unit(label: str, unit: str | None) -> str:
    """Label of an axis."""
    return plain_text(label if unit is None else f"{label} ({unit})", LONGEST_LABEL)


def plain_text(name: object, longest: int = LONGEST_NAME) -> str:
    """Name as it is drawn, short and without anything that matplotlib would interpret."""
    name = str(name)
    short = name if len(name) <= longest else f"{name[: longest - 1]}…"
    visible = "".join(c if c.isprintable() else " " for c in short).replace("$", r"\$")
    # A legend leaves out what begins with an underscore.
    return f" {visible}" if visible.startswith("_") else visible


def bars_over_bins(
    ax: Axes, lower: FloatArray, upper: FloatArray, height: Any, **style: Any
) -> BarContainer:
    """One bar per bin, as wide as the bin; narrow quantile bins are kept visible."""
    width = np.maximum(upper - lower, MIN_WIDTH)
    # White edges would cover bars that are hardly wider.
    edges = np.where(width < 4 * MIN_WIDTH, 0.0, 0.8)
    style = {"edgecolor": "white", "linewidth": edges, **style}
    return ax.bar(upper - width, height, width, align="edge", **style)


def axes_below(ax: Axes, highest: float, label: str) -> Axes:
    """Low axes below others, along the same bins, for the number of samples in each."""
    _make_room(ax)
    below = ax.inset_axes((0.0, -LOW - BETWEEN, 1.0, LOW), sharex=ax)
    ticks = {0: "0", highest: label}  # one of them where there are no samples
    below.set_yticks(list(ticks), list(ticks.values()))
    return below


def _make_room(ax: Axes) -> None:
    """Shrink axes of a grid, for what is above and below, where no layout engine does."""
    cell, figure = ax.get_subplotspec(), cast("Figure", ax.figure)
    if cell is None or figure.get_layout_engine() is not None:
        return
    place, legend = cell.get_position(figure), ax.get_legend()
    above = 0.0 if legend is None else legend.get_window_extent().height / figure.bbox.height
    height = (place.height - above) / (1 + LOW + BETWEEN)
    ax.set_position((place.x0, place.y0 + (LOW + BETWEEN) * height, place.width, height))


def legend_above(ax: Axes, columns: int = 5, title: str = "", **style: Any) -> None:
    """Legend in rows above the axes, where it can hide nothing, and the title above it."""
    engine = ax.figure.get_layout_engine()
    room = ax.get_window_extent().width * (1.0 if engine is None else BESIDE)
    style = {"frameon": False, "handlelength": 1.8, "columnspacing": 1.2, **style}
    for count in range(columns, 0, -1):
        legend = ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=count, **style)
        extent = legend.get_window_extent()
        if extent.width <= room:
            break
    if title:  # another one, given to the axes before, stays
        ax.set_title(title, pad=10 + 72 * extent.height / ax.figure.dpi)
