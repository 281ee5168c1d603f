"""Gaussian processes with proven bounds on class probabilities and regression predictions."""

from skuq.extras import import_optional

import_optional("torch", extra=None)
from skuq.gpc._attacks import Attack
from skuq.gpc._certificates import Certificate, FeatureEffects, ProbabilityBounds, SafeRadius
from skuq.gpc._regression_certificates import MomentBounds, RegressionBounds
from skuq.gpc._robust_gpc import RobustGPC
from skuq.gpc._robust_gpr import RobustGPRegressor

__all__ = [
    "Attack",
    "Certificate",
    "FeatureEffects",
    "MomentBounds",
    "ProbabilityBounds",
    "RegressionBounds",
    "RobustGPC",
    "RobustGPRegressor",
    "SafeRadius",
]
