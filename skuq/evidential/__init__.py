"""Evidential probes of pre-trained networks, on graphs, images and tables."""

from skuq.extras import import_optional

import_optional("torch", extra=None)
from skuq.evidential._dirichlet import dirichlet_uncertainty, propagate
from skuq.evidential._graph_classifier import GraphClassifier
from skuq.evidential._graph_libraries import as_node_graph
from skuq.evidential._graphs import NodeGraph
from skuq.evidential._head import LogitHead, NetworkHead
from skuq.evidential._losses import EvidenceLoss
from skuq.evidential._node_batches import NodeBatches
from skuq.evidential._probe import EvidentialProbe
from skuq.evidential.comparison import (
    EvidentialGNN,
    GraphPosteriorNetwork,
    KernelDirichletGNN,
    LogitUncertainty,
    comparison_methods,
)

__all__ = [
    "EvidenceLoss",
    "EvidentialGNN",
    "EvidentialProbe",
    "GraphClassifier",
    "GraphPosteriorNetwork",
    "KernelDirichletGNN",
    "LogitHead",
    "LogitUncertainty",
    "NetworkHead",
    "NodeBatches",
    "NodeGraph",
    "as_node_graph",
    "comparison_methods",
    "dirichlet_uncertainty",
    "propagate",
]
