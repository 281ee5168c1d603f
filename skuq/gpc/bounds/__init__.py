"""Proven ranges of class probabilities over regions of the input space."""
