"""The entropy of a single model."""

import numpy as np
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from skuq.baselines import ReferenceClassifier


def test_reference_is_as_uncertain_as_its_entropy(iris):
    mine = LogisticRegression().fit(*iris)
    reference = ReferenceClassifier(FrozenEstimator(mine)).fit(*iris)
    p = mine.predict_proba(iris[0])
    u = reference.predict_uncertainty(iris[0])
    np.testing.assert_allclose(u.total, -(p * np.log(p)).sum(1))
    np.testing.assert_array_equal(u.total, u.aleatoric)
    np.testing.assert_array_equal(u.epistemic, 0)
