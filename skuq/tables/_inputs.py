"""Conversion of tables between pandas, Polars and pyarrow, and access to the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from skuq.tables._validation import TableError, check_names, separator_hint
from skuq.validation import as_pandas, as_table_of

TARGET = "target"  # column name of a target passed as values without a name


def as_frame(table: Any, which: str) -> pd.DataFrame:
    """Convert a table of pandas, Polars or pyarrow, or an array, to a DataFrame.

    Columns of an array are named x0, x1, ... Error messages call the table `which`.
    """
    if isinstance(table, pd.DataFrame):
        return table
    if _is_table(table):
        # Check the names before the conversion: pyarrow cannot look up a name that occurs twice.
        names = getattr(table, "column_names", table.columns)
        check_names(pd.DataFrame(columns=list(names)), which)
        frame: pd.DataFrame = as_pandas(table)
        return frame
    if isinstance(table, np.ndarray) and table.ndim == 2:
        return pd.DataFrame(table).add_prefix("x").infer_objects()
    of_rows = isinstance(table, pd.Series | np.ndarray)
    hint = (
        "for a single row, select it as table[:1]"
        if of_rows
        else "convert it with pandas.DataFrame(...)"
    )
    raise TableError(
        f"The {which} must be a DataFrame of pandas or Polars, a pyarrow Table or a "
        f"two-dimensional array, got {_described(table)}; {hint}."
    )


def in_library_of(table: Any, frame: pd.DataFrame, same: Sequence[str]) -> Any:
    """Convert a DataFrame to the library of `table`; columns in `same` get the types of `table`."""
    return as_table_of(table.select([*same]), frame) if _is_table(table) else frame


def with_target(table: pd.DataFrame, target: Any, which: str) -> tuple[pd.DataFrame, str]:
    """Return the table with the target as a column, and the name of that column.

    `target` is a column name, or the target values in row order.
    """
    if isinstance(target, str):
        return table, target
    column = true_values(table, target, which)
    name = getattr(target, "name", None)
    name = name if isinstance(name, str) and name else TARGET
    if name in table and table[name].equals(column):
        raise TableError(
            f"The target values are also the column {name!r} of the {which}; pass this name "
            "instead of the values, or remove the column."
        )
    # A Series that was computed from a column of the table still has the name of this column.
    name = name if name not in table else TARGET
    if name in table:
        raise TableError(
            f"The {which} has a column {name!r} whose values differ from the target's; rename it."
        )
    return table.assign(**{name: column}), name


def true_values(table: pd.DataFrame, target: Any, which: str) -> pd.Series:
    """Return the target of each row, looked up by column name or passed as values."""
    if isinstance(target, str):
        if target not in table:
            raise TableError(f"The {which} has no column {target!r}.{separator_hint(table)}")
        return table[target]
    values: Any = target.array if isinstance(target, pd.Series) else np.asarray(target)
    if np.ndim(values) != 1:
        raise TableError(
            f"The target must be a column name of the {which}, or one value per row, "
            f"got {_described(target)}."
        )
    if len(values) != len(table):
        raise TableError(
            f"The target has {len(values)} values, but the {which} has {len(table)} rows; pass one "
            "value per row."
        )
    return pd.Series(values, index=table.index)


def _is_table(table: Any) -> bool:
    """Whether this is a table of Polars or pyarrow, checked without importing these libraries."""
    kind = type(table)
    library = kind.__module__.partition(".")[0]
    return (library, kind.__name__) in (("polars", "DataFrame"), ("pyarrow", "Table"))


def _described(value: Any) -> str:
    kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    kind = kind.removeprefix("builtins.")
    shape = getattr(value, "shape", None)
    return f"{kind} of shape {tuple(shape)}" if isinstance(shape, tuple) else kind
