"""Conditions on the columns of a table, from which regions are put together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import issparse

from skuq.base import BoolArray, FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

MAX_CONDITIONS = 200  # of a table; pairs of them are searched
MAX_CUTS = 9  # of a column of numbers
MAX_VALUES = 20  # of a column of texts, the most frequent ones
MAX_COLUMNS = 1000  # of a table that is searched
MAX_SAMPLES = 50_000  # that are searched
MAX_CELLS = 5_000_000  # that are searched; bounds memory for wide tables
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
        5 million values, so many are taken, evenly spaced.

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
    table = _table(X)
    if table is None or table.shape[1] > MAX_COLUMNS:
        return None
    n_samples, n_columns = table.shape
    n_rows = n_searched(n_samples, n_columns)
    rows = np.arange(n_rows) * n_samples // max(1, n_rows)
    cuts = int(np.clip(MAX_CONDITIONS // (2 * max(1, n_columns)), 1, MAX_CUTS))
    part = table.iloc[rows] if n_rows < n_samples else table
    shared = table.columns.duplicated(keep=False)  # a name of two columns names neither
    made = [
        (name if isinstance(name, str) and not shared[k] else k, rule, mask)
        for k, name in enumerate(table.columns)
        for rule, mask in _conditions(part.iloc[:, k], cuts)
    ]
    masks = np.array([mask for *_, mask in made]).reshape(len(made), len(rows)).astype(bool)
    return Conditions([(name, rule) for name, rule, _ in made], masks, rows)


def n_searched(n_samples: int, n_columns: int) -> int:
    """Count the samples of a table of this shape that are searched."""
    return min(n_samples, MAX_SAMPLES, MAX_CELLS // max(1, n_columns))


def _table(X: Any) -> pd.DataFrame | None:
    """Inputs as a data frame, columns of an array by position."""
    import pandas as pd

    if isinstance(X, pd.DataFrame):
        return X
    try:
        array = np.asarray(X.toarray() if issparse(X) else X)
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
        yield from _intervals(column.to_numpy(np.float64, na_value=np.nan), cuts)
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
            yield (None, low.item()), values <= low
            yield (high.item(), None), values >= high
    if 2 < len(distinct) <= cuts + 1:
        for value in distinct[1:-1]:
            yield value.item(), values == value
