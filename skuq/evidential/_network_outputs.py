"""Outputs of networks of several libraries: logits, and representations in a layer.

Networks are called on rows or on graphs, and never changed; representations are read through
forward hooks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import gen_batches
from torch import Tensor, nn

from skuq.base import FloatArray
from skuq.evidential._graphs import NodeGraph
from skuq.models import NetworkModel
from skuq.networks import moved, on_device, rows_at_once
from skuq.validation import warn_user

Layer = int | str

# Where torch keeps the parts of a parametrised weight, such as that of `spectral_norm`.
_PARAMETRIZATIONS = "parametrizations"


class Outputs(NamedTuple):
    """Outputs of a model for samples, on the CPU."""

    logits: Tensor  # (n_samples, n_classes), float64
    hidden: Tensor  # (n_samples, n_hidden), float32: representation in the chosen layer


def adopted_outputs(
    model: NetworkModel, inputs: Tensor, layer: Layer, device: torch.device
) -> Outputs:
    """Evaluate an adopted model on samples, in batches that bound memory."""
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
    """Evaluate a network by `run`, and record the representation in one of its layers.

    The layer is -1 for the logits, -2 for the input of the last layer with a weight matrix, -3 for
    that of the layer before, and so on; or the name of a module, for its output. Axes of the
    representation but the first are flattened.
    """
    if layer == -1:
        logits = run()
        return logits, logits
    by_name = isinstance(layer, str)
    position = 1 if by_name else -layer - 1  # type: ignore[operator]
    recorded: deque[Any] = deque(maxlen=position)
    if by_name:
        handles = [_named(network, str(layer)).register_forward_hook(_keep_output(recorded))]
    else:
        handles = [
            module.register_forward_pre_hook(_keep_input(recorded), with_kwargs=True)
            for name, module in network.named_modules()
            if _has_matrix(module) and _PARAMETRIZATIONS not in name.split(".")
        ]
    try:
        logits = run()
    finally:
        for handle in handles:
            handle.remove()
    if len(recorded) < position:
        raise ValueError(
            f"`layer`={layer!r}: the network ran through {len(recorded)} such layers; name a "
            f"module instead, one of {_names(network)}."
        )
    return logits, _rows(recorded[0], len(logits), layer)


def _named(network: nn.Module, name: str) -> nn.Module:
    modules = dict(network.named_modules())
    if name not in modules or not name:
        raise ValueError(
            f"`layer`={name!r}: the network has no such module; its modules are {_names(network)}."
        )
    return modules[name]


def _names(network: nn.Module) -> str:
    return ", ".join(name for name, _ in network.named_modules() if name)


def _has_matrix(module: nn.Module) -> bool:
    """Whether a module has weights of its own: neither a container nor a normalisation."""
    leaf = all(name == _PARAMETRIZATIONS for name, _ in module.named_children())
    return leaf and any(parameter.ndim > 1 for parameter in module.parameters())


def _keep_input(recorded: deque[Any]) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        arguments = [*inputs, *named.values()]  # some layers take a graph first
        tensor = next((x for x in arguments if isinstance(x, Tensor)), arguments[0])
        recorded.append(_copy(tensor))

    return hook


def _keep_output(recorded: deque[Any]) -> Callable[..., None]:
    return lambda module, inputs, output: recorded.append(_copy(output))


def _copy(value: Any) -> Any:
    """Copy a tensor, because the next module may alter its input in place."""
    return value.clone() if isinstance(value, Tensor) else value


def _rows(hidden: Any, n_samples: int, layer: Layer) -> Tensor:
    if not isinstance(hidden, Tensor) or hidden.ndim < 2 or len(hidden) != n_samples:
        found = tuple(hidden.shape) if hasattr(hidden, "shape") else type(hidden).__name__
        raise ValueError(
            f"`layer`={layer!r} must hold a tensor with one row for each of {n_samples} samples, "
            f"got {found}."
        )
    return hidden.flatten(1)


def call_on_graph(network: nn.Module, graph: NodeGraph) -> Tensor:
    """Evaluate a graph network on the kind of graph that its library uses.

    A network with the attribute `takes_node_graph` is called with the NodeGraph; any other by the
    convention of its library: ``network(x, edge_index)`` if the graph was given as a PyG object, or
    ``network(data)`` if it needs one argument only; ``network(graph, features)`` with a DGLGraph
    otherwise.
    """
    if getattr(network, "takes_node_graph", False):
        return network(graph)
    original = graph.convolution if graph.original is None else graph.original
    given = _given_features(graph)
    features = graph.features.to_dense() if given is None else given
    if not graph.on_disk:
        features = features.clone()  # a network may alter its input in place
    return call_on_original(network, original, features, graph.device)


def call_on_original(
    network: nn.Module, original: Any, features: Tensor, device: torch.device
) -> Tensor:
    """Evaluate a network on a graph of its library with these features, see `call_on_graph`."""
    if not hasattr(original, "edge_index"):
        there = original.local_var().to(device)  # a network may write to it
        there.ndata["feat"] = features.to(device)
        outputs = network(there, there.ndata["feat"])
    elif takes_data(network):
        data = copy(original)  # a network may alter it
        data.x = features
        outputs = network(data.to(device) if hasattr(data, "to") else data)
    else:
        edges = torch.as_tensor(original.edge_index)
        outputs = network(features.to(device), edges.to(device))
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"The model must return one tensor of logits, shape (n_nodes, n_classes), got "
            f"{type(outputs).__name__}; pass a module that calls it and returns its logits alone."
        )
    return outputs


def _given_features(graph: NodeGraph) -> Tensor | None:
    """Features in the user's own type of numbers; None if the original holds no tensor of them."""
    original = graph.original
    if original is None:
        return None
    values = original.x if hasattr(original, "edge_index") else original.ndata.get("feat")
    return values if isinstance(values, Tensor) else None


def feature_rows(graph: NodeGraph, nodes: Tensor) -> Tensor:
    """Return the features of some nodes that a user's network is called with, dense."""
    given = _given_features(graph)
    features = graph.features if given is None else given
    if isinstance(features, Tensor):
        return features.index_select(0, nodes.to(features.device))
    return features.rows(nodes.numpy())


def given_edges(graph: NodeGraph) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Sources and targets of the edges that a user's network is called with, on the CPU."""
    original = graph.original
    if original is None:  # those of `convolution`
        everyone = np.arange(graph.n_nodes)
        beside = np.repeat(everyone, np.diff(graph.adjacency.indptr))
        ends = (np.append(part, everyone) for part in (graph.adjacency.indices, beside))
    elif hasattr(original, "edge_index"):
        ends = (part.cpu().numpy() for part in torch.as_tensor(original.edge_index))
    else:
        ends = (part.cpu().numpy() for part in original.edges())
    source, target = (part.astype(np.int32) for part in ends)
    return source, target


def takes_data(network: nn.Module) -> bool:
    """Whether a network is called with a whole PyG object: its `forward` needs one argument."""
    if hasattr(network, "takes_data"):
        return bool(network.takes_data)
    needed = [
        parameter
        for parameter in signature(network.forward).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return len(needed) == 1


def warn_of_edge_data(network: nn.Module, graph: NodeGraph) -> None:
    """Warn of weights of edges that a network could take, but that only a whole PyG object has."""
    original = graph.original
    takes_node_graph = getattr(network, "takes_node_graph", False)
    if not hasattr(original, "edge_index") or takes_node_graph or takes_data(network):
        return
    for name in ("edge_weight", "edge_attr"):
        possible = getattr(network, f"supports_{name}", True)  # of networks of PyG
        taken = possible and name in signature(network.forward).parameters
        if taken and getattr(original, name, None) is not None:
            warn_user(
                f"The model is called as network(x, edge_index), without `{name}` of the graph, "
                "which it could take. If it was trained with it, pass a module that takes the "
                f"whole object, forward(self, data); if not, remove `{name}` from the graph."
            )
