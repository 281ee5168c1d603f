"""Empty results of methods for inputs with 0 rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from inspect import getattr_static
from types import FunctionType
from typing import Any

import numpy as np
from sklearn.utils.validation import _num_samples, check_is_fitted, validate_data

#: Function that returns a result with 0 rows, given the estimator and the method's other arguments.
Empty = Callable[..., Any]


def return_no_rows(cls: type, results: Mapping[str, Empty | None]) -> None:
    """Make methods of a class return `results` for inputs with 0 rows; None leaves a method as is.

    Otherwise, many methods would raise an error: scikit-learn's input checks reject 0 rows, and an
    empty list of batches cannot be concatenated. The columns of the input are still checked.
    """
    for name, empty in results.items():
        method = getattr_static(cls, name, None)  # descriptors such as `available_if` are skipped
        if empty is None or hasattr(method, "takes_no_rows"):
            continue
        if isinstance(method, FunctionType):
            setattr(cls, name, _taking_no_rows(method, empty))


def _taking_no_rows(method: FunctionType, empty: Empty) -> Callable[..., Any]:
    @functools.wraps(method)
    def of_rows(self: Any, X: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_without_rows(X):
            return method(self, X, *args, **kwargs)
        check_is_fitted(self)
        if len(np.shape(X)) == 2 and hasattr(self, "n_features_in_"):
            validate_data(self, X, reset=False, skip_check_array=True)
        return empty(self, *args, **kwargs)

    of_rows.takes_no_rows = True  # type: ignore[attr-defined]
    return of_rows


def _is_without_rows(X: Any) -> bool:
    try:
        return _num_samples(X) == 0
    except TypeError:  # no length; the method itself raises an error
        return False
