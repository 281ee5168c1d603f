"""Columns that make rows unusual, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from skuq.base import FloatArray, IntArray
from skuq.labels import as_text
from skuq.tables._seen import MISSING_TEXT, SEPARATOR

N_COLUMNS = 3
SMALLEST_SHARE = 0.05  # of a row's epistemic uncertainty; a smaller one is not a reason


def rows_to_explain(p_values: FloatArray, epistemic: FloatArray, n_rows: int) -> IntArray:
    """Positions of the most unusual rows, most unusual first.

    Parameters
    ----------
    p_values, epistemic : ndarray of shape (n_rows,)
        The smaller the p-value the more unusual, then the larger the epistemic uncertainty.
    n_rows : int
        How many at most.

    Returns
    -------
    ndarray of shape (at most n_rows,), int64

    Examples
    --------
    >>> rows_to_explain(np.array([0.5, 0.1, 0.1]), np.array([3.0, 1.0, 2.0]), 2)
    array([2, 1])
    """
    return np.lexsort((-epistemic, p_values))[:n_rows]


def reasons(
    X: pd.DataFrame, unsupported: pd.DataFrame, contribution: FloatArray, epistemic: FloatArray
) -> list[str]:
    """Up to three columns that make each row unusual, with their values.

    Parameters
    ----------
    X : DataFrame of shape (n_rows, n_columns)
        Rows.
    unsupported : DataFrame of bool, (n_rows, n_columns)
        Values that no training row supports, which come first: each may hide what the others
        contribute.
    contribution : ndarray of shape (n_rows, n_columns)
        Loss of epistemic uncertainty if the column takes typical values.
    epistemic : ndarray of shape (n_rows,)
        Epistemic uncertainty.

    Returns
    -------
    list of str

    Examples
    --------
    >>> X = pd.DataFrame({"age": [456.0], "town": ["Ulm"]})
    >>> reasons(X, X.isna(), np.array([[0.4, 0.001]]), np.array([0.5]))
    ['age = 456']
    """
    names, marks = X.columns.to_numpy(), unsupported.to_numpy(dtype=bool)
    weight = np.where(marks, np.inf, contribution)
    found = []
    for row, own in enumerate(epistemic):
        first = np.argsort(-weight[row], kind="stable")[:N_COLUMNS]
        enough = weight[row, first] > SMALLEST_SHARE * own
        parts = [f"{names[k]} = {_shown(X.iat[row, k])}" for k in first[enough]]
        found.append(SEPARATOR.join(parts))
    return found


def explained(
    X: pd.DataFrame,
    unsupported: pd.DataFrame,
    typical: pd.DataFrame,
    epistemic: Callable[[pd.DataFrame], FloatArray],
) -> list[str]:
    """Replace each column of each row by typical values, and tell which ones matter."""
    if not len(X):
        return []
    from skuq.quam._explanation import explain_rows

    own, contribution = explain_rows(X, typical, epistemic)
    return reasons(X, unsupported, contribution, own)


def _shown(value: Any) -> str:
    if pd.isna(value):
        return MISSING_TEXT
    return f"{value:.6g}" if isinstance(value, float) else as_text(value)
