"""Groups of samples, by the values of columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing

from skuq.base import IntArray
from skuq.labels import as_text

MAX_GROUPS = 200  # of one column; more are not groups but names or measurements


class Grouping(NamedTuple):
    """Samples divided by the values of one column.

    Attributes
    ----------
    codes : ndarray of shape (n_samples,), int64
        Group of each sample.
    names : list of str
        Name of each group, such as "sex=female".
    """

    codes: IntArray
    names: list[str]


def named_groups(columns: Any) -> list[Grouping]:
    """Divide samples by the values of each column; missing values are a group of their own.

    Parameters
    ----------
    columns : mapping of str to array-like of shape (n_samples,), DataFrame, or array-like
        Attributes by name; one attribute may come alone. A Series keeps its name, other arrays
        are called "group", and their columns "group_0" and so on.

    Returns
    -------
    list of Grouping
        One per column.

    Raises
    ------
    ValueError
        If a column is not one-dimensional or has more than 200 different values, or if two
        groups have the same name, as 1 and "1" in one column have.
    """
    return distinct([_grouping(str(name), values) for name, values in _by_name(columns)])


def distinct(groupings: list[Grouping]) -> list[Grouping]:
    """Return the same groupings, or raise an error if two groups have one name."""
    seen = Counter(name for grouping in groupings for name in grouping.names)
    twice = [name for name, times in seen.items() if times > 1]
    if twice:
        raise ValueError(f"Groups must differ in their names, got {twice[0]!r} twice; rename one.")
    return groupings


def groups_of_columns(
    groups: str | int | list[Any] | Callable[[Any], Any] | None, X: Any
) -> list[Grouping]:
    """Divide samples by columns of `X`: by name, by position, or as a callable makes them.

    Parameters
    ----------
    groups : str, int, list of these, callable or None
        Columns of `X`, or a function of `X` that returns an array of shape (n_samples,), a
        mapping or a DataFrame.
    X : array-like of shape (n_samples, n_features) or DataFrame
        Inputs.

    Returns
    -------
    list of Grouping

    Raises
    ------
    ValueError
        If a column does not exist, or cannot be divided into groups.
    """
    if groups is None:
        return []
    if callable(groups):
        return named_groups(groups(X))
    names = groups if isinstance(groups, list) else [groups]
    return named_groups({name: column_of(X, name) for name in names})


def column_of(X: Any, name: Any) -> Any:
    """One column of a table, by name or position."""
    columns = getattr(X, "columns", None)
    if isinstance(name, str) and columns is None:
        raise ValueError(f"Column {name!r} is named, but X is not a data frame; give the position.")
    table = X if columns is not None else X.tocsc() if issparse(X) else _flat(np.asarray(X))
    try:
        if issparse(table):  # sparse arrays have no one-dimensional columns before scipy 1.15
            return _safe_indexing(table, [name], axis=1).toarray().ravel()
        return _safe_indexing(table, name, axis=1)
    except (ValueError, IndexError, KeyError) as error:
        known = f"columns {list(columns)}" if columns is not None else f"shape {table.shape}"
        raise ValueError(f"There is no column {name!r}: X has {known}.") from error


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    """Array of which each sample is a row."""
    return array.reshape(len(array), -1) if array.ndim > 2 else array


def _by_name(columns: Any) -> Iterable[tuple[Any, Any]]:
    """Attributes with their names."""
    if hasattr(columns, "items") and getattr(columns, "ndim", 2) > 1:
        return columns.items()
    # A Series has items like a mapping, but is one column.
    name = getattr(columns, "name", None)
    array = np.asarray(columns)
    if array.ndim == 2:
        return ((f"group_{k}", column) for k, column in enumerate(array.T))
    return [("group" if name is None else name, columns)]


def _grouping(name: str, values: ArrayLike) -> Grouping:
    import pandas as pd

    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"Group {name!r} must be one-dimensional, got shape {array.shape}.")
    codes, found = pd.factorize(array, sort=True)
    if len(found) > MAX_GROUPS:
        raise ValueError(
            f"Group {name!r} has {len(found)} different values, more than {MAX_GROUPS}; divide "
            "it into ranges first, such as age groups."
        )
    # A column of integers is one of floats in a part of the samples where values are missing.
    names = [f"{name}={as_text(value)}" for value in found]
    if (codes < 0).any():
        codes = np.where(codes < 0, len(names), codes)
        names.append(f"{name}=missing")
    return Grouping(codes.astype(np.int64), names)
