"""Graphs of several libraries in one form; the only module that imports DGL."""

from __future__ import annotations

import os
import warnings
from copy import copy
from functools import cached_property
from importlib.util import find_spec
from inspect import signature
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from torch import Tensor, nn

from skuq.evidential._sparse import Features, as_features, same_features
from skuq.extras import import_optional
from skuq.models import level_of_the_user, resolve_device


def import_dgl() -> ModuleType:
    """Import DGL with torch as its engine.

    Raises
    ------
    ImportError
        If it is missing; the message names the extra ``graph``.
    """
    os.environ.setdefault("DGLBACKEND", "pytorch")  # without it, DGL prints a line
    import_optional("dgl.nn", extra="graph")
    return import_optional("dgl", extra="graph")


class NodeGraph:
    """An undirected graph with features of its nodes.

    Build it with `as_node_graph`. It is never altered, and a deep copy is the graph itself.

    Attributes
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes), float64
        1 for each pair of neighbours; symmetric, without self-loops.
    features : Tensor or SparseFeatures of shape (n_nodes, n_features), float32
        Features.
    original : object
        The graph as the user gave it, for networks that were trained on it.
    on_disk : bool
        Whether the features are read from a file when they are used.
    device : torch.device
        Device on which networks compute on it.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        adjacency: sparse.csr_array,
        features: Features,
        original: Any = None,
        *,
        on_disk: bool = False,
    ):
        self.adjacency = adjacency
        self.features = features
        self.original = original
        self.on_disk = on_disk

    @property
    def n_nodes(self) -> int:
        return int(self.adjacency.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.features.shape[1])

    def __repr__(self) -> str:
        n_edges = self.adjacency.nnz // 2
        return f"NodeGraph(n_nodes={self.n_nodes}, n_edges={n_edges}, n_features={self.n_features})"

    def __deepcopy__(self, memo: dict[int, Any]) -> NodeGraph:
        return self  # so that scikit-learn's clone shares it

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "convolution"}

    @cached_property
    def convolution(self) -> Any:
        """The graph with a self-loop at every node, for graph convolutions of DGL."""
        looped = sparse.coo_array(self.adjacency + sparse.eye_array(self.n_nodes))
        edges = tuple(torch.tensor(ends, dtype=torch.int32) for ends in looped.coords)
        return import_dgl().graph(edges, num_nodes=self.n_nodes).to(self.device)

    def is_same(self, other: NodeGraph) -> bool:
        """Whether another graph has the same edges and features, and so the same nodes."""
        if self is other:
            return True
        ours, theirs = self.adjacency, other.adjacency
        return (
            np.array_equal(ours.indptr, theirs.indptr)
            and np.array_equal(ours.indices, theirs.indices)
            and same_features(self.features, other.features)
        )

    def to(self, device: torch.device) -> NodeGraph:
        """Return the graph for networks on a device; the same one if it is there already."""
        if device == self.device:
            return self
        moved = copy(self)  # without `convolution`, which is built where it is needed
        moved.device = device
        moved.features = self.features.to(device)
        return moved


def as_node_graph(graph: Any) -> NodeGraph:
    """Convert a graph with node features from any of several libraries.

    Edges are treated as undirected and unweighted: two nodes are neighbours if there is an edge
    in either direction. Self-loops are dropped (convolutions add their own), repeated
    edges count once, and isolated nodes are allowed.

    Parameters
    ----------
    graph : DGLGraph, (adjacency, features), PyG Data or NodeGraph
        A `dgl.DGLGraph` with features in ``ndata["feat"]``; a pair of a square scipy sparse
        or dense matrix, or a DGLGraph, and a feature matrix, which may be sparse; or an object with
        ``edge_index`` and ``x`` such as `torch_geometric.data.Data`. Features in a `numpy.memmap`
        of float32, such as ``numpy.load(path, mmap_mode="r")``, stay on disk.

    Returns
    -------
    NodeGraph

    Raises
    ------
    TypeError
        If it is of another type, or there are several graphs.
    ValueError
        If it has no features, several types of nodes, no nodes, features with NaN, edges between
        what are no ids of nodes, or shapes that do not match.

    Examples
    --------
    >>> import numpy as np
    >>> as_node_graph((np.array([[0, 1], [1, 0]]), np.eye(2)))
    NodeGraph(n_nodes=2, n_edges=1, n_features=2)
    """
    if isinstance(graph, NodeGraph):
        return graph
    if _is_of_dgl(graph):
        return _from_dgl(graph)
    if hasattr(graph, "edge_index"):
        return _from_pyg(graph)
    several = isinstance(graph, tuple | list) and len(graph) > 1
    if several and all(hasattr(one, "edge_index") or _is_of_dgl(one) for one in graph):
        raise TypeError(
            f"`graph` must be one graph, got {len(graph)}: join them first, with PyG's "
            "Batch.from_data_list or dgl.batch."
        )
    if isinstance(graph, tuple | list) and len(graph) == 2:
        return _from_dgl(*graph) if _is_of_dgl(graph[0]) else _from_matrices(*graph)
    raise TypeError(
        f"`graph` must be a DGLGraph, a pair (adjacency, features), a PyG Data object or a "
        f"NodeGraph, got {type(graph).__name__}."
    )


def _is_of_dgl(graph: Any) -> bool:
    return type(graph).__module__.partition(".")[0] == "dgl"


def _from_dgl(graph: Any, features: Any = None) -> NodeGraph:
    if len(graph.ntypes) != 1 or len(graph.etypes) != 1:
        raise ValueError("`graph` must have one type of nodes and one type of edges.")
    if features is not None:  # in place of its own
        graph = graph.local_var()
        graph.ndata.pop("feat", None)
    elif "feat" not in graph.ndata:
        found = ", ".join(map(repr, graph.ndata)) or "nothing"
        raise ValueError(
            f'`graph` has no features: put them into graph.ndata["feat"]; ndata holds {found}.'
        )
    source, target = (ends.cpu() for ends in graph.edges())
    adjacency = _from_edges(source, target, graph.num_nodes())
    return _checked(adjacency, graph.ndata["feat"] if features is None else features, graph)


def _from_pyg(graph: Any) -> NodeGraph:
    if getattr(graph, "x", None) is None:
        raise ValueError("`graph` has no features: its attribute `x` is None.")
    if graph.edge_index is None:
        raise ValueError("`graph` has no edges: its attribute `edge_index` is None.")
    edges = torch.as_tensor(graph.edge_index).cpu()
    if edges.ndim != 2 or len(edges) != 2:
        raise ValueError(f"`edge_index` must have shape (2, n_edges), got {tuple(edges.shape)}.")
    _check_ids(edges)
    source, target = edges
    return _checked(_from_edges(source, target, np.shape(graph.x)[0]), graph.x, graph)


def _check_ids(edges: Tensor) -> None:
    """Refuse ends of edges that are not whole numbers, of which conversion would make others."""
    if edges.dtype == torch.bool or edges.is_complex():
        wrong = f"dtype {edges.dtype}"
    elif edges.is_floating_point() and (edges != edges.round()).any():
        wrong = f"dtype {edges.dtype}, such as {edges[edges != edges.round()][0].item():g}"
    else:
        return
    raise ValueError(
        f"`edge_index` must hold ids of nodes, which are integers, got {wrong}. It is a list of "
        "edges; an adjacency matrix is given as (adjacency, features)."
    )


def _from_matrices(adjacency: Any, features: Any) -> NodeGraph:
    if features is None:
        raise ValueError("`graph` has no features: the second of the pair is None.")
    if isinstance(adjacency, Tensor):
        edges = adjacency.detach().cpu().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        adjacency = sparse.coo_array((edges.values(), tuple(edges.indices())), shape=edges.shape)
    if sparse.issparse(adjacency) and adjacency.format == "csr" and _is_undirected(adjacency):
        ones = np.ones(adjacency.nnz)
        shared = sparse.csr_array((ones, adjacency.indices, adjacency.indptr), adjacency.shape)
        return _checked(shared, features, None)
    matrix = sparse.coo_array(adjacency)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"The adjacency matrix must be square, got shape {matrix.shape}.")
    matrix.eliminate_zeros()
    if not np.isfinite(matrix.data).all():
        raise ValueError("The adjacency matrix contains NaN or infinity.")
    return _checked(_from_edges(matrix.row, matrix.col, matrix.shape[0]), features, None)


def _is_undirected(matrix: Any) -> bool:
    """Whether a CSR matrix needs no change: symmetric, without loops, zeros and repetitions.

    Building another one of a large graph would take several times its memory.
    """
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    if not square or not matrix.has_canonical_format or not np.isfinite(matrix.data).all():
        return False
    if not matrix.data.all() or matrix.diagonal().any():
        return False
    mirrored = sparse.csc_array(
        (np.ones(matrix.nnz, np.int8), matrix.indices, matrix.indptr), matrix.shape
    ).tocsr()
    return np.array_equal(mirrored.indices, matrix.indices) and np.array_equal(
        mirrored.indptr, matrix.indptr
    )


def _from_edges(source: ArrayLike, target: ArrayLike, n_nodes: int) -> sparse.csr_array:
    """Build an undirected adjacency matrix without self-loops and repeated edges."""
    u, v = np.asarray(source), np.asarray(target)
    if len(u) and not 0 <= min(u.min(), v.min()) <= max(u.max(), v.max()) < n_nodes:
        raise ValueError(
            f"Edges must join nodes 0 to {n_nodes - 1}, got {min(u.min(), v.min())} to "
            f"{max(u.max(), v.max())}."
        )
    # Short indices and booleans, whose sum is at most 1: large graphs need little memory.
    joining, index = u != v, np.int32 if n_nodes < 2**31 else np.int64
    ends = u[joining].astype(index), v[joining].astype(index)
    along = sparse.csr_array((np.ones(len(ends[0]), bool), ends), shape=(n_nodes, n_nodes))
    matrix = along + sparse.csr_array(along.T)
    return sparse.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), matrix.shape)


def _checked(adjacency: sparse.csr_array, features: Any, original: Any) -> NodeGraph:
    if adjacency.shape[0] == 0:
        raise ValueError("`graph` has no nodes.")
    taken = as_features(features)
    if taken.shape[0] != adjacency.shape[0]:
        raise ValueError(
            f"`graph` has {adjacency.shape[0]} nodes, but features of {taken.shape[0]} nodes."
        )
    return NodeGraph(adjacency, taken, original, on_disk=isinstance(features, np.memmap))


def block_of(matrix: sparse.csr_array, device: torch.device) -> Any:
    """Build DGL's graph from the nodes in columns to those in rows of a sparse matrix."""
    rows, columns = (torch.tensor(ends, dtype=torch.int32) for ends in matrix.tocoo().coords)
    n_rows, n_columns = matrix.shape
    block = import_dgl().create_block((columns, rows), n_columns, n_rows)
    return block.to(device)


def graph_device(device: str | torch.device) -> torch.device:
    """Resolve a ``device`` parameter to a device that graph networks can use.

    DGL comes in builds without CUDA; "auto" is then the CPU.

    Raises
    ------
    ValueError
        If the device is not present, or DGL was not built for it.
    """
    resolved = resolve_device(device)
    if resolved.type == "cpu":
        return resolved
    if find_spec("dgl") is None:  # then the network comes from another library
        return resolved
    dgl = import_dgl()
    try:
        dgl.graph(([0], [0])).to(resolved)
    except dgl.DGLError as error:
        if device == "auto":
            return torch.device("cpu")
        raise ValueError(
            f"`device`={str(device)!r}: the installed DGL was built without it; use 'cpu'."
        ) from error
    return resolved


def dense_features(graph: NodeGraph) -> Tensor:
    """Return the features as a dense tensor of shape (n_nodes, n_features)."""
    features = graph.features
    return features if isinstance(features, Tensor) else features.to_dense()


def call_on_graph(network: nn.Module, graph: NodeGraph) -> Tensor:
    """Evaluate a graph network on the kind of graph that its library uses.

    Parameters
    ----------
    network : torch.nn.Module
        A network with the attribute `takes_node_graph` is called with the NodeGraph; any other
        by the convention of its library: ``network(x, edge_index)`` if the graph was given as a
        PyG object, or ``network(data)`` if it needs one argument only; ``network(graph,
        features)`` with a DGLGraph otherwise.
    graph : NodeGraph
        Graph.

    Returns
    -------
    Tensor
        Outputs of the network, such as logits of shape (n_nodes, n_classes).
    """
    if getattr(network, "takes_node_graph", False):
        return network(graph)
    original = graph.convolution if graph.original is None else graph.original
    given = _given_features(graph)
    features = dense_features(graph) if given is None else given
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
    """Warn, at the level of the user, of weights of edges that a network is called without.

    They reach it only in a whole PyG object, although its `forward` can take them.
    """
    original = graph.original
    takes_node_graph = getattr(network, "takes_node_graph", False)
    if not hasattr(original, "edge_index") or takes_node_graph or takes_data(network):
        return
    for name in ("edge_weight", "edge_attr"):
        possible = getattr(network, f"supports_{name}", True)  # of networks of PyG
        taken = possible and name in signature(network.forward).parameters
        if taken and getattr(original, name, None) is not None:
            warnings.warn(
                f"The model is called as network(x, edge_index), without `{name}` of the graph, "
                "which it could take. If it was trained with it, pass a module that takes the "
                f"whole object, forward(self, data); if not, remove `{name}` from the graph.",
                UserWarning,
                stacklevel=level_of_the_user(),
            )


def checked_nodes(X: Any, n_nodes: int) -> NDArray[np.int64]:
    """Validate node ids, or turn a mask of all nodes into ids; of shape (n,) or (n, 1).

    Raises
    ------
    ValueError
        If they are not integers, out of range, empty, of another shape, or a mask of numbers.
    """
    ids = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X)
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids[:, 0]
    if ids.dtype == bool:
        if ids.shape != (n_nodes,):
            raise ValueError(
                f"A mask must have one value for each of {n_nodes} nodes, got shape {ids.shape}."
            )
        ids = np.flatnonzero(ids)
    if ids.ndim != 1:
        raise ValueError(f"X must hold node ids, shape (n,) or (n, 1), got shape {ids.shape}.")
    if len(ids) == 0:
        raise ValueError("X holds no node ids; at least 1 is needed.")
    if len(ids) == n_nodes > 2 and np.isin(ids, (0, 1)).all():
        raise ValueError(
            f"X holds a 0 or 1 for each of {n_nodes} nodes, such as a mask in numbers: turn it "
            "into booleans, for instance with X == 1."
        )
    if ids.dtype.kind not in "iu" and not (ids.dtype.kind == "f" and (ids == ids.round()).all()):
        raise ValueError(f"X must hold node ids, which are integers, got dtype {ids.dtype}.")
    if not 0 <= ids.min() <= ids.max() < n_nodes:
        raise ValueError(
            f"Node ids must lie between 0 and {n_nodes - 1}, got {ids.min()} to {ids.max()}."
        )
    return ids.astype(np.int64)
