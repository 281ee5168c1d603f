"""Graph models, pre-trained or trained here, and their evaluation on all nodes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from skorch import NeuralNet, NeuralNetClassifier
from torch import Tensor, nn

from skuq._networks import Columns, LogProbabilities
from skuq.evidential._graph_classifier import GraphClassifier, NodeModel, node_model
from skuq.evidential._graph_libraries import call_on_graph, takes_data, warn_of_edge_data
from skuq.evidential._graph_networks import GraphNetwork, layerwise_logits
from skuq.evidential._graphs import NodeGraph
from skuq.evidential._network_outputs import Layer, Outputs, read_layer
from skuq.evidential._node_batches import NodeBatches, batched_outputs
from skuq.evidential._training import LabelledData
from skuq.models import NetworkModel, adopt, fit_model
from skuq.wrappers import is_fitted


def fit_on_graph(
    model: Any, graph: NodeGraph, nodes: LabelledData, *, device: Any, seed: int
) -> NodeModel:
    """Return a pre-trained model as a `NodeModel`, or train a model on the labelled nodes.

    The model is a `GraphClassifier`, a `torch.nn.Module` whose input is the graph, a fitted skorch
    net around such a module, or any other model that `skuq.models.adopt` accepts, which classifies
    nodes by their features. If the model is None, a `GraphClassifier` is trained. The caller must
    remove wrappers first. `seed` seeds the training of a model without a random state.
    """
    if isinstance(model, nn.Module):
        return node_model(model, graph, None)
    if isinstance(model, NeuralNet) and is_fitted(model):
        return _skorch_model(model, graph)
    if model is None:
        model = GraphClassifier(graph, device=device, random_state=seed)
    if isinstance(model, GraphClassifier) and not is_fitted(model):
        model = clone(model).set_params(graph=graph)
        if model.random_state is None:
            model.set_params(random_state=seed)
        model.fit(**nodes.as_arguments())
    untrained = hasattr(model, "fit") and not is_fitted(model)
    adopted = _fit_on_features(model, graph, nodes, seed) if untrained else adopt(model)
    if isinstance(adopted, NodeModel):
        return replace(adopted, graph=graph)
    return node_model(FeaturesNetwork(adopted), graph, adopted.classes)


def _fit_on_features(model: Any, graph: NodeGraph, nodes: LabelledData, seed: int) -> NetworkModel:
    """Train a classifier of feature rows on the labelled nodes, ignoring edges."""
    rows, codes, weight = nodes.training
    fitted: Any = fit_model(
        model,
        graph.features.to_dense().numpy()[rows],
        nodes.classes[codes],
        sample_weight=None if (weight == 1).all() else weight,
        seed=seed,
    )
    model_of_rows: NetworkModel = fitted
    return model_of_rows


def _skorch_model(net: NeuralNet, graph: NodeGraph) -> NodeModel:
    """Convert a skorch net around a graph network to a model with logits in sorted class order."""
    if not isinstance(net, NeuralNetClassifier):
        return node_model(net.module_, graph, None)
    classes = np.asarray(net.classes_)
    order = np.argsort(classes)
    steps: list[nn.Module] = []
    if isinstance(net.criterion_, nn.NLLLoss):  # skorch then expects probabilities as outputs
        steps.append(LogProbabilities())
    if (order != np.arange(len(order))).any():
        steps.append(Columns(order.tolist()))
    network = PostProcessed(net.module_, steps) if steps else net.module_
    return node_model(network, graph, classes[order])


class PostProcessed(nn.Module):
    """A network, possibly with several inputs, followed by steps applied to its output."""

    def __init__(self, network: nn.Module, steps: list[nn.Module]):
        super().__init__()
        self.network = network
        self.takes_node_graph = getattr(network, "takes_node_graph", False)
        self.takes_data = takes_data(network)
        self.steps = nn.Sequential(*steps)

    def forward(self, *inputs: Any) -> Tensor:
        logits: Tensor = self.steps(self.network(*inputs))
        return logits


class FeaturesNetwork(nn.Module):
    """A classifier of feature rows, applied to the features of all nodes; edges are ignored."""

    takes_node_graph = True

    def __init__(self, model: NetworkModel):
        super().__init__()
        self.module = model.module
        self.model = model

    def forward(self, graph: NodeGraph) -> Tensor:
        inputs = self.model.inputs(graph.features.to_dense().cpu().numpy())
        logits: Tensor = self.module(inputs.to(graph.device))
        return logits


def node_outputs(
    model: NodeModel,
    layer: Layer,
    device: torch.device,
    *,
    batches: NodeBatches | None = None,
    seed: int = 0,
    verbose: bool = False,
) -> Outputs:
    """Evaluate a model on all nodes of its graph.

    A `GraphNetwork` is evaluated layer by layer if the features are on disk. A user's network is
    evaluated in batches if `batches` is given. `verbose` shows a progress bar. Raises a ValueError
    if the logits are not finite or do not have one row per node.
    """
    network = deepcopy(model.module).to(device)
    graph = model.graph
    if batches is not None and getattr(network, "takes_node_graph", False):
        raise ValueError(
            "`batches` applies only to your own graph networks. A GraphClassifier is evaluated "
            "layer by layer if its features are on disk, and a classifier of feature rows does not "
            "use the graph. Use batches=None."
        )
    try:
        if graph.on_disk and isinstance(network, GraphNetwork):
            _check_reads_logits(layer)
            logits = hidden = layerwise_logits(network, graph, device, verbose=verbose)
        elif batches is not None:
            logits, hidden = batched_outputs(
                network, graph, layer, device, batches, seed=seed, verbose=verbose
            )
        else:
            run = partial(call_on_graph, network, graph.to(device))
            with torch.no_grad():
                logits, hidden = read_layer(network, run, layer)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise ValueError(
            f"The model cannot be evaluated on this graph, whose nodes have {graph.n_features} "
            f"features; it raised: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from error
    warn_of_edge_data(network, graph)
    shape = tuple(logits.shape)
    if len(shape) != 2 or shape[0] != graph.n_nodes or shape[1] < 2:
        raise ValueError(
            f"The model must return logits of shape ({graph.n_nodes}, n_classes), got {shape}."
        )
    if not bool(torch.isfinite(logits).all() and torch.isfinite(hidden).all()):
        raise ValueError("The model returns NaN or infinity on this graph.")
    return Outputs(logits.detach().cpu().double(), hidden.detach().cpu().float())


def _check_reads_logits(layer: Layer) -> None:
    if layer != -1:
        raise ValueError(
            f"`layer`={layer!r} is not available, because only the logits are computed for a graph "
            "whose features are on disk; use layer=-1, or load the features into memory."
        )
