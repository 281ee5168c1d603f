"""Column types: detection in pandas, and conversion to and from clean columns."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import (
    infer_dtype,
    is_bool_dtype,
    is_datetime64_any_dtype,
    is_integer_dtype,
    is_numeric_dtype,
    is_object_dtype,
    pandas_dtype,
)

from skuq.labels import as_text
from skuq.tables._dates import ISO
from skuq.tables._validation import TableError

KINDS_OF_NUMBER = {"integer", "floating", "mixed-integer-float", "decimal"}
# Texts that pandas parses as booleans, but only if the column has no other values.
BOOLEAN_TEXTS = {"true": "True", "TRUE": "True", "false": "False", "FALSE": "False"}
BOOLEANS = {"True": True, "False": False}
BITS = {"1": "True", "0": "False"}
INTEGER, DATE = "integer", "date"
PLAIN_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def as_bits(column: pd.Series) -> pd.Series:
    """Convert booleans to 1 and 0, for columns that contain only 0 and 1 in the training table."""
    if is_bool_dtype(column):
        return column.astype(object).map({True: 1.0, False: 0.0}).astype(float)
    bits = {text: float(BOOLEANS[word]) for text, word in BOOLEAN_TEXTS.items()}
    bits |= {text: float(value) for text, value in BOOLEANS.items()}
    return (
        column if is_number(column) else column.map(lambda value: bits.get(as_text(value), value))
    )


def uncategorised(column: pd.Series) -> pd.Series:
    if isinstance(column.dtype, pd.CategoricalDtype):
        kind = column.cat.categories.dtype
        # numpy's integers cannot represent missing values.
        return column.astype(object if is_integer_dtype(kind) else kind)
    return column


def categorised(column: pd.Series, categories: list[Any], ordered: bool) -> pd.Series:
    """Return a clean column as pandas categorical; further values are appended to `categories`."""
    known = {as_text(value): value for value in categories}
    meaning = {value: known.get(as_text(value), value) for value in column.dropna().unique()}
    every = [*categories, *(value for value in meaning.values() if as_text(value) not in known)]
    return column.map(meaning).astype(pd.CategoricalDtype(every, ordered))


def kind_of(column: pd.Series) -> str | None:
    if is_datetime64_any_dtype(column):
        return str(column.dtype)
    if is_integer_dtype(column):
        return INTEGER
    return DATE if infer_dtype(column, skipna=True) == DATE else None


def of_kind(column: pd.Series, kind: str) -> pd.Series:
    """Convert a clean column to the kind returned by `kind_of`."""
    if kind == INTEGER:
        return as_integers(column)
    dates = pd.to_datetime(column, format=ISO, errors="coerce", utc=True)
    bad = column[dates.isna() & column.notna()]
    if len(bad):
        raise TableError(
            f"Column {column.name!r} contains dates in the training table, but this table has "
            f"{bad.iloc[0]!r}; write all dates in the same format."
        )
    if "," not in kind:  # no time zone
        dates = dates.dt.tz_localize(None)
    return dates.dt.date if kind == DATE else dates.astype(pandas_dtype(kind))


def as_integers(column: pd.Series) -> pd.Series:
    """Convert a float column to integers if all values are whole and none is missing."""
    whole = (column == column.round()) & (column.abs() < 2**63)
    return column.astype(np.int64) if whole.all() else column


def is_number(column: pd.Series) -> bool:
    """Whether a column is numeric; booleans count as text."""
    if is_object_dtype(column):
        return infer_dtype(column, skipna=True) in KINDS_OF_NUMBER
    return is_numeric_dtype(column) and not is_bool_dtype(column)


def texts_in(column: pd.Series) -> pd.Series:
    present = column.notna()
    if infer_dtype(column, skipna=True) == "string":
        return column.astype(object).where(present, np.nan)
    texts = [
        as_text(value) if known else np.nan for value, known in zip(column, present, strict=True)
    ]
    return pd.Series(texts, index=column.index, dtype=object)


def spellings_of(values: pd.Series) -> dict[str, list[str]]:
    """Map each value, written as text, to all texts that a file reader converts to this value.

    Values whose only text equals the value are left out.
    """
    found: dict[str, list[str]] = {}
    for text in values.unique():
        found.setdefault(_as_read(text), []).append(text)
    return {value: texts for value, texts in found.items() if texts != [value]}


def as_spelled(column: pd.Series, texts: pd.Series, spellings: dict[str, list[str]]) -> pd.Series:
    """Replace numbers and booleans of a column by the corresponding texts of the training table.

    `texts` are the cells as text. Cells that are text already are kept.
    """
    if not spellings or infer_dtype(column, skipna=True) == "string":
        return texts
    converted = ~column.map(lambda value: isinstance(value, str)).to_numpy(dtype=bool)
    for value in texts[converted].dropna().unique():
        if len(known := spellings.get(value, [])) > 1:
            raise TableError(
                f"Column {column.name!r} contains the number {value}, which may stand for each of "
                f"these texts in the training table: {' and '.join(map(repr, known))}. Read the "
                f"column as text, in pandas with `dtype={{{column.name!r}: str}}`."
            )
    only = {value: known[0] for value, known in spellings.items()}
    return texts.where(~converted, texts.map(lambda text: only.get(text, text)))


def _as_read(text: str) -> str:
    """Text form of the number or boolean that a file reader infers from a text."""
    plain = text.strip()
    if PLAIN_NUMBER.fullmatch(plain) is None:
        return BOOLEAN_TEXTS.get(text, text)
    return str(int(plain)) if plain.isdecimal() else as_text(float(plain))
