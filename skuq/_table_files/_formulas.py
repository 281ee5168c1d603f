"""Protection of written CSV files against formula injection.

A spreadsheet evaluates a cell of a CSV file as a formula if it begins with a character of `STARTS`;
some spreadsheets skip whitespace before this character. A cell that begins with an apostrophe is
read as text. A text that already begins with apostrophes followed by such a character gets one more
apostrophe, so that the reader can always remove exactly one.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from skuq.base import BoolArray

# Full-width =, +, - and @, which East Asian keyboards can type.
WIDE = ("\uff1d", "\uff0b", "\uff0d", "\uff20")
STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", *WIDE)
MARK = "'"
# Includes the byte order mark, which is whitespace except at the beginning of a file.
BLANK = (*(chr(code) for code in range(0x3001) if chr(code).isspace()), "\ufeff")
_START = rf"[{re.escape(''.join(BLANK))}]*[{re.escape(''.join(STARTS))}]"
# The dot at the end of the patterns matches a further character, since a sign alone is not a
# formula.
FORMULA = re.compile(rf"{MARK}*{_START}.", re.DOTALL)
MARKED = re.compile(rf"{MARK}+{_START}.", re.DOTALL)
# Signed numbers, such as -1,200.50 and +49 170 1234, are not evaluated as formulas.
NUMBER = re.compile(r"[-+][\d.,'\s]*\d[\d.,'\s]*([eE][-+]?\d+)?\s*%?")


def safe_text(text: str) -> str:
    """Prefix an apostrophe to text that a spreadsheet would evaluate as a formula."""
    return MARK + text if FORMULA.match(text) and not NUMBER.fullmatch(text.strip(" ")) else text


def plain_text(text: str) -> str:
    """Undo `safe_text`."""
    return text[1:] if MARKED.match(text) else text


def safe_frame(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Apply `safe_text` to all text cells; return the frame and the number of changed cells."""
    return _rewritten(frame, (*STARTS, *BLANK, MARK), safe_text)


def plain_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """Undo `safe_frame`."""
    return _rewritten(frame, (MARK,), plain_text)[0]


def text_positions(frame: pd.DataFrame) -> list[int]:
    """Positions of the columns that may contain text: all but numbers, booleans and dates."""
    kinds = enumerate(frame.dtypes)
    return [k for k, kind in kinds if not is_numeric_dtype(kind) and kind.kind not in "mM"]


def _rewritten(
    frame: pd.DataFrame, starts: tuple[str, ...], rewrite: Callable[[str], str]
) -> tuple[pd.DataFrame, int]:
    """Apply `rewrite` to the texts that begin with one of `starts`; count the changes."""
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
    """Mask of the text values that begin with one of `starts`; (n_rows,)."""
    if isinstance(column.dtype, pd.StringDtype):
        return column.str.startswith(starts).fillna(False).to_numpy(dtype=bool)
    texts = (isinstance(value, str) and value.startswith(starts) for value in column)
    return np.fromiter(texts, bool, len(column))
