"""Encoding of a learner's inputs as numbers without missing values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import issparse
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skuq.base import FloatArray
from skuq.explanations import as_table, number_columns
from skuq.stored import stored
from skuq.validation import with_names

_MAX_CATEGORIES = 100  # maximum per column; rarer categories share one indicator


def feature_encoder(X: Any) -> Any:
    """Fit a transformer that encodes inputs as numbers without missing values.

    Columns of a table become scaled numbers and indicators of categories. Returns None for sparse
    matrices, which need no encoding, and for inputs that have no columns.
    """
    if issparse(X):
        return None
    if isinstance(X, pd.DataFrame) or X.dtype.kind not in "fiub":
        if X.ndim != 2:
            return None
        table = as_table(X)
        numbers = number_columns(table)
        texts = [name for name in table.columns if name not in numbers]
        scaled = make_pipeline(
            SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler()
        )
        indicators = OneHotEncoder(
            handle_unknown="ignore", max_categories=_MAX_CATEGORIES, sparse_output=False
        )
        return TableEncoder(
            ColumnTransformer([("numbers", scaled, numbers), ("texts", indicators, texts)]).fit(
                table
            )
        )
    flat = X.reshape(len(X), -1)
    return SimpleImputer(strategy="median", keep_empty_features=True).fit(flat)


@stored("features.table-encoder")
@dataclass(frozen=True)
class TableEncoder:
    """Encoder of tables: scaled numbers and one-hot categories."""

    columns: ColumnTransformer

    def transform(self, X: Any) -> FloatArray:
        """Encode rows as numbers, (n_samples, n_features)."""
        numbers: FloatArray = self.columns.transform(as_table(with_names(self.columns, X)))
        return numbers


def encoded(encoder: Any, X: Any) -> Any:
    """Encode inputs; returns sparse matrices unchanged, and None if inputs have no columns."""
    if encoder is None:
        return X if issparse(X) else None
    if isinstance(encoder, TableEncoder):
        return encoder.transform(X)
    return encoder.transform(X.reshape(len(X), -1)).astype(np.float64, copy=False)
