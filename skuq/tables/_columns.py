"""Columns of a table as numbers and text, however they were stored, and as learners take them."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import (
    infer_dtype,
    is_bool_dtype,
    is_datetime64_any_dtype,
    is_integer_dtype,
    is_numeric_dtype,
    is_object_dtype,
    pandas_dtype,
)
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_transformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.utils.validation import check_is_fitted

from skuq.labels import as_text
from skuq.stored import stored
from skuq.tables._dates_and_units import (
    ISO,
    DateColumn,
    UnitColumn,
    date_column,
    unit_column,
    unread_note,
)
from skuq.tables._validation import TableError, word_among_numbers
from skuq.unusual_rows import MISSING_TEXT, all_different

KINDS_OF_NUMBER = {"integer", "floating", "mixed-integer-float", "decimal"}
# What pandas reads as yes and no where a column holds nothing else, and as text elsewhere.
BOOLEAN_TEXTS = {"true": "True", "TRUE": "True", "false": "False", "FALSE": "False"}
BOOLEANS = {"True": True, "False": False}
INTEGER, DATE = "integer", "date"
MAX_CATEGORIES = 50  # of a text column; rarer values share one column
FEW_NUMBERS = 20  # fewer cannot be told from missing ones by a leaf of boosted trees


@stored(
    "tables.clean-columns",
    fields={
        "read_text": bool,
        "names": dict[str, str] | None,
        "feature_names_in_": NDArray[Any],
        "dates_": dict[str, DateColumn],
        "units_": dict[str, UnitColumn],
        "numbers_": list[str],
        "booleans_": list[str],
        "none_columns_": list[str],
        "kinds_": dict[str, str],
        "categories_": dict[str, tuple[list[Any], bool]],
        "notes_": list[str],
    },
)
class CleanColumns(TransformerMixin, BaseEstimator):
    """Columns seen in training, in their order and kind: floats, or text as plain objects.

    The training table decides which columns are numbers. Other columns of a table are left
    out. Every kind of missing value becomes NaN.
    """

    def __init__(self, read_text: bool = True, names: dict[str, str] | None = None) -> None:
        self.read_text = read_text  # dates, and numbers with a unit, as numbers
        self.names = names  # in the form of the training table, where these are others

    def fit(self, X: pd.DataFrame, y: Any = None) -> CleanColumns:
        """Learn names and kinds of the columns."""
        self.feature_names_in_ = np.array(X.columns, dtype=object)
        self.dates_: dict[str, DateColumn] = {}  # in whose place several columns of numbers stand
        self.units_: dict[str, UnitColumn] = {}
        self.numbers_: list[str] = []  # of the result
        self.booleans_: list[str] = []  # yes and no, which are text in the result
        self.none_columns_: list[str] = []  # objects in which what is missing is None, and not NaN
        # Those that were whole numbers, dates of Python, or a pandas type of dates.
        self.kinds_: dict[str, str] = {}
        # Of pandas' category type: their categories, and whether these are ordered.
        self.categories_: dict[str, tuple[list[Any], bool]] = {}
        self.notes_: list[str] = []  # how text was read
        for name in X.columns:
            self._fit_column(name, _uncategorised(X[name]))
            if isinstance(X[name].dtype, pd.CategoricalDtype):
                self.categories_[name] = (
                    X[name].cat.categories.tolist(),
                    bool(X[name].cat.ordered),
                )
        derived = [part for name, dates in self.dates_.items() for part in dates.names(name)]
        for part in derived:
            if part in X.columns:
                raise TableError(f"Column {part!r} has the name of a part of a date; rename it.")
        return self

    def _fit_column(self, name: str, column: pd.Series) -> None:
        missing = column[column.isna()]
        if is_object_dtype(column) and len(missing) and all(value is None for value in missing):
            self.none_columns_.append(name)
        if kind := _kind(column):
            self.kinds_[name] = kind
        if is_number(column):
            self.numbers_.append(name)
        elif infer_dtype(column, skipna=True) == "boolean":
            self.booleans_.append(name)
        elif not self.read_text:
            return
        elif dates := date_column(column):
            self.dates_[name] = dates
            self.numbers_ += dates.names(name)
            self.notes_.append(dates.note(name))
        elif unit := unit_column(column):
            self.units_[name] = unit
            self.numbers_.append(name)
            self.notes_.append(unit.note(name))
        elif note := unread_note(column):
            self.notes_.append(note)

    def transform(self, X: pd.DataFrame, which: str = "table to predict") -> pd.DataFrame:
        """Bring any table into the form of the training table; errors call it `which`."""
        check_is_fitted(self)
        lacking = [name for name in self.feature_names_in_ if name not in X.columns]
        if lacking:
            raise TableError(
                f"The {which} lacks {', '.join(lacking)}, which the training table "
                "has; add these columns or leave them out of both (--drop)."
            )
        columns: dict[str, pd.Series] = {}
        for name in self.feature_names_in_:
            columns |= self._transformed(name, _uncategorised(X[name]), which)
        return pd.DataFrame(columns).reset_index(drop=True)

    def inverse_transform(self, X: pd.DataFrame) -> pd.DataFrame:
        """Bring clean rows into the form of the training table, as its reader saw it.

        Only for columns whose text was not read (`read_text`).
        """
        stored = {name: _stored(X[name], kind) for name, kind in self.kinds_.items()}
        stored |= {name: X[name].map(lambda v: BOOLEANS.get(v, v)) for name in self.booleans_}
        for name in self.none_columns_:
            column = stored.get(name, X[name]).astype(object)
            stored[name] = column.where(column.notna(), None)
        for name, (categories, ordered) in self.categories_.items():
            stored[name] = _categorised(stored.get(name, X[name]), categories, ordered)
        return X.assign(**stored).rename(columns=self.names or {})

    def _transformed(self, name: str, column: pd.Series, which: str) -> dict[str, pd.Series]:
        if name in self.dates_:
            return self.dates_[name].numbers(column)
        if name in self.units_:
            return {name: self.units_[name].numbers(column)}
        if name in self.numbers_:
            return {name: _numbers(column, which)}
        texts = _texts(column)
        return {name: texts.replace(BOOLEAN_TEXTS) if name in self.booleans_ else texts}


def _uncategorised(column: pd.Series) -> pd.Series:
    if isinstance(column.dtype, pd.CategoricalDtype):
        kind = column.cat.categories.dtype
        # Whole numbers of numpy cannot be missing.
        return column.astype(object if is_integer_dtype(kind) else kind)
    return column


def _categorised(column: pd.Series, categories: list[Any], ordered: bool) -> pd.Series:
    """A clean column in pandas' category type; other values follow the known ones."""
    known = {as_text(value): value for value in categories}
    meaning = {value: known.get(as_text(value), value) for value in column.dropna().unique()}
    every = [*categories, *(value for value in meaning.values() if as_text(value) not in known)]
    return column.map(meaning).astype(pd.CategoricalDtype(every, ordered))


def _kind(column: pd.Series) -> str | None:
    if is_datetime64_any_dtype(column):
        return str(column.dtype)
    if is_integer_dtype(column):
        return INTEGER
    return DATE if infer_dtype(column, skipna=True) == DATE else None


def _stored(column: pd.Series, kind: str) -> pd.Series:
    """A clean column as one of a kind."""
    if kind == INTEGER:
        return as_integers(column)
    dates = pd.to_datetime(column, format=ISO, errors="coerce", utc=True)
    bad = column[dates.isna() & column.notna()]
    if len(bad):
        raise TableError(
            f"Column {column.name!r} holds dates in the training table, but {bad.iloc[0]!r} in "
            "another; write all dates alike."
        )
    if "," not in kind:  # no time zone
        dates = dates.dt.tz_localize(None)
    return dates.dt.date if kind == DATE else dates.astype(pandas_dtype(kind))


def as_integers(column: pd.Series) -> pd.Series:
    """A column of floats as integers, if all are, and none is missing."""
    whole = (column == column.round()) & (column.abs() < 2**63)
    return column.astype(np.int64) if whole.all() else column


def is_number(column: pd.Series) -> bool:
    """Whether a column is numeric; yes and no count as text."""
    if is_object_dtype(column):
        return infer_dtype(column, skipna=True) in KINDS_OF_NUMBER
    return is_numeric_dtype(column) and not is_bool_dtype(column)


def _numbers(column: pd.Series, which: str) -> pd.Series:
    if is_number(column):
        return pd.Series(column.to_numpy(dtype=float, na_value=np.nan), index=column.index)
    values = pd.to_numeric(column.astype(str), errors="coerce").astype(float)
    bad = column[values.isna() & column.notna()]
    if len(bad):
        raise TableError(
            f"Column {column.name!r} holds numbers in the training table, but text in the {which}, "
            f"such as {as_text(bad.iloc[0])!r}."
        )
    return values


def _texts(column: pd.Series) -> pd.Series:
    present = column.notna()
    if infer_dtype(column, skipna=True) == "string":
        return column.astype(object).where(present, np.nan)
    texts = [
        as_text(value) if known else np.nan for value, known in zip(column, present, strict=True)
    ]
    return pd.Series(texts, index=column.index, dtype=object)


def check_training_columns(X: pd.DataFrame, numbers: Sequence[str]) -> None:
    """Refuse training columns that nothing can be learnt from."""
    for name in X.columns:
        values = X[name].dropna()
        if values.empty:
            raise TableError(f"Column {name!r} is empty; leave it out (--drop {quote(name)}).")
        if name not in numbers and all_different(values):
            if (word := word_among_numbers(values)) is not None:
                raise TableError(
                    f"Column {name!r} holds numbers, but counts as text because of values such as "
                    f"{word!r}; correct them, or leave them empty if they stand for missing ones."
                )
            note = unread_note(values)
            raise TableError(
                f"Column {name!r} holds a different text in every row, so nothing can be "
                f"learnt from it; leave it out (--drop {quote(name)}).{f' {note}' if note else ''}"
            )


# --- as learners take them ---------------------------------------------------------------------


def as_indicators(X: pd.DataFrame, numbers: Sequence[str]) -> Any:
    """Return a transformer of training rows into scaled numbers and indicators of categories.

    Missing numbers are replaced by the median and marked. Categories that the training rows lack
    are marked in a column that is 0 for all of these: what it means is left open by the data.
    """
    # A number that only held-out rows have stands as 0, so that it needs no case of its own.
    numeric = make_pipeline(
        SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True),
        StandardScaler(),
    )
    unseen = make_pipeline(_coded(), MissingIndicator(features="all"))
    one_hot = OneHotEncoder(
        handle_unknown="ignore", max_categories=MAX_CATEGORIES, sparse_output=False
    )
    text = make_pipeline(_filled(), make_union(one_hot, unseen))
    return make_column_transformer((numeric, list(numbers)), (text, _text_names(X, numbers)))


def as_codes(X: pd.DataFrame, numbers: Sequence[str]) -> Any:
    """Return a transformer of training rows for trees: numbers as they are, categories as codes.

    Missing numbers, and categories that the training rows lack, are NaN. Columns of so few numbers
    that a part of the rows may have none, which trees refuse, are filled up.
    """
    filled = [name for name in numbers if X[name].count() >= FEW_NUMBERS]
    sparse = [name for name in numbers if name not in filled]
    constant = SimpleImputer(strategy="median", keep_empty_features=True)
    text = make_pipeline(_filled(), _coded())
    return make_column_transformer(
        ("passthrough", filled), (constant, sparse), (text, _text_names(X, numbers))
    )


def _text_names(X: pd.DataFrame, numbers: Sequence[str]) -> list[str]:
    return [name for name in X.columns if name not in numbers]


def _filled() -> SimpleImputer:
    return SimpleImputer(strategy="constant", fill_value=MISSING_TEXT, keep_empty_features=True)


def _coded() -> OrdinalEncoder:
    return OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
