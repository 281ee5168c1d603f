"""Tables of several libraries as DataFrames, results in the library of a table, and targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from skuq.tables._validation import TableError, check_names
from skuq.validation import as_pandas, as_table_of

TARGET = "target"  # name of a target that is given as values without a name


def as_frame(table: Any, which: str) -> pd.DataFrame:
    """A table of pandas, Polars or pyarrow, or an array with columns x0, x1, ..., as a DataFrame.

    Errors call it `which`.
    """
    if isinstance(table, pd.DataFrame):
        return table
    if _is_table(table):
        # A name that two columns of pyarrow have cannot be looked up.
        names = getattr(table, "column_names", table.columns)
        check_names(pd.DataFrame(columns=list(names)), which)
        frame: pd.DataFrame = as_pandas(table)
        return frame
    if isinstance(table, np.ndarray) and table.ndim == 2:
        return pd.DataFrame(table).add_prefix("x").infer_objects()
    of_rows = isinstance(table, pd.Series | np.ndarray)
    hint = "table[:1] is a table of one row" if of_rows else "pandas.DataFrame(...) makes one"
    raise TableError(
        f"The {which} must be a DataFrame of pandas or Polars, a pyarrow Table or an array of "
        f"two dimensions, got {_described(table)}; {hint}."
    )


def in_library_of(table: Any, frame: pd.DataFrame, same: Sequence[str]) -> Any:
    """A DataFrame as a table of the library of another; columns `same` keep their type there."""
    return as_table_of(table.select([*same]), frame) if _is_table(table) else frame


def with_target(table: pd.DataFrame, target: Any, which: str) -> tuple[pd.DataFrame, str]:
    """A table that has the target as a column, and the column's name.

    `target` is the name, or the values in the order of the rows, as scikit-learn passes them.
    """
    if isinstance(target, str):
        return table, target
    column = true_values(table, target, which)
    name = getattr(target, "name", None)
    name = name if isinstance(name, str) and name else TARGET
    if name in table and table[name].equals(column):
        raise TableError(
            f"The target that was given as values is also the column {name!r} of the {which}; give "
            "its name instead of the values, or leave the column out."
        )
    name = name if name not in table else TARGET  # a Series that was made of a column has its name
    if name in table:
        raise TableError(
            f"The {which} has a column {name!r} that is not the target given as values; rename it."
        )
    return table.assign(**{name: column}), name


def true_values(table: pd.DataFrame, target: Any, which: str) -> pd.Series:
    """The target of each row of a table, by its name or as values."""
    if isinstance(target, str):
        if target not in table:
            raise TableError(f"The {which} has no column {target!r}.")
        return table[target]
    values: Any = target.array if isinstance(target, pd.Series) else np.asarray(target)
    if np.ndim(values) != 1:
        raise TableError(
            f"The target must be the name of a column of the {which}, or one value for each row, "
            f"got {_described(target)}."
        )
    if len(values) != len(table):
        raise TableError(f"There are {len(values)} targets for {len(table)} rows of the {which}.")
    return pd.Series(values, index=table.index)


def _is_table(table: Any) -> bool:
    """Whether this is a table of Polars or pyarrow, which is not imported for it."""
    kind = type(table)
    library = kind.__module__.partition(".")[0]
    return (library, kind.__name__) in (("polars", "DataFrame"), ("pyarrow", "Table"))


def _described(value: Any) -> str:
    kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    kind = kind.removeprefix("builtins.")
    shape = getattr(value, "shape", None)
    return f"{kind} of shape {tuple(shape)}" if isinstance(shape, tuple) else kind
