"""The conformance suite: what every estimator of skuq, built-in or third-party, must do.

A plugin is a scikit-learn estimator with one more method, so two suites apply to it:
scikit-learn's `sklearn.utils.estimator_checks` for the estimator, and this one for the
method. Each check is a function that states one fact in the first line of its docstring
and raises `AssertionError` if the estimator breaks it.
"""

from __future__ import annotations

import io
import pickle
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial, update_wrapper
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn import pipeline as sklearn_pipeline
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import BallTree, KDTree
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags

from skuq.base import Uncertainty, make_pipeline, predict_uncertainty

__all__ = [
    "check_uncertainty_estimator",
    "parametrize_with_uncertainty_checks",
    "uncertainty_checks",
]

N_PREDICTED = 12  # rows that the checks predict on: predicting may be the expensive part


def check_uncertainty_estimator(
    estimator: Any, *, X: ArrayLike | None = None, y: ArrayLike | None = None
) -> None:
    """Check that an estimator keeps the promises of `predict_uncertainty`.

    Parameters
    ----------
    estimator : estimator instance
        It is cloned and never fitted itself. If it has a parameter `random_state`,
        the clones use a fixed one.
    X : array-like of shape (n_samples, ...), default=None
        Inputs for an estimator that does not take a numeric table, such as node ids of
        a graph. It is used as it is, and the checks that need a table (columns, NaN,
        empty input, memory layout, data frames, pipelines, string labels) are left out. None
        generates a small table.
    y : array-like of shape (n_samples,), default=None
        Targets that belong to `X`.

    Raises
    ------
    AssertionError
        At the first check that fails, naming it, the fact it checks and what was found.
    TypeError
        If `estimator` is a class.
    ValueError
        If no data are given for an estimator that is neither classifier nor regressor.

    Notes
    -----
    Aleatoric and epistemic part must not be negative. A class whose parts are signed by
    definition says so with the class attribute ``_signed_uncertainty = True``, which
    lifts this one requirement.

    Examples
    --------
    >>> from skuq import QUAMClassifier
    >>> from skuq.testing import check_uncertainty_estimator
    >>> check_uncertainty_estimator(QUAMClassifier(n_steps=5))
    """
    for check in uncertainty_checks(estimator, X=X, y=y):
        try:
            check(estimator)
        except Exception as error:
            found = str(error)
            if not isinstance(error, AssertionError):
                found = f"{type(error).__name__}: {error}"
            raise AssertionError(
                f"{type(estimator).__name__} fails {_name(check)}. "
                f"Expected: {_fact(check)} Found: {found}"
            ) from error


def uncertainty_checks(
    estimator: Any, *, X: ArrayLike | None = None, y: ArrayLike | None = None
) -> Iterator[Callable[[Any], None]]:
    """Yield the checks that apply to an estimator, each to be called with it.

    Parameters
    ----------
    estimator, X, y
        As in `check_uncertainty_estimator`.

    Yields
    ------
    callable
        Takes the estimator and raises if the check fails. Its ``__name__`` is that of
        the check. Checks from one call share a fitted clone where they only predict.

    Examples
    --------
    >>> from skuq import QUAMClassifier
    >>> from skuq.testing import uncertainty_checks
    >>> [check.__name__ for check in uncertainty_checks(QUAMClassifier())][:2]
    ['check_parameters', 'check_result']
    """
    if isinstance(estimator, type):
        raise TypeError(f"Give an instance to check, got the class {estimator.__name__}.")
    is_table = X is None
    data = _table(estimator) if is_table else (np.asarray(X), None if y is None else np.asarray(y))
    fit = _FitOnce()
    for function in _applicable(estimator, is_table):
        # Checks that fit in their own way have no parameter for the shared clone.
        shared = {"fit": fit} if "fit" in signature(function).parameters else {}
        check = partial(function, type(estimator).__name__, X=data[0], y=data[1], **shared)
        yield update_wrapper(check, function)


def parametrize_with_uncertainty_checks(
    estimators: Iterable[Any], *, X: ArrayLike | None = None, y: ArrayLike | None = None
) -> Any:
    """Parametrize a pytest function with every check of every estimator.

    Parameters
    ----------
    estimators : iterable of estimator instances
        What to check.
    X, y
        As in `check_uncertainty_estimator`; used for all estimators.

    Returns
    -------
    decorator
        A `pytest.mark.parametrize` of the arguments `estimator` and `check`.

    Examples
    --------
    >>> from skuq import QUAMClassifier
    >>> from skuq.testing import parametrize_with_uncertainty_checks
    >>> @parametrize_with_uncertainty_checks([QUAMClassifier(n_steps=5)])
    ... def test_uncertainty(estimator, check):
    ...     check(estimator)
    """
    import pytest

    cases = [
        pytest.param(estimator, check, id=f"{''.join(str(estimator).split())}-{_name(check)}")
        for estimator in estimators
        for check in uncertainty_checks(estimator, X=X, y=y)
    ]
    return pytest.mark.parametrize(("estimator", "check"), cases)


class _FitOnce:
    """Fits a clone of an estimator when first asked and hands it out again afterwards."""

    def __init__(self) -> None:
        self._last: tuple[Any, Any] = (None, None)

    def __call__(self, estimator_orig: Any, X: Any, y: Any) -> Any:
        if self._last[0] is not estimator_orig:
            self._last = (estimator_orig, _fit(estimator_orig, X, y))
        return self._last[1]


Fit = Callable[[Any, Any, Any], Any]


def _unfitted(estimator_orig: Any) -> Any:
    """A clone with fixed randomness: its own, or that of what it holds if it has none."""
    estimator = clone(estimator_orig)
    keys = [key for key in estimator.get_params() if f"__{key}".endswith("__random_state")]
    if "random_state" in keys:
        keys = ["random_state"]
    return estimator.set_params(**dict.fromkeys(keys, 0))


def _fit(estimator_orig: Any, X: Any, y: Any) -> Any:
    estimator = _unfitted(estimator_orig)
    estimator.fit(X, y)
    return estimator


# --- checks of every estimator -------------------------------------------------------------


def check_parameters(name: str, estimator_orig: Any, X: Any, y: Any) -> None:
    """Parameters survive `clone`, `get_params` and `set_params`."""
    estimator = clone(estimator_orig)
    params = estimator_orig.get_params(deep=False)
    _require_equal_params(estimator.get_params(deep=False), params, "clone")
    for key, value in params.items():
        marker = object()
        returned = estimator.set_params(**{key: marker})
        _require(returned is estimator, "set_params returned something else than the estimator.")
        _require(estimator.get_params()[key] is marker, f"set_params did not set {key!r}.")
        estimator.set_params(**{key: value})
    _require_equal_params(estimator.get_params(deep=False), params, "set_params")


def check_result(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """The result is a `skuq.Uncertainty` of finite float64 arrays of shape (n_samples,)."""
    _require(
        hasattr(estimator_orig, "predict_uncertainty"), f"{name} has no `predict_uncertainty`."
    )
    estimator = fit(estimator_orig, X, y)
    _require_well_formed(estimator.predict_uncertainty(_few(X)), len(_few(X)))


def check_parts_not_negative(
    name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit
) -> None:
    """Aleatoric and epistemic part are not negative."""
    result = fit(estimator_orig, X, y).predict_uncertainty(_few(X))
    for part in ("aleatoric", "epistemic"):
        least = getattr(result, part).min()
        _require(
            least >= 0,
            f"{part} part of {least}. A class whose parts are signed by definition sets "
            "`_signed_uncertainty = True`.",
        )


def check_parts_add_up(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """The total is the sum of aleatoric and epistemic part, within 1e-8 relative."""
    total, aleatoric, epistemic = fit(estimator_orig, X, y).predict_uncertainty(_few(X))
    gap = np.abs(total - (aleatoric + epistemic))
    scale = np.abs(aleatoric) + np.abs(epistemic)
    _require(np.all(gap <= 1e-8 * scale), f"they differ by up to {gap.max()}.")


def check_unfitted(name: str, estimator_orig: Any, X: Any, y: Any) -> None:
    """An estimator that is not fitted raises `NotFittedError`."""
    estimator = clone(estimator_orig)
    _require_raises(
        NotFittedError, partial(estimator.predict_uncertainty, _few(X)), "predicting before `fit`"
    )


def check_clone(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """A clone of the fitted estimator has equal parameters and is not fitted."""
    fitted = fit(estimator_orig, X, y)
    copy = clone(fitted)
    _require_equal_params(copy.get_params(deep=False), fitted.get_params(deep=False), "clone")
    if get_tags(copy).requires_fit:
        _require_raises(
            NotFittedError, partial(copy.predict_uncertainty, _few(X)), "predicting with a clone"
        )


def check_repeated_calls(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """Two calls with the same input agree."""
    estimator = fit(estimator_orig, X, y)
    first, second = (estimator.predict_uncertainty(_few(X)) for _ in range(2))
    _require_same(second, first, "second and first call")


def check_pickle(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """A pickled and restored estimator predicts the same."""
    estimator = fit(estimator_orig, X, y)
    restored = pickle.loads(pickle.dumps(estimator))
    _require_same(
        restored.predict_uncertainty(_few(X)),
        estimator.predict_uncertainty(_few(X)),
        "restored and original estimator",
    )


def check_predicting_changes_nothing(name: str, estimator_orig: Any, X: Any, y: Any) -> None:
    """Predicting changes neither the estimator nor its input."""
    estimator = _fit(estimator_orig, X, y)  # its own: only a first call changes some things
    given = _few(X)
    as_given = _content(given)
    before = {key: _content(value) for key, value in vars(estimator).items()}
    estimator.predict_uncertainty(given)
    after = {key: _content(value) for key, value in vars(estimator).items()}
    changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    _require(not changed, f"attributes that changed: {', '.join(changed)}.")
    _require(_content(given) == as_given, "X was changed.")


def check_global_random_state(name: str, estimator_orig: Any, X: Any, y: Any) -> None:
    """Neither fitting nor predicting moves or reseeds a global random state."""
    streams = list(_global_streams())
    kept = [stream.get() for stream in streams]
    try:
        for stream in streams:
            stream.draw()  # a state that no seed leads to at once, so that reseeding shows
        for action in ("fit", "predict_uncertainty"):
            before = [_content(stream.get()) for stream in streams]
            if action == "fit":
                estimator = _fit(estimator_orig, X, y)
            else:
                estimator.predict_uncertainty(_few(X))
            after = [_content(stream.get()) for stream in streams]
            for stream, was, became in zip(streams, before, after, strict=True):
                _require(was == became, f"`{action}` changed that of `{stream.name}`.")
    finally:
        for stream, state in zip(streams, kept, strict=True):
            stream.set(state)


def check_repeated_fits(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """Two fits with the same data and random_state agree."""
    first = fit(estimator_orig, X, y).predict_uncertainty(_few(X))
    second = _fit(estimator_orig, X, y).predict_uncertainty(_few(X))
    _require_same(second, first, "second and first fit")


def check_single_row(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """A single row gives arrays of shape (1,)."""
    _require_well_formed(fit(estimator_orig, X, y).predict_uncertainty(_few(X)[:1]), 1)


def check_row_order(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """The order of rows does not matter."""
    estimator = fit(estimator_orig, X, y)
    reversed_rows = estimator.predict_uncertainty(_few(X)[::-1].copy())
    backwards = Uncertainty(*(part[::-1] for part in reversed_rows))
    _require_same(backwards, estimator.predict_uncertainty(_few(X)), "reversed and given order")


def check_batches(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """One call gives what calls with halves or single rows give."""
    estimator = fit(estimator_orig, X, y)
    whole = estimator.predict_uncertainty(_few(X))
    for n_batches, what in ((2, "halves"), (len(_few(X)), "single rows")):
        parts = [estimator.predict_uncertainty(b) for b in np.array_split(_few(X), n_batches)]
        joined = Uncertainty(*map(np.concatenate, zip(*parts, strict=True)))
        _require_same(joined, whole, f"{what} and all rows at once")


def check_score_samples(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """`score_samples` is minus the epistemic part."""
    _require(
        hasattr(estimator_orig, "score_samples"),
        f"{name} has no `score_samples`; inherit it from `skuq.UncertaintyMixin`.",
    )
    estimator = fit(estimator_orig, X, y)
    scores = estimator.score_samples(_few(X))
    _require_close(scores, -estimator.predict_uncertainty(_few(X)).epistemic, "score_samples")


def check_search(name: str, estimator_orig: Any, X: Any, y: Any) -> None:
    """`GridSearchCV` fits it, and uncertainty through it is that of its best estimator."""
    estimator = _unfitted(estimator_orig)
    grid = {"random_state": [0, 1]} if "random_state" in estimator.get_params() else {}
    one_split = [(np.arange(len(X)), np.arange(len(_few(X))))]
    search = GridSearchCV(
        estimator, grid, scoring=_mean_certainty, cv=one_split, error_score="raise"
    ).fit(X, y)
    _require_same(
        predict_uncertainty(search, _few(X)),
        search.best_estimator_.predict_uncertainty(_few(X)),
        "the search and its best estimator",
    )


# --- checks of estimators that take a numeric table ----------------------------------------


def check_number_of_columns(
    name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit
) -> None:
    """A wrong number of columns raises `ValueError`."""
    estimator = fit(estimator_orig, X, y)
    for wrong in (_few(X)[:, :-1], np.hstack([_few(X), _few(X)])):
        _require_raises(
            ValueError,
            partial(estimator.predict_uncertainty, wrong),
            f"{wrong.shape[1]} columns instead of {X.shape[1]}",
        )


def check_memory_layout(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """Reversed, column-major and read-only arrays give what a plain array gives."""
    estimator = fit(estimator_orig, X, y)
    expected = estimator.predict_uncertainty(_few(X))
    read_only = _few(X)
    read_only.flags.writeable = False
    for values, what in (
        (_few(X)[::-1].copy()[::-1], "reversed view"),
        (np.asfortranarray(_few(X)), "column-major array"),
        (read_only, "read-only array"),
    ):
        _require_same(estimator.predict_uncertainty(values), expected, f"{what} and plain array")


def check_nan(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """NaN in the input raises `ValueError` with a message that says NaN."""
    estimator = fit(estimator_orig, X, y)
    holed = _few(X)
    holed[0, 0] = np.nan
    _require_raises(
        ValueError, partial(estimator.predict_uncertainty, holed), "a missing value", saying="NaN"
    )


def check_empty(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """Input without rows raises `ValueError`."""
    estimator = fit(estimator_orig, X, y)
    _require_raises(ValueError, partial(estimator.predict_uncertainty, X[:0]), "no rows")


def check_data_frame(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """A DataFrame gives what its values give, and its column names are remembered."""
    import pandas as pd

    frame = pd.DataFrame(X, columns=[f"column {i}" for i in range(X.shape[1])])
    estimator = _fit(estimator_orig, frame, y)
    few = _few(frame)
    names = list(getattr(estimator, "feature_names_in_", []))
    _require(names == list(frame.columns), f"feature_names_in_ is {names} after fitting.")
    _require_same(
        estimator.predict_uncertainty(few),
        fit(estimator_orig, X, y).predict_uncertainty(_few(X)),
        "DataFrame and array",
    )
    for wrong, what in (
        (few.iloc[:, ::-1], "columns in another order"),
        (few.rename(columns={"column 0": "other"}), "a renamed column"),
    ):
        _require_raises(ValueError, partial(estimator.predict_uncertainty, wrong), what)


def check_pipeline(name: str, estimator_orig: Any, X: Any, y: Any) -> None:
    """In a pipeline it gives what it gives, called by hand, on the transformed data."""
    pipe = sklearn_pipeline.make_pipeline(StandardScaler(), _unfitted(estimator_orig)).fit(X, y)
    scaler, estimator = pipe[0], pipe[-1]
    by_hand = estimator.predict_uncertainty(scaler.transform(_few(X)))
    _require_same(
        predict_uncertainty(pipe, _few(X)), by_hand, "skuq.predict_uncertainty and by hand"
    )
    _require_same(
        make_pipeline(scaler, estimator).predict_uncertainty(_few(X)),
        by_hand,
        "the method of skuq.Pipeline and by hand",
    )


def check_string_labels(name: str, estimator_orig: Any, X: Any, y: Any, fit: Fit = _fit) -> None:
    """Class labels that are strings give what integers in the same order give."""
    names = np.array(["ant", "bee", "cat"])[y]
    _require_same(
        _fit(estimator_orig, X, names).predict_uncertainty(_few(X)),
        fit(estimator_orig, X, y).predict_uncertainty(_few(X)),
        "string and integer labels",
    )


def _applicable(estimator: Any, is_table: bool) -> Iterator[Callable[..., None]]:
    """The checks in an order in which the first to fail names the defect best."""
    tags = get_tags(estimator)
    yield check_parameters
    yield check_result
    if not getattr(estimator, "_signed_uncertainty", False):
        yield check_parts_not_negative
    yield check_parts_add_up
    if tags.requires_fit:
        yield check_unfitted
    yield from (check_clone, check_repeated_calls, check_pickle)
    yield from (check_predicting_changes_nothing, check_global_random_state)
    yield from (check_repeated_fits, check_single_row, check_row_order, check_batches)
    yield check_score_samples
    if is_table:
        yield check_number_of_columns
        if not tags.input_tags.allow_nan:
            yield check_nan
        yield from (check_empty, check_memory_layout, check_data_frame, check_pipeline)
        if is_classifier(estimator):
            yield check_string_labels
    yield check_search


# --- data and comparisons ------------------------------------------------------------------


class _Stream(NamedTuple):
    """A global random stream: how its state is read, restored and moved on."""

    name: str
    get: Callable[[], Any]
    set: Callable[[Any], Any]
    draw: Callable[[], Any]


def _global_streams() -> Iterator[_Stream]:
    yield _Stream("random", random.getstate, random.setstate, random.random)
    legacy = np.random  # the point is whether anything uses this global state
    yield _Stream("numpy.random", legacy.get_state, legacy.set_state, legacy.random_sample)
    torch = sys.modules.get("torch")  # not imported: nothing can have used it
    if torch is not None:
        yield _Stream(
            "torch",
            lambda: torch.get_rng_state().numpy(),
            lambda state: torch.set_rng_state(torch.from_numpy(state)),
            lambda: torch.rand(1),
        )


def _table(estimator: Any) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """A small table, neither centred nor scaled, whose targets depend on its columns."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(48, 4))
    if is_classifier(estimator):
        n_classes = 3 if get_tags(estimator).classifier_tags.multi_class else 2
        y = np.arange(len(noise)) % n_classes
        centres = 2 * rng.normal(size=(n_classes, noise.shape[1]))
        return centres[y] + noise + 5, y
    if is_regressor(estimator):
        return 2 * noise + 5, noise @ rng.normal(size=noise.shape[1]) + np.sin(noise[:, 0])
    raise ValueError(
        f"{type(estimator).__name__} is neither a classifier nor a regressor, so no data can "
        "be generated for it: give X and y."
    )


def _few(X: Any) -> Any:
    """The rows to predict on: a copy, since it may be the estimator's fault to change it."""
    return X[:N_PREDICTED].copy()


class _ContentPickler(pickle.Pickler):
    """Pickles by content, except search trees: those count their own calls."""

    def persistent_id(self, obj: Any) -> str | None:
        return type(obj).__name__ if isinstance(obj, BallTree | KDTree) else None


def _content(value: Any) -> bytes:
    """Bytes that differ before and after if `value` was changed in between."""
    stream = io.BytesIO()
    _ContentPickler(stream).dump(value)
    return stream.getvalue()


def _mean_certainty(estimator: Any, X: Any, y: Any = None) -> float:
    return -float(predict_uncertainty(estimator, X).total.mean())


def _name(check: Callable[..., None]) -> str:
    return check.__name__


def _fact(check: Callable[..., None]) -> str:
    return (check.__doc__ or "").partition("\n")[0]


def _require(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _require_well_formed(result: Any, n_samples: int) -> None:
    _require(isinstance(result, Uncertainty), f"a {type(result).__name__} came back.")
    for field, values in result._asdict().items():
        _require(isinstance(values, np.ndarray), f"{field} is a {type(values).__name__}.")
        _require(values.dtype == np.float64, f"{field} has dtype {values.dtype}.")
        _require(
            values.shape == (n_samples,),
            f"{field} has shape {values.shape} for {n_samples} rows.",
        )
        _require(np.isfinite(values).all(), f"{field} has values that are not finite.")


def _require_close(actual: Any, expected: Any, what: str) -> None:
    # The tolerances of scikit-learn's own checks of invariance to batches.
    np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-7, err_msg=what)


def _require_same(actual: Uncertainty, expected: Uncertainty, what: str) -> None:
    for field in Uncertainty._fields:
        _require_close(getattr(actual, field), getattr(expected, field), f"{field} of {what}")


def _require_raises(
    expected: type[Exception], call: Callable[[], Any], what: str, saying: str = ""
) -> None:
    try:
        call()
    except expected as error:
        _require(saying in str(error), f"{what} gave a message without {saying!r}: {error}")
    except Exception as error:
        raise AssertionError(f"{what} raised {type(error).__name__}: {error}") from error
    else:
        raise AssertionError(f"{what} raised nothing.")


def _require_equal_params(actual: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    different = sorted(
        key
        for key in {*actual, *expected}
        if key not in actual or key not in expected or not _equal(actual[key], expected[key])
    )
    _require(not different, f"{what} changed {', '.join(different)}.")


def _equal(a: Any, b: Any) -> bool:
    """Whether two parameter values are equal, as far as their type can tell."""
    if a is b or type(a) is not type(b):
        return a is b
    if hasattr(a, "get_params"):
        return all(_equal(value, b.get_params()[key]) for key, value in a.get_params().items())
    if type(a).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]  # such as networks
        return True
    return bool(np.all(a == b))
