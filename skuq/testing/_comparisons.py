"""Assertions with informative messages, and snapshots of state to detect changes."""

from __future__ import annotations

import io
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.neighbors import BallTree, KDTree

from skuq.base import PARTS, Uncertainty


def require(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def require_well_formed(result: Any, n_samples: int) -> None:
    require(isinstance(result, Uncertainty), f"the method returned a {type(result).__name__}.")
    for field, values in zip(PARTS, result.parts, strict=True):
        require(isinstance(values, np.ndarray), f"{field} is a {type(values).__name__}.")
        require(values.dtype == np.float64, f"{field} has dtype {values.dtype}.")
        require(
            values.shape == (n_samples,),
            f"{field} has shape {values.shape} for {n_samples} rows.",
        )
        whole = np.isfinite(values) if field == "total" else ~np.isinf(values)
        require(whole.all(), f"{field} has non-finite values.")


def require_close(actual: Any, expected: Any, what: str) -> None:
    # In float32, the rounding of matrix products depends on the number of rows.
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5, err_msg=what)


def require_same(actual: Uncertainty, expected: Uncertainty, what: str) -> None:
    for field in PARTS:
        require_close(getattr(actual, field), getattr(expected, field), f"{field} of {what}")


def require_raises(
    expected: type[Exception], call: Callable[[], Any], what: str, saying: str = ""
) -> None:
    try:
        call()
    except expected as error:
        require(saying in str(error), f"{what} raised a message without {saying!r}: {error}")
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error
    else:
        raise AssertionError(f"{what} raised no error.")


def require_equal_params(actual: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    different = sorted(
        key
        for key in {*actual, *expected}
        if key not in actual or key not in expected or not equal(actual[key], expected[key])
    )
    require(not different, f"{what} changed {', '.join(different)}.")


def equal(a: Any, b: Any) -> bool:
    """Whether two values are equal, where NaN equals NaN.

    Two objects of the same type, such as networks, count as equal if the type does not define
    equality.
    """
    if a is b or type(a) is not type(b):
        return a is b
    if hasattr(a, "get_params"):
        return equal(a.get_params(), b.get_params())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    if hasattr(a, "equals"):  # data frames and their columns
        return bool(a.equals(b))
    if type(a).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]  # such as networks
        return True
    return _equal_arrays(a, b)


def _equal_arrays(a: Any, b: Any) -> bool:
    """Whether two arrays, dense or sparse, or scalars are equal, where NaN equals NaN."""
    if getattr(a, "shape", None) != getattr(b, "shape", None):
        return False
    if sparse.issparse(a):
        return equal(sparse.find(a), sparse.find(b))
    if isinstance(a, np.ndarray) and a.dtype.kind == "O":
        return equal(a.tolist(), b.tolist())
    same = (a == b) | ((a != a) & (b != b))
    return bool(same.all() if hasattr(same, "all") else same)  # `np.all` fails for tensors


class Stream(NamedTuple):
    """A global random generator, with functions to read, restore and advance its state."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    draw: Callable[[], Any]


def global_streams() -> Iterator[Stream]:
    """Yield the global generators of Python, numpy and, if it is imported, torch."""
    yield Stream("random", random.getstate, random.setstate, random.random)
    legacy = np.random  # the check is about this global state
    yield Stream("numpy.random", legacy.get_state, legacy.set_state, legacy.random_sample)
    # If torch was not imported, its generator was not used.
    torch = sys.modules.get("torch")
    if torch is not None:
        yield Stream(
            "torch",
            lambda: torch.get_rng_state().numpy(),
            lambda state: torch.set_rng_state(torch.from_numpy(state)),
            lambda: torch.rand(1),
        )


class _ContentPickler(pickle.Pickler):
    """Pickler that omits the contents of search trees, which count their own calls."""

    def persistent_id(self, obj: Any) -> str | None:
        return type(obj).__name__ if isinstance(obj, BallTree | KDTree) else None


def content(value: Any) -> bytes:
    """Serialise a value to bytes, which change if the value is modified."""
    stream = io.BytesIO()
    _ContentPickler(stream).dump(value)
    return stream.getvalue()
