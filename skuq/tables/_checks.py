"""What a table must be like before anything is learnt from it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from sklearn.utils.multiclass import type_of_target

ALL_DIFFERENT = 50  # rows from which on a text column without repetition is taken for names


class TableError(ValueError):
    """The table cannot be used as it is; the message says what to change."""


def feature_names(train: pd.DataFrame, target: str, drop: Sequence[str]) -> list[str]:
    """Columns to learn from; target and dropped columns must exist."""
    for name in (target, *drop):
        if name not in train.columns:
            near = difflib.get_close_matches(name, map(str, train.columns), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TableError(
                f"The training table has no column {name!r}; it has "
                f"{', '.join(map(str, train.columns))}.{hint}"
            )
    features = [name for name in train.columns if name != target and name not in drop]
    if not features:
        raise TableError("The training table has no column left to learn from.")
    return features


def check_target(train: pd.DataFrame, target: str) -> None:
    """Refuse a target that is not a class label in every row."""
    y = train[target]
    if y.isna().any():
        raise TableError(
            f"The target {target!r} is missing in {int(y.isna().sum())} training rows; fill "
            "them in or remove them."
        )
    if is_numeric_dtype(y) and type_of_target(y.to_numpy()).startswith("continuous"):
        raise TableError(
            f"The target {target!r} holds continuous numbers, not classes; group it into "
            "classes first."
        )
    counts = y.value_counts()
    if len(counts) < 2:
        raise TableError(f"The target {target!r} must hold at least 2 classes, got {len(counts)}.")
    if counts.iloc[-1] < 2:
        raise TableError(
            f"Class {counts.index[-1]!r} of the target {target!r} has a single row; at least 2 "
            "are needed (is the target really a class?)."
        )


def is_number(column: pd.Series) -> bool:
    """Whether a column is numeric; yes and no count as text."""
    return is_numeric_dtype(column) and not is_bool_dtype(column)


def check_columns(train: pd.DataFrame, features: Sequence[str]) -> None:
    """Refuse training columns that nothing can be learnt from."""
    for name in features:
        column = train[name]
        if column.isna().all():
            raise TableError(f"Column {name!r} is empty; leave it out (--drop {name}).")
        if not is_number(column) and len(train) > ALL_DIFFERENT and column.nunique() == len(train):
            raise TableError(
                f"Column {name!r} holds a different text in every row, so nothing can be "
                f"learnt from it; leave it out (--drop {name})."
            )


def check_same_kind(train: pd.DataFrame, table: pd.DataFrame, features: Sequence[str]) -> None:
    """Refuse a table that differs from the training table in its columns or their kind."""
    lacking = [name for name in features if name not in table.columns]
    if lacking:
        raise TableError(
            f"The table to predict lacks {', '.join(lacking)}, which the training table has; "
            "add these columns or leave them out of both (--drop)."
        )
    if len(table) == 0:
        raise TableError("The table to predict has no rows.")
    for name in features:
        if is_number(train[name]) and not (is_number(table[name]) or table[name].isna().all()):
            bad = table.loc[pd.to_numeric(table[name], errors="coerce").isna(), name].dropna()
            example = f", such as {bad.iloc[0]!r}" if len(bad) else ""
            raise TableError(
                f"Column {name!r} holds numbers in the training table, but text in the table "
                f"to predict{example}."
            )


def check_finite(train: pd.DataFrame, table: pd.DataFrame, features: Sequence[str]) -> None:
    """Refuse infinite numbers; missing ones are another matter."""
    for frame, which in ((train, "training table"), (table, "table to predict")):
        numbers = frame[[name for name in features if is_number(frame[name])]]
        infinite = np.isinf(numbers.to_numpy(dtype=float)).any(axis=0)
        if infinite.any():
            raise TableError(
                f"Column {numbers.columns[infinite][0]!r} of the {which} holds infinite numbers."
            )


def missing_notes(
    train: pd.DataFrame, table: pd.DataFrame, features: Sequence[str], missing: str
) -> list[str]:
    """Say what is missing where, or refuse it."""
    notes = []
    for frame, which in ((train, "training table"), (table, "table to predict")):
        counts = frame[features].isna().sum()
        counts = counts[counts > 0]
        if counts.empty:
            continue
        listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
        if missing == "refuse":
            raise TableError(
                f"The {which} has missing values: {listed}. Fill them in, or let them be "
                "imputed (--missing impute)."
            )
        notes.append(f"Missing values in the {which} were imputed: {listed}.")
    return notes


def unseen_notes(train: pd.DataFrame, table: pd.DataFrame) -> list[str]:
    """Say which text columns hold values that training did not show."""
    notes = []
    for name in train.columns:
        if not is_number(train[name]):
            unseen = sorted(set(table[name].dropna()) - set(train[name].dropna()))
            if unseen:
                notes.append(
                    f"Column {name} has values that the model was not trained on, such as "
                    f"{unseen[0]!r}; they count as none of the known ones."
                )
    return notes
