"""Checks of a table before a model is trained on it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_integer_dtype

from skuq.labels import as_text
from skuq.tables._columns import TableError, is_number

ALL_DIFFERENT = 50  # a text column of more rows without repetition is taken for names
TOO_LARGE = 1e100  # the square of such numbers, and with it their scale, cannot be computed


def check_names(frame: pd.DataFrame, which: str) -> None:
    """Refuse column names that are not text or not unique."""
    for name in frame.columns:
        if not isinstance(name, str):
            raise TableError(
                f"Column names of the {which} must be text, got {name!r}; convert them with "
                "`table.columns = table.columns.astype(str)`."
            )
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise TableError(
            f"The {which} has more than one column {twice[0]!r}; rename or remove all but one."
        )


def feature_names(train: pd.DataFrame, target: str, drop: Sequence[str]) -> list[str]:
    """Columns to learn from; target and dropped columns must exist."""
    for name in (target, *drop):
        if name not in train.columns:
            near = difflib.get_close_matches(name, train.columns, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TableError(
                f"The training table has no column {name!r}; it has "
                f"{', '.join(train.columns)}.{hint}"
            )
    features = [name for name in train.columns if name != target and name not in drop]
    if not features:
        raise TableError("The training table has no column left to learn from.")
    return features


def class_labels(train: pd.DataFrame, target: str) -> NDArray[Any]:
    """Class of every training row, as booleans, numbers or text; refuse what is not a class."""
    column = train[target]
    if column.isna().any():
        raise TableError(
            f"The target {target!r} is missing in {int(column.isna().sum())} training rows; fill "
            "them in or remove them."
        )
    labels = _plain_labels(column.infer_objects())
    if labels.dtype.kind == "f" and not (np.isfinite(labels) & (labels == labels.round())).all():
        raise TableError(
            f"The target {target!r} holds continuous numbers, not classes; group it into "
            "classes first."
        )
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        raise TableError(f"The target {target!r} must hold at least 2 classes, got {len(classes)}.")
    if counts.min() < 2:
        raise TableError(
            f"{(counts < 2).sum()} of the {len(classes)} classes of the target {target!r} have "
            f"a single row, such as {as_text(classes[counts.argmin()])!r}; at least 2 are "
            "needed. Merge or remove rare classes; a name or a quantity is not a class."
        )
    return labels


def _plain_labels(column: pd.Series) -> NDArray[Any]:
    if is_bool_dtype(column):
        return column.to_numpy(dtype=bool)
    if is_integer_dtype(column):
        return column.to_numpy(dtype=np.int64)
    if is_number(column):
        return column.to_numpy(dtype=float)
    return np.array([as_text(value) for value in column])


def check_training_columns(X: pd.DataFrame, numbers: Sequence[str]) -> None:
    """Refuse training columns that nothing can be learnt from."""
    for name in X.columns:
        values = X[name].dropna()
        if values.empty:
            raise TableError(f"Column {name!r} is empty; leave it out (--drop {name}).")
        if name not in numbers and len(values) > ALL_DIFFERENT and values.is_unique:
            raise TableError(
                f"Column {name!r} holds a different text in every row, so nothing can be "
                f"learnt from it; leave it out (--drop {name})."
            )


def check_sizes(X: pd.DataFrame, numbers: Sequence[str], which: str) -> None:
    """Refuse infinite numbers, and those too large to compute with; missing ones may be."""
    for name in numbers:
        if (X[name].abs() > TOO_LARGE).any():
            raise TableError(
                f"Column {name!r} of the {which} holds numbers that are infinite or beyond "
                f"{TOO_LARGE:g}; correct them or leave them empty."
            )
