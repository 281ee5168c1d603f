"""Clean columns: every column of a table as floats or as text, regardless of its storage type."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import infer_dtype, is_object_dtype
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from skuq._table_files import UNNAMED
from skuq.base import BoolArray, IntArray
from skuq.explanations import ALL_DIFFERENT
from skuq.labels import as_text
from skuq.stored import stored
from skuq.tables._column_kinds import (
    BITS,
    BOOLEAN_TEXTS,
    BOOLEANS,
    as_bits,
    as_spelled,
    categorised,
    is_number,
    kind_of,
    of_kind,
    spellings_of,
    texts_in,
    uncategorised,
)
from skuq.tables._dates import DateColumn, code_note, date_column, unread_note
from skuq.tables._validation import TOO_LARGE, TableError, separator_hint, word_among_numbers
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

# Reasons for dropping a column.
EMPTY = "Columns without values were dropped"
NUMBERING = "Columns of row numbers were dropped, since new rows have new numbers"
OF_NAMES = "Text columns with a different value in nearly every row, such as names, were dropped"
# If the share of distinct values in a text column is larger than this number, the column contains
# names or free text.
NAMES = 0.9
# If the values of a column are distinct integers, and their range is smaller than DENSE times the
# number of rows, they are row numbers.
DENSE = 2


stored("tables.number-format")(NumberFormat)


class Cells(NamedTuple):
    """Cells of one column whose values do not have the column's type."""

    column: str
    rows: IntArray  # positions
    texts: list[str]  # contents
    held: str  # description of the contents, such as "a range" or "not a number"
    read: bool  # whether they are replaced by a value, such as the midpoint of a range


class Cleaned(NamedTuple):
    """Clean rows of a table, and the cells whose values do not have their column's type."""

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
        "spellings_": dict[str, dict[str, list[str]]],
        "notes_": list[str],
        "warnings_": list[str],
    },
)
class CleanColumns(TransformerMixin, BaseEstimator):
    """Convert a table to the training columns, in training order: floats, or text as objects.

    The training table decides which columns are numeric. Columns that are not in the training table
    are dropped. All kinds of missing values become NaN.
    """

    def __init__(self, read_text: bool = True, names: dict[str, str] | None = None) -> None:
        # Whether to parse dates and numbers in text, and to drop uninformative columns.
        self.read_text = read_text
        self.names = names  # original column names by clean name, for `inverse_transform`

    def fit(self, X: pd.DataFrame, y: Any = None) -> CleanColumns:
        """Learn the names and types of the columns."""
        self.decimal_: str | None = X.attrs.get("decimal")  # decimal mark found by `open_table`
        self.dates_: dict[str, DateColumn] = {}  # each is replaced by several numeric columns
        self.formats_: dict[str, NumberFormat] = {}  # for text columns parsed as numbers
        # Unparsable training texts in numeric and date columns; these texts count as missing.
        self.others_: dict[str, list[str]] = {}
        self.numbers_: list[str] = []  # numeric columns of the result
        self.bits_: list[str] = []  # numeric columns with only 0 and 1
        self.booleans_: list[str] = []  # boolean columns, which are text in the result
        self.none_columns_: list[str] = []  # object columns that mark missing values by None
        # Columns of integers, Python dates, or a pandas datetime type.
        self.kinds_: dict[str, str] = {}
        # Categorical columns: their categories, and whether the categories are ordered.
        self.categories_: dict[str, tuple[list[Any], bool]] = {}
        # For each text column, the texts that a program may convert when it reads a file. The keys
        # are the converted values as text. For example, a program may convert 01067 to the number
        # 1067; the key is then "1067".
        self.spellings_: dict[str, dict[str, list[str]]] = {}
        self.notes_: list[str] = []  # how text was parsed
        self.warnings_: list[str] = []  # columns that may have been misread
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
                raise TableError(
                    f"Column {part!r} has the same name as a column derived from a date; rename "
                    f"column {part!r}."
                )
        return self

    def _fit_column(self, name: str, column: pd.Series) -> str:
        """Learn the type of a column; return the reason for dropping it, or ""."""
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
        if infer_dtype(column, skipna=True) == "string" and not self._is_read(name):
            self.spellings_[name] = spellings_of(values)
        missing = column[column.isna()]
        if is_object_dtype(column) and len(missing) and all(value is None for value in missing):
            self.none_columns_.append(name)
        if kind := kind_of(column):
            self.kinds_[name] = kind
        return ""

    def _fit_text(self, name: str, column: pd.Series) -> str:
        """Detect dates and numbers in a text column; return the reason for dropping it, or ""."""
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
        """Convert a table to the clean training columns; `which` is its name in error messages."""
        return self.read(X, which).X

    def read(self, X: pd.DataFrame, which: str) -> Cleaned:
        """Convert a table as `transform` does, and list the cells of the wrong type."""
        check_is_fitted(self)
        lacking = [name for name in self.feature_names_in_ if name not in X.columns]
        if lacking:
            raise TableError(
                f"The {which} lacks the training columns {', '.join(lacking)}; add them, or train "
                f"without them (`drop={lacking}`).{separator_hint(X)}"
            )
        columns: dict[str, pd.Series] = {}
        cells: list[Cells] = []
        for name in self.feature_names_in_:
            column = uncategorised(X[name])
            _check_single_values(column)
            columns |= self._transformed(name, column, X.attrs.get("decimal"), cells)
        return Cleaned(pd.DataFrame(columns).reset_index(drop=True), cells)

    def accept(self, cells: list[Cells]) -> None:
        """Treat these unparsable texts of the training table as missing values from now on."""
        self.others_ = {each.column: sorted({*each.texts}) for each in cells if not each.read}

    def inverse_transform(self, X: pd.DataFrame) -> pd.DataFrame:
        """Convert clean rows back to the column types and names of the training table.

        Requires ``read_text=False``: parsed text cannot be restored.
        """
        stored = {name: of_kind(X[name], kind) for name, kind in self.kinds_.items()}
        stored |= {name: X[name].map(lambda v: BOOLEANS.get(v, v)) for name in self.booleans_}
        for name in self.none_columns_:
            column = stored.get(name, X[name]).astype(object)
            stored[name] = column.where(column.notna(), None)
        for name, (categories, ordered) in self.categories_.items():
            stored[name] = categorised(stored.get(name, X[name]), categories, ordered)
        return X.assign(**stored).rename(columns=self.names or {})

    def original(self, name: str) -> str:
        """Column of the training table from which a clean column was made."""
        made = {part: own for own, dates in self.dates_.items() for part in dates.names(own)}
        return made.get(name, name)

    def _transformed(
        self, name: str, column: pd.Series, decimal: str | None, cells: list[Cells]
    ) -> dict[str, pd.Series]:
        """Return the clean columns that replace `column`; append cells of the wrong type."""
        known = self.others_.get(name)
        new = ~column.isin(known).to_numpy() if known else np.ones(len(column), dtype=bool)
        if name in self.dates_:
            dates, no_date = self.dates_[name].numbers(column)
            cells += _cells(column, no_date & new, "not a date")
            return dates
        if self._is_read(name):
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
        if name in self.booleans_:
            return {name: texts.replace(BOOLEAN_TEXTS | BITS)}
        return {name: as_spelled(column, texts, self.spellings_.get(name, {}))}

    def _is_read(self, name: str) -> bool:
        """Whether the texts of a column are parsed, as dates or numbers."""
        return name in self.dates_ or name in self.formats_ or name in self.numbers_

    def _format(self, name: str, decimal: str | None) -> NumberFormat:
        """Number format of a column in a file with the given decimal mark."""
        if name in self.formats_:
            return self.formats_[name].in_file(decimal, self.decimal_)
        return NumberFormat(decimal=decimal or ".")


def _cells(column: pd.Series, marks: BoolArray, held: str, *, read: bool = False) -> list[Cells]:
    """List of the marked cells of a column; empty if none is marked."""
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
                    f"Column {column.name!r} has several values in one cell, such as {value!r}; "
                    "split them into separate columns, or drop the column "
                    f"(`drop=[{column.name!r}]`)."
                )


def format_note(column: pd.Series, format: NumberFormat) -> str:
    """Note that a text column is parsed as numbers, with an example that needs parsing."""
    texts = pd.Series(texts_of(column)[0], dtype=object)
    words = texts.str.lower().isin(WORDS)
    written = texts[~words & pd.to_numeric(texts, errors="coerce").isna()]
    shown = f", such as {written.iloc[0]!r}" if len(written) else ""
    missing = (
        f" ({texts[words].iloc[0] or 'blank'} where a number is missing)" if words.any() else ""
    )
    return f"Column {column.name} contains {format.form('s')}{shown}{missing}; it is numeric."


def _numbers_rows(name: str, values: pd.Series) -> bool:
    """Whether a column numbers the rows of this table, or of a larger table that includes them.

    A stored index without a name always counts as row numbers, even if most numbers are missing.
    """
    if len(values) <= ALL_DIFFERENT or not values.is_unique or not (values % 1 == 0).all():
        return False
    return name.startswith(UNNAMED) or values.max() - values.min() < DENSE * len(values)


def _word_note(values: pd.Series) -> str | None:
    """Warning that most values of a column are numbers, but too few for a numeric column."""
    word = word_among_numbers(values)
    if word is None:
        return None
    return (
        f"Most values of column {values.name} are numbers, but it counts as text because of values "
        f"such as {word!r}; if these mark missing numbers, leave the cells empty."
    )
