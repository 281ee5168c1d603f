"""Tables of pandas, Polars and pyarrow, their names, and the target by name or as values."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_integer

from skuq.validation import as_pandas, as_table_of

TARGET = "target"  # column name of a target passed as values without a name


class TableError(ValueError):
    """A table or model file cannot be used; the message says what to change."""


class NewValuesWarning(UserWarning):
    """In some column, nearly all rows of a table have values that did not occur in training."""


def as_frame(table: Any, which: str) -> pd.DataFrame:
    """Convert a table of pandas, Polars or pyarrow, or an array, to a DataFrame with unique names.

    Columns of an array are named x0, x1, ... Error messages call the table `which`.
    """
    if isinstance(table, np.ndarray) and table.ndim == 2:
        return pd.DataFrame(table).add_prefix("x").infer_objects()
    if not (isinstance(table, pd.DataFrame) or _is_table(table)):
        hint = ""
        if isinstance(table, pd.Series | np.ndarray):
            hint = " For a single row, select it as table[:1]."
        raise TableError(
            f"The {which} must be a DataFrame of pandas or Polars, a pyarrow Table or a "
            f"two-dimensional array, got {type(table).__name__}.{hint}"
        )
    # Check the names before the conversion: pyarrow cannot look up a name that occurs twice.
    has_names = not isinstance(table, pd.DataFrame) and hasattr(table, "column_names")
    names = pd.Index(table.column_names if has_names else table.columns)
    for name in names:
        if not isinstance(name, str):
            raise TableError(
                f"Column names of the {which} must be text, got {name!r}; convert them with "
                "`table.columns = table.columns.astype(str)`."
            )
    if names.has_duplicates:
        name = names[names.duplicated()][0]
        raise TableError(
            f"The {which} has more than one column named {name!r}; give each a different name."
        )
    frame: pd.DataFrame = table if isinstance(table, pd.DataFrame) else as_pandas(table)
    return frame


def in_library_of(table: Any, frame: pd.DataFrame, same: Sequence[str]) -> Any:
    """Convert a DataFrame to the library of `table`; columns in `same` get the types of `table`."""
    return as_table_of(table.select([*same]), frame) if _is_table(table) else frame


def _is_table(table: Any) -> bool:
    """Whether this is a table of Polars or pyarrow, checked without importing these libraries."""
    library = type(table).__module__.partition(".")[0]
    return (library, type(table).__name__) in (("polars", "DataFrame"), ("pyarrow", "Table"))


def require(table: pd.DataFrame, name: str, which: str) -> None:
    """Refuse a table that lacks a column; suggest a similar name."""
    if name not in table:
        near = difflib.get_close_matches(name, table.columns, n=1)
        raise TableError(
            f"The {which} has no column {name!r}; it has {', '.join(table.columns[:10])}."
            + (f" Did you mean {near[0]!r}?" if near else "")
        )


def with_target(table: pd.DataFrame, target: Any, which: str) -> tuple[pd.DataFrame, str]:
    """Return the table with the target as a column, and the name of that column.

    `target` is a column name, or the target values in row order.
    """
    column = true_values(table, target, which)
    if isinstance(target, str):
        return table, target
    name = getattr(target, "name", None)
    # A Series that was computed from a column of the table still has the name of this column.
    name = name if isinstance(name, str) and name and name not in table else TARGET
    if name in table or any(table[other].equals(column) for other in table):
        raise TableError(
            f"The target values are also a column of the {which}, or it has a column {name!r}; "
            "pass the name of the column, or rename or remove it."
        )
    return table.assign(**{name: column}), name


def true_values(table: pd.DataFrame, target: Any, which: str) -> pd.Series:
    """Return the target of each row, looked up by column name or passed as values."""
    if isinstance(target, str):
        require(table, target, which)
        return table[target]
    values: Any = target.array if isinstance(target, pd.Series) else np.asarray(target)
    if np.ndim(values) != 1 or len(values) != len(table):
        raise TableError(
            f"The target must be a column name of the {which}, or one value for each of its "
            f"{len(table)} rows, got shape {np.shape(values)}."
        )
    return pd.Series(values, index=table.index)


def feature_names(
    train: pd.DataFrame, target: str, drop: Sequence[str], id_column: str | None = None
) -> list[str]:
    """Columns to learn from; target, dropped columns and the id column must exist."""
    set_apart = [*drop] if id_column is None else [*drop, id_column]
    for name in (target, *set_apart):
        require(train, name, "training table")
    if target in set_apart:
        raise TableError(f"The target {target!r} cannot be dropped or used as the id column.")
    features = [name for name in train.columns if name != target and name not in set_apart]
    if not features:
        raise TableError("The training table has no feature column left.")
    return features


def place(table: pd.DataFrame, position: int) -> str:
    """Describe a row by its line in the file (counted as in spreadsheets) or by its index label.

    `open_table` stores the line numbering of a file in ``table.attrs["numbered"]``.
    """
    label, numbered = table.index[position], table.attrs.get("numbered")
    if numbered is None or not is_integer(label):
        return f"row {label}"
    return f"{numbered[0]} {label + numbered[1]}"
