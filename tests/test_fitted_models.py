"""One rule for models that are already fitted, over all estimators that wrap a classifier."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.frozen import FrozenEstimator
from sklearn.neural_network import MLPClassifier

import skuq
from skuq.quam import PoolSearch

# What trains clones and trains; what works after the fact uses any fitted model as it is.
TRAIN = {
    # With this prior, all models that it draws and averages are the given one.
    "LaplaceClassifier": {"random_state": 0, "prior_precision": 1e12},
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
# One predicts inliers, not classes, and one changes a copy on purpose.
OTHER_PREDICTIONS = ("OODDetector", "MirageFineTuner")


X, Y = load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def given():
    """A model of other labels, which a model of those of iris would never predict."""
    return MLPClassifier((4,), max_iter=60, random_state=0).fit(X, 2 - Y)


@pytest.mark.parametrize("name", TRAIN)
def test_what_trains_warns_and_trains_a_clone_of_a_fitted_model(given, name):
    before = given.predict_proba(X)
    with pytest.warns(UserWarning, match="FrozenEstimator"):
        estimator = getattr(skuq, name)(given, **TRAIN[name]).fit(X, Y)
    np.testing.assert_array_equal(given.predict_proba(X), before)
    if name not in OTHER_PREDICTIONS:
        np.testing.assert_array_equal(estimator.predict(X), clone(given).fit(X, Y).predict(X))


@pytest.mark.parametrize(
    ("name", "around"),
    [(name, FrozenEstimator) for name in (*TRAIN, *AFTER_THE_FACT)]
    + [(name, lambda model: model) for name in AFTER_THE_FACT],
)
def test_a_frozen_model_and_any_model_after_the_fact_are_used_as_they_are(given, name, around):
    before = given.predict_proba(X)
    estimator = getattr(skuq, name)(around(given), **(TRAIN | AFTER_THE_FACT)[name])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*FrozenEstimator.*")
        estimator.fit(X, 2 - Y)
    np.testing.assert_array_equal(given.predict_proba(X), before)
    if name not in OTHER_PREDICTIONS:
        np.testing.assert_array_equal(estimator.predict(X), given.predict(X))
