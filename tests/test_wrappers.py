"""One step into each of scikit-learn's delegating meta-estimators."""

import pickle

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.ensemble import BaggingClassifier
from sklearn.feature_selection import RFE, RFECV
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import (
    FixedThresholdClassifier,
    GridSearchCV,
    RandomizedSearchCV,
    TunedThresholdClassifierCV,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from torch import nn

from skuq.wrappers import unwrap

MODEL = LogisticRegression(C=0.5)
WRAPPERS = {
    "pipeline": make_pipeline(StandardScaler(), "passthrough", MODEL),
    "only_step": make_pipeline(MODEL),
    "search": GridSearchCV(MODEL, {"C": [0.5]}, cv=2),
    "random_search": RandomizedSearchCV(MODEL, {"C": [0.5]}, n_iter=1, cv=2),
    "calibrated": CalibratedClassifierCV(MODEL, ensemble=False, cv=2),
    "fixed_threshold": FixedThresholdClassifier(MODEL),
    "tuned_threshold": TunedThresholdClassifierCV(MODEL, cv=2),
    "self_training": SelfTrainingClassifier(MODEL),
    "rfe": RFE(MODEL, n_features_to_select=2),
    "rfecv": RFECV(MODEL, cv=2),
}
TRANSFORMING = {"pipeline", "rfe", "rfecv"}


@pytest.fixture(scope="module")
def data():
    return make_classification(60, 5, n_informative=3, random_state=0)


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_fitted_model_sees_what_the_transformation_returns(data, name):
    wrapper = clone(WRAPPERS[name]).fit(*data)
    inside = unwrap(wrapper)
    assert isinstance(inside.estimator, LogisticRegression)
    assert (inside.transform is not None) == (name in TRANSFORMING)
    X = data[0] if inside.transform is None else inside.transform(data[0])
    decisions = inside.estimator.decision_function(X)
    if name not in {"calibrated", "fixed_threshold", "tuned_threshold"}:  # they decide otherwise
        np.testing.assert_array_equal(decisions > 0, wrapper.predict(data[0]) == 1)


@pytest.mark.parametrize("name", WRAPPERS)
def test_the_model_that_was_given_is_found_without_a_fit(data, name):
    given = clone(WRAPPERS[name])
    inside = unwrap(given, fitted=False).estimator
    assert inside.get_params() == MODEL.get_params()
    given.fit(*data)
    assert unwrap(given, fitted=False).transform is None


def test_some_wrappers_need_no_fit_and_anything_else_is_not_a_wrapper():
    others = [MODEL, LogisticRegressionCV(), BaggingClassifier(MODEL), nn.Linear(2, 2), None]
    for fitted in (True, False):
        for wrap in (FrozenEstimator, FixedThresholdClassifier):
            assert unwrap(wrap(MODEL), fitted=fitted) == (MODEL, None)
        for other in [*others, "passthrough"]:
            assert unwrap(other, fitted=fitted) is None


class Doubled(TransformerMixin, BaseEstimator):
    """A transformer that learns nothing, as many that users write."""

    def fit(self, X, y=None):
        return self

    def transform(self, X):
        return 2 * X


@pytest.mark.parametrize("before", [[], [StandardScaler()]], ids=["alone", "last"])
def test_transformers_need_no_fitted_attributes(data, before):
    model = make_pipeline(*before, Doubled(), MODEL).fit(*data)
    inside = pickle.loads(pickle.dumps(unwrap(model)))
    proba = inside.estimator.predict_proba(inside.transform(data[0]))
    np.testing.assert_array_equal(proba, model.predict_proba(data[0]))
