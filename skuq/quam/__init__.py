"""Quantification of uncertainty with adversarial models (QUAM)."""

from skuq.quam.estimator import QUAMClassifier
from skuq.quam.regressor import QUAMRegressor

__all__ = ["QUAMClassifier", "QUAMRegressor"]
