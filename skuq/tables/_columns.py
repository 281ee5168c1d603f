"""Conversion of tables of several libraries to clean columns of floats or text.

The training table determines which columns contain numbers, dates or text. Dates and numbers in
text are recognised only if they are unambiguous; a few cells of a column may contain other text.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api import types
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skuq import written_numbers
from skuq._table_files import UNNAMED
from skuq.base import BoolArray, IntArray
from skuq.explanations import ALL_DIFFERENT, SEPARATOR
from skuq.files import stored
from skuq.imports import shown
from skuq.labels import as_text
from skuq.validation import as_pandas
from skuq.written_numbers import FEW, OTHER, RANGE, WORDS, NumberFormat, number_format, read_column

TOO_LARGE = 1e38  # a larger absolute value is unreadable: trees compute in single precision
EMPTY = "Columns without values were dropped"
NUMBERING = "Columns of row numbers were dropped, since new rows have new numbers"
OF_NAMES = "Text columns with a different value in nearly every row, such as names, were dropped"
NAMES = 0.9  # a text column with a larger share of distinct values counts as names or free text
# Distinct integers count as row numbers if their range is smaller than DENSE times the number of
# rows, or if as many random integers from this range should have more than REPEATED equal pairs.
DENSE, REPEATED = 2, 10
KINDS_OF_NUMBER = {"integer", "floating", "mixed-integer-float", "decimal"}
BOOLEANS = {"True": True, "False": False}
BOOLEAN_TEXTS = {"true": "True", "TRUE": "True", "false": "False", "FALSE": "False"}
BOOLEAN_TEXTS |= {"1": "True", "0": "False"}
INTEGER, DATE = "integer", "date"
# A number may mean "missing" if it is in at least FEWEST_MARKED cells, and in at least a share
# MARKED of all cells, and if the column has at least FEWEST_OTHERS other distinct values.
MARKED, FEWEST_MARKED, FEWEST_OTHERS = 0.01, 3, 5

stored("tables.number-format")(NumberFormat)


class TableError(ValueError):
    """A table or model file cannot be used; the message says what to change."""

    def __init__(self, message: object):
        super().__init__(shown(message, None))


class NewValuesWarning(UserWarning):
    """In some column, nearly all rows of a table have values that did not occur in training."""


def as_frame(table: Any, which: str) -> pd.DataFrame:
    """Convert a table to a DataFrame with unique names; error messages call the table `which`."""
    if isinstance(table, np.ndarray) and table.ndim == 2:
        return pd.DataFrame(table).add_prefix("x").infer_objects()
    if not (isinstance(table, pd.DataFrame) or is_other_table(table)):
        one = isinstance(table, pd.Series | np.ndarray)
        hint = " For a single row, select it as table[:1]." if one else ""
        raise TableError(
            f"The {which} must be a DataFrame of pandas or Polars, a pyarrow Table or a "
            f"two-dimensional array, got {type(table).__name__}.{hint}"
        )
    # Check the names before the conversion: pyarrow cannot look up a name that occurs twice.
    has_names = not isinstance(table, pd.DataFrame) and hasattr(table, "column_names")
    names = pd.Index(table.column_names if has_names else table.columns)
    for name in names:
        if not isinstance(name, str):
            raise TableError(
                f"Column names of the {which} must be text, got {name!r}; convert them with "
                "`table.columns = table.columns.astype(str)`."
            )
    if names.has_duplicates:
        name = names[names.duplicated()][0]
        raise TableError(
            f"The {which} has more than one column named {name!r}; give each a different name."
        )
    return as_pandas(table)


def is_other_table(table: Any) -> bool:
    """Whether this is a table of Polars or pyarrow, checked without importing these libraries."""
    library = type(table).__module__.partition(".")[0]
    return (library, type(table).__name__) in (("polars", "DataFrame"), ("pyarrow", "Table"))


def require(table: pd.DataFrame, name: str, which: str) -> None:
    """Raise an error, which suggests a similar name, if a table lacks the column `name`."""
    if name not in table:
        near = difflib.get_close_matches(name, table.columns, n=1)
        raise TableError(
            f"The {which} has no column {name!r}; it has {', '.join(table.columns[:10])}."
            + (f" Did you mean {near[0]!r}?" if near else "")
        )


def place(table: pd.DataFrame, position: int) -> str:
    """Describe a row by its line in the file (counted as in spreadsheets) or by its index label."""
    label, numbered = table.index[position], table.attrs.get("numbered")  # set by `open_table`
    if numbered is None or not types.is_integer(label):
        return f"row {label}"
    return f"{numbered[0]} {label + numbered[1]}"


def decimal_mark(table: pd.DataFrame) -> str | None:
    """Return the decimal mark for ambiguous numbers in text, inferred from the file or columns."""
    mark: str | None = table.attrs.get("decimal")  # set by `open_table`
    if mark is not None:
        return mark or table.attrs.get("assumed", "")
    if (table.select_dtypes("float") % 1 > 0).any(axis=None):  # parsed with a decimal point
        return None
    texts = (table[name] for name in table if types.infer_dtype(table[name]) == "string")
    return written_numbers.common_mark(texts) or None


ISO = "ISO8601"
ISO_FORM = r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?"
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
FORMS = {ISO_FORM: (ISO,)} | {
    day + time: tuple(format + clock for format in formats)
    for day, formats in DAYS.items()
    for time, clock in TIMES.items()
}
# Texts that are not converted: dates with two-digit years, times of day, and durations.
UNREAD_TIME = rf"\d\d?[./-]\d\d?[./-]\d\d(,? \d.*)?|\d+:\d\d(:\d\d)?({HALF})?"
ORDERS = {"%d": " with the day first", "%m": " with the month first"}


@stored("tables.date-column")
@dataclass(frozen=True)
class DateColumn:
    """Conversion of a column of dates to numeric columns."""

    format: str  # for `pandas.to_datetime`
    first: str  # earliest training date
    has_time: bool  # whether any training date has a time other than midnight

    def names(self, name: str) -> list[str]:
        """Return the names of the numeric columns that replace the date column."""
        parts = [f"days since {self.first}", "month", "weekday", *["hour"][: self.has_time]]
        return [f"{name} ({part})" for part in parts]

    def numbers(self, column: pd.Series) -> tuple[dict[str, pd.Series], BoolArray]:
        """Return numeric columns (NaN: missing date), and a mask of cells that are not dates."""
        dates = parsed_dates(column, self.format)
        no_date = (dates.isna() & column.notna() & ~_is_word(column)).to_numpy(dtype=bool)
        days = (dates - pd.Timestamp(self.first)) / pd.Timedelta(days=1)
        hour = (dates - dates.dt.normalize()) / pd.Timedelta(hours=1)
        parts = [days, dates.dt.month, dates.dt.day_of_week, *[hour][: self.has_time]]
        names = self.names(str(column.name))
        numbers = {name: part.astype(float) for name, part in zip(names, parts, strict=True)}
        return numbers, no_date


def date_column(column: pd.Series) -> DateColumn | None:
    """Detect a column of dates; refuse dates with an ambiguous order of day and month."""
    counts = column.value_counts()  # number of cells with each distinct value
    values = pd.Series(counts.index)
    formats: tuple[str, ...] = ()
    if types.is_datetime64_any_dtype(values) or types.infer_dtype(values) in ("date", "datetime"):
        formats = (ISO,) if len(values) else ()
    elif types.infer_dtype(values) == "string":
        present = ~_is_word(values).to_numpy(dtype=bool)
        counts, values = counts[present], values[present].str.strip()
        forms = (form for form in FORMS if _nearly_all(values.str.fullmatch(form), counts))
        formats = FORMS[form] if (form := next(forms, None)) else ()
    fits = {format: parsed_dates(values, format).notna() for format in formats}
    best = max(fits, key=lambda format: fits[format].sum(), default=None)
    if best is None:
        return None
    for other in set(formats) - {best}:
        if fits[other].sum() == fits[best].sum() or (fits[other] & ~fits[best]).any():
            raise TableError(
                f"Column {str(column.name)!r} contains dates whose day and month cannot be told "
                f"apart, such as {values.iloc[0]!r}; write them as 2020-12-31, or drop the column "
                f"(`drop=[{str(column.name)!r}]`)."
            )
    if not _nearly_all(fits[best], counts):
        return None
    dates = parsed_dates(values[fits[best]], best)
    has_time = bool((dates != dates.dt.normalize()).any())
    return DateColumn(best, str(dates.min().date()), has_time)


def _nearly_all(fits: pd.Series, counts: pd.Series) -> bool:
    """Whether the distinct values marked in `fits` account for nearly all cells."""
    n_fit = int(counts.to_numpy()[fits.to_numpy(dtype=bool)].sum())
    return n_fit > 0 and n_fit >= (1 - FEW) * int(counts.sum())


def _is_word(column: pd.Series) -> pd.Series:
    """Return a mask of the cells with a word for a missing value, such as NA."""
    if types.infer_dtype(column, skipna=True) != "string":
        return pd.Series(False, index=column.index)
    return column.astype(object).str.strip().str.lower().isin(WORDS)


def parsed_dates(column: pd.Series, format: str) -> pd.Series:
    """Parse dates, convert them to UTC and drop the time zone; other values become NaT."""
    texts = column
    if not types.is_datetime64_any_dtype(column):
        if types.is_object_dtype(column) and types.infer_dtype(column, skipna=True) != "string":
            format = ISO  # for Python's date objects
        texts = column.astype("str").str.strip()
        # pandas needs month names of three letters, AM or PM after a space, and no comma.
        if "%b" in format:
            texts = texts.str.replace(r"([A-Za-z]{3})[a-z]*", r"\1", regex=True)
        if "%p" in format:
            texts = texts.str.replace(HALF, r" \1M", regex=True)
        if ":" in format:
            texts = texts.str.replace(r",(?= \d\d?:)", "", regex=True)
    return pd.to_datetime(texts, format=format, errors="coerce", utc=True).dt.tz_localize(None)


class Cells(NamedTuple):
    """Cells of one column whose values do not have the column's type."""

    column: str
    rows: IntArray  # positions of the cells
    texts: list[str]  # contents of the cells
    held: str  # description of the contents, such as "a range" or "not a number"
    read: bool  # whether a value, such as the midpoint of a range, was found for each cell


class Cleaned(NamedTuple):
    """Clean rows of a table, and the cells whose values do not have their column's type."""

    X: pd.DataFrame
    cells: list[Cells]

    def unread(self, table: pd.DataFrame) -> dict[int, str]:
        """Map the positions of rows with unreadable cells to a description of these cells."""
        empty = np.flatnonzero(table.isna().all(axis=1)).tolist()
        found: dict[int, list[str]] = {row: ["no values"] for row in empty}
        for each in self.cells:
            for row, text in zip(each.rows.tolist(), each.texts, strict=True):
                if not each.read:
                    found.setdefault(row, []).append(f"{each.column} is {text!r}, {each.held}")
        return {row: f"{place(table, row)}: {SEPARATOR.join(found[row])}" for row in sorted(found)}

    def without(self, rows: Mapping[int, str]) -> pd.DataFrame:
        """Return the clean rows except those at the positions in `rows`, numbered from 0."""
        return self.X.drop(index=[*rows]).reset_index(drop=True) if rows else self.X

    def n_cells(self, *, read: bool) -> pd.Series:
        counts: Counter[str] = Counter()
        for each in self.cells:
            counts[each.column] += len(each.rows) * (each.read == read)
        return pd.Series(counts, dtype=int)


@stored(
    "tables.clean-columns",
    fields={
        "read_text": bool,
        "names": dict[str, str] | None,
        "feature_names_in_": NDArray[Any],
        "decimal_": str | None,
        "dates_": dict[str, DateColumn],
        "formats_": dict[str, NumberFormat],
        "others_": dict[str, list[str]],
        "kinds_": dict[str, str],
        "categories_": dict[str, tuple[list[Any], bool]],
        **dict.fromkeys(("numbers_", "booleans_", "none_columns_"), list[str]),
        **dict.fromkeys(("notes_", "warnings_"), list[str]),
    },
)
class CleanColumns(BaseEstimator):
    """Convert a table to the training columns, as floats or text, with NaN for missing values."""

    def __init__(self, read_text: bool = True, names: dict[str, str] | None = None) -> None:
        # Whether to parse dates and numbers in text, and to drop uninformative columns.
        self.read_text = read_text
        self.names = names  # maps column names to those that `inverse_transform` returns

    def fit(self, X: pd.DataFrame, y: Any = None) -> CleanColumns:
        """Learn the names and types of the columns."""
        self.decimal_: str | None = X.attrs.get("decimal")
        self.dates_: dict[str, DateColumn] = {}  # each is replaced by several numeric columns
        self.formats_: dict[str, NumberFormat] = {}  # of text columns parsed as numbers
        self.others_: dict[str, list[str]] = {}  # unparsable training texts, which count as missing
        self.numbers_: list[str] = []  # numeric columns of the result
        self.booleans_: list[str] = []  # boolean columns, which are text in the result
        self.none_columns_: list[str] = []  # object columns that mark missing values by None
        self.kinds_: dict[str, str] = {}  # types to restore: integer, Python date or datetime
        self.categories_: dict[str, tuple[list[Any], bool]] = {}  # categories; True if ordered
        self.notes_: list[str] = []  # sentences on how text was parsed
        self.warnings_: list[str] = []  # sentences on columns that may have been misread
        left_out: dict[str, list[str]] = {}
        kept = []
        for name in X.columns:
            if why := self._fit_column(name, _plain(X[name])):
                left_out.setdefault(why, []).append(name)
                continue
            kept.append(name)
            if isinstance(X[name].dtype, pd.CategoricalDtype):
                values = X[name].cat
                self.categories_[name] = (values.categories.tolist(), bool(values.ordered))
        self.feature_names_in_ = np.array(kept, dtype=object)
        self.notes_ += [
            f"{why}: {', '.join(map(shown, names))}." for why, names in left_out.items()
        ]
        for name, dates in self.dates_.items():
            if taken := {*dates.names(name)} & {*X.columns}:
                raise TableError(
                    f"Column {min(taken)!r} has the same name as a column derived from a date; "
                    "rename it."
                )
        return self

    def _fit_column(self, name: str, column: pd.Series) -> str:
        """Learn the type of a column; return the reason for dropping it, or ""."""
        values = column.dropna()
        if self.read_text and values.empty:
            return EMPTY
        if is_number(column):
            if self.read_text and _numbers_rows(name, values.astype(float)):
                return NUMBERING
            self.numbers_.append(name)
        elif types.infer_dtype(column, skipna=True) == "boolean":
            self.booleans_.append(name)
        elif self.read_text and (why := self._fit_text(name, column)):
            return why
        missing = column[column.isna()]
        if types.is_object_dtype(column) and len(missing) and all(v is None for v in missing):
            self.none_columns_.append(name)
        if types.is_datetime64_any_dtype(column):
            self.kinds_[name] = str(column.dtype)
        elif types.is_integer_dtype(column):
            self.kinds_[name] = INTEGER
        elif types.infer_dtype(column, skipna=True) == DATE:
            self.kinds_[name] = DATE
        return ""

    def _fit_text(self, name: str, column: pd.Series) -> str:
        """Detect dates and numbers in a text column; return the reason for dropping it, or ""."""
        values = column.dropna()
        if written_numbers.may_be_read(values):
            if dates := date_column(column):
                self.dates_[name] = dates
                self.numbers_ += dates.names(name)
                self.notes_.append(
                    f"Column {shown(name)} contains dates{ORDERS.get(dates.format[:2], '')}; it is "
                    f"replaced by {', '.join(dates.names(name))}."
                )
                return ""
            if format := number_format(column, self.decimal_):
                self.formats_[name] = format
                self.numbers_.append(name)
                self.notes_.append(format_note(column, format))
                return ""
            if note := _unread_note(values):
                is_code = values.astype(str).str.strip().str.isdecimal().all()
                (self.notes_ if is_code else self.warnings_).append(note)
        names = len(values) > ALL_DIFFERENT and values.nunique() > NAMES * len(values)
        return OF_NAMES if names else ""

    def read(self, X: pd.DataFrame, which: str) -> Cleaned:
        """Convert a table, called `which` in errors, and list the cells of the wrong type."""
        check_is_fitted(self)
        lacking = [name for name in self.feature_names_in_ if name not in X.columns]
        if lacking:
            raise TableError(
                f"The {which} lacks the training columns {', '.join(lacking)}; add them, or train "
                f"without them (`drop={lacking}`). It has {', '.join(map(shown, X.columns[:10]))}."
            )
        columns: dict[str, Any] = {}
        cells: list[Cells] = []
        rows = X[[*self.feature_names_in_]]
        if set(rows.dtypes) == {np.dtype(float)} and {*rows} <= {*self.numbers_}:
            values = rows.to_numpy()  # convert all columns together: faster for a few rows
            if not (np.abs(values) > TOO_LARGE).any():
                return Cleaned(pd.DataFrame(values, columns=rows.columns), cells)
        for name in self.feature_names_in_:
            columns |= self._transformed(name, _plain(X[name]), X.attrs.get("decimal"), cells)
        return Cleaned(pd.DataFrame(columns), cells)

    def accept(self, cells: list[Cells]) -> None:
        """Treat these unparsable texts of the training table as missing values from now on."""
        self.others_ = {each.column: sorted({*each.texts}) for each in cells if not each.read}

    def inverse_transform(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return clean rows with the training types (``read_text=False``), renamed by `names`."""
        stored = {name: _of_kind(X[name], kind) for name, kind in self.kinds_.items()}
        stored |= {name: X[name].map(lambda v: BOOLEANS.get(v, v)) for name in self.booleans_}
        for name in self.none_columns_:
            column = stored.get(name, X[name]).astype(object)
            stored[name] = column.where(column.notna(), None)
        for name, (categories, ordered) in self.categories_.items():
            stored[name] = _categorised(stored.get(name, X[name]), categories, ordered)
        return X.assign(**stored).rename(columns=self.names or {})

    def original(self, name: str) -> str:
        """Return the column of the training table from which a clean column was made."""
        made = {part: own for own, dates in self.dates_.items() for part in dates.names(own)}
        return made.get(name, name)

    def _transformed(
        self, name: str, column: pd.Series, decimal: str | None, cells: list[Cells]
    ) -> dict[str, Any]:
        known = self.others_.get(name)
        new = ~column.isin(known).to_numpy() if known else np.True_
        if name in self.dates_:
            dates, no_date = self.dates_[name].numbers(column)
            cells += _cells(column, no_date & new, "not a date")
            return {part: values.to_numpy() for part, values in dates.items()}
        if name in self.numbers_:
            if is_number(column) or types.is_bool_dtype(column):
                values = column.to_numpy(dtype=float, na_value=np.nan)
            else:
                format = NumberFormat(decimal=decimal or ".")
                if name in self.formats_:
                    format = self.formats_[name].in_file(decimal, self.decimal_)
                values, kinds = read_column(column, format)
                cells += _cells(column, kinds == RANGE, "a range", read=True)
                cells += _cells(column, (kinds == OTHER) & new, f"not a {format.form()}")
            too_large = np.abs(values) > TOO_LARGE
            cells += _cells(column, too_large, "infinite or too large")
            if self.read_text and too_large.any():
                values = np.where(too_large, np.nan, values)
            return {name: values}
        texts, gaps = column.to_numpy(object, copy=True), column.isna().to_numpy()
        if name in self.booleans_ or types.infer_dtype(texts, skipna=True) != "string":
            known_as: dict[Any, str] = BOOLEAN_TEXTS if name in self.booleans_ else {}
            texts[~gaps] = [known_as.get(text, text) for text in map(as_text, texts[~gaps])]
        texts[gaps] = np.nan
        return {name: pd.Series(texts, dtype=object)}


def _plain(column: pd.Series) -> pd.Series:
    """Convert a categorical column to its values; refuse lists and other containers in cells."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        kind = column.cat.categories.dtype
        # Use object instead of numpy's integers, which cannot represent missing values.
        return column.astype(object if types.is_integer_dtype(kind) else kind)
    if types.is_object_dtype(column) and types.infer_dtype(column, skipna=True) == "mixed":
        for value in column:
            if isinstance(value, list | dict | set | tuple | np.ndarray):
                raise TableError(
                    f"Column {column.name!r} has several values in one cell, such as {value!r}; "
                    f"split them, or drop the column (`drop=[{column.name!r}]`)."
                )
    return column


def is_number(column: pd.Series) -> bool:
    """Whether a column is numeric; booleans count as text."""
    if types.is_object_dtype(column):
        return types.infer_dtype(column, skipna=True) in KINDS_OF_NUMBER
    return types.is_numeric_dtype(column) and not types.is_bool_dtype(column)


def _cells(column: pd.Series, marks: BoolArray, held: str, *, read: bool = False) -> list[Cells]:
    """Return the marked cells as a list of one `Cells` object; [] if no cell is marked."""
    rows = np.flatnonzero(marks)
    found = column.iloc[rows] if len(rows) else ()
    texts = [f"{v:g}" if isinstance(v, float) else as_text(v) for v in found]
    return [Cells(str(column.name), rows, texts, held, read)] if texts else []


def _categorised(column: pd.Series, categories: list[Any], ordered: bool) -> pd.Series:
    known = {as_text(value): value for value in categories}
    meaning = {value: known.get(as_text(value), value) for value in column.dropna().unique()}
    every = dict.fromkeys([*categories, *meaning.values()])
    return column.map(meaning).astype(pd.CategoricalDtype([*every], ordered))


def _of_kind(column: pd.Series, kind: str) -> pd.Series:
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
    return dates.dt.date if kind == DATE else dates.astype(types.pandas_dtype(kind))


def as_integers(column: pd.Series) -> pd.Series:
    """Convert a float column to integers if all values are whole and none is missing."""
    whole = (column == column.round()) & (column.abs() < 2**63)
    return column.astype(np.int64) if whole.all() else column


def _numbers_rows(name: str, values: pd.Series) -> bool:
    """Whether a column numbers the rows of this table, or of a table from which they were drawn."""
    if len(values) <= ALL_DIFFERENT or not values.is_unique or not (values % 1 == 0).all():
        return False
    # A column without a name is taken for a stored index, which may have gaps of any size.
    width = values.max() - values.min()
    is_dense = width < max(DENSE * len(values), len(values) ** 2 / (2 * REPEATED))
    return name.startswith(UNNAMED) or bool(is_dense)


def doubts(name: str, column: pd.Series, *, is_number: bool) -> list[str]:
    """Warn of texts that differ only by case or blanks, and of numbers that may mean "missing"."""
    if is_number:
        return _marks_warning(name, column)
    counts = column.dropna().map(as_text).value_counts()
    alike = counts.groupby(counts.index.str.split().str.join(" ").str.casefold(), sort=False)
    groups = [", ".join(f"{t!r} ({n})" for t, n in g.items()) for _, g in alike if len(g) > 1]
    if not groups:
        return []
    more = f", and {len(groups) - 3} more such values" if len(groups) > 3 else ""
    return [
        f"Values of {shown(name)} differ only by case or blanks: {'; '.join(groups[:3])}{more}. If "
        "they mean the same, write them alike."
    ]


def _marks_warning(name: str, values: pd.Series) -> list[str]:
    """Return warnings of frequent numbers that are far from all other numbers, such as -999."""
    counts = values.dropna().value_counts()
    ends = {counts.index.min(), counts.index.max()} if len(counts) > FEWEST_OTHERS else set()
    frequent = [end for end in ends if counts[end] >= max(FEWEST_MARKED, MARKED * counts.sum())]
    inner = counts.index.difference(frequent)  # both ends may mark missing values
    low, high = inner.min(), inner.max()
    marks = [end for end in frequent if max(low - end, end - high) > high - low]
    others = counts.index.difference(marks)
    return [
        f"{shown(name)} is {mark:g} in {counts[mark]} of {counts.sum()} rows, and from "
        f"{others.min():g} to {others.max():g} elsewhere. If {mark:g} marks missing values, leave "
        "these cells empty."
        for mark in sorted(marks)
    ]


def format_note(column: pd.Series, format: NumberFormat) -> str:
    """State that a text column is parsed as numbers; quote a text that is not a plain number."""
    texts = pd.Series(written_numbers.texts_of(column)[0], dtype=object)
    words = texts.str.lower().isin(WORDS)
    written = texts[~words & pd.to_numeric(texts, errors="coerce").isna()]
    such = ""
    if len(written):
        value = format.read([written.iloc[0]])[0].tolist()[0]
        such = f", such as {written.iloc[0]!r} (read as {value:.10g})"
    if words.any():
        such += f" ({texts[words].iloc[0] or 'blank'} where a number is missing)"
    return f"Column {shown(column.name)} contains {format.form('s')}{such}; it is numeric."


def _unread_note(values: pd.Series) -> str:
    """Return a warning if most texts of a column look like numbers, dates or times; else ""."""
    texts, looks = written_numbers.texts_of(values)[0], set()
    for text in texts:
        each = written_numbers.parts_of(text)
        is_number = each and not each.end and (len(each.after) > 1 or not each.glued)
        if is_number or re.fullmatch(UNREAD_TIME, text):
            looks.add(text)
    if 2 * len(looks) < len(texts):
        return ""
    odd = next((text for text in texts if text not in looks), texts[0])
    return (
        f"Column {shown(values.name)} counts as text, such as {odd!r}. If it holds numbers, write "
        "plain numbers in one unit, without leading zeros, and leave missing ones empty; if it "
        "holds dates, write them as 2020-12-31."
    )
