"""Regions of the input space, as rules or masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import _num_samples

from skuq.base import BoolArray
from skuq.calibration import column_of

Region = Callable[[Any], ArrayLike] | str | Mapping[Any, Any]


def region_mask(region: Region, X: Any) -> BoolArray:
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
    >>> from skuq.audit import region_mask
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
        conditions = [_condition(column_of(X, name), rule) for name, rule in region.items()]
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


def _condition(values: Any, rule: Any) -> BoolArray:
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
            raise ValueError(
                f"An interval {rule!r} needs numbers, but its column holds {array[~missing][0]!r}; "
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
