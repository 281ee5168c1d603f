"""Gaussian processes with proven bounds on class probabilities and regression predictions."""

from skuq.imports import import_optional

import_optional("torch", extra=None)
from skuq.gpc._certificates import Attack, Bounds, Certificate, FeatureEffects, SafeRadius
from skuq.gpc._robust_gpc import RobustGPC
from skuq.gpc._robust_gpr import RobustGPRegressor

__all__ = [
    "Attack",
    "Bounds",
    "Certificate",
    "FeatureEffects",
    "RobustGPC",
    "RobustGPRegressor",
    "SafeRadius",
]
