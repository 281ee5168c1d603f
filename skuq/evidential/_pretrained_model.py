"""Pre-trained models, evaluated on rows or on a graph and never changed."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.utils import gen_batches
from skorch import NeuralNet, NeuralNetClassifier
from torch import Tensor, nn

from skuq.base import FloatArray
from skuq.evidential._backbones import GraphNetwork
from skuq.evidential._graph_classifier import GraphClassifier
from skuq.evidential._graphs import (
    NodeGraph,
    as_node_graph,
    call_on_graph,
    dense_features,
    takes_data,
    warn_of_edge_data,
)
from skuq.evidential._labelled import LabelledData
from skuq.evidential._layerwise import layerwise_logits
from skuq.evidential._node_batches import NodeBatches, batched_outputs
from skuq.evidential._node_model import NodeModel, node_model
from skuq.evidential._representations import Layer, read_layer
from skuq.models import (
    AdoptedModel,
    Columns,
    LogProbabilities,
    adopt,
    fit_or_adopt,
    is_fitted,
    labels_in_mask,
    rows_at_once,
)
from skuq.wrappers import unwrap


class Outputs(NamedTuple):
    """Outputs of a model for samples.

    Attributes
    ----------
    logits : Tensor of shape (n_samples, n_classes), float64
        Logarithms of class probabilities, up to a constant per sample.
    hidden : Tensor of shape (n_samples, n_hidden), float32
        Representation in the chosen layer.
    """

    logits: Tensor
    hidden: Tensor


def node_outputs(
    model: NodeModel,
    layer: Layer,
    device: torch.device,
    *,
    batches: NodeBatches | None = None,
    verbose: bool = False,
) -> Outputs:
    """Evaluate a model on all nodes of its graph.

    A `GraphNetwork` is evaluated layer by layer if the features lie on disk, and a user's network
    in `batches` if these are given, with a bar if `verbose`.

    Raises
    ------
    ValueError
        If the network cannot be evaluated on the graph, or does not return finite logits.
    """
    network = deepcopy(model.module).to(device)
    graph = model.graph
    if batches is not None and getattr(network, "takes_node_graph", False):
        raise ValueError(
            "`batch_size` is for networks of your own; a GraphClassifier is evaluated layer by "
            "layer if its features lie on disk, and a classifier of rows reads no graph. Use "
            "batch_size=None."
        )
    try:
        if graph.on_disk and isinstance(network, GraphNetwork):
            _check_reads_logits(layer)
            logits = hidden = layerwise_logits(network, graph, device, verbose=verbose)
        elif batches is not None:
            logits, hidden = batched_outputs(
                network, graph, layer, device, batches, verbose=verbose
            )
        else:
            run = partial(call_on_graph, network, graph.to(device))
            with torch.no_grad():
                logits, hidden = read_layer(network, run, layer)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise ValueError(
            f"The model cannot be evaluated on this graph, whose nodes have "
            f"{graph.n_features} features: {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from error
    warn_of_edge_data(network, graph)
    shape = tuple(logits.shape)
    if len(shape) != 2 or shape[0] != graph.n_nodes or shape[1] < 2:
        raise ValueError(
            f"The model must return logits of shape ({graph.n_nodes}, n_classes), got {shape}."
        )
    if not bool(torch.isfinite(logits).all() and torch.isfinite(hidden).all()):
        raise ValueError("The model returns NaN or infinity on this graph.")
    return Outputs(logits.detach().double().cpu(), hidden.detach().float().cpu())


def _check_reads_logits(layer: Layer) -> None:
    if layer != -1:
        raise ValueError(
            f"`layer`={layer!r}: of a graph whose features lie on disk only the logits are kept; "
            "use -1, or features in memory."
        )


def adopted_outputs(
    model: AdoptedModel, inputs: Tensor, layer: Layer, device: torch.device
) -> Outputs:
    """Evaluate an adopted model on samples, in batches that bound memory."""
    module = model.module if device.type == "cpu" else deepcopy(model.module).to(device)
    parts = []
    with torch.no_grad():
        for rows in gen_batches(len(inputs), rows_at_once(module)):
            run = partial(module, inputs[rows].to(device, copy=True))
            logits, hidden = read_layer(module, run, layer)
            parts.append((logits.detach().double().cpu(), hidden.detach().float().cpu()))
    return Outputs(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _unwrapped(model: Any) -> Any:
    """Return the model inside wrappers that change neither its inputs nor its outputs."""
    try:
        inside = unwrap(model)
    except (NotFittedError, TypeError):
        return model
    changes = isinstance(model, CalibratedClassifierCV)
    if inside is None or inside.transform is not None or changes:
        return model
    return _unwrapped(inside.estimator)


def graph_of(model: Any, graph: Any) -> NodeGraph | None:
    """Return the given graph, else that of the model if it is a graph classifier.

    Raises
    ------
    ValueError
        If the model is a search over graph classifiers, or another wrapper, that is not fitted:
        it takes ids of nodes, and would be trained on features.
    """
    _check_fitted_around(model)
    if graph is not None:
        return as_node_graph(graph)
    model = _unwrapped(model)
    if isinstance(model, GraphClassifier) and not is_fitted(model):
        return as_node_graph(model.graph)
    return getattr(model, "graph_", None)


def _check_fitted_around(model: Any) -> None:
    """Refuse wrappers of a `GraphClassifier` that are not fitted."""
    model = _unwrapped(model)
    inside, level = model, unwrap(model, fitted=False)
    while level is not None:
        inside, level = level.estimator, unwrap(level.estimator, fitted=False)
    if inside is not model and isinstance(inside, GraphClassifier) and not is_fitted(model):
        raise ValueError(
            f"{type(model).__name__} around a GraphClassifier is not fitted; fit it first, on "
            "node ids, such as EvidentialProbe(search.fit(nodes, labels))."
        )


def known_classes(model: Any, X_val: Any = None, y_val: Any = None) -> NDArray[Any] | None:
    """Return the classes of a trained model; None if it has no labels.

    A network may know the classes of validation nodes, although it has no labels.
    """
    model = _unwrapped(model)
    if isinstance(model, nn.Module) and y_val is not None:
        return labels_in_mask(X_val, np.ravel(y_val))
    if model is None or not is_fitted(model) or not hasattr(model, "classes_"):
        return None
    return np.asarray(model.classes_)


def seen_nodes(model: Any, graph: NodeGraph) -> NDArray[np.int64]:
    """Return the nodes of the graph whose labels a trained model is known to have seen."""
    model = _unwrapped(model)
    if isinstance(model, GraphClassifier) and is_fitted(model) and graph.is_same(model.graph_):
        return model.labelled_nodes_
    return np.empty(0, np.int64)


def fit_or_adopt_on_graph(
    model: Any, graph: NodeGraph, nodes: LabelledData, *, device: Any, seed: int
) -> NodeModel:
    """Use a trained model as it is, and train any other on the labelled nodes.

    Parameters
    ----------
    model : object
        None (a `GraphClassifier` is trained), a `GraphClassifier`, fitted or not, a
        `torch.nn.Module` that takes the graph, a fitted skorch net around one, or any other
        model that `skuq.models.adopt` accepts, which classifies nodes by their features.
    graph : NodeGraph
        Graph.
    nodes : LabelledData
        Labelled nodes, for a model that is not fitted.
    device : str or torch.device
        Where a default model is trained.
    seed : int
        Randomness of the training, unless the model has its own.

    Returns
    -------
    NodeModel

    Raises
    ------
    TypeError
        If the model is of another kind.
    """
    model = _unwrapped(model)
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


def _fit_on_features(model: Any, graph: NodeGraph, nodes: LabelledData, seed: int) -> AdoptedModel:
    """Train a classifier of rows on the features of labelled nodes."""
    rows, codes, weight = nodes.training
    return fit_or_adopt(
        model,
        dense_features(graph).numpy()[rows],
        nodes.classes[codes],
        sample_weight=None if (weight == 1).all() else weight,
        seed=seed,
        device=torch.device("cpu"),
    )


def _skorch_model(net: NeuralNet, graph: NodeGraph) -> NodeModel:
    """Turn a skorch net around a graph network into logits in the order of sorted classes."""
    if not isinstance(net, NeuralNetClassifier):
        return node_model(net.module_, graph, None)
    classes = np.asarray(net.classes_)
    order = np.argsort(classes)
    steps: list[nn.Module] = []
    if isinstance(net.criterion_, nn.NLLLoss):  # by convention it returns probabilities
        steps.append(LogProbabilities())
    if (order != np.arange(len(order))).any():
        steps.append(Columns(order.tolist()))
    network = PostProcessed(net.module_, steps) if steps else net.module_
    return node_model(network, graph, classes[order])


class PostProcessed(nn.Module):
    """A network, which may take several inputs, and steps applied to its output."""

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
    """A model of rows, applied to the features of all nodes; edges are ignored."""

    takes_node_graph = True

    def __init__(self, model: AdoptedModel):
        super().__init__()
        self.module = model.module
        self.model = model

    def forward(self, graph: NodeGraph) -> Tensor:
        inputs = self.model.inputs(dense_features(graph).cpu().numpy())
        logits: Tensor = self.module(inputs.to(graph.device))
        return logits


def proba_of(logits: Tensor) -> FloatArray:
    """Class probabilities of shape (n_samples, n_classes), float64, from logits."""
    proba: FloatArray = logits.double().softmax(dim=1).numpy()
    return proba
