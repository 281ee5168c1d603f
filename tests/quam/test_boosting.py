"""Boosted trees of other libraries, through their scikit-learn classes."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import roc_auc_score

from skuq import QUAMClassifier, QUAMRegressor

SMALL = {"n_estimators": 20, "max_depth": 4, "n_jobs": 1, "random_state": 0}


def learner(library, task):
    """A small learner that takes pandas' categories."""
    module = pytest.importorskip(library)
    prefix, options = {
        "lightgbm": ("LGBM", {"verbose": -1, "num_leaves": 8}),
        "xgboost": ("XGB", {"enable_categorical": True, "tree_method": "hist"}),
    }[library]
    return getattr(module, prefix + task)(**SMALL, **options)


@pytest.fixture(scope="module")
def table():
    """Numbers, some of them missing, a category, and two classes."""
    random = np.random.default_rng(0)
    n = 600
    X = pd.DataFrame(
        {
            "age": random.uniform(20, 60, n),
            "hours": np.where(random.uniform(size=n) < 0.1, np.nan, random.normal(40, 5, n)),
            "town": pd.Categorical(random.choice(["Graz", "Linz", "Ulm"], n)),
        }
    )
    score = (X["age"] - 40) / 10 + (X["town"] == "Linz") + random.normal(0, 0.5, n)
    return X, (score > 0).to_numpy().astype(int), score.to_numpy()


def detection(quam, X):
    """AUROC of ages in months by the epistemic part."""
    ordinary = quam.predict_uncertainty(X).epistemic
    unusual = quam.predict_uncertainty(X.assign(age=12 * X["age"])).epistemic
    return roc_auc_score(np.repeat([0, 1], len(X)), np.concatenate([ordinary, unusual]))


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
@pytest.mark.parametrize("frozen", [False, True])
def test_classifiers_with_missing_numbers_and_categories(table, library, frozen):
    X, y, _ = table
    estimator = learner(library, "Classifier")
    expected = clone(estimator).fit(X[:400], y[:400])
    given = FrozenEstimator(expected) if frozen else estimator
    quam = QUAMClassifier(given, random_state=0).fit(X[:400], y[:400])
    rows = X[400:]
    np.testing.assert_allclose(quam.predict_proba(rows), expected.predict_proba(rows), rtol=1e-5)
    assert detection(quam, rows) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_regressors_with_missing_numbers_and_categories(table, library):
    X, _, y = table
    quam = QUAMRegressor(learner(library, "Regressor"), random_state=0).fit(X[:400], y[:400])
    assert detection(quam, X[400:]) > 0.95


def test_labels_that_xgboost_does_not_take(table):
    X, y, _ = table
    with pytest.raises(ValueError, match=r"Expected: \[0 1\]"):
        QUAMClassifier(learner("xgboost", "Classifier")).fit(X, np.array(["no", "yes"])[y])
