"""Explanations of any estimator, and which columns they name."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skuq import Explanation, QUAMClassifier, QUAMRegressor, Uncertainty, UncertaintyMixin, explain
from skuq.explanations import SMALLEST_SHARE, standing_out
from skuq.quam import PoolSearch

TREES = HistGradientBoostingClassifier(max_iter=5, random_state=0)


def explanation(contribution, epistemic):
    contribution = np.array(contribution, dtype=float)
    return Explanation(np.array(["a", "b", "c"]), np.array(epistemic, dtype=float), contribution)


@pytest.mark.parametrize(
    ("contribution", "epistemic", "expected"),
    [
        ([0.1, 0.5, 0.3], 1.0, ["b", "c", "a"]),
        ([0.1, -0.5, 0.04], 1.0, ["a"]),  # the last one is below the share
        ([-1.0, 0.0, -0.2], 1.0, []),
        ([0.0, 0.0, 0.0], 0.0, []),
        ([-0.01, 0.0, -0.02], -1.0, []),  # the epistemic part of an audit may be below 0
        ([np.nan, 0.2, np.nan], 1.0, ["b"]),
        ([np.nan, np.nan, np.nan], np.nan, []),
    ],
)
def test_what_contributes_a_share_is_named_and_nothing_else(contribution, epistemic, expected):
    found = explanation([contribution], [epistemic])
    assert found.most_unusual() == [expected]
    assert found.most_unusual(1) == [expected[:1]]
    assert found.to_frame()["most_unusual"].tolist() == ["; ".join(expected)]


def test_the_threshold_is_a_share_of_the_rows_epistemic_uncertainty():
    share = np.array([SMALLEST_SHARE])
    assert standing_out(0.99 * share, 1.0).tolist() == []
    assert standing_out(1.01 * share, 1.0).tolist() == [0]


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(0)
    X = pd.DataFrame({"age": random.normal(40, 10, 200)}, index=[f"row {k}" for k in range(200)])
    X["town"] = random.choice(["Ulm", "Linz", "Graz"], 200)
    X.insert(0, "row number", random.permutation(200))
    return X, np.where(X["age"] + 10 * (X["town"] == "Ulm") > 45, "high", "low")


# Encoded numbers of two of the three columns.
ENCODED = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["town"]))
QUAM = QUAMClassifier(LogisticRegression(), random_state=0)
NETWORK = QUAMClassifier(search=PoolSearch(n_steps=3), random_state=0)
MODELS = {
    "inside": QUAMClassifier(make_pipeline(ENCODED, LogisticRegression()), random_state=0),
    "around": make_pipeline(ENCODED, QUAMClassifier(TREES, random_state=0)),
    "network": make_pipeline(ENCODED, NETWORK),
    "search": GridSearchCV(make_pipeline(ENCODED, QUAM), {"quamclassifier__gamma": [0.01]}, cv=2),
}


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("name", MODELS)
def test_columns_are_the_users_and_one_that_the_model_never_gets_is_not_named(table, name):
    X, y = table
    new = X[:20].assign(**{"row number": 10**6})
    found = explain(MODELS[name].fit(X, y), new, X, n_typical=5)
    assert found.columns.tolist() == X.columns.tolist()
    assert (found.contribution[:, 0] == 0).all()
    assert {column for row in found.most_unusual() for column in row} <= {"age", "town"}
    assert found.to_frame().index.tolist() == X.index[:20].tolist()
    if name == "inside":  # the method adds the models
        found = MODELS[name].explain(X[:3])
        assert found.to_frame().index.tolist() == X.index[:3].tolist()
        assert len(found.models.proba) == 3


def test_positions_of_an_array_are_plain_numbers():
    X = np.random.default_rng(0).normal(size=(60, 3))
    quam = clone(QUAM).fit(X, X[:, 1] > 0)
    far = np.array([[0.0, 0.1, 50.0]])
    for found in (quam.explain(far), explain(quam, far, X)):
        assert found.most_unusual(1) == [[2]]
        assert type(found.most_unusual(1)[0][0]) is int


def test_words_of_texts_and_quantities_are_explained():
    texts = pd.Series(["pay my bill", "will it rain"] * 20, index=range(100, 140))
    target = np.tile([1.0, 2.0], 20)
    quam = QUAMRegressor(RandomForestRegressor(5, random_state=0), noise=0.1, random_state=0)
    model = make_pipeline(TfidfVectorizer(), quam).fit(texts, target)
    found = explain(model, texts[:2], texts)
    assert found.columns.tolist() == [["pay", "my", "bill"], ["will", "it", "rain"]]
    assert found.to_frame().index.tolist() == [100, 101]


class Unmeasured(UncertaintyMixin):
    def predict_uncertainty(self, X):
        return Uncertainty.from_total(np.ones(len(X)))


def test_what_cannot_be_explained_is_refused(table):
    X, y = table
    quam = clone(MODELS["inside"]).fit(X, y)
    for n_columns in (0, 1.5):
        with pytest.raises((ValueError, TypeError), match="n_columns"):
            explanation([[1.0, 0.0, 0.0]], [1.0]).most_unusual(n_columns)
    for args, n_typical, error, word in (
        ((quam, X[:2], X.drop(columns="age")), 5, ValueError, "age"),
        ((quam, X[:2], X), 0, ValueError, "n_typical"),
        ((Unmeasured(), X[:2], X), 5, ValueError, "Unmeasured"),
        ((TREES.fit(X[["age"]], y), X[["age"]], X[["age"]]), 5, TypeError, "predict_uncertainty"),
    ):
        with pytest.raises(error, match=word):
            explain(*args, n_typical=n_typical)
