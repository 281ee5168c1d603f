"""Error messages that locate text in data that must be numeric."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pandas as pd

MESSAGE = "could not convert string to float"  # of NumPy, which does not name the column
MOST_COLUMNS = 5  # listed by name


def name_text(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method `fit`, so that an error about text names the columns or the targets."""

    @functools.wraps(fit)
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return fit(self, *args, **kwargs)
        except ValueError as error:
            message = str(error)
            # An error that ends in a sentence or has a note names the text already.
            named_already = message.endswith(".") or hasattr(error, "__notes__")
            if not message.startswith(MESSAGE) or named_already:
                raise
            X, y = [*args, None, None][:2]
            raise ValueError(
                f"{message}. {_place_of_text(kwargs.get('X', X), kwargs.get('y', y))}"
            ) from error

    return named


def _place_of_text(X: Any, y: Any) -> str:
    """Describe which inputs contain text, and how to proceed."""
    columns = _text_columns(X)
    if columns:
        more = len(columns) - MOST_COLUMNS
        named = ", ".join(columns[:MOST_COLUMNS]) + (f" and {more} more" if more > 0 else "")
        return (
            f"These columns of `X` contain text: {named}. Encode text first, for example with a "
            "OneHotEncoder in a pipeline, or use skuq.tables.TableModel, which encodes text."
        )
    if _text_columns(y):
        return "`y` contains text, and a regression needs numbers; for classes, use a classifier."
    return "Encode text as numbers first."


def _text_columns(values: Any) -> list[str]:
    """Names or positions of columns with a value that is text and not a number."""
    try:
        table = values.to_pandas() if hasattr(values, "to_pandas") else values
        table = table.to_frame() if isinstance(table, pd.Series) else pd.DataFrame(table)
    except (TypeError, ValueError):  # neither a table nor an array of one or two dimensions
        return []
    return [repr(name) for name, column in table.items() if _is_text(column)]


def _is_text(column: pd.Series) -> bool:
    if pd.api.types.is_numeric_dtype(column):
        return False
    return bool(pd.to_numeric(column.dropna(), errors="coerce").isna().any())
