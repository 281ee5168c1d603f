"""Texts as inputs of QUAM, and of every estimator around a pipeline that reads them."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skuq import (
    CalibrationAuditor,
    DeepEnsembleClassifier,
    EvidentialProbe,
    FeatureDistanceClassifier,
    LaplaceClassifier,
    QUAMClassifier,
    QUAMRegressor,
    ReferenceClassifier,
)
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch

RANDOM = np.random.default_rng(0)
MONEY = ["send", "pay", "my", "bill", "money", "to", "bob", "account", "card"]
WEATHER = ["rain", "weather", "sunny", "tomorrow", "cloud", "is", "what", "the"]
TEXTS = [" ".join(RANDOM.choice([WEATHER, MONEY][k % 2][:8], size=5)) for k in range(60)]
Y = np.array(["weather", "money"])[np.arange(60) % 2]
NEW = ["pay my bill", "rain bill tomorrow pay"]
READER = make_pipeline(TfidfVectorizer(), LogisticRegression())
FROZEN = FrozenEstimator(make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, Y))


@pytest.mark.parametrize("form", [list, np.array, pd.Series])
@pytest.mark.parametrize("estimator", [READER, FROZEN], ids=["clone", "frozen"])
def test_texts_are_inputs_in_every_form(form, estimator):
    quam = QUAMClassifier(estimator, random_state=0).fit(form(TEXTS), Y)
    epistemic = quam.predict_uncertainty(form(NEW)).epistemic
    assert epistemic[1] > epistemic[0]
    again = pickle.loads(pickle.dumps(quam)).set_params(n_jobs=2)
    np.testing.assert_array_equal(again.predict_uncertainty(NEW).epistemic, epistemic)
    assert quam.predict(NEW[:1]).tolist() == ["money"]
    assert quam.search_pool(TEXTS[:20]).predict_uncertainty(NEW).epistemic.shape == (2,)
    assert not hasattr(quam.fit(TEXTS, Y), "n_features_in_")


@pytest.mark.parametrize(
    ("learner", "search"),
    [
        (MultinomialNB(), RefitSearch()),
        (MLPClassifier((3,), max_iter=50, random_state=0), PoolSearch(n_steps=5)),
        (LogisticRegression(), PointwiseSearch(n_steps=3)),
    ],
)
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_every_search_takes_texts(learner, search):
    estimator = make_pipeline(TfidfVectorizer(), learner)
    quam = QUAMClassifier(estimator, search=search, random_state=0).fit(TEXTS, Y)
    assert (quam.predict_uncertainty(NEW).epistemic > 0).all()
    if not isinstance(search, PointwiseSearch):
        with_pool = QUAMClassifier(estimator, search=search).fit(TEXTS, Y, X_pool=NEW)
        assert (with_pool.predict_uncertainty(NEW).epistemic > 0).all()


def test_words_are_explained_one_by_one():
    quam = QUAMClassifier(READER, random_state=0).fit(TEXTS, Y)
    explained = quam.explain(["pay my bill", "pay rain send money", ""])
    assert explained.columns.tolist()[:2] == [
        ["pay", "my", "bill", ""],
        ["pay", "rain", "send", "money"],
    ]
    assert explained.contribution.shape == (3, 4)
    assert (explained.contribution[0, 3], *explained.contribution[2]) == (0, 0, 0, 0, 0)
    assert explained.columns[1, explained.contribution[1].argmax()] == "rain"
    assert explained.most_unusual(1) == [[], [], []]  # 2% of 0.005 nats do not stand out
    assert explained.models.proba.shape[0] == 3


@pytest.mark.parametrize(
    "estimator",
    [
        CalibrationAuditor(FROZEN),
        DeepEnsembleClassifier(READER, n_members=2, random_state=0),
        DeepEnsembleClassifier(
            make_pipeline(TfidfVectorizer(), MultinomialNB()), n_members=2, random_state=0
        ),
        EvidentialProbe(FROZEN, max_epochs=2, random_state=0),
        FeatureDistanceClassifier(READER, random_state=0),
        LaplaceClassifier(READER, random_state=0),
        ReferenceClassifier(READER),
        ReferenceClassifier(make_pipeline(TfidfVectorizer(), MultinomialNB())),
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_estimator_around_a_pipeline_takes_texts(estimator):
    of_list = estimator.fit(TEXTS, Y).predict_uncertainty(NEW).total
    of_series = estimator.fit(pd.Series(TEXTS), Y).predict_uncertainty(pd.Series(NEW)).total
    np.testing.assert_allclose(of_list, of_series)


@pytest.mark.parametrize(
    "estimator", [None, LogisticRegression(), make_pipeline(StandardScaler(), LogisticRegression())]
)
def test_a_learner_that_takes_no_texts_says_what_would(estimator):
    with pytest.raises(ValueError, match=r"X holds texts, .* make_pipeline\(TfidfVectorizer"):
        QUAMClassifier(estimator).fit(TEXTS, Y)


def test_one_axis_of_numbers_is_refused():
    with pytest.raises(ValueError, match="Expected 2D array, got 1D array"):
        QUAMClassifier(READER).fit(np.arange(60.0), Y)


def test_numbers_are_predicted_of_texts():
    about_money = [float("money" in text) for text in TEXTS]
    reader = make_pipeline(TfidfVectorizer(), RandomForestRegressor(5, random_state=0))
    quam = QUAMRegressor(reader, noise=0.1, random_state=0).fit(TEXTS, about_money)
    assert quam.explain(NEW).contribution.shape == (2, 4)
