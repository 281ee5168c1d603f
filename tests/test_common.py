"""Every registered estimator under scikit-learn's checks and under our own."""

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from skuq import all_estimators
from skuq.testing import parametrize_with_uncertainty_checks


def upper_half(X):
    """A region that neither is empty nor covers everything, whatever the data."""
    first = np.asarray(X, dtype=float)[:, 0]
    return first > np.median(first)


# Checks are about behaviour, not about quality: short searches keep them quick.
QUICK = {
    "CalibrationAuditor": [
        {"estimator": LogisticRegression()},
        {"estimator": LogisticRegression(), "binning": "quantile", "groups": 0},
    ],
    "MirageFineTuner": [{"estimator": None, "region": upper_half, "max_epochs": 5}],
    "MirageRegressor": [{"region": upper_half, "max_epochs": 20}],
    "QUAMClassifier": [{"n_steps": 5}, {"n_steps": 5, "parameters": "last", "setting": "expected"}],
}

ESTIMATORS = [
    estimator(**params)
    for name, estimator in all_estimators()
    if estimator.__module__.startswith("skuq.")
    for params in QUICK.get(name, [{}])
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@parametrize_with_uncertainty_checks(ESTIMATORS)
def test_uncertainty_checks_pass(estimator, check):
    check(estimator)
