"""Explanation of unusual rows: unsupported values, and contributions of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from skuq.base import FloatArray, IntArray
from skuq.labels import as_text
from skuq.stored import stored
from skuq.validation import as_pandas

MISSING_TEXT = "(missing)"  # category for missing text
# If a text column has more rows than this number, and no text is repeated, the texts are treated as
# names and not as categories.
ALL_DIFFERENT = 50
ROUNDING = 1e-6  # relative tolerance for numbers at the ends of a range
# A number is unsupported if its distance from the range, divided by the width of the range, is
# above this number.
FAR = 0.5
SEPARATOR = "; "
N_COLUMNS = 3
ENCODED_AT_ONCE = 10_000  # rows
# A contribution is reported if, divided by the epistemic uncertainty, it is at least this number.
SMALLEST_SHARE = 0.05


def as_table(X: Any) -> pd.DataFrame:
    """Convert inputs to a table of numbers and texts, with strings as column names."""
    X = as_pandas(X)
    table = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X).infer_objects()
    table = table.set_axis([str(name) for name in table.columns], axis=1).reset_index(drop=True)
    moments = table.select_dtypes(["datetime", "datetimetz", "timedelta"])
    table = table.assign(**{str(name): _seconds(column) for name, column in moments.items()})
    numbers = number_columns(table)
    texts = {
        name: table[name].astype(object).where(table[name].notna(), MISSING_TEXT).map(as_text)
        for name in table.columns
        if name not in numbers
    }
    return table.assign(**texts)


def _seconds(column: pd.Series) -> pd.Series:
    """Convert dates and time differences to seconds."""
    return column.astype("int64").where(column.notna()) / 1e9


def number_columns(table: pd.DataFrame) -> list[str]:
    """Names of the numeric columns; booleans count as categories."""
    return [
        str(name)
        for name, column in table.items()
        if is_numeric_dtype(column) and not is_bool_dtype(column)
    ]


def all_different(column: pd.Series) -> bool:
    """Whether all values of a column differ, and there are more than `ALL_DIFFERENT` of them."""
    values = column.dropna()
    return len(values) > ALL_DIFFERENT and values.is_unique


@stored("tables.training-values")
@dataclass(frozen=True)
class TrainingValues:
    """Categories and ranges of the columns of a training table."""

    categories: dict[str, list[str]]  # categories of text columns, unless `all_different`
    lowest: dict[str, float]  # minimum of each numeric column; NaN if it is empty
    highest: dict[str, float]
    complete: list[str]  # numeric columns without missing values

    @classmethod
    def of_rows(cls, X: pd.DataFrame, numbers: Sequence[str]) -> TrainingValues:
        """Collect categories and ranges of rows whose columns are numbers or texts."""
        texts = [name for name in X.columns if name not in numbers and not all_different(X[name])]
        return cls(
            {name: sorted(set(X[name].fillna(MISSING_TEXT))) for name in texts},
            {name: float(X[name].min()) for name in numbers},
            {name: float(X[name].max()) for name in numbers},
            [name for name in numbers if X[name].notna().all()],
        )

    def unseen(self, X: pd.DataFrame) -> pd.DataFrame:
        """Mark unseen categories, and missing numbers in columns that were complete in training."""
        complete = set(self.complete)
        marks = X.isna().to_numpy() & [name in complete for name in X.columns]
        for k, name in enumerate(X.columns):
            if name in self.categories:
                values = X.iloc[:, k].fillna(MISSING_TEXT)
                marks[:, k] = ~values.isin(self.categories[name])
        return pd.DataFrame(marks, index=X.index, columns=X.columns)

    def out_of_range(self, X: pd.DataFrame, *, margin: float = 0.0) -> pd.DataFrame:
        """Mark numbers outside the training range by more than `margin` times its width."""
        low, high = (
            np.array([limits.get(name, np.nan) for name in X.columns])
            for limits in (self.lowest, self.highest)
        )
        # The tolerance allows for values that were stored at a different precision, such as
        # float32.
        rounding = ROUNDING * np.maximum(np.abs(low), np.abs(high))
        beyond, values = margin * (high - low) + rounding, np.full(X.shape, np.nan)
        numbers = [name in self.lowest for name in X.columns]
        values[:, numbers] = X.loc[:, numbers].to_numpy(dtype=float, na_value=np.nan)
        marks = (values < low - beyond) | (values > high + beyond)
        return pd.DataFrame(marks, index=X.index, columns=X.columns)

    def unsupported(self, X: pd.DataFrame) -> pd.DataFrame:
        """Mark unseen values, and numbers beyond the range by more than half the range's width."""
        return self.unseen(X) | self.out_of_range(X, margin=FAR)


def marked_names(marks: pd.DataFrame) -> list[str]:
    """Names of the marked columns of each row, separated by "; "."""
    values, names = marks.to_numpy(dtype=bool), marks.columns.to_numpy()
    joined = [""] * len(values)
    for row in np.flatnonzero(values.any(axis=1)):
        joined[row] = SEPARATOR.join(names[values[row]])
    return joined


def rows_to_explain(p_values: FloatArray, epistemic: FloatArray, n_rows: int) -> IntArray:
    """Positions of up to n_rows rows, by ascending p-value, then descending uncertainty."""
    return np.lexsort((-epistemic, p_values))[:n_rows]


def reasons(
    X: pd.DataFrame,
    unsupported: pd.DataFrame,  # marks of X's shape; marked columns are listed first
    # decrease in epistemic uncertainty if a value is replaced by typical values, X's shape
    contribution: FloatArray,
    epistemic: FloatArray,
) -> list[str]:
    """Up to three columns that contribute most to each row's uncertainty, with their values.

    Unsupported columns are listed first, because an unsupported value may mask the contributions
    of other columns.
    """
    names, marks = X.columns.to_numpy(), unsupported.to_numpy(dtype=bool)
    weight = np.where(marks, np.inf, contribution)
    found = []
    for row, own in enumerate(epistemic):
        named = standing_out(weight[row], own)
        found.append(SEPARATOR.join(f"{names[k]} = {_shown(X.iat[row, k])}" for k in named))
    return found


def standing_out(contribution: FloatArray, total: float, n_columns: int = N_COLUMNS) -> IntArray:
    """Positions of a row's largest contributions, at most `n_columns`, in descending order.

    Contributions of at most 5 % of the total are left out.
    """
    first = np.argsort(-contribution, kind="stable")[:n_columns]
    return first[contribution[first] > SMALLEST_SHARE * max(total, 0.0)]


def explained(
    X: pd.DataFrame,
    unsupported: pd.DataFrame,
    typical: pd.DataFrame,
    epistemic: Callable[[Any], FloatArray],
    encode: Callable[[pd.DataFrame], NDArray[Any]] | None = None,
) -> list[str]:
    """For each row, name the columns that contribute most to its epistemic uncertainty."""
    if not len(X):
        return []
    own, contribution = explain_rows(X, typical, epistemic, encode)
    return reasons(X, unsupported, contribution, own)


def _shown(value: Any) -> str:
    if pd.isna(value):
        return MISSING_TEXT
    return f"{value:.6g}" if isinstance(value, float) else as_text(value)


def explain_rows(
    X: Any,
    typical: Any,
    epistemic: Callable[[Any], FloatArray],
    encode: Callable[[pd.DataFrame], NDArray[Any]] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Epistemic uncertainty, and its mean decrease when one column takes typical values.

    Shapes: `X` (n_rows, n_columns), `typical` (n_typical, n_columns); returns (n_rows,) and
    (n_rows, n_columns). With `encode`, `epistemic` gets encoded rows; rows are encoded in batches
    of many columns, because encoding a few rows takes nearly as long as encoding many. The code of
    a row must not depend on the other rows.
    """
    # The original rows are evaluated in a batch of the same size as the modified rows. The outputs
    # of both batches then have the same rounding errors, and a column without effect contributes
    # exactly 0.
    rows = np.repeat(np.arange(len(X)), len(typical))
    repeated = _repeated(X, rows, typical)
    values = np.tile(np.arange(len(typical)), len(X))
    changed = (_with_column(repeated, k, typical, values) for k in range(X.shape[1]))
    tables: Iterator[Any] = chain([X, repeated], changed)
    if encode is not None:
        tables = _encoded(tables, encode, max(1, ENCODED_AT_ONCE // max(1, len(rows))))
    own, before, *after = map(epistemic, tables)
    contribution = np.empty(X.shape)
    for k, each in enumerate(after):
        contribution[:, k] = (before - each).reshape(len(X), len(typical)).mean(axis=1)
    return own, contribution


def _encoded(
    tables: Iterator[pd.DataFrame], encode: Callable[[pd.DataFrame], NDArray[Any]], n: int
) -> Iterator[NDArray[Any]]:
    """Encode tables, `n` at once."""
    while some := list(islice(tables, n)):
        together = encode(pd.concat(some, ignore_index=True))
        yield from np.split(together, np.cumsum([len(each) for each in some[:-1]]))


def _repeated(X: Any, rows: IntArray, typical: Any) -> Any:
    """Repeat rows, with a dtype that can also represent the typical values."""
    if isinstance(X, pd.DataFrame):
        return X.iloc[rows].reset_index(drop=True)
    return X[rows].astype(np.result_type(X, typical))


def _with_column(rows: Any, k: int, typical: Any, values: IntArray) -> Any:
    """Replace column k of the rows by typical values."""
    replaced = rows.copy()
    if isinstance(rows, pd.DataFrame):
        replaced.isetitem(k, typical.iloc[values, k].reset_index(drop=True))
    else:
        replaced[:, k] = typical[values, k]
    return replaced


def words_of(texts: NDArray[Any]) -> NDArray[Any]:
    """Words of each text, padded with "", (n_texts, n_words)."""
    split = [str(text).split() for text in texts]
    n_words = max(map(len, split), default=0)
    return np.array([[*words, *[""] * (n_words - len(words))] for words in split], dtype=object)


def explain_texts(
    X: NDArray[Any], typical: NDArray[Any], epistemic: Callable[[Any], FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Epistemic uncertainty, and its mean decrease when one word is replaced by typical words.

    Shapes: `X` (n_texts,), `typical` (n_typical,); returns (n_texts,) and (n_texts, n_words).
    """
    own, words = epistemic(X), words_of(X)
    others = [split for text in typical if (split := str(text).split())]
    contribution = np.zeros(words.shape)
    for i, row in enumerate(words):
        text = [word for word in row if word]
        replaced = [
            " ".join([*text[:k], other[k % len(other)], *text[k + 1 :]])
            for k in range(len(text))
            for other in others
        ]
        if replaced:
            after = epistemic(np.array(replaced, dtype=object)).reshape(len(text), len(others))
            contribution[i, : len(text)] = own[i] - after.mean(axis=1)
    return own, contribution
