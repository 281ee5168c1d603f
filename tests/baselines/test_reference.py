"""The entropy of a single model."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from skuq.baselines import ReferenceClassifier

LEARNERS = [
    KNeighborsClassifier(),
    LinearDiscriminantAnalysis(),
    DecisionTreeClassifier(max_depth=2, random_state=0),
    CalibratedClassifierCV(LogisticRegression(), cv=2),
]


def test_reference_is_as_uncertain_as_its_entropy(iris):
    mine = LogisticRegression().fit(*iris)
    reference = ReferenceClassifier(FrozenEstimator(mine)).fit(*iris)
    p = mine.predict_proba(iris[0])
    u = reference.predict_uncertainty(iris[0])
    np.testing.assert_allclose(u.total, -(p * np.log(p)).sum(1))
    np.testing.assert_array_equal(u.total, u.aleatoric)
    assert np.isnan(u.epistemic).all()


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda each: type(each).__name__)
def test_every_classifier_with_probabilities_has_an_entropy(iris, learner):
    fitted = clone(learner).fit(*iris)
    p = fitted.predict_proba(iris[0])
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(1)
    for estimator in (learner, FrozenEstimator(fitted)):
        reference = ReferenceClassifier(estimator, random_state=0).fit(*iris)
        np.testing.assert_allclose(reference.predict_uncertainty(iris[0]).total, entropy, atol=1e-9)
        np.testing.assert_allclose(reference.predict_proba(iris[0]), p, atol=1e-9)
