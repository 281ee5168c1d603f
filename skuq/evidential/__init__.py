"""Evidential probes: evidence from a pre-trained network, on graphs, images and tables."""

from skuq.evidential.classifier import GraphClassifier
from skuq.evidential.dirichlet import dirichlet_uncertainty, expected_entropy
from skuq.evidential.estimator import EvidentialProbe
from skuq.evidential.graphs import NodeGraph, as_node_graph

__all__ = [
    "EvidentialProbe",
    "GraphClassifier",
    "NodeGraph",
    "as_node_graph",
    "dirichlet_uncertainty",
    "expected_entropy",
]
