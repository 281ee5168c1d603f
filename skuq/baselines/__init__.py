"""Baselines for rows and nodes: models sampled without looking at the test point."""

from skuq.baselines._deep_ensemble import DeepEnsembleClassifier
from skuq.baselines._laplace import LaplaceClassifier
from skuq.baselines._mc_dropout import MCDropoutClassifier
from skuq.baselines._reference import ReferenceClassifier
from skuq.baselines._sgmcmc import SGMCMCClassifier

__all__ = [
    "DeepEnsembleClassifier",
    "LaplaceClassifier",
    "MCDropoutClassifier",
    "ReferenceClassifier",
    "SGMCMCClassifier",
]
