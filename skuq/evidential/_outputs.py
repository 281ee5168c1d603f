"""Pre-trained models of nodes, and the logits and representations of models for all samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from sklearn.utils import gen_batches
from skorch import NeuralNet, NeuralNetClassifier
from torch import Tensor, nn

from skuq._networks import (
    Columns,
    LogProbabilities,
    forward_hooks,
    moved,
    on_device,
    rows_at_once,
)
from skuq.base import FloatArray
from skuq.evidential._graph_classifier import (
    Followed,
    GraphClassifier,
    NodeModel,
    node_model,
)
from skuq.evidential._graph_libraries import call_on_graph, warn_of_edge_data
from skuq.evidential._graph_networks import GraphNetwork, layerwise_logits
from skuq.evidential._graphs import NodeGraph
from skuq.evidential._node_batches import NodeBatches, Read, batched_outputs
from skuq.evidential._training import LabelledData
from skuq.models import NetworkModel, adopt, fit_model
from skuq.wrappers import is_fitted

Layer = int | str

# Name of the submodule in which torch stores parametrised weights, such as those of
# `spectral_norm`.
_PARAMETRIZATIONS = "parametrizations"


class Outputs(NamedTuple):
    """Outputs of a model for samples, on the CPU."""

    logits: Tensor  # (n_samples, n_classes), float64
    hidden: Tensor  # (n_samples, n_hidden), float32: representation in the chosen layer


def row_outputs(model: NetworkModel, inputs: Tensor, layer: Layer, device: torch.device) -> Outputs:
    """Compute logits and representations of samples, in batches of bounded size."""
    module = moved(model.module, device)
    parts = []
    with torch.no_grad():
        for rows in gen_batches(len(inputs), rows_at_once(module)):
            run = partial(module, on_device(inputs[rows].clone(), device))
            logits, hidden = read_layer(module, run, layer)
            parts.append((logits.detach().cpu().double(), hidden.detach().cpu().float()))
    return Outputs(*(torch.cat(column) for column in zip(*parts, strict=True)))


def proba_of(logits: Tensor) -> FloatArray:
    """Compute class probabilities of shape (n_samples, n_classes), float64, from logits."""
    proba: FloatArray = logits.double().softmax(dim=1).numpy()
    return proba


def read_layer(
    network: nn.Module, run: Callable[[], Tensor], layer: Layer
) -> tuple[Tensor, Tensor]:
    """Evaluate a network by calling `run`, and record the representation in one of its layers.

    `layer` is -1 for the logits, -2 for the input of the last layer with a weight matrix, -3 for
    the input of the layer before, and so on. The name of a module selects the output of the module.
    All axes of the representation except the first are flattened.
    """
    if layer == -1:
        logits = run()
        return logits, logits
    modules = dict(network.named_modules())
    if isinstance(layer, str):
        if not layer or layer not in modules:
            raise ValueError(
                f"The network has no module `layer`={layer!r}; its modules are "
                f"{', '.join(filter(None, modules))}."
            )
        recorded: deque[Any] = deque(maxlen=1)
        hooks = forward_hooks([modules[layer]], _keep_output(recorded))
    else:
        recorded = deque(maxlen=-layer - 1)
        layers = [
            module
            for name, module in modules.items()
            if _has_matrix(module) and _PARAMETRIZATIONS not in name.split(".")
        ]
        hooks = forward_hooks(layers, _keep_input(recorded), before=True)
    with hooks:
        logits = run()
    if len(recorded) < (recorded.maxlen or 0):
        raise ValueError(
            f"`layer`={layer!r} counts layers with a weight matrix, but the network evaluated only "
            f"{len(recorded)} of them; pass the name of a module instead, one of "
            f"{', '.join(filter(None, modules))}."
        )
    hidden = recorded[0]
    if not isinstance(hidden, Tensor) or hidden.ndim < 2 or len(hidden) != len(logits):
        found = tuple(hidden.shape) if hasattr(hidden, "shape") else type(hidden).__name__
        raise ValueError(
            f"The representation `layer`={layer!r} must be a tensor with {len(logits)} rows, one "
            f"for each sample, got {found}."
        )
    return logits, hidden.flatten(1)


def _has_matrix(module: nn.Module) -> bool:
    """Whether a module has a weight matrix of its own, unlike containers and normalisation."""
    leaf = all(name == _PARAMETRIZATIONS for name, _ in module.named_children())
    return leaf and any(parameter.ndim > 1 for parameter in module.parameters())


def _keep_input(recorded: deque[Any]) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        arguments = [*inputs, *named.values()]  # the first argument of some layers is a graph
        tensor = next((x for x in arguments if isinstance(x, Tensor)), arguments[0])
        recorded.append(_copy(tensor))

    return hook


def _keep_output(recorded: deque[Any]) -> Callable[..., None]:
    return lambda module, inputs, output: recorded.append(_copy(output))


def _copy(value: Any) -> Any:
    """Copy a tensor, because the next module may alter its input in place."""
    return value.clone() if isinstance(value, Tensor) else value


def fitted_node_model(
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
    adopted: Any
    if hasattr(model, "fit") and not is_fitted(model):  # a classifier of feature rows
        rows, codes, weight = nodes.training
        adopted = fit_model(
            model,
            graph.features.to_dense().numpy()[rows],
            nodes.classes[codes],
            sample_weight=None if (weight == 1).all() else weight,
            seed=seed,
        )
    else:
        adopted = adopt(model)
    if isinstance(adopted, NodeModel):
        return replace(adopted, graph=graph)
    return node_model(FeaturesNetwork(adopted), graph, adopted.classes)


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
    network = Followed(net.module_, *steps) if steps else net.module_
    return node_model(network, graph, classes[order])


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
    evaluated in batches if `batches` is given. `verbose` shows a progress bar.
    """
    network = deepcopy(model.module).to(device)
    graph = model.graph
    if batches is not None and getattr(network, "takes_node_graph", False):
        raise ValueError(
            "`batches` applies only to your own graph networks. A GraphClassifier is evaluated "
            "layer by layer if its features are on disk. Use batches=None."
        )
    by_layer = network if graph.on_disk and isinstance(network, GraphNetwork) else None
    if by_layer is not None and layer != -1:
        raise ValueError(
            f"`layer`={layer!r} is not available, because only the logits are computed for a graph "
            "whose features are on disk; use layer=-1, or load the features into memory."
        )
    try:
        with torch.no_grad():
            if by_layer is not None:
                logits = hidden = layerwise_logits(by_layer, graph, device, verbose=verbose)
            elif batches is not None:
                read: Read = partial(read_layer, network, layer=layer)
                logits, hidden = batched_outputs(
                    network, graph, read, device, batches, seed=seed, verbose=verbose
                )
            else:
                run = partial(call_on_graph, network, graph.to(device))
                logits, hidden = read_layer(network, run, layer)
    except (RuntimeError, AttributeError, TypeError, IndexError) as error:
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
