"""Gaussian-process classification with guaranteed ranges of class probabilities."""

from skuq.extras import import_optional

import_optional("torch", extra=None)
from skuq.gpc._attacks import Attack
from skuq.gpc._certificates import Certificate, FeatureEffects, ProbabilityBounds, SafeRadius
from skuq.gpc._robust_gpc import RobustGPC

__all__ = [
    "Attack",
    "Certificate",
    "FeatureEffects",
    "ProbabilityBounds",
    "RobustGPC",
    "SafeRadius",
]
