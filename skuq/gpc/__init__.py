"""Gaussian-process classification with guaranteed ranges of class probabilities."""

from skuq.gpc.estimator import RobustGPC

__all__ = ["RobustGPC"]
