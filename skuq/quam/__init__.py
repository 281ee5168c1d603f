"""Quantification of uncertainty with adversarial models (QUAM)."""

from skuq.quam.estimator import QUAMClassifier

__all__ = ["QUAMClassifier"]
