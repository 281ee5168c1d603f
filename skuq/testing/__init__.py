"""Conformance tests for estimators with `predict_uncertainty`, built-in or third-party.

Such an estimator is a scikit-learn estimator with one further method. Therefore, two test suites
apply: scikit-learn's `sklearn.utils.estimator_checks`, and this package for `predict_uncertainty`.
Each check is a function. The first line of its docstring states a requirement, and the function
raises an `AssertionError` if the estimator violates this requirement.
"""

from skuq.testing._run import (
    check_uncertainty_estimator,
    parametrize_with_uncertainty_checks,
    uncertainty_checks,
)

__all__ = [
    "check_uncertainty_estimator",
    "parametrize_with_uncertainty_checks",
    "uncertainty_checks",
]
