"""Columns of a table as numbers and text, however they were stored."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import infer_dtype, is_object_dtype
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skuq.base import BoolArray, IntArray
from skuq.labels import as_text
from skuq.stored import stored
from skuq.table_files import UNNAMED
from skuq.tables._column_kinds import (
    BITS,
    BOOLEAN_TEXTS,
    BOOLEANS,
    as_bits,
    categorised,
    is_number,
    kind_of,
    of_kind,
    texts_in,
    uncategorised,
)
from skuq.tables._dates import DateColumn, code_note, date_column, unread_note
from skuq.tables._validation import TOO_LARGE, TableError, word_among_numbers
from skuq.unusual_rows import ALL_DIFFERENT
from skuq.written_numbers import (
    OTHER,
    RANGE,
    WORDS,
    NumberFormat,
    may_be_read,
    number_format,
    read_column,
    texts_of,
)

# Why columns are left out.
EMPTY = "Columns without values were left out"
NUMBERING = "Columns that number the rows were left out, since new rows have new numbers"
OF_NAMES = "Columns with another text in nearly every row, such as names, were left out"
NAMES = 0.9  # of the values of a text column: if more are different, it holds names or free text
DENSE = 2  # numbers per row up to which whole numbers that never repeat are no coincidence


stored("tables.number-format")(NumberFormat)


class Cells(NamedTuple):
    """Cells of a column that do not hold what the column does."""

    column: str
    rows: IntArray  # positions
    texts: list[str]  # what they hold
    held: str  # what they hold, such as "a range", or do not: "not a number"
    read: bool  # whether they are read all the same, as the middle of a range


class Cleaned(NamedTuple):
    """Clean rows of a table, and cells that do not hold what their columns do."""

    X: pd.DataFrame
    cells: list[Cells]


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
        "numbers_": list[str],
        "bits_": list[str],
        "booleans_": list[str],
        "none_columns_": list[str],
        "kinds_": dict[str, str],
        "categories_": dict[str, tuple[list[Any], bool]],
        "notes_": list[str],
        "warnings_": list[str],
    },
)
class CleanColumns(TransformerMixin, BaseEstimator):
    """Columns seen in training, in their order and kind: floats, or text as plain objects.

    The training table decides which columns are numbers. Other columns of a table are left
    out. Every kind of missing value becomes NaN.
    """

    def __init__(self, read_text: bool = True, names: dict[str, str] | None = None) -> None:
        # Dates, and numbers in text, as numbers; and columns that teach nothing left out.
        self.read_text = read_text
        self.names = names  # in the form of the training table, where these are others

    def fit(self, X: pd.DataFrame, y: Any = None) -> CleanColumns:
        """Learn names and kinds of the columns."""
        self.decimal_: str | None = X.attrs.get("decimal")  # of the file, as `open_table` says
        self.dates_: dict[str, DateColumn] = {}  # in whose place several columns of numbers stand
        self.formats_: dict[str, NumberFormat] = {}  # of text that counts as numbers
        # Other texts among the numbers and dates of the training table, which count as missing.
        self.others_: dict[str, list[str]] = {}
        self.numbers_: list[str] = []  # of the result
        self.bits_: list[str] = []  # of these, columns of 0 and 1
        self.booleans_: list[str] = []  # yes and no, which are text in the result
        self.none_columns_: list[str] = []  # objects in which what is missing is None, and not NaN
        # Those that were whole numbers, dates of Python, or a pandas type of dates.
        self.kinds_: dict[str, str] = {}
        # Of pandas' category type: their categories, and whether these are ordered.
        self.categories_: dict[str, tuple[list[Any], bool]] = {}
        self.notes_: list[str] = []  # how text was read
        self.warnings_: list[str] = []  # what may have been misread
        left_out: dict[str, list[str]] = {}
        kept = []
        for name in X.columns:
            column = uncategorised(X[name])
            _check_single_values(column)
            if why := self._fit_column(name, column):
                left_out.setdefault(why, []).append(name)
                continue
            kept.append(name)
            if isinstance(X[name].dtype, pd.CategoricalDtype):
                self.categories_[name] = (
                    X[name].cat.categories.tolist(),
                    bool(X[name].cat.ordered),
                )
        self.feature_names_in_ = np.array(kept, dtype=object)
        self.notes_ += [f"{why}: {', '.join(names)}." for why, names in left_out.items()]
        derived = [part for name, dates in self.dates_.items() for part in dates.names(name)]
        for part in derived:
            if part in X.columns:
                raise TableError(f"Column {part!r} has the name of a part of a date; rename it.")
        return self

    def _fit_column(self, name: str, column: pd.Series) -> str:
        """Learn the kind of a column; return why it is left out, or ""."""
        values = column.dropna()
        if self.read_text and values.empty:
            return EMPTY
        if is_number(column):
            numbers = values.astype(float)
            if self.read_text and _numbers_rows(name, numbers):
                return NUMBERING
            self.numbers_.append(name)
            if numbers.isin([0, 1]).all():
                self.bits_.append(name)
        elif infer_dtype(column, skipna=True) == "boolean":
            self.booleans_.append(name)
        elif self.read_text and (why := self._fit_text(name, column)):
            return why
        missing = column[column.isna()]
        if is_object_dtype(column) and len(missing) and all(value is None for value in missing):
            self.none_columns_.append(name)
        if kind := kind_of(column):
            self.kinds_[name] = kind
        return ""

    def _fit_text(self, name: str, column: pd.Series) -> str:
        """Read dates and numbers in a column of text; return why it is left out, or ""."""
        values = column.dropna()
        n_values = values.nunique()
        useless = OF_NAMES if len(values) > ALL_DIFFERENT and n_values > NAMES * len(values) else ""
        if not may_be_read(values):
            return useless
        if dates := date_column(column):
            self.dates_[name] = dates
            self.numbers_ += dates.names(name)
            self.notes_.append(dates.note(name))
            return ""
        if format := number_format(column, self.decimal_):
            self.formats_[name] = format
            self.numbers_.append(name)
            self.notes_.append(format_note(column, format))
            return ""
        if note := code_note(values):
            self.notes_.append(note)
        elif note := unread_note(values) or _word_note(values):
            self.warnings_.append(note)
        return useless

    def transform(self, X: pd.DataFrame, which: str = "table to predict") -> pd.DataFrame:
        """Bring any table into the form of the training table; errors call it `which`."""
        return self.read(X, which).X

    def read(self, X: pd.DataFrame, which: str) -> Cleaned:
        """The same, with the cells that do not hold what their columns do."""
        check_is_fitted(self)
        lacking = [name for name in self.feature_names_in_ if name not in X.columns]
        if lacking:
            raise TableError(
                f"The {which} lacks {', '.join(lacking)}, which the training table "
                f"has; add these columns or leave them out of both (`drop={lacking}`)."
            )
        columns: dict[str, pd.Series] = {}
        cells: list[Cells] = []
        for name in self.feature_names_in_:
            column = uncategorised(X[name])
            _check_single_values(column)
            columns |= self._transformed(name, column, X.attrs.get("decimal"), cells)
        return Cleaned(pd.DataFrame(columns).reset_index(drop=True), cells)

    def accept(self, cells: list[Cells]) -> None:
        """Take other texts of the training table for missing numbers and dates from now on."""
        self.others_ = {each.column: sorted({*each.texts}) for each in cells if not each.read}

    def inverse_transform(self, X: pd.DataFrame) -> pd.DataFrame:
        """Bring clean rows into the form of the training table, as its reader saw it.

        Only for columns whose text was not read (`read_text`).
        """
        stored = {name: of_kind(X[name], kind) for name, kind in self.kinds_.items()}
        stored |= {name: X[name].map(lambda v: BOOLEANS.get(v, v)) for name in self.booleans_}
        for name in self.none_columns_:
            column = stored.get(name, X[name]).astype(object)
            stored[name] = column.where(column.notna(), None)
        for name, (categories, ordered) in self.categories_.items():
            stored[name] = categorised(stored.get(name, X[name]), categories, ordered)
        return X.assign(**stored).rename(columns=self.names or {})

    def _transformed(
        self, name: str, column: pd.Series, decimal: str | None, cells: list[Cells]
    ) -> dict[str, pd.Series]:
        """Clean columns in place of one; `cells` gets those that do not hold what it does."""
        known = self.others_.get(name)
        new = ~column.isin(known).to_numpy() if known else np.ones(len(column), dtype=bool)
        if name in self.dates_:
            dates, no_date = self.dates_[name].numbers(column)
            cells += _cells(column, no_date & new, "not a date")
            return dates
        if name in self.formats_ or name in self.numbers_:
            if name in self.bits_:
                column = as_bits(column)
            if is_number(column):
                numbers = pd.Series(
                    column.to_numpy(dtype=float, na_value=np.nan), index=column.index
                )
            else:
                format = self._format(name, decimal)
                values, kinds = read_column(column, format)
                cells += _cells(column, kinds == RANGE, "a range", read=True)
                cells += _cells(column, (kinds == OTHER) & new, f"not a {format.form()}")
                numbers = pd.Series(values, index=column.index)
            too_large = (numbers.abs() > TOO_LARGE).to_numpy()
            cells += _cells(column, too_large, "infinite or too large")
            if self.read_text and too_large.any():
                numbers = numbers.mask(too_large)
            return {name: numbers}
        texts = texts_in(column)
        return {name: texts.replace(BOOLEAN_TEXTS | BITS) if name in self.booleans_ else texts}

    def _format(self, name: str, decimal: str | None) -> NumberFormat:
        """How a column writes numbers in a file with a decimal mark."""
        if name in self.formats_:
            return self.formats_[name].in_file(decimal, self.decimal_)
        return NumberFormat(decimal=decimal or ".")


def _cells(column: pd.Series, marks: BoolArray, held: str, *, read: bool = False) -> list[Cells]:
    """The marked cells of a column, if there are any."""
    rows = np.flatnonzero(marks)
    if len(rows) == 0:
        return []
    values = column.iloc[rows]
    texts = [f"{v:g}" if isinstance(v, float) else as_text(v) for v in values]
    return [Cells(str(column.name), rows, texts, held, read)]


def _check_single_values(column: pd.Series) -> None:
    """Refuse a column of lists and other containers."""
    if infer_dtype(column, skipna=True) == "mixed":
        for value in column:
            if isinstance(value, list | dict | set | tuple | np.ndarray):
                raise TableError(
                    f"Column {column.name!r} holds several values in a cell, such as {value!r}; "
                    f"give each its own column, or leave it out (`drop=[{column.name!r}]`)."
                )


def format_note(column: pd.Series, format: NumberFormat) -> str:
    """A sentence on text that counts as numbers, with a text that is not simply one."""
    texts = pd.Series(texts_of(column)[0], dtype=object)
    words = texts.str.lower().isin(WORDS)
    written = texts[~words & pd.to_numeric(texts, errors="coerce").isna()]
    shown = f", such as {written.iloc[0]!r}" if len(written) else ""
    missing = f" ({texts[words].iloc[0] or 'blank'} where one is missing)" if words.any() else ""
    return f"Column {column.name} holds {format.form('s')}{shown}{missing}; it counts as numbers."


def _numbers_rows(name: str, values: pd.Series) -> bool:
    """Whether numbers count the rows, or rows of a larger table that this one was taken from.

    An index that was stored without a name does, whatever part of it is here.
    """
    if len(values) <= ALL_DIFFERENT or not values.is_unique or not (values % 1 == 0).all():
        return False
    return name.startswith(UNNAMED) or values.max() - values.min() < DENSE * len(values)


def _word_note(values: pd.Series) -> str | None:
    """A sentence on a column of which most, but too few, values are numbers."""
    word = word_among_numbers(values)
    if word is None:
        return None
    return (
        f"Most values of column {values.name} are numbers, but it counts as text because of others "
        f"such as {word!r}; if they stand for missing ones, leave them empty."
    )
