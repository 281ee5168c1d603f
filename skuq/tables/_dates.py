"""Date columns, and notes on text that may be dates or numbers but was not parsed.

All training values of a column decide whether it is a column of dates, and only dates in an
unambiguous format are recognised. A column of dates may contain a few cells with other contents.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd
from pandas.api.types import is_datetime64_any_dtype, is_object_dtype

from skuq.base import BoolArray
from skuq.stored import stored
from skuq.tables._validation import TableError
from skuq.written_numbers import CODE, DIGITS, FEW, SIGN, WORDS

ISO = "ISO8601"
# End of the name of a numeric column that was made from a date column.
PART = re.compile(r" \((?:days since [\d-]+|month|weekday|hour)\)$")
# Patterns of dates, and their possible formats. Dates with dots start with the day; for slashes
# and hyphens the values decide whether the day or the month comes first.
DAYS = {
    r"\d{4}-\d\d?-\d\d?": ("%Y-%m-%d",),
    r"\d{4}/\d\d?/\d\d?": ("%Y/%m/%d",),
    r"\d\d?\.\d\d?\.\d{4}": ("%d.%m.%Y",),
    r"\d\d?/\d\d?/\d{4}": ("%d/%m/%Y", "%m/%d/%Y"),
    r"\d\d?-\d\d?-\d{4}": ("%d-%m-%Y", "%m-%d-%Y"),
    r"\d\d? [A-Za-z]+ \d{4}": ("%d %b %Y",),
    r"\d\d?-[A-Za-z]+-\d{4}": ("%d-%b-%Y",),
    r"[A-Za-z]+ \d\d?, \d{4}": ("%b %d, %Y",),
}
HALF = r"\s*([AaPp])\.?[Mm]\.?"  # AM or PM
TIMES = {
    "": "",
    r",? \d\d?:\d\d": " %H:%M",
    r",? \d\d?:\d\d:\d\d": " %H:%M:%S",
    r",? \d\d?:\d\d" + HALF: " %I:%M %p",
    r",? \d\d?:\d\d:\d\d" + HALF: " %I:%M:%S %p",
}
FORMS = {
    r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?": (ISO,),
    **{
        day + time: tuple(format + clock for format in formats)
        for day, formats in DAYS.items()
        for time, clock in TIMES.items()
    },
}
MONTH = r"([A-Za-z]{3})[a-z]*"  # name of a month; pandas' %b needs the first three letters
# Dates with two-digit years, times of day, and durations.
UNREAD_TIME = rf"\d\d?[./-]\d\d?[./-]\d\d(,? \d.*)?|\d+:\d\d(:\d\d)?({HALF})?"
ORDERS = {"%d": "the day first", "%m": "the month first"}


@stored("tables.date-column")
@dataclass(frozen=True)
class DateColumn:
    """Conversion of a column of dates to numeric columns."""

    format: str  # format for `pandas.to_datetime`
    first: str  # earliest training date
    has_time: bool  # whether any training date has a time other than midnight

    def names(self, name: str) -> list[str]:
        """Names of the numeric columns that replace the date column."""
        parts = [f"days since {self.first}", "month", "weekday", *["hour"][: self.has_time]]
        return [f"{name} ({part})" for part in parts]

    def numbers(self, column: pd.Series) -> tuple[dict[str, pd.Series], BoolArray]:
        """Numeric columns, NaN for missing dates; and a mask of the cells that are not dates."""
        dates = _parsed(column, self.format)
        no_date = (dates.isna() & column.notna() & ~_is_word(column)).to_numpy(dtype=bool)
        days = (dates - pd.Timestamp(self.first)) / pd.Timedelta(days=1)
        hour = (dates - dates.dt.normalize()) / pd.Timedelta(hours=1)
        parts = [days, dates.dt.month, dates.dt.day_of_week, *[hour][: self.has_time]]
        names = self.names(str(column.name))
        numbers = {name: part.astype(float) for name, part in zip(names, parts, strict=True)}
        return numbers, no_date

    def note(self, name: str) -> str:
        """Note that the column was replaced by numeric columns."""
        order = ORDERS.get(self.format[:2])
        return (
            f"Column {name} contains dates{f' with {order}' if order else ''}; it is replaced by "
            f"{', '.join(self.names(name))}."
        )


def date_column(column: pd.Series) -> DateColumn | None:
    """Detect a column of dates; refuse dates with an ambiguous order of day and month."""
    counts = column.value_counts()  # number of cells with each distinct value
    values = pd.Series(counts.index)
    if is_datetime64_any_dtype(values) or _holds(values, "date", "datetime"):
        formats: tuple[str, ...] = (ISO,) if len(values) else ()
    elif _holds(values, "string"):
        present = ~_is_word(values).to_numpy(dtype=bool)
        counts, values = counts[present], values[present].str.strip()
        forms = (form for form in FORMS if _nearly_all(values.str.fullmatch(form), counts))
        formats = FORMS[form] if (form := next(forms, None)) else ()
    else:
        return None
    fits = {format: _parsed(values, format).notna() for format in formats}
    best = max(fits, key=lambda format: fits[format].sum(), default=None)
    if best is None:
        return None
    for other in set(formats) - {best}:
        if (fits[other] & ~fits[best]).any():
            raise _ambiguous(column.name, values, "in different orders")
        if fits[other].sum() == fits[best].sum():
            raise _ambiguous(column.name, values, "whose day and month cannot be told apart")
    if not _nearly_all(fits[best], counts):
        return None
    dates = _parsed(values[fits[best]], best)
    has_time = bool((dates != dates.dt.normalize()).any())
    return DateColumn(best, str(dates.min().date()), has_time)


def _nearly_all(fits: pd.Series, counts: pd.Series) -> bool:
    """Whether the distinct values marked in `fits` account for nearly all cells."""
    n_fit = int(counts.to_numpy()[fits.to_numpy(dtype=bool)].sum())
    return n_fit > 0 and n_fit >= (1 - FEW) * int(counts.sum())


def _is_word(column: pd.Series) -> pd.Series:
    """Mask of the cells with a word for a missing value, such as NA."""
    if not _holds(column.dropna(), "string"):
        return pd.Series(False, index=column.index)
    return column.astype(object).str.strip().str.lower().isin(WORDS)


def _ambiguous(name: object, values: pd.Series, why: str) -> TableError:
    return TableError(
        f"Column {name!r} contains dates {why}, such as {values.iloc[0]!r}; write them as "
        f"2020-12-31, or drop the column (`drop=[{str(name)!r}]`)."
    )


def code_note(values: pd.Series) -> str | None:
    """Note that a column contains codes with leading zeros; None if it does not."""
    if not _holds(values, "string"):
        return None
    values = values.drop_duplicates().str.strip()
    codes = values[values.str.fullmatch(CODE.pattern)]
    if len(codes) == 0 or not values.str.fullmatch(r"\d+").all():
        return None
    return (
        f"Column {values.name} contains codes with leading zeros, such as {codes.iloc[0]!r}, and "
        "counts as text; remove the leading zeros if the column is numeric."
    )


def unread_note(values: pd.Series) -> str | None:
    """Warning that a column may contain dates, times or numbers with units that were not parsed."""
    if not _holds(values, "string"):
        return None
    values = values.drop_duplicates().str.strip()
    if values.str.fullmatch(UNREAD_TIME).all():
        return (
            f"Column {values.name} may contain dates with two-digit years, or times, such as "
            f"{values.iloc[0]!r}, but counts as text; to use it, write dates as 2020-12-31 and "
            "times as numbers."
        )
    # Warn of columns with values such as 5kg and 1.200 EUR, but not of values such as 12 or 12A.
    form = rf"{SIGN}?\s*[+-]?{DIGITS}({SIGN}\D*|\s+\D+|[a-z]{{2,}}|)"
    if not values.str.fullmatch(form).all() or values.str.fullmatch(r"[\d.]+").all():
        return None
    return (
        f"Column {values.name} contains numbers with different units, or with marks that may "
        f"separate thousands, such as {values.iloc[0]!r}, but counts as text; to use it as "
        "numeric, write plain numbers in one unit."
    )


def is_date_in_digits(values: pd.Series) -> bool:
    """Whether all numbers are dates from 1900 to 2099 written as digits, such as 20201231."""
    distinct = values.drop_duplicates()
    if len(distinct) < 3 or not distinct.between(19000101, 20991231).all():
        return False
    if (distinct % 1 != 0).any():
        return False
    texts = distinct.astype("int64").astype(str)
    return bool(pd.to_datetime(texts, format="%Y%m%d", errors="coerce").notna().all())


def _holds(values: pd.Series, *kinds: str) -> bool:
    return pd.api.types.infer_dtype(values, skipna=True) in kinds


def _parsed(column: pd.Series, format: str) -> pd.Series:
    """Parse dates without time zone, after conversion to UTC; NaT for values that are not dates."""
    if is_object_dtype(column) and not _holds(column.dropna(), "string"):
        format = ISO  # Python's date objects
    texts = column if is_datetime64_any_dtype(column) else _plainly_written(column, format)
    dates = pd.to_datetime(texts, format=format, errors="coerce", utc=True)
    return dates.dt.tz_localize(None)


def _plainly_written(column: pd.Series, format: str) -> pd.Series:
    """Rewrite dates so that pandas can parse them: short month names, AM/PM, no comma."""
    texts = column.astype("str").str.strip()
    if "%b" in format:
        texts = texts.str.replace(MONTH, r"\1", regex=True)
    if "%p" in format:
        texts = texts.str.replace(HALF, r" \1M", regex=True)
    if ":" in format:
        texts = texts.str.replace(r",(?= \d\d?:)", "", regex=True)
    return texts
