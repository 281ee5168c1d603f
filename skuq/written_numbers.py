"""Parsing of numbers in cells of text: decimal marks, units, brackets, ranges, missing values.

Each distinct text of a column is parsed once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from numbers import Real
from typing import NamedTuple

import numpy as np
import pandas as pd

from skuq.base import FloatArray, IntArray
from skuq.labels import as_text

NUMBER, MISSING, RANGE, OTHER = range(4)  # kinds of cells
SOME = 200  # number of cells sampled to decide whether a column may contain numbers or dates
# A column with at most this many distinct numbers is categorical if other texts are repeated.
CATEGORIES = 20
# A column counts as numbers if at most this fraction of its non-missing cells are other texts.
FEW = 0.05
# Words for missing values in any column, from the documentation of pandas.
MISSING_WORDS = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"}
)
# Words for missing values in columns of numbers, in lower case.
WORDS = (
    frozenset(word.lower() for word in MISSING_WORDS)
    | {"-", "--", "---", "\u2013", "\u2014", "?", "??", ".", "..", "...", "*", "n.a.", "n.a"}
    | {"nil", "missing", "unknown", "not available", "not applicable"}
    | {"#value!", "#div/0!", "#ref!", "#null!", "#num!"}
)

SIGN = "[%\u2030\u00b0$\u20ac\u00a3\u00a5\u20b9]"  # percent, per mille, degrees, currencies
CURRENCY = r"US\$|USD|EUR|GBP|CHF|JPY|INR|Rs\.?"
SPACE = "[ '\u2019\u00a0\u2009\u202f]"  # separators of thousands
DASH = "(?:-|\u2013|\u2014|to)"
DIGITS = rf"(?:\d{{1,3}}(?:{SPACE}\d{{3}})+(?:[.,]\d+)?|\d[\d.,]*|[.,]\d+)(?:[eE][+-]?\d+)?"
WRITTEN = re.compile(
    rf"(?P<open>\(?)(?P<sign>[+\u2212-]?)(?P<before>{SIGN}|{CURRENCY}|)\s*(?P<inner>[+\u2212-]?)"
    rf"(?P<number>{DIGITS})(?:\s*{DASH}\s*(?P<end>{DIGITS}))?"
    rf"(?P<after>\s*{SIGN}[^\d()]*|\s[^\d()]*|[^\W\d_][^\d()]*|)(?P<close>\)?)"
)
# Patterns of numbers for each decimal mark. In the pattern for ".", the second alternative matches
# numbers with the Indian grouping of digits, such as 12,34,567.
STYLES = {
    ".": re.compile(
        rf"(?:\d{{1,3}}(?:,\d{{3}})+|\d{{1,2}}(?:,\d\d)+,\d{{3}}|\d{{1,3}}(?:{SPACE}\d{{3}})+|\d+"
        r"|(?=\.\d))(?:\.\d*)?(?:[eE][+-]?\d+)?"
    ),
    ",": re.compile(
        rf"(?:\d{{1,3}}(?:\.\d{{3}})+|\d{{1,3}}(?:{SPACE}\d{{3}})+|\d+|(?=,\d))(?:,\d*)?"
        r"(?:[eE][+-]?\d+)?"
    ),
}


class Parts(NamedTuple):
    """Parts of a text that represents a number."""

    negative: bool
    before: str  # unit before the number
    number: str
    end: str | None  # upper end of a range
    after: str  # unit after the number
    glued: bool  # whether letters follow without a space, as in the code 12A


def parts_of(text: str) -> Parts | None:
    """Split a text into sign, number and unit; None if it does not have this form."""
    match = WRITTEN.fullmatch(text)
    if match is None or bool(match["open"]) != bool(match["close"]):
        return None
    signs = match["sign"] + match["inner"]
    if len(signs) > 1 or (match["open"] and (signs or match["end"])):
        return None
    after = match["after"]
    glued = bool(after) and not after[0].isspace() and re.match(SIGN, after) is None
    negative = signs in ("-", "\u2212") or bool(match["open"])
    return Parts(negative, match["before"], match["number"], match["end"], after.strip(), glued)


@dataclass(frozen=True)
class NumberFormat:
    """Format of the numbers in a column of text."""

    before: str = ""  # unit before each number
    after: str = ""  # unit after each number
    decimal: str = "."  # decimal mark, "." or ","; the other mark separates thousands

    def read(self, texts: Sequence[str]) -> tuple[FloatArray, IntArray]:
        """Parse texts; return numbers (NaN for other texts) and the kind of each cell."""
        values, kinds = np.full(len(texts), np.nan), np.full(len(texts), OTHER)
        units = {"", self.before.lower() + self.after.lower()}
        for k, text in enumerate(texts):
            each = parts_of(text)
            if each is None or (each.before + each.after).lower() not in units:
                word = text.lower().removesuffix(self.after.lower())
                if word.removeprefix(self.before.lower()).strip() in WORDS:
                    kinds[k] = MISSING
                continue
            low = self._value(each.number, each.negative)
            high = low if each.end is None else self._value(each.end)
            if low is not None and high is not None and low <= high:
                values[k] = (low + high) / 2
                kinds[k] = NUMBER if each.end is None else RANGE
        return values, kinds

    def form(self, plural: str = "") -> str:
        """Describe the format in words; pass "s" as `plural` for several numbers."""
        if unit := self.before or self.after:
            return f"number{plural} with the unit {unit!r}"
        return f"number{plural} with decimal commas" if self.decimal == "," else f"number{plural}"

    def in_file(self, decimal: str | None, own: str | None) -> NumberFormat:
        """Adapt a format learnt with the decimal mark `own` to a file with the mark `decimal`."""
        return replace(self, decimal=decimal) if decimal and decimal != own else self

    def _value(self, number: str, negative: bool = False) -> float | None:
        if STYLES[self.decimal].fullmatch(number) is None:
            return None
        digits = re.sub(f"{SPACE}|[{',.'.replace(self.decimal, '')}]", "", number)
        value = float(digits.replace(",", "."))
        return -value if negative else value


def number_format(column: pd.Series, decimal: str | None = None) -> NumberFormat | None:
    """Detect the number format of a column of text; None if too few texts are numbers.

    `decimal` is the mark of the file, with which ambiguous numbers such as 1,234 are read; "" if it
    is unknown; None, without a file, means ".". Columns of digits only contain codes.
    """
    values = column.dropna()
    if not may_be_read(values):
        return None
    texts, codes = texts_of(values)
    counts = np.bincount(codes)
    if any(t.isdecimal() and len(t) > 1 and t[0] == "0" for t in texts) or all(
        map(str.isdecimal, texts)
    ):
        return None
    parts = [parts_of(text) for text in texts]
    unit = _unit(parts, counts)
    formats = {mark: NumberFormat(*unit, mark) for mark in STYLES}
    kinds = {mark: each.read(texts)[1] for mark, each in formats.items()}
    right = {mark: int(counts[found == NUMBER].sum()) for mark, found in kinds.items()}
    mark: str | None = max(right, key=right.__getitem__)
    if len({*right.values()}) == 1:  # both decimal marks fit equally many cells
        marks = {mark for each in parts if each for mark in ".," if mark in each.number}
        clear = decimal is None and (marks == {","} or unit == ("", ""))
        mark = decimal or ("." if clear or not marks else None)
    if mark is None:
        return None
    present = int(counts[kinds[mark] != MISSING].sum())
    if right[mark] == 0 or present - right[mark] > FEW * present:
        return None
    numbers, others = kinds[mark] == NUMBER, kinds[mark] == OTHER
    if numbers.sum() <= CATEGORIES and (counts[others] > 1).any():
        return None  # the column has categories, such as 0, 1, 2 and 3+
    return formats[mark]


def common_mark(columns: Iterable[pd.Series]) -> str:
    """Find the decimal mark that columns of text require; "" if they require none, or both."""
    marks = set()
    for column in columns:
        texts = texts_of(column.dropna())[0]
        format = number_format(column, "") if any("," in t or "." in t for t in texts) else None
        if format is not None:
            read = {m: (replace(format, decimal=m).read(texts)[1] == NUMBER).sum() for m in STYLES}
            marks |= {format.decimal} if read["."] != read[","] else set()
    return marks.pop() if len(marks) == 1 else ""


def may_be_read(values: pd.Series) -> bool:
    """Return whether at least half of `SOME` cells have a digit or a word for missing values."""
    if values.empty:
        return False
    some = [as_text(values.iat[k]) for k in np.linspace(0, len(values) - 1, SOME, dtype=int)]
    hits = [any(map(str.isdigit, t)) or t.strip().lower().split(" ")[0] in WORDS for t in some]
    return sum(hits) >= SOME / 2


def _unit(parts: Sequence[Parts | None], counts: IntArray) -> tuple[str, str]:
    """Find the most frequent unit, as texts before and after numbers; "" if few have a unit."""
    found: dict[tuple[str, str], int] = {}
    total = 0
    for each, count in zip(parts, counts, strict=True):
        if each is not None:
            total += count
            if (each.before or each.after) and not each.glued:
                unit = each.before, each.after
                found[unit] = found.get(unit, 0) + count
    unit = max(found, key=found.__getitem__, default=("", ""))
    return unit if found and found[unit] > FEW * total else ("", "")


def texts_of(column: pd.Series) -> tuple[list[str], IntArray]:
    """List distinct stripped texts, and the index of each cell's text (-1 if missing)."""
    codes, values = pd.factorize(column.astype(object))
    return [as_text(value).strip() for value in values], codes


def read_column(column: pd.Series, format: NumberFormat) -> tuple[FloatArray, IntArray]:
    """Parse a column; return numbers (NaN for other cells) and the kind of each cell."""
    texts, codes = texts_of(column)
    values, kinds = format.read(texts)
    for k, value in enumerate(pd.unique(column.astype(object).dropna())):
        if isinstance(value, Real | Decimal) and not isinstance(value, bool):
            values[k], kinds[k] = float(value), NUMBER  # already a number, whatever the format
    # Index -1, the code of missing cells, selects the appended last element.
    return np.append(values, np.nan)[codes], np.append(kinds, MISSING)[codes]
