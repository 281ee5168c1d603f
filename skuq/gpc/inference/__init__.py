"""Gaussian-process classification: priors, likelihoods and approximate posteriors."""
