"""Gaussian-process classification: priors, likelihoods and approximate posteriors."""

from skuq.gpc.inference._posterior import (
    BinaryPosterior,
    FactoredPosterior,
    JointPosterior,
    Posterior,
)

__all__ = [
    "BinaryPosterior",
    "FactoredPosterior",
    "JointPosterior",
    "Posterior",
]
