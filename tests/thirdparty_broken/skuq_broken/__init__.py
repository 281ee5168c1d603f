"""Fails when it is imported."""

raise RuntimeError("libneeded.so.9 is missing")
