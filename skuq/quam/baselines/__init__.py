"""Methods that QUAM is compared with: models sampled without looking at the test point."""

from skuq.quam.baselines.dropout import MCDropoutClassifier
from skuq.quam.baselines.ensemble import DeepEnsembleClassifier
from skuq.quam.baselines.laplace import LaplaceClassifier
from skuq.quam.baselines.reference import ReferenceClassifier
from skuq.quam.baselines.sgmcmc import SGMCMCClassifier

__all__ = [
    "DeepEnsembleClassifier",
    "LaplaceClassifier",
    "MCDropoutClassifier",
    "ReferenceClassifier",
    "SGMCMCClassifier",
]
