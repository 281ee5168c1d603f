"""Conditions on the columns of a table, from which regions are put together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import issparse

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration._scan import SEED

if TYPE_CHECKING:
    import pandas as pd

MAX_CONDITIONS = 200  # of a table; pairs of them are searched
MAX_CUTS = 9  # of a column of numbers
MAX_VALUES = 20  # of a column of texts, the most frequent ones
MAX_INTEGER = 2**53
MAX_COLUMNS = 1000  # of a table that is searched
MAX_SAMPLES = 50_000  # that are searched
MAX_CELLS = 5_000_000  # that are searched; bounds memory for wide tables
DIGITS = range(6, 17)  # of a limit, as few of these as tell two values apart
NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")  # as pandas infers them


class Conditions(NamedTuple):
    """Conditions, each on one column, and the samples that meet them.

    Attributes
    ----------
    rules : list of (column, rule)
        Name or position of a column with an interval ``(low, high)``, both ends included and
        None for no limit, or with one value, as `skuq.audit.region_mask` takes them.
    masks : ndarray of shape (n_conditions, n_rows), bool
        Samples that meet each, of those in `rows`.
    rows : ndarray of shape (n_rows,), int64
        Positions of the samples that are searched.
    """

    rules: list[tuple[Any, Any]]
    masks: BoolArray
    rows: IntArray

    def without(self, removed: BoolArray) -> Conditions:
        """Return the same conditions for a table that lacks samples."""
        stays = ~removed[self.rows]
        position = np.cumsum(~removed) - 1
        return Conditions(self.rules, self.masks[:, stays], position[self.rows[stays]])


def conditions_of(X: Any) -> Conditions | None:
    """List conditions on each column of a table, chosen without looking at the labels.

    Columns of numbers are cut at quantiles, of which there are fewer the more columns there are;
    each of few different numbers, texts, booleans and missing values is a condition too.

    Parameters
    ----------
    X : DataFrame, array-like or sparse matrix of shape (n_samples, n_features)
        Inputs; arrays of more than two dimensions are flattened. Of more than 50,000 samples, or
        5 million values, so many are taken, drawn at random and always the same.

    Returns
    -------
    Conditions or None
        None if `X` is not a table of at most 1,000 columns.

    Examples
    --------
    >>> import pandas as pd
    >>> from skuq.calibration._conditions import conditions_of
    >>> found = conditions_of(pd.DataFrame({"age": [20, 30, 40], "sex": ["f", "m", "f"]}))
    >>> found.rules[:2], found.rules[-1]
    ([('age', (None, 20.0)), ('age', (30.0, None))], ('sex', 'm'))
    """
    table: Any = X.tocsr() if issparse(X) else _table(X)
    if table is None or table.shape[1] > MAX_COLUMNS:
        return None
    rows = _searched(*table.shape)
    part: Any = _table(table[rows].toarray()) if issparse(table) else table
    part = part if len(part) == len(rows) else part.iloc[rows]
    cuts = int(np.clip(MAX_CONDITIONS // (2 * max(1, table.shape[1])), 1, MAX_CUTS))
    shared = part.columns.duplicated(keep=False)  # a name of two columns names neither
    made = [
        (name if isinstance(name, str) and not shared[k] else k, rule, mask)
        for k, name in enumerate(part.columns)
        for rule, mask in _conditions(part.iloc[:, k], cuts)
    ]
    masks = np.array([mask for *_, mask in made]).reshape(len(made), len(rows)).astype(bool)
    return Conditions([(name, rule) for name, rule, _ in made], masks, rows)


def n_searched(n_samples: int, n_columns: int) -> int:
    """Count the samples of a table of this shape that are searched."""
    return min(n_samples, MAX_SAMPLES, MAX_CELLS // max(1, n_columns))


def _searched(n_samples: int, n_columns: int) -> IntArray:
    """Positions of the samples that are searched, in order."""
    drawn = n_searched(n_samples, n_columns)
    if drawn == n_samples:
        return np.arange(n_samples)
    # Not evenly spaced, which might pick out one kind of samples of a table in some order.
    return np.sort(np.random.default_rng(SEED).permutation(n_samples)[:drawn])


def _table(X: Any) -> pd.DataFrame | None:
    """Inputs as a data frame, columns of an array by position."""
    import pandas as pd

    if isinstance(X, pd.DataFrame):
        return X
    try:
        array = np.asarray(X)
    except ValueError:  # rows of different lengths
        return None
    if array.ndim < 2 or array.dtype.kind not in "biufUO":
        return None
    return pd.DataFrame(array.reshape(len(array), -1))


def _conditions(column: pd.Series, cuts: int) -> Iterator[tuple[Any, BoolArray]]:
    """Rules of one column with the samples that meet them."""
    import pandas as pd
    from pandas.api.types import infer_dtype, is_bool_dtype, is_numeric_dtype

    missing = column.isna().to_numpy()
    if missing.any():
        yield None, missing
    real = is_numeric_dtype(column) and not is_bool_dtype(column) and column.dtype.kind != "c"
    if real or (column.dtype == object and infer_dtype(column, skipna=True) in NUMBERS):
        numbers = column.to_numpy(np.float64, na_value=np.nan)
        # Larger integers are names, which floating-point numbers would confuse.
        if column.dtype.kind == "f" or not (np.abs(numbers) > MAX_INTEGER).any():
            yield from _intervals(numbers, cuts)
            return
    try:
        codes, values = pd.factorize(column.astype(object))
    except TypeError:  # lists, or other values that cannot be compared
        return
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    for code in np.argsort(-counts, kind="stable")[:MAX_VALUES]:
        if not isinstance(values[code], tuple):  # which would be an interval
            yield getattr(values[code], "item", lambda code=code: values[code])(), codes == code


def _intervals(values: FloatArray, cuts: int) -> Iterator[tuple[Any, BoolArray]]:
    known = values[~np.isnan(values)]
    distinct = np.unique(known)
    if len(distinct) < 2:
        return
    share = np.arange(1, cuts + 1) / (cuts + 1)
    for low in np.unique(np.quantile(known, share, method="lower")):
        if low < distinct[-1]:
            high = distinct[np.searchsorted(distinct, low, side="right")]
            yield (None, _limit(low, low, np.nextafter(high, -np.inf))), values <= low
            yield (_limit(high, np.nextafter(low, np.inf), high), None), values >= high
    if 2 < len(distinct) <= cuts + 1:
        for value in distinct[1:-1]:
            yield value.item(), values == value


def _limit(value: np.float64, low: np.float64, high: np.float64) -> float:
    """Round a value to few digits, between two values that are included."""
    rounded = (float(f"{value:.{digits}g}") for digits in DIGITS)
    return next((near for near in rounded if low <= near <= high), value.item())
