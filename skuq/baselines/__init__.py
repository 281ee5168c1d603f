"""Baselines: uncertainty of one model, or of several models shared by all test points."""

from skuq.imports import import_optional

import_optional("torch", extra=None)
from skuq.baselines._deep_ensemble import DeepEnsembleClassifier
from skuq.baselines._laplace import LaplaceClassifier
from skuq.baselines._sgmcmc import SGMCMCClassifier
from skuq.baselines._single_model import (
    FeatureDistanceClassifier,
    MCDropoutClassifier,
    ReferenceClassifier,
)

__all__ = [
    "DeepEnsembleClassifier",
    "FeatureDistanceClassifier",
    "LaplaceClassifier",
    "MCDropoutClassifier",
    "ReferenceClassifier",
    "SGMCMCClassifier",
]
