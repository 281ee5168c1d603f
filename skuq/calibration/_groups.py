"""Groups of samples, by the values of columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing

from skuq.base import IntArray

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
        Attributes by name; one attribute may come alone.

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
    # A Series has items like a mapping, but is one column.
    if not hasattr(columns, "items") or getattr(columns, "ndim", 2) == 1:
        columns = {"group": columns}
    made = [_grouping(str(name), values) for name, values in columns.items()]
    seen = Counter(name for grouping in made for name in grouping.names)
    twice = [name for name, times in seen.items() if times > 1]
    if twice:
        raise ValueError(f"Groups must differ in their names, got {twice[0]!r} twice; rename one.")
    return made


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
    table = X if columns is not None else X.tocsc() if issparse(X) else np.asarray(X)
    try:
        if issparse(table):  # sparse arrays have no one-dimensional columns before scipy 1.15
            return _safe_indexing(table, [name], axis=1).toarray().ravel()
        return _safe_indexing(table, name, axis=1)
    except (ValueError, IndexError, KeyError) as error:
        known = f"columns {list(columns)}" if columns is not None else f"shape {table.shape}"
        raise ValueError(f"There is no column {name!r}: X has {known}.") from error


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
    names = [f"{name}={value}" for value in found]
    if (codes < 0).any():
        codes = np.where(codes < 0, len(names), codes)
        names.append(f"{name}=missing")
    return Grouping(codes.astype(np.int64), names)
