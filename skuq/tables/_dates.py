"""Columns of dates, and sentences on text that may be dates or numbers and was not read.

Dates are recognised in the training table, from all its values, and only where these leave no
doubt; a few cells that hold something else do not make a text of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
from pandas.api.types import is_datetime64_any_dtype, is_object_dtype

from skuq.base import BoolArray
from skuq.stored import stored
from skuq.tables._validation import TableError
from skuq.written_numbers import CODE, DIGITS, FEW, SIGN, WORDS

ISO = "ISO8601"
# What values look like, and how they are parsed. Points divide dates where one begins with the day;
# of dates with slashes the values themselves must say what comes first.
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
HALF = r"\s*([AaPp])\.?[Mm]\.?"  # of the day
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
MONTH = r"([A-Za-z]{3})[a-z]*"  # of whose name the first three letters are enough
# Dates whose century is not said, times of the day, and durations.
UNREAD_TIME = rf"\d\d?[./-]\d\d?[./-]\d\d(,? \d.*)?|\d+:\d\d(:\d\d)?({HALF})?"
ORDERS = {"%d": "the day first", "%m": "the month first"}


@stored("tables.date-column")
@dataclass(frozen=True)
class DateColumn:
    """A column of dates, and the numbers that stand for it."""

    format: str  # as `pandas.to_datetime` takes it
    first: str  # earliest training date
    has_time: bool  # whether times of the day differ

    def names(self, name: str) -> list[str]:
        """Names of the columns that take its place."""
        parts = [f"days since {self.first}", "month", "weekday", *["hour"][: self.has_time]]
        return [f"{name} ({part})" for part in parts]

    def numbers(self, column: pd.Series) -> tuple[dict[str, pd.Series], BoolArray]:
        """Columns of numbers, NaN where the date is missing; and which cells hold no date."""
        dates = _parsed(column, self.format)
        no_date = (dates.isna() & column.notna() & ~_is_word(column)).to_numpy(dtype=bool)
        days = (dates - pd.Timestamp(self.first)) / pd.Timedelta(days=1)
        hour = (dates - dates.dt.normalize()) / pd.Timedelta(hours=1)
        parts = [days, dates.dt.month, dates.dt.day_of_week, *[hour][: self.has_time]]
        names = self.names(str(column.name))
        numbers = {name: part.astype(float) for name, part in zip(names, parts, strict=True)}
        return numbers, no_date

    def note(self, name: str) -> str:
        """Sentence that says what was done."""
        order = ORDERS.get(self.format[:2])
        return (
            f"Column {name} holds dates{f' with {order}' if order else ''}; it counts as "
            f"{', '.join(self.names(name))}."
        )


def date_column(column: pd.Series) -> DateColumn | None:
    """Recognise dates; refuse those whose day and month cannot be told apart."""
    counts = column.value_counts()  # of the different values
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
    """Whether different values fit that nearly all cells have."""
    n_fit = int(counts.to_numpy()[fits.to_numpy(dtype=bool)].sum())
    return n_fit > 0 and n_fit >= (1 - FEW) * int(counts.sum())


def _is_word(column: pd.Series) -> pd.Series:
    """Which cells hold a word for a missing value."""
    if not _holds(column.dropna(), "string"):
        return pd.Series(False, index=column.index)
    return column.astype(object).str.strip().str.lower().isin(WORDS)


def _ambiguous(name: object, values: pd.Series, why: str) -> TableError:
    return TableError(
        f"Column {name!r} holds dates {why}, such as {values.iloc[0]!r}; write them as "
        f"2020-12-31, or leave the column out (`drop=[{str(name)!r}]`)."
    )


def code_note(values: pd.Series) -> str | None:
    """A sentence on a column of codes with leading zeros."""
    if not _holds(values, "string"):
        return None
    values = values.drop_duplicates().str.strip()
    codes = values[values.str.fullmatch(CODE.pattern)]
    if len(codes) == 0 or not values.str.fullmatch(r"\d+").all():
        return None
    return (
        f"Column {values.name} holds codes with leading zeros, such as {codes.iloc[0]!r}, and "
        "counts as text; write them without zeros to have them count as numbers."
    )


def unread_note(values: pd.Series) -> str | None:
    """A sentence on numbers with units, dates or times that could not be read."""
    if not _holds(values, "string"):
        return None
    values = values.drop_duplicates().str.strip()
    if values.str.fullmatch(UNREAD_TIME).all():
        return (
            f"Column {values.name} may hold dates without a century, or times, such as "
            f"{values.iloc[0]!r}, and counts as text; write dates as 2020-12-31, and times as "
            "numbers, to have it count as numbers."
        )
    # Such as 5kg or 1.200 EUR, but neither 12A nor 12.
    form = rf"{SIGN}?\s*[+-]?{DIGITS}({SIGN}\D*|\s+\D+|[a-z]{{2,}}|)"
    if not values.str.fullmatch(form).all() or values.str.fullmatch(r"[\d.]+").all():
        return None
    return (
        f"Column {values.name} holds numbers with different units, or with marks that may divide "
        f"thousands, such as {values.iloc[0]!r}, and counts as text; write plain numbers in one "
        "unit to have it count as numbers."
    )


def is_date_in_digits(values: pd.Series) -> bool:
    """Whether numbers may be dates of the last or this century, such as 20201231."""
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
    """Dates without time zones (those with one in UTC), NaT where a value is none."""
    if is_object_dtype(column) and not _holds(column.dropna(), "string"):
        format = ISO  # dates as Python has them
    texts = column if is_datetime64_any_dtype(column) else _plainly_written(column, format)
    dates = pd.to_datetime(texts, format=format, errors="coerce", utc=True)
    return dates.dt.tz_localize(None)


def _plainly_written(column: pd.Series, format: str) -> pd.Series:
    """Texts of dates without what a format of pandas has no sign for."""
    texts = column.astype("str").str.strip()
    if "%b" in format:
        texts = texts.str.replace(MONTH, r"\1", regex=True)
    if "%p" in format:
        texts = texts.str.replace(HALF, r" \1M", regex=True)
    if ":" in format:
        texts = texts.str.replace(r",(?= \d\d?:)", "", regex=True)
    return texts
