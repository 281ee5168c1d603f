"""Proven bounds on predictions over regions of the input space."""
