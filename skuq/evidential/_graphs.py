"""Undirected graph with node features, built from matrices, and validation of node ids."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from torch import Tensor

from skuq.base import FloatArray
from skuq.evidential._dirichlet import NodePropagation, propagate
from skuq.evidential._graph_layers import LoopedEdges
from skuq.evidential._similar_nodes import similar_nodes
from skuq.evidential._sparse_features import Features, as_features, as_scipy, same_features


class NodeGraph:
    """An undirected graph with node features.

    Build it with `as_node_graph`. Because a graph is immutable, `copy.deepcopy` returns the same
    object.

    Attributes
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes), float64
        1 for each pair of neighbours; symmetric, without self-loops.
    features : Tensor or SparseFeatures of shape (n_nodes, n_features), float32
        Node features.
    original : object
        The DGL or PyG graph that this graph was converted from, for networks of these libraries.
    similar : scipy.sparse.csr_array of shape (n_nodes, n_nodes), float64
        Adjacency matrix that joins each node with the ten nodes whose features are most similar,
        measured by the cosine of features diffused over the graph; symmetric, without self-loops.
        Computed at the first access, in time quadratic in the number of nodes. Raises a ValueError
        if the features are on disk.
    on_disk : bool
        Whether the features stay in a file and are read when they are used.
    device : torch.device
        Device on which networks are evaluated.
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
        return self  # scikit-learn's clone shares the graph

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if name not in ("edges", "similar")
        }

    @cached_property
    def edges(self) -> LoopedEdges:
        """Edges with a self-loop at every node, on `device`."""
        looped = sparse.csr_array(self.adjacency + sparse.eye_array(self.n_nodes))
        return LoopedEdges.of(looped, np.diff(looped.indptr)).to(self.device)

    @cached_property
    def similar(self) -> sparse.csr_array:
        """Adjacency matrix that joins nodes with similar features."""
        if self.on_disk:
            raise ValueError(
                "Finding similar nodes needs the features of all nodes in memory, but the features "
                "of this graph are on disk. Use propagation='diffusion'."
            )
        return similar_nodes(self.adjacency, as_scipy(self.features))

    def is_same(self, other: NodeGraph) -> bool:
        """Whether another graph has the same nodes, edges and features."""
        if self is other:
            return True
        ours, theirs = self.adjacency, other.adjacency
        return (
            np.array_equal(ours.indptr, theirs.indptr)
            and np.array_equal(ours.indices, theirs.indices)
            and same_features(self.features, other.features)
        )

    def to(self, device: torch.device) -> NodeGraph:
        """Return the graph on a device; the graph itself if it is already there."""
        if device == self.device:
            return self
        moved = copy(self)  # without `edges`, which are rebuilt on the device when needed
        if "similar" in vars(self):
            vars(moved)["similar"] = self.similar
        moved.device = device
        moved.features = self.features.to(device)
        return moved


def from_matrices(adjacency: Any, features: Any) -> NodeGraph:
    """Build a graph from an adjacency matrix, sparse or dense, and node features."""
    if features is None:
        raise ValueError("`graph` has no features: in (adjacency, features), features is None.")
    if isinstance(adjacency, Tensor):
        edges = adjacency.detach().cpu().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        adjacency = sparse.coo_array((edges.values(), tuple(edges.indices())), shape=edges.shape)
    if sparse.issparse(adjacency) and adjacency.format == "csr" and _is_undirected(adjacency):
        ones = np.ones(adjacency.nnz)
        shared = sparse.csr_array((ones, adjacency.indices, adjacency.indptr), adjacency.shape)
        return checked_graph(shared, features, None)
    matrix = sparse.coo_array(adjacency)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"The adjacency matrix must be square, got shape {matrix.shape}.")
    matrix.eliminate_zeros()
    if not np.isfinite(matrix.data).all():
        raise ValueError("The adjacency matrix contains NaN or infinity.")
    return checked_graph(from_edges(matrix.row, matrix.col, matrix.shape[0]), features, None)


def _is_undirected(matrix: Any) -> bool:
    """Whether a CSR matrix can be used unchanged: symmetric, no self-loops, zeros or duplicates.

    For a large graph, building a new matrix would need several times its memory.
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


def from_edges(source: ArrayLike, target: ArrayLike, n_nodes: int) -> sparse.csr_array:
    """Build an undirected adjacency matrix without self-loops or duplicate edges."""
    u, v = np.asarray(source), np.asarray(target)
    if len(u) and not 0 <= min(u.min(), v.min()) <= max(u.max(), v.max()) < n_nodes:
        raise ValueError(
            f"The endpoints of the edges of `graph` must be node ids from 0 to {n_nodes - 1}, got "
            f"{min(u.min(), v.min())} to {max(u.max(), v.max())}."
        )
    # 32-bit indices and booleans save memory on large graphs. A sum of boolean matrices is boolean
    # as well, so duplicate edges count once.
    joining, index = u != v, np.int32 if n_nodes < 2**31 else np.int64
    ends = u[joining].astype(index), v[joining].astype(index)
    along = sparse.csr_array((np.ones(len(ends[0]), bool), ends), shape=(n_nodes, n_nodes))
    matrix = along + sparse.csr_array(along.T)
    return sparse.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), matrix.shape)


def checked_graph(adjacency: sparse.csr_array, features: Any, original: Any) -> NodeGraph:
    """Build a graph from the adjacency matrix of a `NodeGraph` and unconverted features."""
    if adjacency.shape[0] == 0:
        raise ValueError("`graph` has no nodes.")
    taken = as_features(features)
    if taken.shape[0] != adjacency.shape[0]:
        raise ValueError(
            f"`graph` has {adjacency.shape[0]} nodes, but {taken.shape[0]} rows of features."
        )
    return NodeGraph(adjacency, taken, original, on_disk=isinstance(features, np.memmap))


def checked_nodes(X: Any, n_nodes: int) -> NDArray[np.int64]:
    """Validate node ids of shape (n,) or (n, 1), or convert a boolean mask of all nodes to ids."""
    ids = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X)
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids[:, 0]
    if ids.dtype == bool:
        if ids.shape != (n_nodes,):
            raise ValueError(
                f"A boolean mask over the nodes must have shape ({n_nodes},), got {ids.shape}."
            )
        ids = np.flatnonzero(ids)
    if ids.ndim != 1:
        raise ValueError(f"X must be node ids of shape (n,) or (n, 1), got shape {ids.shape}.")
    if len(ids) == 0:
        raise ValueError("X contains no node ids; at least one is needed.")
    if len(ids) == n_nodes > 2 and np.isin(ids, (0, 1)).all():
        raise ValueError(
            f"X contains {n_nodes} values, all 0 or 1, and looks like a mask of dtype {ids.dtype}. "
            "Pass a boolean mask, such as X == 1, or node ids."
        )
    if ids.dtype.kind not in "iu" and not (ids.dtype.kind == "f" and (ids == ids.round()).all()):
        raise ValueError(f"X must contain node ids, which are integers, got dtype {ids.dtype}.")
    if not 0 <= ids.min() <= ids.max() < n_nodes:
        raise ValueError(
            f"Node ids must lie between 0 and {n_nodes - 1}, got {ids.min()} to {ids.max()}."
        )
    return ids.astype(np.int64)


def prepare_propagation(graph: NodeGraph, scheme: str | None) -> None:
    """Compute similar nodes before training if the scheme needs them, to raise errors early."""
    if scheme == "similarity":
        _ = graph.similar


def propagate_on(graph: NodeGraph, alpha: FloatArray, scheme: NodePropagation | None) -> FloatArray:
    """Propagate the concentrations of all nodes over the edges of a graph."""
    if scheme == "similarity":
        return propagate(graph.similar, propagate_on(graph, alpha, "diffusion"), "diffusion")
    return propagate(graph.adjacency, alpha, scheme)
