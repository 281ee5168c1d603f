"""Text where numbers are needed: the error names the place of the text, in every estimator."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from skuq import OODDetector, all_estimators

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
