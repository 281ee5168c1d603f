"""Clean columns as learners take them: scaled numbers and indicators, or numbers and codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from skuq.unusual_rows import MISSING_TEXT

MAX_CATEGORIES = 50  # of a text column; rarer values share one column
FEW_NUMBERS = 20  # fewer cannot be told from missing ones by a leaf of boosted trees


def as_indicators(X: pd.DataFrame, numbers: Sequence[str]) -> Any:
    """Return a transformer of training rows into scaled numbers and indicators of categories.

    Missing numbers are replaced by the median and marked. Categories that the training rows lack
    are marked in a column that is 0 for all of these: what it means is left open by the data.
    """
    # A number that only held-out rows have stands as 0, so that it needs no case of its own.
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
    """Return a transformer of training rows for trees: numbers as they are, categories as codes.

    Missing numbers, and categories that the training rows lack, are NaN. Columns of so few numbers
    that a part of the rows may have none, which trees refuse, are filled up.
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
