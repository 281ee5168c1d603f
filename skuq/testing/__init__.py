"""The conformance suite for estimators of skuq, built-in or third-party.

A plugin is a scikit-learn estimator with one more method, so two suites apply to it:
scikit-learn's `sklearn.utils.estimator_checks` for the estimator, and this one for the
method. Each check is a function that states one fact in the first line of its docstring
and raises `AssertionError` if the estimator breaks it.
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
