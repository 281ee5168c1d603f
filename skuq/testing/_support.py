"""Data of the checks, fitted estimators that checks share, and assertions with clear messages."""

import io
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.neighbors import BallTree, KDTree
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.validation import _num_samples

from skuq.base import PARTS, Uncertainty

# Number of rows to predict in most checks. It is small, because predictions may be expensive.
N_PREDICTED = 12
N_LARGE_BATCH = 40  # number of rows to predict in the check of batches


class Data(NamedTuple):
    """Data of the checks: inputs and targets for `fit`, and inputs for prediction."""

    X: Any
    y: Any
    X_predict: Any

    @property
    def n_few(self) -> int:
        return min(N_PREDICTED, _num_samples(self.X_predict))

    def few(self) -> Any:
        return self.rows(range(self.n_few))

    def rows(self, numbers: ArrayLike) -> Any:
        """Return copies of prediction rows, because a faulty estimator may change its inputs."""
        return deepcopy(_safe_indexing(self.X_predict, np.asarray(numbers)))


Fit = Callable[[Any, Data], Any]


def generated_data(estimator: Any) -> Data:
    """Generate a small table, neither centred nor scaled, with targets that depend on columns."""
    rng, tags = np.random.default_rng(0), get_tags(estimator)
    noise = rng.normal(size=(48, 4))
    y: Any
    if is_classifier(estimator):
        n_classes = 3 if tags.classifier_tags.multi_class else 2
        y = np.arange(len(noise)) % n_classes
        X = (2 * rng.normal(size=(n_classes, noise.shape[1])))[y] + noise + 5
    elif is_regressor(estimator):
        X, y = 2 * noise + 5, noise @ rng.normal(size=noise.shape[1]) + np.sin(noise[:, 0])
        y = y - y.min() + 1 if tags.target_tags.positive_only else y
    else:
        raise ValueError(
            f"{type(estimator).__name__} is neither a classifier nor a regressor, so no data can "
            "be generated for it; pass X and y."
        )
    X = X - X.min(axis=0) if tags.input_tags.positive_only else X
    return Data(X, y, X)


def unfitted(estimator_orig: Any) -> Any:
    """Clone an estimator; fix its `random_state` or, if it has none, those of nested estimators."""
    estimator = clone(estimator_orig)
    keys = [key for key in estimator.get_params() if f"__{key}".endswith("__random_state")]
    if "random_state" in keys:
        keys = ["random_state"]
    return estimator.set_params(**dict.fromkeys(keys, 0))


def fit_clone(estimator_orig: Any, data: Data) -> Any:
    """Fit a clone of an estimator with a fixed `random_state`."""
    return fit_on_copies(unfitted(estimator_orig), data)


def fit_on_copies(estimator: Any, data: Data, **fit_params: Any) -> Any:
    """Fit an estimator on copies of the data, because other checks need the data unchanged."""
    estimator.fit(*deepcopy((data.X, data.y)), **fit_params)
    return estimator


def predicted(fitted: Any, data: Data) -> Any:
    """Uncertainty of the few rows to predict in most checks."""
    return fitted.predict_uncertainty(data.few())


def fit_once() -> Fit:
    """Function that fits a clone at the first call and returns the same clone afterwards."""
    last: tuple[Any, Any] = (None, None)

    def fit(estimator_orig: Any, data: Data) -> Any:
        nonlocal last
        if last[0] is not estimator_orig:
            last = estimator_orig, fit_clone(estimator_orig, data)
        return last[1]

    return fit


def require(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def require_well_formed(result: Any, n_samples: int) -> None:
    require(isinstance(result, Uncertainty), f"the method returned a {type(result).__name__}.")
    for field, values in zip(PARTS, result.parts, strict=True):
        require_floats(values, (n_samples,), field)
        whole = np.isfinite(values) if field == "total" else ~np.isinf(values)
        require(whole.all(), f"{field} has non-finite values.")


def require_floats(values: Any, shape: tuple[int, ...], name: str) -> None:
    require(isinstance(values, np.ndarray), f"{name} is a {type(values).__name__}.")
    require(values.dtype == np.float64, f"{name} has dtype {values.dtype}.")
    require(values.shape == shape, f"{name} has shape {values.shape}, not {shape}.")


def require_close(actual: Any, expected: Any, what: str) -> None:
    # In float32, the rounding of matrix products depends on the number of rows.
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5, err_msg=what)


def require_same(actual: Uncertainty, expected: Uncertainty, what: str) -> None:
    for field in PARTS:
        require_close(getattr(actual, field), getattr(expected, field), f"{field} of {what}")


def require_raises(
    expected: type[Exception], estimator: Any, X: Any, what: str, saying: str = ""
) -> None:
    try:
        estimator.predict_uncertainty(X)
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
    """Whether two values are equal: NaN equals NaN, and types without equality are not compared."""
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
    yield Stream("random", random.getstate, random.setstate, random.random)
    legacy = np.random  # the check is about this global state
    yield Stream("numpy.random", legacy.get_state, legacy.set_state, legacy.random_sample)
    torch = sys.modules.get("torch")  # if it was not imported, its generator was not used
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
