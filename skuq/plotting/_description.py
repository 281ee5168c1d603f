"""Descriptions of plots in words, from the data that they draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

MOST_POINTS = 12  # maximum number of points or bars of one name that are listed
MOST_IMAGES = 80  # maximum number of images that are listed
# Tick formatters that show names instead of numbers.
NAMING = ("FixedFormatter", "FuncFormatter", "StrCategoryFormatter")
# A position is named after a tick if its distance from this tick, divided by the distance between
# ticks, is at most this number.
NEAR = 0.05


def description(figure: Any) -> str:
    """Describe a plot in words, for example as alternative text for readers who cannot see it.

    Parameters
    ----------
    figure : matplotlib Figure
        The drawn figure, such as `figure_` of a display.

    Returns
    -------
    str
        For each axes of the figure: a description of the content, the labels, and the numbers that
        the named lines, points and bars show. Empty if nothing is drawn.

    Examples
    --------
    >>> from skuq.plotting import RiskCoverageDisplay, description
    >>> display = RiskCoverageDisplay.from_predictions(
    ...     [0, 1, 1, 0], [0, 1, 1, 1], [0.1, 0.3, 0.2, 0.8], name="model"
    ... )
    >>> description(display.figure_).split("; ")[1]
    'model (AURC = 0.0625): line from 0 at 0 to 0.25 at 1.'
    """
    sentences, images = [], []
    for ax in _all_axes(figure):
        if ax.images and not ax.get_legend_handles_labels()[0]:
            images.append(_image(ax))
        elif described := _axes(ax):
            sentences.append(described)
    if images:
        left_out = len(images) - MOST_IMAGES
        listed = "; ".join(images[:MOST_IMAGES]) + (f"; {left_out} more" if left_out > 0 else "")
        sentences.append(f"{len(images)} image{'s' if len(images) > 1 else ''}: {listed}.")
    title = _text(figure.get_suptitle())
    return " ".join([f"{title}."] * bool(title and sentences) + sentences)


def _all_axes(figure: Any) -> Iterator[Any]:
    """Visible axes of a figure and of its subfigures, including axes that lie inside other axes."""
    for ax in figure.axes:
        if ax.get_visible() and not hasattr(ax, "_colorbar"):
            yield ax
            yield from (child for child in ax.child_axes if hasattr(child, "get_xlabel"))


def _image(ax: Any) -> str:
    titles = (ax.get_title(loc=side) for side in ("left", "center", "right"))
    parts = [_text(part) for part in (*titles, ax.get_ylabel(), ax.get_xlabel())]
    return ", ".join(filter(None, parts)) or "without a name"


def _axes(ax: Any) -> str:
    """Describe axes in numbers; return "" if they draw nothing that can be described."""
    handles, labels = ax.get_legend_handles_labels()
    named = set(map(id, handles))
    others = [c for c in ax.containers if id(c) not in named]
    if not handles:
        lines = (line for line in ax.lines if not _in_container(line, ax.containers))
        others += [line for line in lines if line.get_transform() == ax.transData]
    others += [c for c in ax.collections if c.get_array() is not None and id(c) not in named]
    drawn = [*zip(handles, labels, strict=True), *((other, "") for other in others)]
    items = []
    for artist, label in drawn:
        shown, name = _artist(artist, ax), _text(label)
        items.append(f"{name}: {shown}" if name and shown else name or shown)
    items = list(filter(None, items))
    if not items:
        return ""
    titles = [_text(ax.get_title(loc=side)) for side in ("left", "center", "right")]
    y, x = _text(ax.get_ylabel()), _text(ax.get_xlabel() or _shared_label(ax))
    about = f"{y} by {x}" if x and y else x or y
    head = ". ".join(part[0].upper() + part[1:] for part in (*titles, about) if part)
    return f"{head}. {'; '.join(items)}." if head else f"{'; '.join(items)}."


def _in_container(line: Any, containers: Sequence[Any]) -> bool:
    return any(line in getattr(c, "lines", (None,))[:1] for c in containers)


def _shared_label(ax: Any) -> str:
    """Label of a shared x axis, taken from the axes that have one."""
    shared = ax.get_shared_x_axes().get_siblings(ax)
    return next((other.get_xlabel() for other in shared if other.get_xlabel()), "")


def _artist(artist: Any, ax: Any) -> str:
    """Describe what a line, points, bars, a histogram or a range shows; "" if nothing."""
    kind = type(artist).__name__
    if kind == "ErrorbarContainer":
        return _errorbars(artist, ax)
    if kind == "BarContainer":
        return _bars(artist, ax)
    if kind == "StepPatch":
        return _steps(artist, ax)
    if kind == "PathCollection":
        count = len(artist.get_offsets())
        return f"{count} point{'' if count == 1 else 's'}" if count else ""
    if hasattr(artist, "get_xdata"):
        return _line(artist, ax)
    if kind == "Rectangle":
        low = artist.get_x()
        return f"from {_place(low, ax.xaxis)} to {_place(low + artist.get_width(), ax.xaxis)}"
    if kind in ("PolyCollection", "FillBetweenPolyCollection"):
        return "shaded area"
    values = artist.get_array() if hasattr(artist, "get_array") else None
    values = None if values is None else np.ma.compressed(np.ma.masked_invalid(values))
    if values is None or not len(values):
        return ""
    return f"map of values from {_number(values.min())} to {_number(values.max())}"


def _line(line: Any, ax: Any) -> str:
    given: list[Any] = [np.ma.asarray(v, float) for v in line.get_data(orig=False)]
    x, y = (np.ma.filled(v, np.nan) for v in given)
    if line.get_transform() == ax.get_xaxis_transform(which="grid") and len(x):
        return _at(x[0], ax.xaxis)
    if line.get_transform() == ax.get_yaxis_transform(which="grid") and len(y):
        return _number(y[0])
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if not len(x):
        return _of_twins(line, ax)
    if line.get_linestyle() in ("None", "none", " ", "") or len(x) == 1:
        if len(x) > MOST_POINTS:
            return f"{len(x)} points, {_range(y)}"
        return ", ".join(f"{_number(b)} {_at(a, ax.xaxis)}" for a, b in zip(x, y, strict=True))
    found = [f"line from {_number(y[0])} {_at(x[0], ax.xaxis)}"]
    found.append(f"to {_number(y[-1])} {_at(x[-1], ax.xaxis)}")
    for name, k in (("lowest", y.argmin()), ("highest", y.argmax())):
        if y[k] not in (y[0], y[-1]):
            found[-1] += f", {name} {_number(y[k])} {_at(x[k], ax.xaxis)}"
    return " ".join(found)


def _of_twins(line: Any, ax: Any) -> str:
    """Levels of the unnamed horizontal lines that an empty line represents in the legend."""
    style = line.get_linestyle()
    across = ax.get_yaxis_transform(which="grid")
    levels = [
        _number(other.get_ydata()[0])
        for other in ax.lines
        if other.get_transform() == across and other.get_linestyle() == style
    ]
    return ", ".join(levels)


def _errorbars(container: Any, ax: Any) -> str:
    points, _, bars = container.lines
    if points is None or not len(points.get_xdata()):
        return ""
    x, y = points.get_data()
    ends: list[Any] = bars[-1].get_segments() if bars and container.has_yerr else []
    if len(x) > MOST_POINTS:
        return f"{len(x)} points, {_range(np.asarray(y, float))}"
    texts = [f"{_number(b)} {_at(a, ax.xaxis)}" for a, b in zip(x, y, strict=True)]
    if len(ends) == len(texts):
        texts = [
            f"{text} ({_number(end[0][1])} to {_number(end[-1][1])})"
            for text, end in zip(texts, ends, strict=True)
        ]
    return ", ".join(texts)


def _bars(container: Any, ax: Any) -> str:
    lying = getattr(container, "orientation", "vertical") == "horizontal"
    axis = ax.yaxis if lying else ax.xaxis
    drawn = []
    for bar in container:
        start, length = (bar.get_y(), bar.get_height()) if lying else (bar.get_x(), bar.get_width())
        value = bar.get_width() if lying else bar.get_height()
        if np.isfinite(value) and value != 0:
            drawn.append((value, _bar_place(start, length, axis)))
    if len(drawn) > MOST_POINTS:
        values = np.array([value for value, _ in drawn])
        return f"{len(drawn)} bars, {_range(values)}"
    return ", ".join(f"{_number(value)} {place}" for value, place in drawn)


def _bar_place(start: float, length: float, axis: Any) -> str:
    middle = _name_of(start + length / 2, axis)
    if middle:
        return f"for {middle}"
    return f"from {_place(start, axis)} to {_place(start + length, axis)}"


def _steps(steps: Any, ax: Any) -> str:
    values, edges, baseline = steps.get_data()
    values = np.asarray(values, float)
    known = np.isfinite(values)
    if not known.any():
        return ""
    if np.ndim(baseline) > 0:  # a band
        height = (values - baseline)[known]
        return f"band, {_range(height)} high"
    filled = np.flatnonzero(known & (values != 0))
    if not len(filled):
        return "nothing above 0"
    top = np.nanargmax(values)
    axis = ax.xaxis
    low, high = _place(edges[filled[0]], axis), _place(edges[filled[-1] + 1], axis)
    peak = f"{_place(edges[top], axis)} to {_place(edges[top + 1], axis)}"
    return f"histogram from {low} to {high}, highest ({_number(values[top])}) from {peak}"


def _range(values: Any) -> str:
    low, high = _number(np.nanmin(values)), _number(np.nanmax(values))
    return low if low == high else f"{low} to {high}"


def _name_of(place: float, axis: Any) -> str:
    """Name of the tick at a place, if ticks have names."""
    names, ticks = _names(axis)
    if not names:
        return ""
    k = int(np.abs(ticks - place).argmin())
    distance = np.diff(ticks).min() if len(ticks) > 1 else 1.0
    return names[k] if abs(ticks[k] - place) <= NEAR * distance else ""


def _names(axis: Any) -> tuple[list[str], Any]:
    """Names of ticks, and their places; empty if the ticks are numbers."""
    form, ticks = axis.get_major_formatter(), np.asarray(axis.get_majorticklocs(), float)
    if type(form).__name__ not in NAMING:
        return [], ticks
    names = [_text(form(tick, k)) for k, tick in enumerate(ticks)]
    return (names if any(names) else []), ticks


def _place(place: float, axis: Any) -> str:
    """Place on an axis in words: a number, or the names of the ticks around it."""
    names, ticks = _names(axis)
    if not names:
        return _number(place)
    if name := _name_of(place, axis):
        return name
    before, after = ticks[ticks < place], ticks[ticks > place]
    if not len(before) or not len(after):
        return f"beyond {names[0] if not len(before) else names[-1]}"
    k = len(before)
    return f"between {names[k - 1]} and {names[k]}"


def _at(place: float, axis: Any) -> str:
    where = _place(place, axis)
    return where if where.startswith(("between ", "beyond ")) else f"at {where}"


def _number(value: float) -> str:
    value = float(value)
    if 999.5 <= abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value + 0.0:.3g}"


def _text(label: Any) -> str:
    """Text of a label as it is displayed, without escape characters."""
    return " ".join(str(label).replace(r"\$", "$").split())
