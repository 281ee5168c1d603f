"""Checks of an estimator, in an order in which the first failure describes the defect best."""

import pickle
from copy import deepcopy
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn import pipeline as sklearn_pipeline
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import MaxAbsScaler
from sklearn.utils import get_tags
from sklearn.utils.validation import _num_samples

from skuq.base import Uncertainty, predict_uncertainty
from skuq.sklearn_counterparts import make_pipeline
from skuq.testing._support import (
    N_LARGE_BATCH,
    Data,
    Fit,
    content,
    equal,
    fit_clone,
    fit_on_copies,
    global_streams,
    predicted,
    require,
    require_close,
    require_equal_params,
    require_floats,
    require_raises,
    require_same,
    require_well_formed,
    unfitted,
)


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
            # Reseeding would leave a freshly seeded state as it is, and thus remain unnoticed.
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
    # A larger batch, which begins with the few rows.
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
    # In float32, the rounding of matrix products depends on the number of rows.
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
