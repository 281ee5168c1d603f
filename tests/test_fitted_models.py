"""One rule for models that are already fitted, over all estimators that wrap a classifier."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.neural_network import MLPClassifier

import skuq
from skuq.quam import PoolSearch

# What trains clones and trains; what works after the fact uses any fitted model as it is.
TRAIN = {
    "LaplaceClassifier": {"random_state": 0},
    "FeatureDistanceClassifier": {},
    "OODDetector": {"scores": ["energy"]},
    "QUAMClassifier": {"search": PoolSearch(n_steps=2)},
    "ReferenceClassifier": {},
}
AFTER_THE_FACT = {
    "CalibrationAuditor": {},
    "EvidentialProbe": {"max_epochs": 2},
    "MirageFineTuner": {"max_epochs": 1, "region": {0: (5.0, 6.0)}},
}


@pytest.fixture(scope="module")
def data():
    """Iris, and labels that a model trained on them would never predict."""
    X, y = load_iris(return_X_y=True)
    return X, y, 2 - y


def fitted(X, y):
    return MLPClassifier((4,), max_iter=60, random_state=0).fit(X, y)


@pytest.mark.parametrize("name", TRAIN)
def test_what_trains_warns_and_trains_a_clone_of_a_fitted_model(data, name):
    X, y, other = data
    given = fitted(X, other)
    before = given.predict_proba(X)
    estimator = getattr(skuq, name)(given, **TRAIN[name])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(X, y)
    assert any("FrozenEstimator" in str(each.message) for each in caught)
    np.testing.assert_array_equal(given.predict_proba(X), before)
    if name != "OODDetector":  # it predicts inliers, not classes
        expected = fitted(X, y).predict_proba(X).argmax(axis=1)
        assert (estimator.predict(X) == expected).mean() > 0.9


@pytest.mark.parametrize("name", [*TRAIN, *AFTER_THE_FACT])
def test_a_frozen_model_is_used_as_it_is(data, name):
    X, _, other = data
    given = fitted(X, other)
    before = given.predict_proba(X)
    estimator = getattr(skuq, name)(FrozenEstimator(given), **(TRAIN | AFTER_THE_FACT)[name])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*FrozenEstimator.*")
        estimator.fit(X, other)
    np.testing.assert_array_equal(given.predict_proba(X), before)
    if name not in ("MirageFineTuner", "OODDetector"):  # the first one changes a copy on purpose
        same = (estimator.predict(X) == given.predict(X)).mean()
        # `LaplaceClassifier` predicts the average of models that it draws around the given one.
        assert same > 0.9 if name == "LaplaceClassifier" else same == 1


@pytest.mark.parametrize("name", AFTER_THE_FACT)
def test_what_works_after_the_fact_uses_a_fitted_model_as_it_is(data, name):
    X, _, other = data
    given = fitted(X, other)
    before = given.predict_proba(X)
    estimator = getattr(skuq, name)(given, **AFTER_THE_FACT[name])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*FrozenEstimator.*")
        estimator.fit(X, other)
    np.testing.assert_array_equal(given.predict_proba(X), before)
    if name != "MirageFineTuner":
        np.testing.assert_array_equal(estimator.predict(X), given.predict(X))
