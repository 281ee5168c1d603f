"""Checks of estimators that take a numeric table."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn import pipeline as sklearn_pipeline
from sklearn.preprocessing import MaxAbsScaler

from skuq.base import make_pipeline, predict_uncertainty
from skuq.testing._comparisons import (
    require,
    require_raises,
    require_same,
    require_well_formed,
)
from skuq.testing._data import Data, Fit, fit_clone, fit_on_copies, unfitted


def check_number_of_columns(estimator_orig: Any, data: Data, fit: Fit = fit_clone) -> None:
    """A wrong number of columns raises `ValueError`."""
    estimator = fit(estimator_orig, data.X, data.y)
    for wrong in (data.few()[:, :-1], np.hstack([data.few(), data.few()])):
        require_raises(
            ValueError,
            partial(estimator.predict_uncertainty, wrong),
            f"{wrong.shape[1]} columns instead of {data.X.shape[1]}",
        )


def check_memory_layout(estimator_orig: Any, data: Data, fit: Fit = fit_clone) -> None:
    """Reversed, column-major and read-only arrays give the same as a plain array."""
    estimator = fit(estimator_orig, data.X, data.y)
    expected = estimator.predict_uncertainty(data.few())
    read_only = data.few()
    read_only.flags.writeable = False
    for values, what in (
        (data.few()[::-1].copy()[::-1], "reversed view"),
        (np.asfortranarray(data.few()), "column-major array"),
        (read_only, "read-only array"),
    ):
        require_same(estimator.predict_uncertainty(values), expected, f"{what} and plain array")


def check_nan(estimator_orig: Any, data: Data, fit: Fit = fit_clone) -> None:
    """NaN in the input raises `ValueError` with a message that says NaN."""
    estimator = fit(estimator_orig, data.X, data.y)
    holed = data.few()
    holed[0, 0] = np.nan
    require_raises(
        ValueError, partial(estimator.predict_uncertainty, holed), "a missing value", saying="NaN"
    )


def check_empty(estimator_orig: Any, data: Data, fit: Fit = fit_clone) -> None:
    """Input without rows raises `ValueError`."""
    estimator = fit(estimator_orig, data.X, data.y)
    require_raises(ValueError, partial(estimator.predict_uncertainty, data.X[:0]), "no rows")


def check_data_frame(estimator_orig: Any, data: Data, fit: Fit = fit_clone) -> None:
    """A DataFrame gives what its values give, and its column names are remembered."""
    import pandas as pd

    frame = pd.DataFrame(data.X, columns=[f"column {i}" for i in range(data.X.shape[1])])
    estimator = fit_clone(estimator_orig, frame, data.y)
    few = frame[: len(data.few())].copy()
    names = list(getattr(estimator, "feature_names_in_", []))
    require(names == list(frame.columns), f"feature_names_in_ is {names} after fitting.")
    require_same(
        estimator.predict_uncertainty(few),
        fit(estimator_orig, data.X, data.y).predict_uncertainty(data.few()),
        "DataFrame and array",
    )
    for wrong, what in (
        (few.iloc[:, ::-1], "columns in another order"),
        (few.rename(columns={"column 0": "other"}), "a renamed column"),
    ):
        require_raises(ValueError, partial(estimator.predict_uncertainty, wrong), what)


def check_pipeline(estimator_orig: Any, data: Data) -> None:
    """In a pipeline it gives what it gives, called by hand, on the transformed data."""
    # This scaler leaves positive values positive, which some estimators need.
    pipe = sklearn_pipeline.make_pipeline(MaxAbsScaler(), unfitted(estimator_orig))
    fit_on_copies(pipe, data.X, data.y)
    scaler, estimator = pipe[0], pipe[-1]
    by_hand = estimator.predict_uncertainty(scaler.transform(data.few()))
    require_same(
        predict_uncertainty(pipe, data.few()), by_hand, "skuq.predict_uncertainty and by hand"
    )
    require_same(
        make_pipeline(scaler, estimator).predict_uncertainty(data.few()),
        by_hand,
        "the method of skuq.Pipeline and by hand",
    )


def check_other_instances(estimator_orig: Any, data: Data) -> None:
    """Fitting another instance on other data does not change what it gives."""
    estimator = fit_clone(estimator_orig, data.X, data.y)
    before = estimator.predict_uncertainty(data.few())
    half = len(data.X) // 2
    fit_clone(estimator_orig, data.X[:half] / 2, data.y[:half])
    after = estimator.predict_uncertainty(data.few())
    require_same(after, before, "after and before fitting another instance")


def check_two_classes(estimator_orig: Any, data: Data) -> None:
    """Learnt from two classes, the result is finite float64 arrays of shape (n_samples,) too."""
    kept = data.y < 2
    estimator = fit_clone(estimator_orig, data.X[kept], data.y[kept])
    require_well_formed(estimator.predict_uncertainty(data.few()), data.n_few)


def check_string_labels(estimator_orig: Any, data: Data, fit: Fit = fit_clone) -> None:
    """Class labels that are strings give what integers in the same order give."""
    names = np.array(["ant", "bee", "cat"])[data.y]
    require_same(
        fit_clone(estimator_orig, data.X, names).predict_uncertainty(data.few()),
        fit(estimator_orig, data.X, data.y).predict_uncertainty(data.few()),
        "string and integer labels",
    )
