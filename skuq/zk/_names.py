"""Names of classes and columns, which people must be able to tell apart."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_NAME = 200  # characters


def check_classes(labels: Sequence[Any]) -> NDArray[Any]:
    """Check that classes are of one type and cannot be mistaken for each other; return them.

    Two classes of one name would let a model be right or wrong as its provider likes.
    """
    kinds = {type(label) for label in labels}
    if len(kinds) != 1 or not kinds <= {str, int, float, bool}:
        raise ValueError("the classes must all be texts, or all integers, floats or booleans")
    classes = np.array(labels)
    if classes.dtype.kind not in "Uifb" or len(set(classes.tolist())) < len(labels):
        raise ValueError("the classes must be different texts or numbers")
    if kinds == {str}:
        check_texts(labels, "classes")
    return classes


def check_columns(names: Sequence[Any], width: int) -> tuple[str, ...]:
    """Check names of input columns, and return them."""
    if len(names) != width or not all(isinstance(name, str) for name in names):
        raise ValueError(f"there must be the names of {width} columns")
    check_texts(names, "columns")
    return tuple(names)


def check_texts(texts: Sequence[str], what: str) -> None:
    """Check that texts are printable, and differ by more than case, width or spaces."""
    if not all(text.isprintable() and 0 < len(text) <= MAX_NAME for text in texts):
        raise ValueError(f"the names of {what} must be printable, and neither empty nor long")
    folded = {_folded(text) for text in texts}
    if len(folded) < len(texts) or "" in folded:
        raise ValueError(f"the names of {what} must differ by more than case or spaces")


def columns_of(X: ArrayLike) -> tuple[str, ...] | None:
    """Names of the columns of a data frame, without spaces around them; None for an array."""
    names = getattr(X, "columns", None)
    return None if names is None else tuple(str(name).strip() for name in names)


def _folded(text: str) -> str:
    once = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", once).split())
