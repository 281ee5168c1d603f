"""Uncertainty-aware deep Q-learning, and its anchored quantile regression for tables."""
