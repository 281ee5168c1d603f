"""Labels as text and as codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_text(value: Any) -> str:
    """Text of a value; a whole number is written without point, as it is without a hole."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def codes_of(labels: NDArray[Any], classes: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Turn labels into positions among classes.

    Parameters
    ----------
    labels : ndarray of shape (n_samples,)
        Class labels.
    classes : ndarray of shape (n_classes,)
        Classes, in any order.
    name : str
        What the labels are called in the error.

    Returns
    -------
    ndarray of shape (n_samples,), int64

    Raises
    ------
    ValueError
        If a label is none of the classes.
    """
    order = np.argsort(classes)
    position = np.searchsorted(classes, labels, sorter=order).clip(max=len(classes) - 1)
    codes: NDArray[np.int64] = order[position]
    unknown = np.unique(labels[classes[codes] != labels])
    if len(unknown):
        raise ValueError(
            f"`{name}` holds labels that the model does not know: {unknown[:5]}; it was trained "
            f"with {classes}."
        )
    return codes
