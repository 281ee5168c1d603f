"""Adapters for graphs and networks of DGL and PyG; no other module handles their objects.

Both libraries are optional: neither is needed for a graph of two matrices with skuq's networks.
"""

import os
from copy import copy
from inspect import Parameter, signature
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skuq._networks import resolve_device
from skuq.evidential import _graphs
from skuq.evidential._graphs import Features, NodeGraph, SparseFeatures
from skuq.imports import import_optional
from skuq.validation import warn_user

Ids = NDArray[np.integer]


def import_dgl() -> ModuleType:
    os.environ.setdefault("DGLBACKEND", "pytorch")  # otherwise DGL prints a message
    import_optional("dgl.nn", extra="graph")
    return import_optional("dgl", extra="graph")


def as_node_graph(graph: Any) -> NodeGraph:
    """Convert the parameter `graph` of `GraphClassifier` to a NodeGraph without repeated edges."""
    if isinstance(graph, NodeGraph):
        return graph
    if _is_of_dgl(graph):
        return _from_dgl(graph)
    if _is_of_pyg(graph):
        return _from_pyg(graph)
    if isinstance(graph, tuple | list) and len(graph) == 2 and not _is_of_pyg(graph[0]):
        adjacency, features = graph
        if _is_of_dgl(adjacency) and not _is_of_dgl(features):
            return _from_dgl(adjacency, features)
        if not _is_of_dgl(adjacency):
            return _graphs.from_matrices(adjacency, features)
    raise TypeError(
        f"`graph` must be one DGLGraph, a pair (adjacency, features), or an object with "
        f"`edge_index` and `x` such as a PyG Data object, got {type(graph).__name__}."
    )


def _is_of_dgl(graph: Any) -> bool:
    return type(graph).__module__.partition(".")[0] == "dgl"


def _is_of_pyg(graph: Any) -> bool:
    return hasattr(graph, "edge_index")


def _from_dgl(graph: Any, features: Any = None) -> NodeGraph:
    if features is not None:  # these replace the features in `graph.ndata`
        graph = graph.local_var()
        graph.ndata.pop("feat", None)
    elif len(graph.ntypes) != 1 or "feat" not in graph.ndata:
        raise ValueError(
            '`graph` must have one type of nodes, with features in graph.ndata["feat"].'
        )
    source, target = (ends.cpu() for ends in graph.edges())
    adjacency = _graphs.from_edges(source, target, graph.num_nodes())
    return _graphs.checked_graph(
        adjacency, graph.ndata["feat"] if features is None else features, graph
    )


def _from_pyg(graph: Any) -> NodeGraph:
    for name in ("x", "edge_index"):
        if getattr(graph, name, None) is None:
            raise ValueError(
                f"`graph` needs features and edges: its attribute `{name}` is None. PyG's "
                "ToSparseTensor keeps the edges with remove_edge_index=False."
            )
    edges = torch.as_tensor(graph.edge_index).cpu()
    whole = edges.dtype != torch.bool and bool((edges == edges.to(torch.int64)).all())
    if edges.ndim != 2 or len(edges) != 2 or not whole:
        raise ValueError(
            "`edge_index` must have shape (2, n_edges) and contain integer node ids, got shape "
            f"{tuple(edges.shape)}, dtype {edges.dtype}."
        )
    sources, targets = edges
    return _graphs.checked_graph(
        _graphs.from_edges(sources, targets, np.shape(graph.x)[0]), graph.x, graph
    )


def call_on_graph(network: nn.Module, graph: NodeGraph) -> Tensor:
    """Evaluate a graph network with the arguments that its library expects.

    A network with the attribute `takes_node_graph` is called with the NodeGraph. If the graph is of
    PyG, any other network is called as ``network(x, edge_index)`` or ``network(data)``; otherwise
    as ``network(graph, features)`` with a DGLGraph.
    """
    if getattr(network, "takes_node_graph", False):
        return network(graph)
    original, features = graph.original, _features(graph)
    if original is None:  # build a DGLGraph, with the self-loops that DGL's layers need
        ends = tuple(torch.from_numpy(part) for part in given_edges(graph))
        original = _new_dgl_graph(ends, num_nodes=graph.n_nodes)
    dense = features if isinstance(features, Tensor) else features.to_dense()
    if not graph.on_disk:
        dense = dense.clone()  # a network may alter its input in place
    return _call_on_original(network, original, dense, graph.device)


def _new_dgl_graph(ends: tuple[Tensor, ...], **options: Any) -> Any:
    try:
        return import_dgl().graph(ends, **options)
    except ImportError as error:
        raise ImportError(
            f"A graph of two matrices is passed to your network as a DGLGraph. {error}. Without "
            "DGL, pass the graph as an object with `edge_index` and `x`: your network is then "
            "called as network(x, edge_index).",
            name="dgl",
        ) from error


def _call_on_original(
    network: nn.Module, original: Any, features: Tensor, device: torch.device
) -> Tensor:
    if not _is_of_pyg(original):
        there = original.local_var().to(device)  # a copy, because a network may write to its graph
        there.ndata["feat"] = features.to(device)
        outputs = network(there, there.ndata["feat"])
    elif takes_data(network):
        data = copy(original)  # because a network may alter its input
        data.x = features
        outputs = network(data.to(device) if hasattr(data, "to") else data)
    else:
        edges = torch.as_tensor(original.edge_index)
        try:
            outputs = network(features.to(device), edges.to(device))
        except (IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f"The network was called as {type(network).__name__}(x, edge_index) and raised: "
                f"{error}. If it has other inputs, define forward(self, data) and read them from "
                "the graph `data`."
            ) from error
    if not isinstance(outputs, Tensor):
        raise ValueError(
            f"The model must return one tensor of logits, shape (n_nodes, n_classes), got "
            f"{type(outputs).__name__}; wrap it in a module that returns only the logits."
        )
    return outputs


def _features(graph: NodeGraph) -> Features:
    """Return features in the user's dtype if the original graph stores a tensor, else float32."""
    original = graph.original
    stored = original.x if _is_of_pyg(original) else getattr(original, "ndata", {}).get("feat")
    return stored if isinstance(stored, Tensor) else graph.features


def given_edges(graph: NodeGraph) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return sources and targets of the edges that a user's network receives, on the CPU."""
    original = graph.original
    if original is None:  # return the edges of the DGLGraph that `call_on_graph` builds
        everyone = np.arange(graph.n_nodes)
        beside = np.repeat(everyone, np.diff(graph.adjacency.indptr))
        ends = (np.append(part, everyone) for part in (graph.adjacency.indices, beside))
    else:
        edges = original.edge_index if _is_of_pyg(original) else original.edges()
        ends = (torch.as_tensor(part).cpu().numpy() for part in edges)
    source, target = (part.astype(np.int32) for part in ends)
    return source, target


def takes_data(network: nn.Module) -> bool:
    """Return whether a network is called with a PyG object: if `forward` needs one argument."""
    if hasattr(network, "takes_data"):
        return bool(network.takes_data)
    parameters = signature(network.forward).parameters.values()
    variadic = (Parameter.VAR_POSITIONAL, Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
    needed = [p for p in parameters if p.default is p.empty and p.kind not in variadic]
    return len(needed) == 1


def warn_of_edge_data(network: nn.Module, graph: NodeGraph) -> None:
    original = graph.original
    takes_node_graph = getattr(network, "takes_node_graph", False)
    if not _is_of_pyg(original) or takes_node_graph or takes_data(network):
        return
    for name in ("edge_weight", "edge_attr"):
        possible = getattr(network, f"supports_{name}", True)  # PyG's networks have this attribute
        taken = possible and name in signature(network.forward).parameters
        if taken and getattr(original, name, None) is not None:
            warn_user(
                f"The network accepts `{name}`, but is called as network(x, edge_index), without "
                f"the graph's `{name}`. If it was trained with `{name}`, wrap it in a module with "
                f"forward(self, data); if not, remove `{name}` from the graph."
            )


class Part(NamedTuple):
    """A subgraph, or a new graph that uses node features and edge data of the original graph."""

    nodes: Ids  # (n_nodes,): ids of the nodes in the original graph, whose features are used
    source: Ids  # (n_edges,): sources of the edges, as positions in `nodes`
    target: Ids  # (n_edges,): targets of the edges, as positions in `nodes`
    edges: Ids  # (n_edges,): ids of the edges in the original graph, whose data are used


def call_on_part(network: nn.Module, graph: NodeGraph, device: torch.device, part: Part) -> Tensor:
    """Evaluate a user's network on a part of its graph, as in `call_on_graph`."""
    # Some layers need edges sorted by target. Edges with equal targets are in the original order.
    order = np.lexsort([part.edges, part.target])
    nodes, edges = torch.from_numpy(part.nodes), torch.from_numpy(part.edges[order])
    ends = torch.from_numpy(np.stack([part.source[order], part.target[order]]))
    features = _features(graph)
    if isinstance(features, SparseFeatures):
        features = torch.from_numpy(features.to_scipy()[part.nodes].toarray())
    else:
        features = features.index_select(0, nodes.to(features.device))
    make = _pyg_part if _is_of_pyg(graph.original) else _dgl_part
    return _call_on_original(network, make(graph.original, nodes, edges, ends), features, device)


def _pyg_part(given: Any, nodes: Tensor, edges: Tensor, ends: Tensor) -> Any:
    part = copy(given)
    for name in given.keys() if hasattr(given, "is_node_attr") else ():
        if name in ("x", "edge_index"):
            continue
        if given.is_node_attr(name):
            part[name] = given[name][nodes]
        elif given.is_edge_attr(name):
            part[name] = given[name][edges]
        elif name == "num_nodes":
            part.num_nodes = len(nodes)
    part.edge_index = ends
    return part


def _dgl_part(given: Any, nodes: Tensor, edges: Tensor, ends: Tensor) -> Any:
    idtype = torch.int32 if given is None else given.idtype
    part = _new_dgl_graph(tuple(ends), num_nodes=len(nodes), idtype=idtype)
    if given is not None:  # copy data of `given`, perhaps from a GPU, to the part on the CPU
        part.ndata.update({k: x[nodes].cpu() for k, x in given.ndata.items() if k != "feat"})
        part.edata.update({k: x[edges].cpu() for k, x in given.edata.items()})
    return part


def forget_graph(network: nn.Module) -> None:
    """Disable caches that layers fill from their first graph, as in ``GCNConv(cached=True)``."""
    for layer in network.modules():
        for switch in ("cached", "_cached"):
            if getattr(layer, switch, None) is True:
                kept = [name for name in vars(layer) if name.startswith("_cached_")]
                vars(layer).update(dict.fromkeys(kept), **{switch: False})


def device_for_network(
    network: nn.Module, graph: NodeGraph, device: str | torch.device
) -> torch.device:
    """Resolve `device`; "auto" is the CPU for a DGL network if DGL does not support CUDA."""
    resolved = resolve_device(device)
    of_dgl = not getattr(network, "takes_node_graph", False) and not _is_of_pyg(graph.original)
    if resolved.type == "cpu" or not of_dgl:
        return resolved
    dgl = import_dgl()
    try:
        dgl.graph(([0], [0])).to(resolved)
    except dgl.DGLError as error:
        if device == "auto":
            return torch.device("cpu")
        raise ValueError(
            f"`device`={str(device)!r} is not supported by the installed DGL; use 'cpu'."
        ) from error
    return resolved
