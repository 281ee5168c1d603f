"""Notes on how a table was treated, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from skuq.tables._columns import TableError
from skuq.tables._validation import ALL_DIFFERENT

MISSING_TEXT = "(missing)"  # the category that missing text counts as


def missing_notes(train: pd.DataFrame, table: pd.DataFrame, missing: str) -> list[str]:
    """Count missing values by column, or refuse them."""
    notes = []
    for frame, which in ((train, "training table"), (table, "table to predict")):
        counts = frame.isna().sum()
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


def suspicion_notes(train: pd.DataFrame, numbers: Sequence[str]) -> list[str]:
    """Name columns that may have been misread."""
    notes = []
    for name in train.columns:
        values = train[name].dropna()
        if name in numbers:
            span = values.max() - values.min() + 1
            if values.is_unique and span == len(values) > ALL_DIFFERENT and (values % 1 == 0).all():
                notes.append(
                    f"Column {name} seems to number the rows; if it does, leave it out "
                    f"(--drop {name}): new rows have new numbers, which look out-of-distribution."
                )
        else:
            no_number = pd.to_numeric(values, errors="coerce").isna()
            if 0 < no_number.sum() <= len(values) / 2:
                notes.append(
                    f"Column {name} holds numbers, but counts as text because of values such as "
                    f"{values[no_number].iloc[0]!r}; if they stand for missing ones, leave them "
                    "empty."
                )
    return notes


def range_notes(train: pd.DataFrame, table: pd.DataFrame, numbers: Sequence[str]) -> list[str]:
    """Name columns with numbers outside the range of the training table.

    No training data cover them, and the models may agree there without evidence.
    """
    train, table = train[list(numbers)], table[list(numbers)]
    beyond = ((table < train.min()) | (table > train.max())).sum()
    beyond = beyond[beyond > 0]
    if beyond.empty:
        return []
    listed = ", ".join(f"{name} ({count})" for name, count in beyond.items())
    return [
        f"Rows with numbers outside the training table's range: {listed}. There the model "
        "extrapolates, and low uncertainty only means that other models extrapolate alike."
    ]


def split_note(n_fit: int, n_held: int) -> str:
    """State how many rows trained the model and how many were held out."""
    were = "row was" if n_held == 1 else "rows were"
    return (
        f"{n_fit} rows trained the model; {n_held} {were} held out to calibrate the p-values, the "
        f"smallest of which can be {1 / (1 + n_held):.2g}."
    )


def unseen_notes(train: pd.DataFrame, table: pd.DataFrame, numbers: Sequence[str]) -> list[str]:
    """Name text columns with values that are not in the training table."""
    notes = []
    for name in train.columns.difference(list(numbers), sort=False):
        known, asked = (set(frame[name].fillna(MISSING_TEXT)) for frame in (train, table))
        unseen = sorted(asked - known)
        if unseen:
            notes.append(
                f"Column {name} has values that the model was not trained on, such as "
                f"{unseen[0]!r}; they are encoded as none of the known ones."
            )
    return notes
