"""The bounds of Blaas et al. (AISTATS 2020) for Gaussian-process classifiers, as published."""

from benchmarks.published_gpc.branch_and_bound import published_bounds

__all__ = ["published_bounds"]
