"""Inference for Gaussian processes: priors, likelihoods and posteriors."""

from skuq.gpc.inference._likelihoods import tilted_moments as tilted_moments
from skuq.gpc.inference._posterior import Posterior as Posterior
from skuq.gpc.inference._posterior import class_probabilities as class_probabilities
