"""Conversion of class labels to text and to integer codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_text(value: Any) -> str:
    """Convert a value to text.

    Floats without a fraction are written as integers, because pandas converts a column of
    integers to float if a value is missing.
    """
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python scalar, which is shown in messages without its type."""
    is_number = isinstance(value, np.generic) and value.dtype.kind not in "mM"
    return value.item() if is_number else value


def probability_columns(classes: NDArray[Any]) -> list[str]:
    """Column names for the probabilities of classes, such as ``p(yes)``.

    No other column name in results contains brackets. Spaces around a label are preserved.
    """
    # `tolist` would convert dates to integers.
    labels = list(classes) if classes.dtype.kind == "M" else classes.tolist()
    return [f"p({as_text(label)})" for label in labels]


def classes_of_columns(names: Iterable[str]) -> dict[str, str]:
    """Map names of probability columns to the labels that they contain; skip other columns."""
    return {name: name[2:-1] for name in names if name.startswith("p(") and name.endswith(")")}


def column_names(table: Any) -> list[Any] | None:
    """Column names of a table or structured array; None for default names.

    Default names are 0, 1, ... in pandas and column_0, column_1, ... in Polars.
    """
    if isinstance(table, np.ndarray):
        names = table.dtype.names
    else:  # look at the class, because an attribute of the object may be a column
        attribute = "column_names" if hasattr(type(table), "column_names") else "columns"
        names = getattr(table, attribute, None)
    if names is None:
        return None
    names = list(names)
    positions = range(len(names))
    if names in (list(positions), [f"column_{k}" for k in positions]):
        return None
    return names


def labels_of_columns(names: Sequence[Any], known: NDArray[Any]) -> NDArray[Any] | None:
    """Labels, (n_columns,), of columns named ``yes`` or ``p(yes)``; None if there are none.

    Each of the `known` labels must have a column. None, too, if a name cannot be converted to the
    type of the labels.
    """
    texts = list(map(as_text, names))
    of_text = {str(label): label for label in known.tolist()}
    of_text |= {as_text(label): label for label in known.tolist()}
    if known.dtype.kind == "b":
        of_text |= {"False": False, "True": True}
    required = set(map(as_text, known.tolist()))
    in_brackets = classes_of_columns(texts)
    for candidates in (texts, [in_brackets.get(text, "") for text in texts]):
        labels = [of_text.get(text, text) for text in candidates]
        if required <= set(map(as_text, labels)):
            try:  # names of further columns are converted to the type of the known labels
                return np.array(labels).astype(known.dtype if known.dtype.kind != "U" else str)
            except ValueError:
                return None
    return None


def label_in_name(name: Any, own: str, labels: Sequence[str]) -> str:
    """Longest label at the end of a column's name, or ""; `own` takes precedence in a tie."""
    endings = [text for text in labels if _spaced(as_text(name)).endswith(_spaced(text))]
    return max(endings, key=lambda text: (len(text), text == own), default="")


def _spaced(text: str) -> str:
    return text.replace("_", " ").casefold()


def counted(number: float, noun: str) -> str:
    """Format a number with a noun, such as "1 row" or "2 rows"."""
    return f"{amount(number)} {noun}{'' if number == 1 else 's'}"


def amount(number: float) -> str:
    """Format a number: integers as they are, other numbers (sums of weights) with one decimal."""
    return f"{number:,}" if isinstance(number, Integral) else f"{number:,.1f}"


def codes_of(labels: NDArray[Any], classes: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Convert labels to their positions among distinct classes; raise ValueError for others.

    `name` is that of the labels in the message.
    """
    codes = _positions(labels, classes)
    unknown = labels[codes < 0]
    if len(unknown):
        distinct = list(dict.fromkeys(unknown.tolist()))
        raise ValueError(
            f"`{name}` has labels that are not among the classes: {distinct[:5]} not in "
            f"{classes[:5].tolist()}{' ...' if len(classes) > 5 else ''}."
        )
    return codes


def proportional_order(
    labels: NDArray[Any], order: NDArray[np.int64], random: np.random.RandomState
) -> NDArray[np.int64]:
    """Reorder rows so that the first k rows are stratified by class, for every k.

    Each row is equally likely to be among the first k, because the number of rows per class is
    rounded at random. With rounding to the nearest integer, held-out rows would never include a
    rare class and would look less unusual than new rows.

    Shapes: `labels` (n_samples,), `order` (n_samples,), a random permutation.
    """
    codes = np.unique(labels, return_inverse=True)[1][order]
    place = np.empty(len(order))
    for code in np.unique(codes):
        own = np.flatnonzero(codes == code)
        place[own] = (np.arange(len(own)) + random.uniform()) / len(own)
    return order[np.argsort(place, kind="stable")]


def _positions(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Position of each label among the classes; -1 for unknown labels."""
    if _can_be_ordered(labels.dtype, classes.dtype):
        order = np.argsort(classes)
        place = np.searchsorted(classes, labels, sorter=order).clip(max=len(classes) - 1)
        codes = order[place].astype(np.int64, copy=False)
        codes[classes[codes] != labels] = -1
        return codes
    # Python objects of mixed types can be tested for equality, but not sorted.
    known = {label: code for code, label in enumerate(classes.tolist())}
    return np.array([known.get(label, -1) for label in labels.tolist()], np.int64)


def _can_be_ordered(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether NumPy compares values of two dtypes exactly."""
    kinds = {one.kind, other.kind}
    if kinds == {"i", "u"}:  # int64 and uint64 are compared as floats, with 53 bits
        return np.promote_types(one, other).kind != "f"
    return kinds == {"U"} or kinds <= set("biuf")  # numbers cannot be compared with strings


def labels_in_mask(X: Any, y: NDArray[Any]) -> NDArray[Any]:
    """Labels of the nodes that `X`, ids or a boolean mask of all nodes, selects.

    With a mask, `y` may contain the labels of all nodes.
    """
    mask = np.asarray(X)
    return y[mask] if mask.dtype == bool and mask.shape == y.shape else y
