"""Elements common to all Displays: axes, colours, labels and legends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from skuq.base import FloatArray
from skuq.extras import import_optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, told apart with every common form of colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")

MIN_WIDTH = 0.012  # of a bar, where bins are this narrow
LONGEST_NAME = 32  # characters of a name that was not chosen here
LONGEST_LABEL = 48  # characters that fit along an axis


def axes_or_new(ax: Axes | None, figsize: tuple[float, float] = (6.0, 4.2)) -> Axes:
    """The given axes, or those of a new figure."""
    if ax is not None:
        return ax
    pyplot = import_optional("matplotlib.pyplot", extra="plot")
    _, new = pyplot.subplots(figsize=figsize, layout="constrained")
    return cast("Axes", new)


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


def require_method(estimator: Any, name: str) -> None:
    """Refuse what cannot answer, such as a pipeline around what can."""
    if not hasattr(estimator, name):
        raise TypeError(
            f"`estimator` needs the method `{name}`, as RobustGPC has it; "
            f"{type(estimator).__name__} does not. Of a pipeline, pass the last step and the "
            "points as it sees them."
        )


def bars_over_bins(
    ax: Axes, lower: FloatArray, upper: FloatArray, height: Any, **style: Any
) -> None:
    """One bar per bin, as wide as the bin; narrow quantile bins are kept visible."""
    width = np.maximum(upper - lower, MIN_WIDTH)
    style = {"edgecolor": "white", "linewidth": 0.8, **style}
    ax.bar(upper - width, height, width, align="edge", **style)


def axes_below(ax: Axes, highest: float, label: str) -> Axes:
    """Low axes below others, along the same bins, for the number of samples in each."""
    below = ax.inset_axes((0.0, -0.24, 1.0, 0.2), sharex=ax)
    below.set_yticks([0, highest], ["0", label])
    return below


def legend_above(ax: Axes, columns: int = 5) -> None:
    """Legend in rows above the axes, where it can hide nothing."""
    ax.legend(
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=columns,
        frameon=False,
        handlelength=1.8,
        columnspacing=1.2,
    )
