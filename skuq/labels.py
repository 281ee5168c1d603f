"""Labels as text and as codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_text(value: Any) -> str:
    """Text of a value.

    Whole floats are written as integers: a column of integers becomes float where values are
    missing.
    """
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def plain(value: Any) -> Any:
    """Return a scalar of numpy as one of Python, which messages show as users write it."""
    is_number = isinstance(value, np.generic) and value.dtype.kind not in "mM"
    return value.item() if is_number else value


def probability_columns(classes: NDArray[Any]) -> list[str]:
    """Names of the columns with the probabilities of classes: ``p(yes)``.

    The brackets keep spaces around a label, and no other column of results has any.
    """
    # Numbers of Python; dates would become whole numbers.
    labels = list(classes) if classes.dtype.kind == "M" else classes.tolist()
    return [f"p({as_text(label)})" for label in labels]


def classes_of_columns(names: Iterable[str]) -> dict[str, str]:
    """The label in the name of each column of probabilities; others are left out."""
    return {name: name[2:-1] for name in names if name.startswith("p(") and name.endswith(")")}


def column_names(table: Any) -> list[Any] | None:
    """Names of the columns of a table or structured array; None where columns are numbered.

    pandas numbers columns from 0 that nobody named, and Polars calls them column_0 and so on.
    """
    if isinstance(table, np.ndarray):
        names = table.dtype.names
    else:  # of the class: a column may be called like an attribute
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
    """Labels in the order of columns that are named after them, as ``yes`` or ``p(yes)``.

    Parameters
    ----------
    names : sequence of length n_columns
        Names of the columns.
    known : ndarray of shape (n_labels,)
        Labels that each have a column.

    Returns
    -------
    ndarray of shape (n_columns,) or None
        None if a label has no column that is named after it, or a name cannot be a label.
    """
    texts = list(map(as_text, names))
    of_text = {str(label): label for label in known.tolist()}
    of_text |= {as_text(label): label for label in known.tolist()}
    if known.dtype.kind == "b":
        of_text |= {"False": False, "True": True}
    wanted = set(map(as_text, known.tolist()))
    in_brackets = classes_of_columns(texts)
    for candidates in (texts, [in_brackets.get(text, "") for text in texts]):
        labels = [of_text.get(text, text) for text in candidates]
        if wanted <= set(map(as_text, labels)):
            try:  # a label that no sample has is of the kind of the others
                return np.array(labels).astype(known.dtype if known.dtype.kind != "U" else str)
            except ValueError:
                return None
    return None


def label_in_name(name: Any, own: str, labels: Sequence[str]) -> str:
    """The longest label that the name of a column ends with, `own` before others; "" if none is."""
    endings = [text for text in labels if _spaced(as_text(name)).endswith(_spaced(text))]
    return max(endings, key=lambda text: (len(text), text == own), default="")


def _spaced(text: str) -> str:
    return text.replace("_", " ").casefold()


def counted(number: float, noun: str) -> str:
    """Write a number of things."""
    return f"{amount(number)} {noun}{'' if number == 1 else 's'}"


def amount(number: float) -> str:
    """Write a number of things, of which weights may make a fraction."""
    return f"{number:,}" if isinstance(number, Integral) else f"{number:,.1f}"


def codes_of(labels: NDArray[Any], classes: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Turn labels into positions among classes.

    Parameters
    ----------
    labels : ndarray of shape (n_samples,)
        Class labels: numbers, booleans, strings, or objects of these types.
    classes : ndarray of shape (n_classes,)
        Classes, in any order, each once.
    name : str
        What the labels are called in the error.

    Returns
    -------
    ndarray of shape (n_samples,), int64
        Codes 0 to n_classes - 1.

    Raises
    ------
    ValueError
        If a label is none of the classes.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.labels import codes_of
    >>> codes_of(np.array(["cow", "ant", "cow"]), np.array(["cow", "bee", "ant"]), "y")
    array([0, 2, 0])
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
    """Rows in an order whose beginnings hold the classes in their proportions.

    Each row, also of a rare class, is as likely as any other to come first: numbers of rows are
    rounded at random. If they were rounded to the nearest, no row of a class of few would ever be
    among the first, and what is held out would be less unusual than what comes later.
    """
    # labels (n,), order (n,), a permutation that is drawn before
    codes = np.unique(labels, return_inverse=True)[1][order]
    place = np.empty(len(order))
    for code in np.unique(codes):
        own = np.flatnonzero(codes == code)
        place[own] = (np.arange(len(own)) + random.uniform()) / len(own)
    return order[np.argsort(place, kind="stable")]


def _positions(labels: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Position of each label among the classes, -1 for one that is not there."""
    if _can_be_ordered(labels.dtype, classes.dtype):
        order = np.argsort(classes)
        place = np.searchsorted(classes, labels, sorter=order).clip(max=len(classes) - 1)
        codes = order[place].astype(np.int64, copy=False)
        codes[classes[codes] != labels] = -1
        return codes
    # As Python objects they can at least be compared.
    known = {label: code for code, label in enumerate(classes.tolist())}
    return np.array([known.get(label, -1) for label in labels.tolist()], np.int64)


def _can_be_ordered(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether NumPy orders values of two types as they are."""
    kinds = {one.kind, other.kind}
    if kinds == {"i", "u"}:  # of 64 bits, it compares them as floats, which hold 53
        return np.promote_types(one, other).kind != "f"
    return kinds == {"U"} or kinds <= set("biuf")  # numbers and strings have no order


def labels_in_mask(X: Any, y: NDArray[Any]) -> NDArray[Any]:
    """Labels of the nodes in a mask.

    Parameters
    ----------
    X : array-like
        Ids of nodes, or booleans, one for each node.
    y : ndarray of shape (n_labelled,) or (n_nodes,)
        Labels of these nodes, or with a mask of all nodes.

    Returns
    -------
    ndarray of shape (n_labelled,)
    """
    mask = np.asarray(X)
    return y[mask] if mask.dtype == bool and mask.shape == y.shape else y
