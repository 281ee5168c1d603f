"""The fixtures of the tests of the probe: a small graph, and a classifier on it."""

from tests.evidential.conftest import data, gcn, nodes, others, y

__all__ = ["data", "gcn", "nodes", "others", "y"]
