"""Doctests of modules that need an extra run only where it is installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("matplotlib") else ["skuq/plotting/*", "skuq/datasets.py"]
