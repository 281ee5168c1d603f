"""Evidential probes of pre-trained networks, on graphs, images and tables."""

from skuq.imports import import_optional

import_optional("torch", extra=None)
from skuq.evidential._classifier import PretrainedClassifier as PretrainedClassifier
from skuq.evidential._classifier import graph_of as graph_of
from skuq.evidential._classifier import node_energy as node_energy
from skuq.evidential._evidence import EvidenceLoss, NetworkHead
from skuq.evidential._evidence import dirichlet_uncertainty as dirichlet_uncertainty
from skuq.evidential._evidence import safe_exp as safe_exp
from skuq.evidential._evidence import uce_loss as uce_loss
from skuq.evidential._graph_classifier import GraphClassifier
from skuq.evidential._graph_classifier import NodeClassifierMixin as NodeClassifierMixin
from skuq.evidential._graph_libraries import as_node_graph as as_node_graph
from skuq.evidential._graph_networks import Labelled as Labelled
from skuq.evidential._graph_networks import Samples as Samples
from skuq.evidential._graph_networks import SparseLinear as SparseLinear
from skuq.evidential._graph_networks import normalised_total as normalised_total
from skuq.evidential._graph_networks import train_on_graph as train_on_graph
from skuq.evidential._graphs import LoopedEdges as LoopedEdges
from skuq.evidential._graphs import NodeGraph as NodeGraph
from skuq.evidential._graphs import diffuse as diffuse
from skuq.evidential._graphs import propagate as propagate
from skuq.evidential._graphs import smooth as smooth
from skuq.evidential._node_batches import NodeBatches
from skuq.evidential._outputs import LabelledData as LabelledData
from skuq.evidential._outputs import labelled_nodes as labelled_nodes
from skuq.evidential._outputs import proba_of as proba_of
from skuq.evidential._probe import EvidentialProbe

__all__ = ["EvidenceLoss", "EvidentialProbe", "GraphClassifier", "NetworkHead", "NodeBatches"]
