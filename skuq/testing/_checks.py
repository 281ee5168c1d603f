"""Checks of an estimator, in an order in which the first failure describes the defect best."""

import io
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn import pipeline as sklearn_pipeline
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import BallTree, KDTree
from sklearn.preprocessing import MaxAbsScaler
from sklearn.utils import _safe_indexing, get_tags
from sklearn.utils.validation import _num_samples

from skuq.base import PARTS, Uncertainty, predict_uncertainty
from skuq.sklearn_counterparts import make_pipeline

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
        """Return copies of rows of `X_predict`, because a faulty estimator may change its input."""
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
    """Predict the uncertainty of the few rows that most checks use."""
    return fitted.predict_uncertainty(data.few())


def fit_once() -> Fit:
    """Return a function that fits a clone at the first call and returns this clone afterwards."""
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
    # Tolerate differences in float32: rounding in matrix products depends on the number of rows.
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
    """Compare two values; NaN equals NaN, and objects of a type without `__eq__` count as equal."""
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
    legacy = np.random  # NumPy's global generator, which the check tests
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


def check_parameters(estimator_orig: Any, data: Data) -> None:
    """Parameters survive `clone`, `get_params` and `set_params`."""
    estimator = clone(estimator_orig)
    params = estimator_orig.get_params(deep=False)
    require_equal_params(estimator.get_params(deep=False), params, "clone")
    for key, value in params.items():
        marker = object()
        returned = estimator.set_params(**{key: marker})
        require(returned is estimator, "set_params did not return the estimator.")
        require(estimator.get_params()[key] is marker, f"set_params did not set {key!r}.")
        estimator.set_params(**{key: value})
    require_equal_params(estimator.get_params(deep=False), params, "set_params")


def check_result(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """`predict_uncertainty` returns `skuq.Uncertainty` with finite float64 arrays (n_samples,)."""
    name = type(estimator_orig).__name__
    has_method = hasattr(estimator_orig, "predict_uncertainty")
    require(has_method, f"{name} has no method `predict_uncertainty`.")
    require_well_formed(predicted(fit(estimator_orig, data), data), data.n_few)


def check_parts_not_negative(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """The aleatoric and epistemic parts are non-negative, or NaN if they are not estimated."""
    result = predicted(fit(estimator_orig, data), data)
    for part in ("aleatoric", "epistemic"):
        least = np.min(getattr(result, part))
        require(
            least >= 0 or np.isnan(least),
            f"the {part} part is {least}. If parts are signed by definition, set the class "
            "attribute `signed_uncertainty = True`.",
        )


def check_parts_add_up(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """The total is the sum of the aleatoric and epistemic parts, to a relative error of 1e-8."""
    estimator = fit(estimator_orig, data)
    total, *parts = predicted(estimator, data).parts
    measured = ~np.isnan(parts)  # if only one part is estimated, the total equals this part
    added, scale = np.nansum(parts, axis=0), np.nansum(np.abs(parts), axis=0)
    gap = np.where(measured.any(axis=0), np.abs(total - added), 0.0)
    require(np.all(gap <= 1e-8 * scale), f"total and sum differ by up to {gap.max()}.")


def check_unfitted(estimator_orig: Any, data: Data) -> None:
    """An unfitted estimator raises `NotFittedError`."""
    estimator = clone(estimator_orig)
    require_raises(NotFittedError, estimator, data.few(), "predicting before `fit`")


def check_clone(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """A clone of the fitted estimator has equal parameters and is not fitted."""
    fitted = fit(estimator_orig, data)
    copy = clone(fitted)
    require_equal_params(copy.get_params(deep=False), fitted.get_params(deep=False), "clone")
    if get_tags(copy).requires_fit:
        require_raises(NotFittedError, copy, data.few(), "predicting with a clone")


def check_repeated_calls(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """Two calls with the same input return the same result."""
    estimator = fit(estimator_orig, data)
    require_same(predicted(estimator, data), predicted(estimator, data), "first and second call")


def check_pickle(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """An estimator returns the same result after pickling and unpickling."""
    estimator = fit(estimator_orig, data)
    restored = predicted(pickle.loads(pickle.dumps(estimator)), data)
    require_same(restored, predicted(estimator, data), "restored and original estimator")


def check_fitting_changes_nothing(estimator_orig: Any, data: Data) -> None:
    """Fitting changes neither parameters nor the data."""
    X, y = deepcopy((data.X, data.y))
    estimator = unfitted(estimator_orig).fit(X, y)
    params = unfitted(estimator_orig).get_params(deep=False)
    require_equal_params(estimator.get_params(deep=False), params, "fit")
    require(equal(X, data.X), "X was changed.")
    require(equal(y, data.y), "y was changed.")


def check_predicting_changes_nothing(estimator_orig: Any, data: Data) -> None:
    """Predicting changes neither the estimator nor its input."""
    # Fit a new clone, because some changes happen only in the first call.
    estimator = fit_clone(estimator_orig, data)
    given = data.few()
    before = {key: content(value) for key, value in vars(estimator).items()}
    estimator.predict_uncertainty(given)
    after = {key: content(value) for key, value in vars(estimator).items()}
    changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    require(not changed, f"changed attributes: {', '.join(changed)}.")
    require(equal(given, data.few()), "X was changed.")


def check_global_random_state(estimator_orig: Any, data: Data) -> None:
    """Fitting and predicting leave the global random generators unchanged."""
    streams = list(global_streams())
    kept = [stream.get() for stream in streams]

    def require_kept(states: list[bytes], action: str) -> None:
        for stream, state in zip(streams, states, strict=True):
            same = content(stream.get()) == state
            require(same, f"`{action}` changed the generator of `{stream.name}`.")

    try:
        for stream in streams:
            # Advance the generator, so that reseeding it with the same seed changes its state.
            stream.draw()
        before = [content(stream.get()) for stream in streams]
        estimator = fit_clone(estimator_orig, data)
        require_kept(before, "fit")
        predicted(estimator, data)
        require_kept(before, "predict_uncertainty")
    finally:
        for stream, state in zip(streams, kept, strict=True):
            stream.set(state)


def check_repeated_fits(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """Two fits with the same data and random_state give the same result."""
    first, second = fit(estimator_orig, data), fit_clone(estimator_orig, data)
    require_same(predicted(second, data), predicted(first, data), "second and first fit")


def check_single_row(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """For a single row, the result has arrays of shape (1,)."""
    require_well_formed(fit(estimator_orig, data).predict_uncertainty(data.rows([0])), 1)


def check_row_order(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """The result for a row does not depend on the order of rows."""
    estimator = fit(estimator_orig, data)
    reversed_rows = estimator.predict_uncertainty(data.rows(range(data.n_few)[::-1]))
    require_same(reversed_rows[::-1], predicted(estimator, data), "reversed and given order")


def check_batches(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """Results do not depend on how rows are batched."""
    estimator = fit(estimator_orig, data)
    # Predict a larger batch that begins with the few rows.
    many = data.rows(range(min(N_LARGE_BATCH, _num_samples(data.X_predict))))
    expected = estimator.predict_uncertainty(many)[: data.n_few]
    for n_batches, what in ((1, "a few rows"), (2, "halves"), (data.n_few, "single rows")):
        batches = np.array_split(np.arange(data.n_few), n_batches)
        parts = [estimator.predict_uncertainty(data.rows(batch)).parts for batch in batches]
        joined = Uncertainty(*map(np.concatenate, zip(*parts, strict=True)))
        require_same(joined, expected, f"{what} and many rows at once")


def check_score_samples(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """`score_samples` is minus the epistemic part, or minus the total if that part is NaN."""
    advice = "has no method `score_samples`; inherit it from `skuq.UncertaintyMixin`."
    name = type(estimator_orig).__name__
    require(hasattr(estimator_orig, "score_samples"), f"{name} {advice}")
    estimator = fit(estimator_orig, data)
    expected = -predicted(estimator, data).part_or_total("epistemic")
    require_close(estimator.score_samples(data.few()), expected, "score_samples")


def check_proba_bounds(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """`predict_proba` is within `predict_proba_bounds`, and both are within [0, 1]."""
    estimator = fit(estimator_orig, data)
    proba = np.asarray(estimator.predict_proba(data.few()))
    bounds = estimator.predict_proba_bounds(data.few())
    lower, upper = (getattr(bounds, name, np.nan) for name in ("lower", "upper"))
    for name, values in (("lower", lower), ("upper", upper)):
        require_floats(values, proba.shape, name)
    gaps = [np.max(low - high) for low, high in pairwise([0.0, lower, proba, upper, 1.0])]
    # Tolerate differences in float32: rounding in matrix products depends on the number of rows.
    require(max(gaps) <= 1e-5, f"probabilities violate the bounds by up to {max(gaps)}.")


def check_number_of_columns(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """A wrong number of columns raises `ValueError`."""
    estimator = fit(estimator_orig, data)
    for wrong in (data.few()[:, :-1], np.hstack([data.few(), data.few()])):
        given = f"{wrong.shape[1]} columns instead of {data.X.shape[1]}"
        require_raises(ValueError, estimator, wrong, given)


def check_nan(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """NaN in the input raises `ValueError` with a message that contains "NaN"."""
    estimator = fit(estimator_orig, data)
    holed = data.few()
    holed[0, 0] = np.nan
    require_raises(ValueError, estimator, holed, "a missing value", saying="NaN")


def check_empty(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """An input with zero rows raises `ValueError`, as in scikit-learn."""
    require_raises(ValueError, fit(estimator_orig, data), data.X[:0], "an input with 0 rows")


def check_memory_layout(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """Reversed, column-major and read-only arrays give the same result as a plain array."""
    estimator = fit(estimator_orig, data)
    expected = predicted(estimator, data)
    read_only = data.few()
    read_only.flags.writeable = False
    for values, what in (
        (data.few()[::-1].copy()[::-1], "reversed view"),
        (np.asfortranarray(data.few()), "column-major array"),
        (read_only, "read-only array"),
    ):
        require_same(estimator.predict_uncertainty(values), expected, f"{what} and plain array")


def check_data_frame(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """A DataFrame gives the same result as its values; column names are kept."""
    import pandas as pd

    frame = pd.DataFrame(data.X, columns=[f"column {i}" for i in range(data.X.shape[1])])
    estimator = fit_clone(estimator_orig, data._replace(X=frame))
    few = frame[: len(data.few())].set_axis([f"row {i}" for i in range(data.n_few)])
    names = list(getattr(estimator, "feature_names_in_", []))
    require(names == list(frame.columns), f"feature_names_in_ is {names} after fitting.")
    of_array = predicted(fit(estimator_orig, data), data)
    require_same(predict_uncertainty(estimator, few), of_array, "DataFrame and array")
    for wrong, what in (
        (few.iloc[:, ::-1], "columns in another order"),
        (few.rename(columns={"column 0": "other"}), "a renamed column"),
    ):
        require_raises(ValueError, estimator, wrong, what)


def check_pipeline(estimator_orig: Any, data: Data) -> None:
    """In a pipeline, the result is that of the estimator on the transformed data."""
    # MaxAbsScaler keeps positive values positive, which some estimators require.
    pipe = sklearn_pipeline.make_pipeline(MaxAbsScaler(), unfitted(estimator_orig))
    scaler, estimator = fit_on_copies(pipe, data)
    by_hand = estimator.predict_uncertainty(scaler.transform(data.few()))
    for result, what in (
        (predict_uncertainty(pipe, data.few()), "skuq.predict_uncertainty"),
        (predicted(make_pipeline(scaler, estimator), data), "the method of skuq.Pipeline"),
    ):
        require_same(result, by_hand, f"{what} and the last step on transformed data")


def check_other_instances(estimator_orig: Any, data: Data) -> None:
    """Fitting a second instance on different data does not change the result of the first."""
    estimator = fit_clone(estimator_orig, data)
    before = predicted(estimator, data)
    half = len(data.X) // 2
    fit_clone(estimator_orig, data._replace(X=data.X[:half] / 2, y=data.y[:half]))
    after = predicted(estimator, data)
    require_same(after, before, "after and before fitting a second instance")


def check_two_classes(estimator_orig: Any, data: Data) -> None:
    """With two classes, too, the result has finite float64 arrays of shape (n_samples,)."""
    kept = data.y < 2
    estimator = fit_clone(estimator_orig, data._replace(X=data.X[kept], y=data.y[kept]))
    require_well_formed(predicted(estimator, data), data.n_few)


def check_string_labels(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """Class labels that are strings give the same result as integers in the same order."""
    names = np.array(["ant", "bee", "cat"])[data.y]
    named = fit_clone(estimator_orig, data._replace(y=names))
    numbered = fit(estimator_orig, data)
    require_same(predicted(named, data), predicted(numbered, data), "string and integer labels")


def check_unit_weights(estimator_orig: Any, data: Data, fit: Fit) -> None:
    """Weights of 1 give the same result as no weights."""
    ones = np.ones(_num_samples(data.y))
    weighted = fit_on_copies(unfitted(estimator_orig), data, sample_weight=ones)
    without = predicted(fit(estimator_orig, data), data)
    require_same(predicted(weighted, data), without, "with weights of 1 and without weights")


def check_search(estimator_orig: Any, data: Data) -> None:
    """`GridSearchCV` works, and `predict_uncertainty` through it uses the best estimator."""
    estimator = unfitted(estimator_orig)
    grid = {"random_state": [0, 1]} if "random_state" in estimator.get_params() else {}
    rows = np.arange(_num_samples(data.X))
    search = GridSearchCV(
        estimator,
        grid,
        scoring=partial(_mean_certainty, data.few()),
        cv=[(rows, rows[:1])],  # a single split; the scorer ignores the test row and uses `few()`
        error_score="raise",
    )
    fit_on_copies(search, data)
    best = predicted(search.best_estimator_, data)
    require_same(predict_uncertainty(search, data.few()), best, "the search and its best estimator")


def _mean_certainty(asked: Any, estimator: Any, X: Any, y: Any = None) -> float:
    return -float(predict_uncertainty(estimator, asked).total.mean())


# Checks for estimators whose input is a numeric table
OF_TABLES = {
    *(check_number_of_columns, check_nan, check_empty, check_memory_layout, check_data_frame),
    *(check_pipeline, check_other_instances, check_two_classes, check_string_labels),
}
