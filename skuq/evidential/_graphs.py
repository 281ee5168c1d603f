"""Graphs of several libraries, with features, in one form; the only module that imports DGL."""

from __future__ import annotations

import os
import warnings
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.utils import gen_batches
from torch import Tensor

from skuq.extras import import_optional
from skuq.networks import resolve_device

CHECKED_FLOATS = 2**24  # of features on disk that are read at once


def import_dgl() -> ModuleType:
    """Import DGL with torch as its engine; if it is missing, the error names the extra."""
    os.environ.setdefault("DGLBACKEND", "pytorch")  # without it, DGL prints a line
    import_optional("dgl.nn", extra="graph")
    return import_optional("dgl", extra="graph")


def csr_tensor(matrix: sparse.csr_array, dtype: torch.dtype = torch.float32) -> Tensor:
    """Copy a scipy matrix into a sparse torch tensor, with 32-bit indices, which are faster."""
    with warnings.catch_warnings():
        # torch calls the layout a beta version, once per process.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return torch.sparse_csr_tensor(
            torch.tensor(matrix.indptr, dtype=torch.int32),
            torch.tensor(matrix.indices, dtype=torch.int32),
            torch.tensor(matrix.data, dtype=dtype),
            size=matrix.shape,
            check_invariants=True,
        )


@dataclass(frozen=True, eq=False)
class SparseFeatures:
    """A sparse matrix and its transpose, which torch would build again for each gradient."""

    matrix: Tensor  # (n_nodes, n_features), sparse CSR
    transpose: Tensor  # (n_features, n_nodes), sparse CSR

    @classmethod
    def from_scipy(cls, matrix: sparse.csr_array) -> SparseFeatures:
        """Copy a scipy matrix of shape (n_nodes, n_features) into float32 tensors."""
        return cls(csr_tensor(matrix), csr_tensor(sparse.csr_array(matrix.T)))

    @property
    def shape(self) -> torch.Size:
        return self.matrix.shape

    def to(self, device: torch.device | str) -> SparseFeatures:
        return SparseFeatures(self.matrix.to(device), self.transpose.to(device))

    def to_dense(self) -> Tensor:
        return self.matrix.to_dense()

    def rows(self, rows: NDArray[np.integer]) -> Tensor:
        """Return some rows, on the CPU and dense."""
        m = self.matrix.cpu()
        parts = (part.numpy() for part in (m.values(), m.col_indices(), m.crow_indices()))
        return torch.from_numpy(sparse.csr_array(tuple(parts), shape=m.shape)[rows].toarray())


Features = Tensor | SparseFeatures


def same_features(ours: Features, theirs: Features) -> bool:
    """Whether two matrices of features, in the layout that `as_features` chose, are equal."""
    if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
        return torch.equal(ours, theirs)
    if isinstance(ours, Tensor) or isinstance(theirs, Tensor) or ours.shape != theirs.shape:
        return False
    parts = ((m.crow_indices(), m.col_indices(), m.values()) for m in (ours.matrix, theirs.matrix))
    return all(torch.equal(mine, other) for mine, other in zip(*parts, strict=True))


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
        If it has no features, several types of nodes, no nodes, features with NaN, edges
        whose ends are not ids of nodes, or shapes that do not match.

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


def as_features(values: Any, *, sparse_below: float = 0.1) -> Features:
    """Convert a feature matrix into a float32 tensor, sparse if few elements are not zero.

    A memory map becomes a tensor that is read from the file when it is used.
    """
    if isinstance(values, np.memmap):
        return _mapped(values)
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.to_dense() if values.layout != torch.strided else values
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    scattered = sparse.issparse(values)
    with np.errstate(over="ignore"):  # values beyond float32 raise an error below
        values = (
            sparse.csr_array(values, dtype=np.float32)
            if scattered
            else np.asarray(values, dtype=np.float32)
        )
    _check_matrix(values)
    _check_finite(values.data if scattered else values)
    n_nonzero = values.nnz if scattered else np.count_nonzero(values)
    if n_nonzero < sparse_below * np.prod(values.shape):
        return SparseFeatures.from_scipy(sparse.csr_array(values))
    dense = values.toarray() if scattered else values
    return torch.tensor(dense, dtype=torch.float32)


def _mapped(values: np.memmap[Any, Any]) -> Tensor:
    """A tensor over a memory map, whose file is read once in chunks to check it."""
    _check_matrix(values)
    if values.dtype != np.float32:
        raise ValueError(
            f"Node features on disk must be float32, got {values.dtype}: write them as float32, or "
            "read them into memory with numpy.array."
        )
    for rows in gen_batches(len(values), max(1, CHECKED_FLOATS // values.shape[1])):
        _check_finite(values[rows])
    with warnings.catch_warnings():
        # Nobody writes to features, so that it does not matter whether the file can be written.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values)


def _check_matrix(values: Any) -> None:
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(
            f"Node features must have shape (n_nodes, n_features), got {tuple(values.shape)}."
        )


def _check_finite(values: Any) -> None:
    if not np.isfinite(values).all():
        raise ValueError("Node features contain NaN, infinity or a value too large for float32.")


def block_of(matrix: sparse.csr_array, device: torch.device) -> Any:
    """Build DGL's graph from the nodes in columns to those in rows of a sparse matrix."""
    rows, columns = (torch.tensor(ends, dtype=torch.int32) for ends in matrix.tocoo().coords)
    n_rows, n_columns = matrix.shape
    block = import_dgl().create_block((columns, rows), n_columns, n_rows)
    return block.to(device)


def graph_device(device: str | torch.device) -> torch.device:
    """Resolve a ``device`` parameter for graph networks: "auto" is the CPU if DGL lacks CUDA."""
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


def checked_nodes(X: Any, n_nodes: int) -> NDArray[np.int64]:
    """Validate node ids of shape (n,) or (n, 1), or turn a mask of all nodes into ids."""
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
