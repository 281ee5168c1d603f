"""Text that a spreadsheet would run as a formula, made safe in the CSV files that are written.

A spreadsheet takes a cell of a CSV file for a formula if it begins with one of `STARTS`, also where
the text came from somebody else; some pass over blanks and ends of lines before it. An apostrophe
before all of it makes it text. What begins with apostrophes and such a character gets one more, so
that reading can take one away from all.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from skuq.base import BoolArray

WIDE = ("\uff1d", "\uff0b", "\uff0d", "\uff20")  # =, +, - and @ of East Asian keyboards
STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", *WIDE)
MARK = "'"
# The mark of byte order too, which is none at the beginning of a file.
BLANK = (*(chr(code) for code in range(0x3001) if chr(code).isspace()), "\ufeff")
_START = rf"[{re.escape(''.join(BLANK))}]*[{re.escape(''.join(STARTS))}]"
# A sign alone computes nothing.
FORMULA = re.compile(rf"{MARK}*{_START}.", re.DOTALL)
MARKED = re.compile(rf"{MARK}+{_START}.", re.DOTALL)
# Digits with marks between them, such as -1,200.50 and +49 170 1234: nothing that is computed.
NUMBER = re.compile(r"[-+][\d.,'\s]*\d[\d.,'\s]*([eE][-+]?\d+)?\s*%?")


def safe_text(text: str) -> str:
    """The text, marked if a spreadsheet would run it."""
    return MARK + text if FORMULA.match(text) and not NUMBER.fullmatch(text.strip(" ")) else text


def plain_text(text: str) -> str:
    """The text as it was before `safe_text`."""
    return text[1:] if MARKED.match(text) else text


def safe_frame(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The same rows with texts marked, and the number of cells that were."""
    return _rewritten(frame, (*STARTS, *BLANK, MARK), safe_text)


def plain_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows as they were before `safe_frame`."""
    return _rewritten(frame, (MARK,), plain_text)[0]


def text_positions(frame: pd.DataFrame) -> list[int]:
    """Positions of the columns that may hold text: not numbers, booleans or dates."""
    kinds = enumerate(frame.dtypes)
    return [k for k, kind in kinds if not is_numeric_dtype(kind) and kind.kind not in "mM"]


def _rewritten(
    frame: pd.DataFrame, starts: tuple[str, ...], rewrite: Callable[[str], str]
) -> tuple[pd.DataFrame, int]:
    """A frame with those texts rewritten that begin with one of `starts`, and how many changed."""
    n_changed = 0
    for position in text_positions(frame):
        column, dtype = frame.iloc[:, position], frame.dtypes.iloc[position]
        hits = _beginning_with(column, starts)
        if not hits.any():
            continue
        values = column.astype(object).to_numpy(copy=True)
        before = values[hits].tolist()
        after = [rewrite(text) for text in before]
        if after != before:
            n_changed += sum(new != old for new, old in zip(after, before, strict=True))
            values[hits] = after
            kind = "category" if isinstance(dtype, pd.CategoricalDtype) else dtype
            frame = frame.copy(deep=False)
            frame.isetitem(position, pd.Series(values, frame.index, dtype=kind).array)
    return frame, n_changed


def _beginning_with(column: pd.Series, starts: tuple[str, ...]) -> BoolArray:
    """Whether each value is a text that begins with one of these; (n_rows,)."""
    if isinstance(column.dtype, pd.StringDtype):
        return column.str.startswith(starts).fillna(False).to_numpy(dtype=bool)
    texts = (isinstance(value, str) and value.startswith(starts) for value in column)
    return np.fromiter(texts, bool, len(column))
