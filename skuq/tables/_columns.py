"""Columns of a table as numbers and text, however they were stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype, is_bool_dtype, is_numeric_dtype, is_object_dtype
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skuq.labels import as_text

KINDS_OF_NUMBER = {"integer", "floating", "mixed-integer-float", "decimal"}


class TableError(ValueError):
    """The table cannot be used as it is; the message says what to change."""


class CleanColumns(TransformerMixin, BaseEstimator):
    """Columns seen in training, in their order and kind: floats, or text as plain objects.

    The training table decides which columns are numbers. Other columns of a table are left
    out. Every kind of missing value becomes NaN.

    Attributes
    ----------
    feature_names_in_ : ndarray of shape (n_features,), object
        Names of the columns.
    numbers_ : list of str
        Those that hold numbers.
    """

    def fit(self, X: pd.DataFrame, y: Any = None) -> CleanColumns:
        """Learn names and kinds of the columns."""
        self.feature_names_in_ = np.array(X.columns, dtype=object)
        self.numbers_ = [name for name in X.columns if is_number(X[name])]
        return self

    def transform(self, X: pd.DataFrame) -> pd.DataFrame:
        """Bring any table into the form of the training table."""
        check_is_fitted(self)
        lacking = [name for name in self.feature_names_in_ if name not in X.columns]
        if lacking:
            raise TableError(
                f"The table to predict lacks {', '.join(lacking)}, which the training table "
                "has; add these columns or leave them out of both (--drop)."
            )
        columns = {
            name: _numbers(X[name]) if name in self.numbers_ else _texts(X[name])
            for name in self.feature_names_in_
        }
        return pd.DataFrame(columns).reset_index(drop=True)


def is_number(column: pd.Series) -> bool:
    """Whether a column is numeric; yes and no count as text."""
    if is_object_dtype(column):
        return infer_dtype(column, skipna=True) in KINDS_OF_NUMBER
    return is_numeric_dtype(column) and not is_bool_dtype(column)


def _numbers(column: pd.Series) -> pd.Series:
    if is_number(column):
        return pd.Series(column.to_numpy(dtype=float, na_value=np.nan), index=column.index)
    values = pd.to_numeric(column.astype(str), errors="coerce").astype(float)
    bad = column[values.isna() & column.notna()]
    if len(bad):
        raise TableError(
            f"Column {column.name!r} holds numbers in the training table, but text in the table "
            f"to predict, such as {as_text(bad.iloc[0])!r}."
        )
    return values


def _texts(column: pd.Series) -> pd.Series:
    present = column.notna()
    texts = [
        as_text(value) if known else np.nan for value, known in zip(column, present, strict=True)
    ]
    return pd.Series(texts, index=column.index, dtype=object)
