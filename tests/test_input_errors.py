"""Text, missing and infinite values: the error names their place, in every estimator."""

import pickle
import re

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import skuq
from skuq import OODDetector, all_estimators
from skuq.torch_devices import DeviceMixin

# UADQN learns from an environment; an audit takes labels of any kind, and a probe node ids.
OTHER_INPUTS = {"UADQN", "EvidentialProbe", "CalibrationAuditor", "MirageFineTuner"}
ESTIMATORS = [
    estimator
    for name, estimator in all_estimators()
    if estimator.__module__.startswith("skuq.") and name not in OTHER_INPUTS
]
REGRESSORS = [each for each in ESTIMATORS if each.__name__.endswith(("Regressor", "GPR"))]
CLASSIFIERS = [each for each in ESTIMATORS if each.__name__.endswith(("Classifier", "GPC"))]


@pytest.fixture
def table():
    numbers = np.random.default_rng(0).normal(size=40)
    return pd.DataFrame({"size": numbers, "plan": ["basic", "plus"] * 20, "1": ["1", "2"] * 20})


def fitted(estimator, X, y):
    pytest.importorskip("torch")
    if estimator.__name__ == "SGMCMCClassifier":
        pytest.importorskip("posteriors")
    if estimator.__name__ == "MirageRegressor":
        return estimator(region=lambda X: X[:, 0] > 0).fit(X, y)
    if estimator is OODDetector:  # without a model, it reads tables with text
        return estimator(LogisticRegression()).fit(X, y)
    return estimator().fit(X, y)


@pytest.mark.parametrize("estimator", [*ESTIMATORS, OODDetector], ids=lambda e: e.__name__)
@pytest.mark.parametrize("kind", ["pandas", "polars", "array"])
def test_columns_with_text_are_named(estimator, kind, table):
    X, place = table, r"text: 'plan'\."
    if kind == "polars":
        X = pytest.importorskip("polars").from_pandas(table)
    elif kind == "array":
        X, place = table.to_numpy(), r"text: 1\."
    y = np.arange(40) % 2 if estimator not in REGRESSORS else np.arange(40.0)
    with pytest.raises(ValueError, match=f"could not convert string .* of `X` contain {place}"):
        fitted(estimator, X, y)


@pytest.mark.parametrize("estimator", REGRESSORS, ids=lambda e: e.__name__)
def test_text_among_targets_is_named(estimator, table):
    with pytest.raises(ValueError, match="`y` contains text, and a regression needs numbers"):
        fitted(estimator, table[["size"]], np.array(["high", "low"] * 20))


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=lambda e: e.__name__)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("missing", [np.nan, None])
def test_missing_labels_are_named(estimator, missing, table):
    y = np.arange(40) % 2
    y = np.where(np.arange(40) == 7, missing, y.astype(type(missing) if missing else object))
    with pytest.raises(ValueError, match="Input y contains NaN"):
        fitted(estimator, table[["size"]], y)


@pytest.mark.parametrize("estimator", [*ESTIMATORS, OODDetector], ids=lambda e: e.__name__)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_columns_with_missing_or_infinite_values_are_named(estimator, value, table):
    X = pd.DataFrame({"size": table["size"], "age": np.arange(40.0)})
    X.loc[[7, 9], "age"] = value
    kind = "Missing" if np.isnan(value) else "Infinite or too large"
    place = r"'age' \(2 of 40 rows, the first at position 7\)\.$"
    y = np.arange(40) % 2 if estimator not in REGRESSORS else np.arange(40.0)
    with pytest.raises(ValueError, match=f"{kind} values are in these columns of `X`: {place}"):
        fitted(estimator, X, y)


class TestPlaceInPrediction:
    """The place is that in the user's table, also where another model raises the error."""

    @pytest.fixture
    def X(self, table):
        return pd.DataFrame({"size": table["size"], "age": np.arange(40.0) / 40})

    @pytest.fixture(params=["QUAMClassifier", "OODDetector"])
    def model(self, request, X):
        pytest.importorskip("torch")
        inner = make_pipeline(PolynomialFeatures(), StandardScaler(), LogisticRegression())
        return getattr(skuq, request.param)(inner).fit(X, np.arange(40) % 2)

    @pytest.mark.parametrize(
        ("value", "kind"), [(np.nan, "Missing values are in"), ("?", "These columns of `X`")]
    )
    def test_a_table(self, model, X, value, kind):
        bad = X.astype({"age": object})
        bad.loc[3, "age"] = value
        with pytest.raises(ValueError, match=f"{kind}.*'age'"):
            model.predict(bad)

    def test_an_array(self, model, X):
        bad = X.to_numpy(copy=True)
        bad[[3, 5], 1] = np.nan
        place = r"columns of `X`: 1 \(2 of 40 rows, the first at position 3\)\.$"
        with pytest.raises(ValueError, match=place):
            model.predict(bad)


def test_a_place_is_named_once_and_survives_other_processes():
    class Inner(DeviceMixin):
        def fit(self, X, y=None):
            raise ValueError("Input X contains NaN.")

    class Outer(DeviceMixin):
        def fit(self, X, y=None):
            try:
                Inner().fit(X.to_numpy(), y)
            except ValueError as error:
                raise pickle.loads(pickle.dumps(error)) from None  # as from a worker

    X = pd.DataFrame({"age": [1.0, np.nan], "size": 0.0})
    place = "these columns of `X`: 'age' (1 of 2 rows, the first at position 1)."
    message = f"Input X contains NaN.\nMissing values are in {place}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Outer().fit(X)


@pytest.mark.parametrize(
    ("X", "place"),
    [
        (pd.Series([1.0, np.nan], name="age"), "`X`: 1 of 2 rows, the first at position 1"),
        (pd.DataFrame([[np.nan, 1.0]], columns=["a", "a"]), "these columns of `X`: 'a' \\(1 of 1"),
        (np.full((1, 9), np.nan), "4 \\(1 of 1 rows, the first at position 0\\) and 4 more"),
    ],
)
def test_inputs_of_other_kinds(X, place):
    class Estimator(DeviceMixin):
        def predict(self, X):
            raise ValueError("Input X contains NaN.")

    with pytest.raises(ValueError, match=place):
        Estimator().predict(X=X)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((2, 3, 4)), "Input X contains NaN."),
        (sparse.csr_matrix([[np.nan]]), "Input X contains NaN."),
        (sparse.csr_array([[np.nan]]), "Input X contains NaN."),
        (pd.DataFrame([[1.0]]), "Input X contains NaN."),  # missing only after a transformation
        (None, "Input contains infinity"),
        (pd.DataFrame([[np.nan]]), "Input sample_weight contains NaN."),
    ],
)
def test_a_place_that_is_unknown_leaves_the_message(X, message):
    class Estimator(DeviceMixin):
        def predict(self, X):
            raise ValueError(message)

    with pytest.raises(ValueError, match=f"^{message}$"):
        Estimator().predict(X)
