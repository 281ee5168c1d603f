"""What the Displays draw alike: axes, colours, labels and legends."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from skuq.extras import import_optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart with every common form of colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


def axes_or_new(ax: Axes | None, figsize: tuple[float, float] = (6.0, 4.2)) -> Axes:
    """The given axes, or those of a new figure."""
    if ax is not None:
        return ax
    pyplot = import_optional("matplotlib.pyplot", extra="plot")
    _, new = pyplot.subplots(figsize=figsize, layout="constrained")
    return cast("Axes", new)


def with_unit(label: str, unit: str | None) -> str:
    """Label of an axis."""
    return label if unit is None else f"{label} ({unit})"


def legend_above(ax: Axes) -> None:
    """Legend in rows above the axes, where it can hide nothing."""
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=5,
        frameon=False,
        handlelength=1.5,
        columnspacing=1.2,
    )
