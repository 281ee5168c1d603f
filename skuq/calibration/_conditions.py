"""Conditions on the columns of a table, which make up regions, and the samples that meet them."""

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
from skuq.labels import plain
from skuq.validation import column_of

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

RegionRule = Callable[[Any], ArrayLike] | str | Mapping[Any, Any]


class Conditions(NamedTuple):
    """Conditions, each on one column, and the samples that meet them.

    Attributes
    ----------
    rules : list of (column, rule)
        Name or position of a column with an interval ``(low, high)``, both ends included and
        None for no limit, or with one value, as `region_mask` takes them.
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


def conditions_of(X: Any) -> Conditions:
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
    Conditions

    Raises
    ------
    ValueError
        If `X` is not a table of at most 1,000 columns.

    Examples
    --------
    >>> import pandas as pd
    >>> from skuq.calibration import conditions_of
    >>> found = conditions_of(pd.DataFrame({"age": [20, 30, 40], "sex": ["f", "m", "f"]}))
    >>> found.rules[:2], found.rules[-1]
    ([('age', (None, 20.0)), ('age', (30.0, None))], ('sex', 'm'))
    """
    table: Any = X.tocsr() if issparse(X) else _table(X)
    if table is None or table.shape[1] > MAX_COLUMNS:
        shape = getattr(X, "shape", None)
        given = type(X).__name__ + ("" if shape is None else f" of shape {shape}")
        raise ValueError(
            f"Regions are searched in tables of at most {MAX_COLUMNS:,} columns, got {given}; pass "
            "the columns to be searched."
        )
    rows = _searched(*table.shape)
    part: Any = _table(table[rows].toarray()) if issparse(table) else table
    part = part if len(part) == len(rows) else part.iloc[rows]
    cuts = int(np.clip(MAX_CONDITIONS // (2 * max(1, table.shape[1])), 1, MAX_CUTS))
    shared = part.columns.duplicated(keep=False)  # a name of two columns names neither
    made = [
        (name if isinstance(name, str) and not shared[k] else k, rule, mask)
        for k, name in enumerate(part.columns)
        for rule, mask in _of_column(part.iloc[:, k], cuts)
    ]
    masks = np.array([mask for *_, mask in made]).reshape(len(made), len(rows)).astype(bool)
    return Conditions([(name, rule) for name, rule, _ in made], masks, rows)


def checked_conditions(X: Any, n_samples: int) -> Conditions:
    """Conditions on a table of so many samples; those that were listed before stay as they are."""
    if isinstance(X, Conditions):
        return X
    check_consistent_length(X, np.empty(n_samples))
    return conditions_of(X)


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


def _of_column(column: pd.Series, cuts: int) -> Iterator[tuple[Any, BoolArray]]:
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


def region_mask(region: RegionRule, X: Any) -> BoolArray:
    """Find the samples that lie in a region.

    Parameters
    ----------
    region : callable, str or mapping
        A function of `X` that returns booleans of shape (n_samples,); a query of a data
        frame, as `pandas.DataFrame.query` takes it; or a mapping of columns to conditions
        that must all hold. A condition is an interval ``(low, high)``, both ends included
        and None for no limit, a list or set of values, or one value; the value None stands
        for a missing one. Columns are names of a data frame or positions. A sample of which
        a function or query does not know whether it lies in the region, because a value is
        missing (`pandas.NA`), lies outside.
    X : array-like of shape (n_samples, n_features) or DataFrame
        Inputs.

    Returns
    -------
    ndarray of shape (n_samples,), bool
        True inside the region.

    Raises
    ------
    TypeError
        If `region` is none of these, or a query is asked of something other than a data frame.
    ValueError
        If a column does not exist, a query cannot be evaluated, or the result is not one
        boolean per sample.

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
    if callable(region):
        return checked_mask(_decided(region(X)), _num_samples(X))
    if isinstance(region, str):
        return checked_mask(_decided(_query(region, X)), _num_samples(X))
    if isinstance(region, Mapping) and region:
        conditions = [_meets(column_of(X, name), rule) for name, rule in region.items()]
        return checked_mask(np.logical_and.reduce(conditions), _num_samples(X))
    raise TypeError(
        "`region` must be a callable, a query string, or a mapping of columns to intervals or "
        f"values that is not empty, got {region!r}."
    )


def checked_mask(mask: ArrayLike, n_samples: int) -> BoolArray:
    """Booleans of shape (n_samples,), or an error that names what was given instead."""
    array = np.asarray(mask)
    if array.shape != (n_samples,) or array.dtype != bool:
        raise ValueError(
            f"A region must give booleans of shape ({n_samples},), one per sample, got "
            f"{array.dtype} of shape {array.shape}."
        )
    return array


def _decided(mask: Any) -> Any:
    """Booleans of pandas with a third value, for missing ones, as those of numpy."""
    import pandas as pd

    dtype = getattr(mask, "dtype", None)
    if isinstance(dtype, pd.api.extensions.ExtensionDtype) and pd.api.types.is_bool_dtype(dtype):
        return pd.Series(mask).to_numpy(dtype=bool, na_value=False)
    return mask


def _query(query: str, X: Any) -> Any:
    if not hasattr(X, "eval"):
        raise TypeError(
            f"The region {query!r} is a query of a data frame, but X is {type(X).__name__}; pass "
            "a pandas DataFrame, or give the region as a mapping of column positions."
        )
    try:
        return X.eval(query)
    except Exception as error:  # pandas passes on whatever its parser and its columns raise
        raise ValueError(f"The region {query!r} cannot be evaluated: {error}") from error


def _meets(values: Any, rule: Any) -> BoolArray:
    """Samples whose value in a column meets a condition."""
    import pandas as pd

    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(
            f"A column must be one-dimensional, got shape {array.shape}; if the data frame has "
            "several columns of that name, give the position."
        )
    missing = np.asarray(pd.isna(array))  # None, NaN, or one of pandas' own marks
    inside = np.zeros(len(array), dtype=bool)
    if isinstance(rule, tuple):
        if len(rule) != 2 or not all(end is None or isinstance(end, Number) for end in rule):
            raise ValueError(
                f"An interval must be (low, high), numbers or None, got {rule!r}; give several "
                "values as a list."
            )
        low, high = (np.nan if end is None else float(end) for end in rule)  # NaN: holds always
        try:
            if array.dtype.kind in "mM":  # which numpy would count in some unit of time
                raise TypeError("dates")
            known = array[~missing]
            known = known if known.dtype.kind == "f" else known.astype(float)
        except (TypeError, ValueError) as error:
            held = plain(array[~missing][0])
            raise ValueError(
                f"An interval {rule!r} needs numbers, but its column holds {held!r}; "
                "give the values that belong to the region as a list."
            ) from error
        # Ends are rounded as the column is: 0.1 belongs to (0, 0.1), whatever the precision.
        inside[~missing] = ~(known < _rounded(low, known)) & ~(known > _rounded(high, known))
        return inside
    allowed = list(rule) if isinstance(rule, list | set | frozenset) else [rule]
    named = [_rounded(_comparable(value), array) for value in allowed if not pd.isna(value)]
    # numpy would turn numbers into text beside text; pandas compares them as they are.
    inside[~missing] = pd.Series(map(_comparable, array[~missing]), dtype=object).isin(named)
    inside[missing] = len(named) < len(allowed)
    return inside


def _rounded(value: Any, column: NDArray[Any]) -> Any:
    """A number in the precision of a column of floating-point numbers."""
    if column.dtype.kind != "f" or not isinstance(value, Number):
        return value
    with np.errstate(over="ignore"):
        return column.dtype.type(value)


def _comparable(value: Any) -> Any:
    """Value, as a floating-point number if it is a decimal one, which equals none of those."""
    return float(value) if isinstance(value, Decimal) else value
