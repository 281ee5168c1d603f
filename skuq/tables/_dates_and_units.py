"""Text that stands for numbers: dates, numbers with a unit, numbers with divided thousands.

Both are recognised in the training table, from all its values, and only where they leave no doubt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from shlex import quote

import pandas as pd
from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype, is_object_dtype

from skuq.stored import stored
from skuq.tables._validation import TableError

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
CODE = r"0\d+"  # with a leading zero
WORDS = {"%d": "the day first", "%m": "the month first"}

NUMBER = r"(?P<number>[+-]?[\d.,]*\d(?:[eE][+-]?\d+)?)"
SPACE = "[ \u00a0\u2009\u202f]"  # as some countries divide thousands
SIGN = "[%\u2030\u00b0$\u20ac\u00a3\u00a5]"  # percent, per mille, degrees, currencies
# A unit in letters needs a space: "12A" is rather the name of a thing.
WITH_UNIT = re.compile(
    rf"\s*(?P<before>{SIGN}?)\s*{NUMBER}(?P<after>\s*{SIGN}[^\d]*|\s+[^\d]+|)\s*"
)
STYLES = {
    "point": re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+|\d*(?=\.))(\.\d+)?([eE][+-]?\d+)?"),
    "comma": re.compile(r"[+-]?(\d{1,3}(\.\d{3})+|\d+|\d*(?=,))(,\d+)?([eE][+-]?\d+)?"),
}


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

    def numbers(self, column: pd.Series) -> dict[str, pd.Series]:
        """Columns of numbers, NaN where the date is missing."""
        dates = _parsed(column, self.format)
        bad = column[dates.isna() & column.notna()]
        if len(bad):
            raise TableError(
                f"Column {column.name!r} holds dates in the training table, but "
                f"{str(bad.iloc[0])!r} in another; write all dates alike."
            )
        days = (dates - pd.Timestamp(self.first)) / pd.Timedelta(days=1)
        hour = (dates - dates.dt.normalize()) / pd.Timedelta(hours=1)
        parts = [days, dates.dt.month, dates.dt.day_of_week, *[hour][: self.has_time]]
        names = self.names(str(column.name))
        return {name: part.astype(float) for name, part in zip(names, parts, strict=True)}

    def note(self, name: str) -> str:
        """Sentence that says what was done."""
        order = WORDS.get(self.format[:2])
        return (
            f"Column {name} holds dates{f' with {order}' if order else ''}; it counts as "
            f"{', '.join(self.names(name))}."
        )


@stored("tables.unit-column")
@dataclass(frozen=True)
class UnitColumn:
    """A column of numbers that are written with a unit or with divided thousands."""

    before: str  # unit before each number
    after: str
    style: str  # "point" or "comma": the decimal mark; the other one divides thousands

    def numbers(self, column: pd.Series) -> pd.Series:
        """The numbers, NaN where they are missing."""
        if is_numeric_dtype(column) and not (self.before or self.after):
            return column.astype(float)  # read already, so that its text is not the file's
        found = _divided(column)
        fits = (found["before"] == self.before) & (found["after"] == self.after)
        fits &= found["number"].fillna("").str.fullmatch(STYLES[self.style])
        bad = column[~fits & column.notna()]
        if len(bad):
            raise TableError(
                f"Column {column.name!r} holds {self._form()} in the training table, but "
                f"{str(bad.iloc[0])!r} in another; write all of them alike."
            )
        numbers = found["number"].str.replace("," if self.style == "point" else ".", "")
        return pd.to_numeric(numbers.str.replace(",", ".")).astype(float)

    def note(self, name: str) -> str:
        """Sentence that says what was done."""
        return f"Column {name} holds {self._form()}; it counts as numbers."

    def _form(self) -> str:
        if unit := self.before or self.after:
            return f"numbers with the unit {unit!r}"
        commas = {"point": "commas that divide thousands", "comma": "decimal commas"}
        return f"numbers with {commas[self.style]}"


def date_column(column: pd.Series) -> DateColumn | None:
    """Recognise dates; refuse those whose day and month cannot be told apart."""
    values = column.dropna()
    if is_datetime64_any_dtype(values) or _holds(values, "date", "datetime"):
        formats: tuple[str, ...] = (ISO,) if len(values) else ()
    elif _holds(values, "string"):
        values = values.drop_duplicates().str.strip()
        formats = next((f for form, f in FORMS.items() if values.str.fullmatch(form).all()), ())
    else:
        return None
    fitting = [format for format in formats if _parsed(values, format).notna().all()]
    if len(formats) == 2 and len(fitting) == 0:
        raise _ambiguous(column.name, values, "in different orders")
    if len(fitting) == 2:
        raise _ambiguous(column.name, values, "whose day and month cannot be told apart")
    if not fitting:
        return None
    dates = _parsed(values, fitting[0])
    has_time = bool((dates != dates.dt.normalize()).any())
    return DateColumn(fitting[0], str(dates.min().date()), has_time)


def _ambiguous(name: object, values: pd.Series, why: str) -> TableError:
    return TableError(
        f"Column {name!r} holds dates {why}, such as {values.iloc[0]!r}; write them as "
        f"2020-12-31, or leave the column out (--drop {quote(str(name))})."
    )


def unit_column(column: pd.Series) -> UnitColumn | None:
    """Recognise numbers with one unit, or with divided thousands, that can be read in one way."""
    values = column.dropna()
    if not _holds(values, "string"):
        return None
    found = _divided(values.drop_duplicates())
    units = found[["before", "after"]].drop_duplicates()
    if found.isna().any(axis=None) or len(units) > 1:
        return None
    before, after = units.iloc[0]
    marked = found["number"].str.contains(",", regex=False)
    if not (before or after or marked.any()):
        return None  # digits that someone wants as text
    styles = [style for style, form in STYLES.items() if found["number"].str.fullmatch(form).all()]
    if len(styles) > 1 and not found["number"].str.contains("[.,]").any():
        styles = styles[:1]  # whole numbers
    return UnitColumn(before, after, styles[0]) if len(styles) == 1 else None


def unread_note(column: pd.Series) -> str | None:
    """A sentence on codes, and on numbers with units, dates or times that could not be read."""
    values = column.dropna()
    if not _holds(values, "string"):
        return None
    values = values.drop_duplicates().str.strip()
    if values.str.fullmatch(UNREAD_TIME).all():
        return (
            f"Column {column.name} may hold dates without a century, or times, such as "
            f"{values.iloc[0]!r}, and counts as text; write dates as 2020-12-31, and times as "
            "numbers, to have it count as numbers."
        )
    if values.str.fullmatch(r"\d+").all() and values.str.fullmatch(CODE).any():
        code = values[values.str.fullmatch(CODE)].iloc[0]
        return (
            f"Column {column.name} holds codes with leading zeros, such as {code!r}, and counts as "
            "text; write them without zeros to have them count as numbers."
        )
    # Such as 5kg or 1,200 EUR, but neither 12A nor 12.
    spaced = rf"(?:{NUMBER}|[+-]?\d{{1,3}}(?:{SPACE}\d{{3}})+(?:[.,]\d+)?)"
    form = rf"{SIGN}?\s*{spaced}({SIGN}\D*|\s+\D+|[a-z]{{2,}}|)"
    if not values.str.fullmatch(form).all() or values.str.fullmatch(r"[\d.]+").all():
        return None
    return (
        f"Column {column.name} holds numbers with different units, or with marks or spaces that "
        f"may divide thousands, such as {values.iloc[0]!r}, and counts as text; write "
        "plain numbers in one unit to have it count as numbers."
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


def _divided(column: pd.Series) -> pd.DataFrame:
    """Unit before, number, and unit after of each value; NaN where it is not of this form."""
    texts = column.where(column.isna(), column.astype(str)).astype(object)
    return texts.astype("str").str.extract(rf"^{WITH_UNIT.pattern}$").apply(lambda s: s.str.strip())


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
