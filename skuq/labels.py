"""Labels as text and as codes."""

from __future__ import annotations

from collections.abc import Iterable
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


def counted(number: int, noun: str) -> str:
    """Write a number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


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
