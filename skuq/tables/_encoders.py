"""Encoders of clean columns: scaled numbers and one-hot indicators, or numbers and codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from skuq.explanations import MISSING_TEXT

# Maximum number of indicators for a text column. If there are more categories, the rarest
# categories share one indicator.
MAX_CATEGORIES = 50
# If fewer values of a numeric column are present, every leaf of boosted trees contains rows in
# which the value is missing.
FEW_NUMBERS = 20


def as_indicators(X: pd.DataFrame, numbers: Sequence[str]) -> Any:
    """Return a transformer that outputs scaled numbers and one-hot indicators of categories.

    Missing numbers are replaced by the median and marked by an indicator. An extra indicator marks
    unseen categories; it is 0 in all training rows, so training does not determine its effect.
    """
    # keep_empty_features: fill a column with 0 if it has no values in the training rows.
    numeric = make_pipeline(
        SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True),
        StandardScaler(),
    )
    unseen = make_pipeline(_coded(), MissingIndicator(features="all"))
    one_hot = OneHotEncoder(
        handle_unknown="ignore", max_categories=MAX_CATEGORIES, sparse_output=False
    )
    text = make_pipeline(_filled(), make_union(one_hot, unseen))
    return make_column_transformer((numeric, list(numbers)), (text, _text_names(X, numbers)))


def as_codes(X: pd.DataFrame, numbers: Sequence[str]) -> Any:
    """Return a transformer for trees: numbers unchanged, categories as integer codes.

    Missing numbers and unseen categories become NaN. Numeric columns with few values are imputed:
    in a subset of the rows, such a column may have no value at all, for which trees raise an error.
    """
    filled = [name for name in numbers if X[name].count() >= FEW_NUMBERS]
    sparse = [name for name in numbers if name not in filled]
    constant = SimpleImputer(strategy="median", keep_empty_features=True)
    text = make_pipeline(_filled(), _coded())
    return make_column_transformer(
        ("passthrough", filled), (constant, sparse), (text, _text_names(X, numbers))
    )


def _text_names(X: pd.DataFrame, numbers: Sequence[str]) -> list[str]:
    return [name for name in X.columns if name not in numbers]


def _filled() -> SimpleImputer:
    return SimpleImputer(strategy="constant", fill_value=MISSING_TEXT, keep_empty_features=True)


def _coded() -> OrdinalEncoder:
    return OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
