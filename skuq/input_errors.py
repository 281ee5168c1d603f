"""Error messages that locate text, missing and infinite values in the inputs of an estimator."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

# Start of NumPy's message, which does not name the column.
TEXT = "could not convert string to float"
# Start of a message from scikit-learn or skuq.
NOT_FINITE = re.compile(r"Input (?:(\w+) )?contains (NaN|infinity)")
MOST_COLUMNS = 5  # maximum number of columns that a message lists by name
ADDED = "_message_before_place"  # attribute of an error whose message has been extended


def name_places(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method with argument `X`, so that errors locate the wrong values in `X` or `y`.

    The outermost method extends the message, because its `X` has the user's names of columns.
    """
    parameters = list(inspect.signature(method).parameters)
    if parameters[1:2] != ["X"]:
        return method
    position_of_y = parameters.index("y") - 1 if "y" in parameters else None

    @functools.wraps(method)
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except ValueError as error:
            inputs = {"X": kwargs.get("X", args[0] if args else None), "y": kwargs.get("y")}
            if position_of_y is not None and len(args) > position_of_y:
                inputs["y"] = args[position_of_y]
            message = getattr(error, ADDED, str(error))
            if place := _place(message, inputs, explained=hasattr(error, "__notes__")):
                setattr(error, ADDED, message)
                error.args = (f"{message}{place}",)
            raise

    return named


def _place(message: str, inputs: dict[str, Any], explained: bool) -> str:
    """Describe the place of the values that a message is about; empty if it is unknown."""
    if message.startswith(TEXT):
        # A message that ends with a full stop, or an error with a note, already names the text.
        return "" if message.endswith(".") or explained else f". {_place_of_text(**inputs)}"
    if found := NOT_FINITE.match(message):
        name = found[1] or "X"
        return _place_of_numbers(name, inputs.get(name), found[2] == "NaN")
    return ""


def _place_of_numbers(name: str, values: Any, missing: bool) -> str:
    """Describe where values are missing, or infinite; empty if there are no such values."""
    columns = _columns(values)
    places = []
    for column, numbers in columns:
        (rows,) = np.nonzero(_is_missing(numbers) if missing else _is_infinite(numbers))
        if len(rows):
            first = f"{len(rows)} of {len(numbers)} rows, the first at position {rows[0]}"
            places.append(f"{column!r} ({first})" if len(columns) > 1 else first)
    kind = "Missing" if missing else "Infinite or too large"
    where = f"in these columns of `{name}`" if len(columns) > 1 else f"in `{name}`"
    # The place starts a new line, because scikit-learn's advice fills several lines.
    return f"\n{kind} values are {where}: {_listed(places)}." if places else ""


def _place_of_text(X: Any, y: Any) -> str:
    """Describe which inputs contain text, and how to proceed."""
    columns = [repr(name) for name, values in _columns(X) if _is_text(values)]
    if columns:
        return (
            f"These columns of `X` contain text: {_listed(columns)}. Encode text first, for "
            "example with a OneHotEncoder in a pipeline, or use skuq.tables.TableModel, which "
            "encodes text."
        )
    if any(_is_text(values) for _, values in _columns(y)):
        return "`y` contains text, and a regression needs numbers; for classes, use a classifier."
    return "Encode text as numbers first."


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_COLUMNS
    return ", ".join(names[:MOST_COLUMNS]) + (f" and {more} more" if more > 0 else "")


def _columns(values: Any) -> list[tuple[Any, pd.Series]]:
    """Columns with names or positions; empty if the values are neither a table nor an array."""
    try:
        table = values.to_pandas() if hasattr(values, "to_pandas") else values
        if isinstance(table, pd.Series):
            return [(table.name, table)]
        table = table if isinstance(table, pd.DataFrame) else pd.DataFrame(table)
    except (TypeError, ValueError):
        return []
    return [(name, table.iloc[:, k]) for k, name in enumerate(table)]


def _is_text(column: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(column):
        return False
    return bool(pd.to_numeric(column.dropna(), errors="coerce").isna().any())


def _is_missing(column: pd.Series) -> np.ndarray:
    return column.isna().to_numpy()


def _is_infinite(column: pd.Series) -> np.ndarray:
    """Whether numbers are infinite, or become infinite as float32."""
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    return np.abs(numbers) > np.finfo(np.float32).max
