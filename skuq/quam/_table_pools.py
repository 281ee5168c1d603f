"""Rows of tables and embeddings, made from training rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import infer_dtype, is_bool_dtype, is_numeric_dtype

from skuq.base import BoolArray, FloatArray
from skuq.quam._text_pools import KINDS as TEXT_KINDS
from skuq.quam._text_pools import TextMaker, is_text_column

UNSEEN = "(unseen)"  # a category that no training row has
_CATEGORIES = {"categorical", "string", "mixed", "mixed-integer"}  # no dates, truth values, numbers
_LARGEST_WHOLE = 2.0**63 - 1024  # a float that int64 holds
_FEW = 3  # columns that are altered: one that all rows alter would hide the others
_SAME_NORM = 1e-3  # relative; numbers in half precision are as inexact
_ROUNDING = 1e-6  # relative, of norms that were restored
_PASSES = 50


@dataclass(frozen=True)
class Columns:
    """What the columns of a table hold.

    Attributes
    ----------
    numbers : ndarray of shape (n_samples, n_columns), float64
        The columns whose numbers may be out of range; NaN elsewhere.
    categories, texts : list of int
        Columns of categories and of texts.
    norm : float or None
        Norm that all rows share, if they are embeddings.
    """

    numbers: FloatArray
    categories: list[int]
    texts: list[int]
    norm: float | None

    @classmethod
    def of(cls, X: Any, declared: Sequence[int]) -> Self:
        """Those of a DataFrame, or of an array, and of columns that are known to be categories."""
        numbers = _numbers(X)
        numbers[:, declared] = np.nan
        if not isinstance(X, pd.DataFrame):
            return cls(numbers, [*declared], [], None if declared else _shared_norm(X, numbers))
        texts = [k for k in range(X.shape[1]) if k not in declared and is_text_column(X.iloc[:, k])]
        known = {k for k in range(X.shape[1]) if infer_dtype(X.iloc[:, k]) in _CATEGORIES}
        norm = None
        if all(dtype.kind == "f" for dtype in X.dtypes) and not declared:
            norm = _shared_norm(X.to_numpy(), numbers)
        return cls(numbers, sorted(known.difference(texts).union(declared)), texts, norm)

    def kinds(self) -> list[str]:
        """Kinds that can be made of these columns."""
        has_numbers = self.norm is None and not np.isnan(self.numbers).all()
        needed = {"out_of_range": has_numbers, "unseen": self.categories}
        return [
            kind for kind in KINDS if needed.get(kind, self.texts if kind in TEXT_KINDS else True)
        ]


def _numbers(X: Any) -> FloatArray:
    """Columns as floats, those that are no numbers, or take two values at most, as NaN."""
    if not isinstance(X, pd.DataFrame):
        columns = np.array(X, dtype=np.float64)
    else:
        columns = np.full(X.shape, np.nan)
        for k in range(X.shape[1]):
            column = X.iloc[:, k].infer_objects()  # here alone: of text, it would replace None
            if is_numeric_dtype(column) and not is_bool_dtype(column):
                columns[:, k] = column.to_numpy(dtype=float, na_value=np.nan)
    columns[:, [len(np.unique(c[~np.isnan(c)])) <= 2 for c in columns.T]] = np.nan
    return columns


def _shared_norm(X: NDArray[Any], numbers: FloatArray) -> float | None:
    """Norm of the rows if they all have the same one, or are zero; indicators do not count."""
    if X.dtype.kind != "f" or len(X) < 2 or np.isnan(numbers).all():
        return None
    norms = np.linalg.norm(np.asarray(X, dtype=np.float64), axis=1)
    norm = float(np.median(norms[norms > 0])) if norms.any() else 0.0
    same = np.abs(norms - norm) <= _SAME_NORM * norm
    return norm if norm > 0 and (same | (norms == 0)).all() else None


def _gathered(X: Any, rows: NDArray[np.intp]) -> Any:
    """A table whose columns come from rows of their own, (n, n_columns)."""
    if not isinstance(X, pd.DataFrame):
        return X[rows, np.arange(X.shape[1])]
    columns = [X.iloc[rows[:, k], [k]].reset_index(drop=True) for k in range(X.shape[1])]
    return pd.concat(columns, axis=1)


def _drawn(X: Any, n: int, random: np.random.RandomState) -> NDArray[np.intp]:
    """The same row for all columns, (n, n_columns)."""
    return np.repeat(random.randint(len(X), size=(n, 1)), X.shape[1], axis=1)


def _crossed(X: Any, columns: Columns, n: int, random: np.random.RandomState) -> Any:
    first, second = _drawn(X, n, random), _drawn(X, n, random)
    rows = np.where(random.uniform(size=first.shape) < 0.5, first, second)
    return _with_norm(X, _gathered(X, rows), columns)


def _shuffled(X: Any, columns: Columns, n: int, random: np.random.RandomState) -> Any:
    rows = random.randint(len(X), size=(n, X.shape[1]))
    return _with_norm(X, _gathered(X, rows), columns)


def _with_norm(X: Any, made: Any, columns: Columns) -> Any:
    """Embeddings of the norm that all have, and of numbers that occur; without those that cannot.

    Clipping shortens rows a little, and scaling lets a little more of them out of range.
    """
    if columns.norm is None:
        return made
    low, high = columns.numbers.min(axis=0), columns.numbers.max(axis=0)
    rows = np.asarray(made, dtype=np.float64)
    # Columns of two values at most are left out of `numbers`.
    low, high = (
        np.where(np.isnan(bound), end, bound) for bound, end in ((low, -np.inf), (high, np.inf))
    )
    for _ in range(_PASSES):
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = np.clip(rows * (columns.norm / np.where(norms > 0, norms, 1.0)), low, high)
    kept = np.abs(np.linalg.norm(rows, axis=1) - columns.norm) <= _ROUNDING * columns.norm
    if not isinstance(X, pd.DataFrame):
        return rows[kept].astype(X.dtype)
    return pd.DataFrame(rows[kept], columns=X.columns).astype(X.dtypes)


def _some(
    columns: Sequence[int] | NDArray[np.intp], shape: tuple[int, int], random: np.random.RandomState
) -> BoolArray:
    """Marks in each row at least one of some columns: three at most in half of the rows."""
    order = np.argsort(random.uniform(size=(shape[0], len(columns))), axis=1)
    few, many = (min(most, len(columns)) for most in (_FEW, max(_FEW, len(columns) // 2)))
    most = np.where(np.arange(shape[0]) % 2, few, many)[:, None]
    n_each = random.randint(1, most + 1)
    chosen = np.zeros(shape, dtype=bool)
    chosen[:, columns] = order < n_each
    return chosen


def _out_of_range(X: Any, columns: Columns, n: int, random: np.random.RandomState) -> Any:
    known = columns.numbers
    numbers = np.flatnonzero(~np.isnan(known).all(axis=0))
    low, high = np.full(X.shape[1], np.nan), np.full(X.shape[1], np.nan)
    low[numbers], high[numbers] = (f(known[:, numbers], axis=0) for f in (np.nanmin, np.nanmax))
    made = _gathered(X, _drawn(X, n, random))
    chosen = _some(numbers, made.shape, random)
    # From a tenth to ten times of its range beyond either end.
    distance = (high - low) * 10 ** random.uniform(-1, 1, size=made.shape)
    far = np.where(random.uniform(size=made.shape) < 0.5, high + distance, low - distance)
    if not isinstance(X, pd.DataFrame):
        if X.dtype.kind == "f":
            return np.where(chosen, far, made).astype(X.dtype)
        whole = made.astype(np.int64)  # a small type would wrap
        whole[chosen] = np.clip(np.rint(far[chosen]), -_LARGEST_WHOLE, _LARGEST_WHOLE)
        return whole
    for k in numbers:
        made.isetitem(k, made.iloc[:, k].astype(float).mask(chosen[:, k], far[:, k]))
    return made


def _unseen(X: Any, columns: Columns, n: int, random: np.random.RandomState) -> Any:
    """Categories that do not occur; codes and pandas' categories are missing values then."""
    made = _gathered(X, _drawn(X, n, random))
    chosen = _some(columns.categories, made.shape, random)
    if not isinstance(X, pd.DataFrame):
        return np.where(chosen, np.nan, made)
    for k in columns.categories:
        column = made.iloc[:, k]
        text = infer_dtype(column) in _CATEGORIES - {"categorical"}
        made.isetitem(k, column.mask(chosen[:, k], UNSEEN if text else np.nan))
    return made


def _of_texts(alter: TextMaker) -> TableMaker:
    """A maker of rows in which one column of texts is altered."""

    def made(X: Any, columns: Columns, n: int, random: np.random.RandomState) -> Any:
        rows = _gathered(X, _drawn(X, n, random))
        of_row = random.choice(columns.texts, size=n)
        for k in columns.texts:
            texts = rows.iloc[:, k].astype(object).to_numpy(copy=True)
            chosen = np.flatnonzero((of_row == k) & [isinstance(text, str) for text in texts])
            known = X.iloc[:, k].dropna().to_numpy(dtype=object)
            texts[chosen] = alter(texts[chosen], known, random)
            rows.isetitem(k, pd.Series(texts).astype(X.dtypes.iloc[k]))
        return rows

    return made


TableMaker = Callable[[Any, Columns, int, np.random.RandomState], Any]
KINDS: dict[str, TableMaker] = {
    "crossed": _crossed,
    "shuffled": _shuffled,
    "out_of_range": _out_of_range,
    "unseen": _unseen,
    **{kind: _of_texts(alter) for kind, alter in TEXT_KINDS.items()},
}
SEEN = tuple(kind for kind in KINDS if kind != "unseen")  # of known categories alone
KNOWN = tuple(kind for kind in SEEN if kind != "out_of_range")  # of known values alone
