"""Conditions on columns of a table. A region consists of the samples that meet some conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import _num_samples

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration._scan import SEED
from skuq.validation import column_of

if TYPE_CHECKING:
    import pandas as pd

MAX_CONDITIONS = 200  # divided among columns; wide tables have more, as each column gets a few
MAX_CUTS = 9  # maximum number of quantiles at which a numeric column is split
MIN_VALUES = 20  # a text column gets conditions for this many values even in the widest tables
LEAST = 10  # minimum number of samples in a region
MAX_INTEGER = 2**53  # float64 represents all integers up to this number
MAX_COLUMNS = 1000  # tables with more columns are rejected
MAX_SAMPLES = 250_000  # of a table of more samples, a random subset of this size is searched
MAX_CELLS = 10_000_000  # maximum of rows times columns of this subset, which limits memory
# Numbers of significant digits, tried in this order until a rounded limit separates two values.
DIGITS = range(6, 17)
# Names that pandas' `infer_dtype` returns for columns of numbers.
NUMBERS = ("integer", "floating", "mixed-integer-float", "decimal")

RegionRule = Callable[[Any], ArrayLike] | str | Mapping[Any, Any]


class Conditions(NamedTuple):
    # For each condition, the name or position of a column, and a rule as in `region_mask`: an
    # interval (low, high) that includes both endpoints (None for no limit), or one value.
    rules: list[tuple[Any, Any]]
    masks: BoolArray  # (n_conditions, n_rows), whether each sample in `rows` meets each condition
    rows: IntArray  # (n_rows,), positions of the searched samples in the table
    # By column: number of distinct values without a condition, and of samples with these values.
    left_out: dict[str, tuple[int, int]] = {}

    def without(self, removed: BoolArray) -> Conditions:
        """Return these conditions for the table without the samples marked in `removed`."""
        stays = ~removed[self.rows]
        position = np.cumsum(~removed) - 1
        kept = position[self.rows[stays]]
        return self._replace(masks=self.masks[:, stays], rows=kept)


def conditions_of(X: Any, seed: int = SEED) -> Conditions:
    """Create conditions on each column of a table, without using the labels.

    Each numeric column is split at quantiles (fewer in wide tables). One condition each is added
    for every value of a numeric column with few values, for every frequent string or boolean (at
    most max(20, 200 / n_columns) per column), and for missing values. Arrays of more than two
    dimensions are flattened to tables. If the table has more than 250,000 samples or 10 million
    cells, only a random subset of the samples is used, which is drawn with `seed`.
    """
    table: Any = X.tocsr() if issparse(X) else _table(X)
    if table is None or table.shape[1] > MAX_COLUMNS:
        raise ValueError(
            f"Regions are searched in tables of at most {MAX_COLUMNS:,} columns, got "
            f"{type(X).__name__} of shape {getattr(X, 'shape', 'unknown')}; pass only the columns "
            "to be searched."
        )
    rows = _searched_rows(table.shape[0], table.shape[1], seed)
    part: Any = _table(table[rows].toarray()) if issparse(table) else table
    part = part if len(part) == len(rows) else part.iloc[rows]
    budget = MAX_CONDITIONS // max(1, table.shape[1])
    cuts, most = int(np.clip(budget // 2, 1, MAX_CUTS)), max(MIN_VALUES, budget)
    shared = part.columns.duplicated(keep=False)  # duplicate names; rules use positions instead
    left_out: dict[str, tuple[int, int]] = {}
    made = []
    for k, name in enumerate(part.columns):
        named = name if isinstance(name, str) and not shared[k] else k
        left = np.ones(len(rows), bool)
        for rule, mask in _column_conditions(part.iloc[:, k], cuts, most):
            made.append((named, rule, mask))
            left &= ~mask | (mask.sum() < LEAST)
        values = set(map(str, part.iloc[left, k]))
        if (values and not left.all()) or len(values) > 1:  # a constant column needs no condition
            left_out[str(name)] = len(values), int(left.sum())
    masks = np.array([mask for *_, mask in made]).reshape(len(made), len(rows)).astype(bool)
    return Conditions([(name, rule) for name, rule, _ in made], masks, rows, left_out)


def checked_conditions(X: Any, n_samples: int, seed: int = SEED) -> Conditions:
    """Create conditions on the table `X` of `n_samples` rows, unless `X` is a `Conditions`."""
    if isinstance(X, Conditions):
        return X
    check_consistent_length(X, np.empty(n_samples))
    return conditions_of(X, seed)


def n_searched(n_samples: int, n_columns: int) -> int:
    return min(n_samples, MAX_SAMPLES, MAX_CELLS // max(1, n_columns))


def _searched_rows(n_samples: int, n_columns: int, seed: int) -> IntArray:
    drawn = n_searched(n_samples, n_columns)
    if drawn == n_samples:
        return np.arange(n_samples)
    # Draw at random: if the order of rows is periodic, evenly spaced rows may be unrepresentative.
    return np.sort(np.random.default_rng(seed).permutation(n_samples)[:drawn])


def _table(X: Any) -> pd.DataFrame | None:
    import pandas as pd

    if isinstance(X, pd.DataFrame):
        return X
    try:
        array = np.asarray(X)
    except ValueError:  # the rows have different lengths
        return None
    if array.ndim < 2 or array.dtype.kind not in "biufUO":
        return None
    return pd.DataFrame(array.reshape(len(array), -1))


def _column_conditions(column: pd.Series, cuts: int, most: int) -> Iterator[tuple[Any, BoolArray]]:
    import pandas as pd
    from pandas.api.types import infer_dtype, is_bool_dtype, is_numeric_dtype

    missing = column.isna().to_numpy()
    if missing.any():
        yield None, missing
    real = is_numeric_dtype(column) and not is_bool_dtype(column) and column.dtype.kind != "c"
    if real or (column.dtype == object and infer_dtype(column, skipna=True) in NUMBERS):
        numbers = column.to_numpy(np.float64, na_value=np.nan)
        # Integers above MAX_INTEGER are treated as identifiers: if they were converted to floats,
        # neighbouring integers could become equal.
        if column.dtype.kind == "f" or not (np.abs(numbers) > MAX_INTEGER).any():
            yield from _intervals(numbers, cuts)
            return
    try:
        codes, values = pd.factorize(column.astype(object))
    except TypeError:  # the column contains values that cannot be hashed, such as lists
        return
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    for code in np.argsort(-counts, kind="stable")[:most]:
        if not isinstance(values[code], tuple):  # a tuple would be read as an interval
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
    """Round a value to the fewest digits with which the result is still in [low, high]."""
    rounded = (float(f"{value:.{digits}g}") for digits in DIGITS)
    return next((near for near in rounded if low <= near <= high), value.item())


def region_mask(region: RegionRule, X: Any) -> BoolArray:
    """Return a mask of the samples that lie in a region.

    Parameters
    ----------
    region : callable, str or mapping
        A function of `X` that returns booleans of shape (n_samples,); a query in the syntax of
        `pandas.DataFrame.query`; or a mapping from columns to conditions, all of which must hold.
        A condition is an interval ``(low, high)`` that includes both endpoints (None for no limit);
        a list or set of values; or one value. The value None stands for a missing value. Columns
        are given by name (in a data frame) or by position. If a function or query returns
        `pandas.NA` for a sample, because a value is missing, the sample is outside the region.
    X : array-like of shape (n_samples, n_features) or DataFrame
        Inputs.

    Returns
    -------
    ndarray of shape (n_samples,), bool
        True inside the region.

    Examples
    --------
    >>> import pandas as pd
    >>> from skuq.calibration import region_mask
    >>> X = pd.DataFrame({"age": [20, 50, 30], "job": ["nurse", "nurse", "cook"]})
    >>> region_mask("age < 35 and job == 'nurse'", X)
    array([ True, False, False])
    >>> region_mask({"age": (25, None), "job": ["nurse", "cook"]}, X)
    array([False,  True,  True])
    """
    mask: Any
    if callable(region):
        mask = _without_missing(region(X))
    elif isinstance(region, str) and hasattr(X, "eval"):
        mask = _without_missing(X.eval(region))
    elif isinstance(region, Mapping) and region:
        conditions = [_condition_mask(column_of(X, name), rule) for name, rule in region.items()]
        mask = np.logical_and.reduce(conditions)
    else:
        raise TypeError(
            "`region` must be a callable, a query of a data frame, or a non-empty mapping of "
            f"columns to intervals or values, got {region!r} for a {type(X).__name__}."
        )
    array, shape = np.asarray(mask), (_num_samples(X),)
    if array.shape != shape or array.dtype != bool:
        raise ValueError(
            f"`region` must return one boolean for each sample, of shape {shape}, got "
            f"{array.dtype} of shape {array.shape}."
        )
    return array


def _without_missing(mask: Any) -> Any:
    import pandas as pd

    dtype = getattr(mask, "dtype", None)
    if isinstance(dtype, pd.api.extensions.ExtensionDtype) and pd.api.types.is_bool_dtype(dtype):
        return pd.Series(mask).to_numpy(dtype=bool, na_value=False)
    return mask


def _condition_mask(values: Any, rule: Any) -> BoolArray:
    import pandas as pd

    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError("Several columns have the name in `region`; name them by position.")
    missing = np.asarray(pd.isna(array))
    inside = np.zeros(len(array), dtype=bool)
    if isinstance(rule, tuple):
        if len(rule) != 2 or array.dtype.kind in "mM":  # reject dates: astype(float) accepts them
            raise ValueError(
                f"An interval must be (low, high) in a column of numbers, got {rule!r} in a column "
                f"of {array.dtype}; pass several values as a list."
            )
        low, high = (np.nan if end is None else float(end) for end in rule)  # NaN means no limit
        known = array[~missing]
        try:
            known = known if known.dtype.kind == "f" else known.astype(float)
        except ValueError:
            raise ValueError(
                f"The interval {rule!r} needs a column of numbers, got {known[:3].tolist()}."
            ) from None
        # Endpoints are rounded to the precision of the column: float32(0.1) belongs to (0, 0.1).
        inside[~missing] = ~(known < _rounded(low, known)) & ~(known > _rounded(high, known))
        return inside
    allowed = list(rule) if isinstance(rule, list | set | frozenset) else [rule]
    named = [_rounded(_comparable(value), array) for value in allowed if not pd.isna(value)]
    # pandas compares values as they are; numpy would convert 1 to "1" if `named` contains a text.
    inside[~missing] = pd.Series(map(_comparable, array[~missing]), dtype=object).isin(named)
    inside[missing] = len(named) < len(allowed)
    return inside


def _rounded(value: Any, column: NDArray[Any]) -> Any:
    if column.dtype.kind != "f" or not isinstance(value, Number):
        return value
    with np.errstate(over="ignore"):
        return column.dtype.type(value)


def _comparable(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else value
