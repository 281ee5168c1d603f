"""Checks of a table before a model is trained on it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import pandas as pd
from pandas.api.types import is_integer

SEPARATORS = ";\t|,"  # separators of values in CSV files
TOO_LARGE = 1e38  # trees compute in single precision


class TableError(ValueError):
    """A table or model file cannot be used; the message says what to change."""


class NewValuesWarning(UserWarning):
    """In some column, nearly all rows of a table have values that did not occur in training."""


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
            f"The {which} has more than one column named {twice[0]!r}; give each a different name, "
            "or keep only one."
        )


def feature_names(
    train: pd.DataFrame, target: str, drop: Sequence[str], id_column: str | None = None
) -> list[str]:
    """Columns to learn from; target, dropped columns and the id column must exist."""
    for role, others in ((f"drop=[{target!r}]", drop), (f"id_column={target!r}", [id_column])):
        if target in others:
            raise TableError(
                f"The target {target!r} cannot be dropped or used as the id column (`{role}`)."
            )
    set_apart = [*drop] if id_column is None else [*drop, id_column]
    for name in (target, *set_apart):
        if name not in train.columns:
            near = difflib.get_close_matches(name, train.columns, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TableError(
                f"The training table has no column {name!r}; it has "
                f"{', '.join(train.columns)}.{hint or separator_hint(train)}"
            )
    features = [name for name in train.columns if name != target and name not in set_apart]
    if not features:
        raise TableError("The training table has no feature column left.")
    return features


def separator_hint(frame: pd.DataFrame) -> str:
    """Hint for a table that lacks a column because its file was split at a wrong separator.

    Returns a sentence with a leading space, or "" if nothing indicates a wrong separator.
    """
    name = str(frame.columns[0]) if len(frame.columns) == 1 else ""
    sep = max(SEPARATORS, key=name.count)
    if sep not in name:
        return ""
    return (
        f" Its only column is {name!r}: if this is a list of names, state the separator when the "
        f"table is read (`sep={sep!r}`)."
    )


def place(table: pd.DataFrame, position: int) -> str:
    """Describe a row by its line in the file (counted as in spreadsheets) or by its index label.

    `open_table` stores the line numbering of a file in ``table.attrs["numbered"]``.
    """
    label, numbered = table.index[position], table.attrs.get("numbered")
    if numbered is None or not is_integer(label):
        return f"row {label}"
    return f"{numbered[0]} {label + numbered[1]}"


def word_among_numbers(values: pd.Series) -> str | None:
    """Return a non-numeric value of a text column in which at least half of the values are numbers.

    Return None if all values are numbers, or if less than half of them are numbers.
    """
    no_number = pd.to_numeric(values, errors="coerce").isna()
    if not 0 < no_number.sum() <= len(values) / 2:
        return None
    return str(values[no_number].iloc[0])


def check_share(coverage: float) -> None:
    """Refuse a coverage that is not between 0 and 1."""
    if not 0 < coverage < 1:
        raise ValueError(f"`coverage` must be between 0 and 1, got {coverage}.")
