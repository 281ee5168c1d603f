"""Evidential probes: evidence from a pre-trained network, on graphs, images and tables."""

from skuq.evidential.baselines import (
    EvidentialGNN,
    GraphEnsemble,
    GraphPosteriorNetwork,
    KernelDirichletGNN,
    LogitUncertainty,
    MCDropout,
)
from skuq.evidential.classifier import GraphClassifier
from skuq.evidential.comparison import comparison_methods
from skuq.evidential.dirichlet import dirichlet_uncertainty, expected_entropy
from skuq.evidential.estimator import EvidentialProbe
from skuq.evidential.graphs import NodeGraph, as_node_graph

__all__ = [
    "EvidentialGNN",
    "EvidentialProbe",
    "GraphClassifier",
    "GraphEnsemble",
    "GraphPosteriorNetwork",
    "KernelDirichletGNN",
    "LogitUncertainty",
    "MCDropout",
    "NodeGraph",
    "as_node_graph",
    "comparison_methods",
    "dirichlet_uncertainty",
    "expected_entropy",
]
