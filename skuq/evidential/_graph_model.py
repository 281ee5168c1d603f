"""Somebody's trained model, with or without a graph, read but never changed."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.utils import gen_batches
from skorch import NeuralNet
from torch import Tensor, nn

from skuq.evidential._graph_classifier import GraphClassifier
from skuq.evidential._graphs import NodeGraph, as_node_graph, call_on_graph, dense_features
from skuq.evidential._hooks import Layer, with_hidden
from skuq.evidential._node_classifier import LabelledNodes
from skuq.models import AdoptedModel, Columns, LogProbabilities, adopt, fit_or_adopt, is_fitted
from skuq.wrappers import unwrap

BATCH_SIZE = 1024  # samples whose hidden representations are computed at once, without a graph


class Outputs(NamedTuple):
    """What a model says about samples.

    Attributes
    ----------
    logits : Tensor of shape (n_samples, n_classes), float64
        Logarithms of class probabilities, up to a constant per sample.
    hidden : Tensor of shape (n_samples, n_hidden), float32
        Representation in the chosen layer.
    """

    logits: Tensor
    hidden: Tensor


@dataclass
class GraphModel:
    """A trained network on a graph.

    Attributes
    ----------
    network : torch.nn.Module
        The network, as it was given.
    graph : NodeGraph
        Graph.
    classes : ndarray of shape (n_classes,) or None
        Labels in the order of the logits, sorted; None if the network does not know them.
    """

    network: nn.Module
    graph: NodeGraph
    classes: NDArray[Any] | None = None

    def outputs(self, layer: Layer, device: torch.device) -> Outputs:
        """Evaluate a copy of the network on all nodes.

        Raises
        ------
        ValueError
            If the network cannot be evaluated on the graph, or returns no finite logits.
        """
        network = deepcopy(self.network).to(device).eval()
        graph = self.graph.to(device)
        try:
            with torch.no_grad():
                logits, hidden = with_hidden(network, partial(call_on_graph, network, graph), layer)
        except (RuntimeError, AttributeError, TypeError) as error:
            raise ValueError(
                f"The model cannot be evaluated on this graph, whose nodes have "
                f"{self.graph.n_features} features: {str(error).splitlines()[0]}"
            ) from error
        shape = tuple(logits.shape)
        if len(shape) != 2 or shape[0] != self.graph.n_nodes or shape[1] < 2:
            raise ValueError(
                f"The model must return logits of shape ({self.graph.n_nodes}, n_classes), got "
                f"{shape}."
            )
        if not bool(torch.isfinite(logits).all() and torch.isfinite(hidden).all()):
            raise ValueError("The model returns NaN or infinity on this graph.")
        return Outputs(logits.detach().double().cpu(), hidden.detach().float().cpu())


def adopted_outputs(
    model: AdoptedModel, inputs: Tensor, layer: Layer, device: torch.device
) -> Outputs:
    """Evaluate an adopted model on samples, in batches that bound memory."""
    module = model.module if device.type == "cpu" else deepcopy(model.module).to(device)
    parts = []
    with torch.no_grad():
        for rows in gen_batches(len(inputs), BATCH_SIZE):
            run = partial(module, inputs[rows].to(device, copy=True))
            logits, hidden = with_hidden(module, run, layer)
            parts.append((logits.detach().double().cpu(), hidden.detach().float().cpu()))
    return Outputs(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _unwrapped(model: Any) -> Any:
    """The model inside wrappers that change neither its inputs nor its outputs."""
    try:
        inside = unwrap(model)
    except (NotFittedError, TypeError):
        return model
    changes = isinstance(model, CalibratedClassifierCV)
    if inside is None or inside.transform is not None or changes:
        return model
    return _unwrapped(inside.estimator)


def graph_of(model: Any, graph: Any) -> NodeGraph | None:
    """The graph to work on: the one given, else the one that a graph classifier brings."""
    if graph is not None:
        return as_node_graph(graph)
    model = _unwrapped(model)
    if isinstance(model, GraphClassifier) and not is_fitted(model):
        return as_node_graph(model.graph)
    return getattr(model, "graph_", None)


def known_classes(model: Any) -> NDArray[Any] | None:
    """The classes that a trained model knows; None if it knows none yet."""
    model = _unwrapped(model)
    if model is None or not is_fitted(model) or not hasattr(model, "classes_"):
        return None
    return np.asarray(model.classes_)


def graph_model(
    model: Any, graph: NodeGraph, nodes: LabelledNodes, *, device: Any, seed: int
) -> GraphModel:
    """Take over a trained graph model as it is; train any other.

    Parameters
    ----------
    model : object
        None (a `GraphClassifier` is trained), a `GraphClassifier`, fitted or not, a
        `torch.nn.Module` that takes the graph, a fitted skorch net around one, or any other
        model that `skuq.models.adopt` takes, which classifies nodes by their features.
    graph : NodeGraph
        Graph.
    nodes : LabelledNodes
        What an untrained model learns from.
    device : str or torch.device
        Where a default model is trained.
    seed : int
        Randomness of the training, unless the model has its own.

    Returns
    -------
    GraphModel

    Raises
    ------
    TypeError
        If the model is of another kind.
    """
    model = _unwrapped(model)
    if isinstance(model, nn.Module):
        return GraphModel(model, graph)
    if isinstance(model, NeuralNet) and is_fitted(model):
        return _skorch_model(model, graph)
    if model is None:
        model = GraphClassifier(graph, device=device, random_state=seed)
    if isinstance(model, GraphClassifier) and not is_fitted(model):
        model = clone(model).set_params(graph=graph)
        if model.random_state is None:
            model.set_params(random_state=seed)
        model.fit(**nodes.as_arguments())
    if isinstance(model, GraphClassifier):
        return GraphModel(model.network_, graph, model.classes_)
    untrained = hasattr(model, "fit") and not is_fitted(model)
    adopted = _fit_on_features(model, graph, nodes, seed) if untrained else adopt(model)
    return GraphModel(OnFeatures(adopted), graph, adopted.classes)


def _fit_on_features(model: Any, graph: NodeGraph, nodes: LabelledNodes, seed: int) -> AdoptedModel:
    """Train a classifier of rows on the features of labelled nodes."""
    labelled = nodes.training.inputs["inputs"]
    features = dense_features(graph).numpy()[labelled]
    y = nodes.classes[nodes.training.codes]
    weight = nodes.training.inputs["weight"]
    weighted = None if (weight == 1).all() else weight
    cpu = torch.device("cpu")
    return fit_or_adopt(model, features, y, sample_weight=weighted, seed=seed, device=cpu)


def _skorch_model(net: NeuralNet, graph: NodeGraph) -> GraphModel:
    """A skorch net around a graph network: logits, in the order of sorted classes."""
    classes = np.asarray(net.classes_)
    order = np.argsort(classes)
    after: list[nn.Module] = []
    if isinstance(net.criterion_, nn.NLLLoss):  # by convention it returns probabilities
        after.append(LogProbabilities())
    if (order != np.arange(len(order))).any():
        after.append(Columns(order.tolist()))
    network = Followed(net.module_, after) if after else net.module_
    return GraphModel(network, graph, classes[order])


class Followed(nn.Module):
    """A network that may take several inputs, and what its output goes through."""

    def __init__(self, network: nn.Module, after: list[nn.Module]):
        super().__init__()
        self.network = network
        self.takes_node_graph = getattr(network, "takes_node_graph", False)
        self.after = nn.Sequential(*after)

    def forward(self, *inputs: Any) -> Tensor:
        logits: Tensor = self.after(self.network(*inputs))
        return logits


class OnFeatures(nn.Module):
    """A model of rows, applied to the features of all nodes; it does not see the edges."""

    takes_node_graph = True

    def __init__(self, model: AdoptedModel):
        super().__init__()
        self.module = model.module
        self.model = model

    def forward(self, graph: NodeGraph) -> Tensor:
        inputs = self.model.inputs(dense_features(graph).cpu().numpy())
        logits: Tensor = self.module(inputs.to(graph.device))
        return logits
