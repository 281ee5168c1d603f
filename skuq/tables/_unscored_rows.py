"""Rows that cannot be scored because a cell does not have its column's type."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from pandas.api.types import is_bool_dtype, is_integer_dtype

from skuq.explanations import SEPARATOR
from skuq.tables._columns import Cells, Cleaned
from skuq.tables._validation import TOO_LARGE, TableError, place
from skuq.written_numbers import FEW, other_mark

# Columns of text, which contain "" for unscored rows.
TEXTS = ("prediction_set", "unseen", "out_of_range", "reasons")


def unread_rows(cells: Sequence[Cells], table: pd.DataFrame) -> dict[int, str]:
    """Map the positions of rows with unreadable cells to a description of these cells."""
    reasons: dict[int, list[str]] = {}
    for each in cells:
        if not each.read:
            for row, text in zip(each.rows.tolist(), each.texts, strict=True):
                reasons.setdefault(row, []).append(f"{each.column} is {text!r}, {each.held}")
    return {row: f"{place(table, row)}: {SEPARATOR.join(reasons[row])}" for row in sorted(reasons)}


def sum_by_column(cells: Iterable[Cells]) -> pd.Series:
    """Number of listed cells by column."""
    counts: dict[str, int] = {}
    for each in cells:
        counts[each.column] = counts.get(each.column, 0) + len(each.rows)
    return pd.Series(counts, dtype=int)


def refuse_many(cells: Sequence[Cells], n_rows: int, given: bool) -> None:
    """Refuse training columns in which more than a few rows have infinite or too large numbers.

    For a given (external) estimator, a single such row is refused, because the inputs of the
    estimator are not changed.
    """
    for each in cells:
        if not each.read and len(each.rows) > (0 if given else FEW * n_rows):
            raise TableError(
                f"Column {each.column!r} of the training table has numbers that are infinite or "
                f"beyond {TOO_LARGE:g}, such as {each.texts[0]}; correct them or leave them empty."
            )


def without_rows(cleaned: Cleaned, rows: Mapping[int, str]) -> pd.DataFrame:
    """Drop these rows from the clean rows, and renumber the remaining rows."""
    return cleaned.X.drop(index=[*rows]).reset_index(drop=True) if rows else cleaned.X


def refuse_unread_rows(
    rows: Mapping[int, str], cells: Sequence[Cells], which: str, n_rows: int
) -> None:
    """Raise an error for a table with rows that cannot be scored because of these cells."""
    first = next(iter(rows.values()))
    mark = decimal_mark_of(cells)
    raise TableError(
        f"{len(rows)} of the {n_rows} rows of the {which} cannot be scored; the first is in "
        f"{first}. "
        + (
            f"If these are numbers, state their decimal mark when the table is read "
            f"(`decimal={mark!r}`)."
            if mark
            else "Correct these cells, or leave them empty."
        )
    )


def has_too_many_unread(rows: Mapping[int, str], cells: Sequence[Cells], n_rows: int) -> bool:
    """Whether to refuse a table of several rows instead of setting its unreadable rows aside.

    Tables without a readable row are refused. Tables with a different decimal mark are refused,
    too, because their readable cells are misread: 77,0 is unreadable, but 77,125 in the same column
    is read as a number that is a thousand times too large.
    """
    if len(rows) == n_rows:
        return n_rows > 1
    return 2 * len(rows) > n_rows and decimal_mark_of(cells) is not None


def decimal_mark_of(cells: Sequence[Cells]) -> str | None:
    """Return the only decimal mark with which all unreadable cells are numbers, or None."""
    texts = [text for each in cells if not each.read for text in each.texts]
    return other_mark(list(dict.fromkeys(texts)))


def with_unscored(scored: pd.DataFrame, rows: Mapping[int, str], n_rows: int) -> pd.DataFrame:
    """Insert unscored rows into the results; unscored rows contain only their reasons."""
    if not rows:
        return scored
    if is_integer_dtype(scored["prediction"]):  # numpy's integers cannot represent missing values
        scored = scored.astype({"prediction": "Int64"})
    elif is_bool_dtype(scored["prediction"]):
        scored = scored.astype({"prediction": "boolean"})
    positions = [row for row in range(n_rows) if row not in rows]
    scored = scored.set_axis(positions).reindex(range(n_rows))
    texts = [name for name in TEXTS if name in scored]
    scored[texts] = scored[texts].fillna("")
    scored.loc[[*rows], "reasons"] = [f"not scored: {reason}" for reason in rows.values()]
    return scored
