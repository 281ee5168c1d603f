"""Inference for Gaussian processes: priors, likelihoods and posteriors."""
