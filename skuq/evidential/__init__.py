"""Evidential probes of pre-trained networks, on graphs, images and tables."""

from skuq.evidential._dirichlet import dirichlet_uncertainty, expected_entropy
from skuq.evidential._graph_classifier import GraphClassifier
from skuq.evidential._graphs import NodeGraph, as_node_graph
from skuq.evidential._losses import (
    expected_square_loss,
    ice_loss,
    pcl_loss,
    uce_loss,
)
from skuq.evidential._probe import EvidentialProbe
from skuq.evidential._propagation import (
    diffuse_vacuity,
    neighbour_mean,
    normalised_with_loops,
    propagate,
    propagate_evidence,
    smooth,
)
from skuq.evidential.comparison import (
    EvidentialGNN,
    GraphPosteriorNetwork,
    KernelDirichletGNN,
    LogitUncertainty,
    comparison_methods,
)

__all__ = [
    "EvidentialGNN",
    "EvidentialProbe",
    "GraphClassifier",
    "GraphPosteriorNetwork",
    "KernelDirichletGNN",
    "LogitUncertainty",
    "NodeGraph",
    "as_node_graph",
    "comparison_methods",
    "diffuse_vacuity",
    "dirichlet_uncertainty",
    "expected_entropy",
    "expected_square_loss",
    "ice_loss",
    "neighbour_mean",
    "normalised_with_loops",
    "pcl_loss",
    "propagate",
    "propagate_evidence",
    "smooth",
    "uce_loss",
]
