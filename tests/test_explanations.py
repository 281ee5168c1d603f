"""Explanations of any estimator, and which columns they name."""

import numpy as np
import pandas as pd
import pytest
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


def test_a_number_of_columns_that_names_nothing_is_refused():
    for n_columns in (0, 1.5):
        with pytest.raises((ValueError, TypeError), match="n_columns"):
            explanation([[1.0, 0.0, 0.0]], [1.0]).most_unusual(n_columns)


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "row number": random.permutation(200),
            "age": random.normal(40, 10, 200),
            "town": random.choice(["Ulm", "Linz", "Graz"], 200),
        },
        index=[f"row {k}" for k in range(200)],
    )
    return X, np.where(X["age"] + 10 * (X["town"] == "Ulm") > 45, "high", "low")


def columns():
    """Encoded numbers of two of the three columns."""
    return make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["town"]))


SHORT = PoolSearch(n_steps=3)
MODELS = {
    "inside": QUAMClassifier(make_pipeline(columns(), LogisticRegression()), random_state=0),
    "around": make_pipeline(columns(), QUAMClassifier(TREES, random_state=0)),
    "network": make_pipeline(
        columns(), QUAMClassifier(search=PoolSearch(n_steps=3), random_state=0)
    ),
    "search": GridSearchCV(
        make_pipeline(columns(), QUAMClassifier(LogisticRegression(), random_state=0)),
        {"quamclassifier__gamma": [0.01]},
        cv=2,
    ),
}


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("name", MODELS)
def test_columns_are_the_users_and_one_that_the_model_never_gets_is_not_named(table, name):
    X, y = table
    new = X[:20].assign(**{"row number": 10**6})
    found = explain(MODELS[name].fit(X, y), new, X, n_typical=5)
    assert found.columns.tolist() == X.columns.tolist()
    assert (found.contribution[:, 0] == 0).all()
    named = found.most_unusual()
    assert {column for row in named for column in row} <= {"age", "town"}
    assert found.to_frame().index.tolist() == X.index[:20].tolist()


def test_explanations_of_the_method_keep_the_index_and_add_the_models(table):
    X, y = table
    quam = MODELS["inside"].fit(X, y)
    found = quam.explain(X[:3])
    assert found.to_frame().index.tolist() == X.index[:3].tolist()
    assert len(found.models.proba) == 3


def test_positions_of_an_array_are_plain_numbers():
    X = np.random.default_rng(0).normal(size=(60, 3))
    quam = QUAMClassifier(LogisticRegression(), random_state=0).fit(X, X[:, 1] > 0)
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
    """An estimator that measures the total alone."""

    def predict_uncertainty(self, X):
        one = np.ones(len(X))
        return Uncertainty(one, np.full(len(X), np.nan), np.full(len(X), np.nan))


def test_what_cannot_be_explained_is_refused(table):
    X, y = table
    quam = MODELS["inside"].fit(X, y)
    with pytest.raises(ValueError, match="age"):
        explain(quam, X[:2], X.drop(columns="age"))
    with pytest.raises(ValueError, match="n_typical"):
        explain(quam, X[:2], X, n_typical=0)
    with pytest.raises(ValueError, match="Unmeasured"):
        explain(Unmeasured(), X[:2], X)
    with pytest.raises(TypeError, match="predict_uncertainty"):
        explain(TREES.fit(X[["age"]], y), X[["age"]], X[["age"]])
