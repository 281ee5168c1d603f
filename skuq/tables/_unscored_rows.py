"""Rows that cannot be scored, because a cell does not hold what its column does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from pandas.api.types import is_bool_dtype, is_integer_dtype

from skuq.tables._columns import Cells, Cleaned
from skuq.tables._validation import TOO_LARGE, TableError, place
from skuq.unusual_rows import SEPARATOR
from skuq.written_numbers import FEW

TEXTS = ("prediction_set", "unseen", "out_of_range", "reasons")  # outputs that are never missing


def unread_rows(cells: Sequence[Cells], table: pd.DataFrame) -> dict[int, str]:
    """Positions of the rows with a cell that cannot be read, and what is wrong with each."""
    reasons: dict[int, list[str]] = {}
    for each in cells:
        if not each.read:
            for row, text in zip(each.rows.tolist(), each.texts, strict=True):
                reasons.setdefault(row, []).append(f"{each.column} is {text!r}, {each.held}")
    return {row: f"{place(table, row)}: {SEPARATOR.join(reasons[row])}" for row in sorted(reasons)}


def sum_by_column(cells: Iterable[Cells]) -> pd.Series:
    """Number of the cells of each column."""
    counts: dict[str, int] = {}
    for each in cells:
        counts[each.column] = counts.get(each.column, 0) + len(each.rows)
    return pd.Series(counts, dtype=int)


def refuse_many(cells: Sequence[Cells], n_rows: int, given: bool) -> None:
    """Refuse training columns with infinite numbers in more than a few rows.

    A model of somebody else has no use for columns other than they are.
    """
    for each in cells:
        if not each.read and len(each.rows) > (0 if given else FEW * n_rows):
            raise TableError(
                f"Column {each.column!r} of the training table holds numbers that are infinite or "
                f"beyond {TOO_LARGE:g}, such as {each.texts[0]}; correct them or leave them empty."
            )


def without_rows(cleaned: Cleaned, rows: Mapping[int, str]) -> pd.DataFrame:
    """The clean rows but some, numbered anew."""
    return cleaned.X.drop(index=[*rows]).reset_index(drop=True) if rows else cleaned.X


def refuse_unread_rows(rows: Mapping[int, str], which: str, n_rows: int) -> None:
    """Refuse a table of which rows cannot be scored."""
    first = next(iter(rows.values()))
    raise TableError(
        f"{len(rows)} of the {n_rows} rows of the {which} cannot be scored, the first one in "
        f"{first}; correct these cells, or leave them empty."
    )


def with_unscored(scored: pd.DataFrame, rows: Mapping[int, str], n_rows: int) -> pd.DataFrame:
    """Results of all rows, empty but for the reason where a row was not scored."""
    if not rows:
        return scored
    if is_integer_dtype(scored["prediction"]):  # which numpy cannot have missing
        scored = scored.astype({"prediction": "Int64"})
    elif is_bool_dtype(scored["prediction"]):
        scored = scored.astype({"prediction": "boolean"})
    positions = [row for row in range(n_rows) if row not in rows]
    scored = scored.set_axis(positions).reindex(range(n_rows))
    texts = [name for name in TEXTS if name in scored]
    scored[texts] = scored[texts].fillna("")
    scored.loc[[*rows], "reasons"] = [f"not scored: {reason}" for reason in rows.values()]
    return scored
