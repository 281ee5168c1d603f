"""Undirected graph with node features, checks of node ids, and propagation (Eq. 86, 90, 91).

Vacuity, concentrations and scores are propagated. Concentrations `alpha` have shape (n_nodes,
n_classes). Adjacency matrices have no self-loops.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import normalize
from sklearn.utils import gen_batches
from torch import Tensor

from skuq.base import FloatArray
from skuq.features import nearest_others
from skuq.validation import as_array

Propagation = Literal["diffusion", "similarity", "vacuity", "evidence", "both"]

CHECKED_FLOATS = 2**24  # number of feature values that are checked for NaN or infinity at once
SPARSE_BELOW = 0.1  # features with a smaller share of non-zeros are stored as sparse matrices
N_SIMILAR = 10  # number of most similar nodes with which each node is joined
N_COMPONENTS = 64  # wider features are reduced to this width before nodes are compared


def csr_tensor(bounds: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    with warnings.catch_warnings():
        # torch warns once per process that the CSR layout is in beta.
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return torch.sparse_csr_tensor(bounds, columns, values, size=shape, check_invariants=False)


@cache
def has_csr_products(device_type: str) -> bool:
    """Return whether torch can multiply sparse CSR tensors on a device; it cannot on MPS."""
    try:
        bounds = torch.tensor([0, 1], dtype=torch.int32, device=device_type)
        one = torch.ones(1, 1, device=device_type)
        matrix = csr_tensor(bounds, bounds[:1], one[0], (1, 1))
        torch.sparse.sampled_addmm(matrix, one, matrix @ one, beta=0.0)
    except RuntimeError:
        return False
    return True


@dataclass(frozen=True, eq=False)
class LoopedEdges:
    """Edges into the targets, which are all or some nodes of a graph; each target has a self-loop.

    Gradients are implemented only if all nodes are targets. Sums over edges are products with a
    sparse matrix, which avoids storing a message per edge. The sources are the nodes that are read.
    """

    bounds: Tensor  # (n_nodes + 1,), int32: row pointers of the edges into each target
    source: Tensor  # (n_edges,), int32: positions of the sources among the nodes that are read
    degree: Tensor  # (n_read,), float32: in-degrees, in the whole graph, of the nodes that are read
    own: slice  # positions of the targets among the nodes that are read

    @classmethod
    def of(
        cls, matrix: sparse.csr_array, degree: NDArray[np.integer], own: slice = slice(None)
    ) -> LoopedEdges:
        """Build edges from a matrix with self-loops; its rows are targets, its columns sources."""
        parts = matrix.indptr, matrix.indices
        bounds, source = (torch.tensor(part, dtype=torch.int32) for part in parts)
        return cls(bounds, source, torch.tensor(degree, dtype=torch.float32), own)

    def to(self, device: torch.device | str) -> LoopedEdges:
        bounds, source, degree = (p.to(device) for p in (self.bounds, self.source, self.degree))
        return LoopedEdges(bounds, source, degree, self.own)

    @cached_property
    def target(self) -> Tensor:
        nodes = torch.arange(len(self.bounds) - 1, device=self.bounds.device)
        n_edges = len(self.source)  # an explicit size avoids a synchronisation with the GPU
        return nodes.repeat_interleave(self.bounds.diff(), output_size=n_edges)

    @cached_property
    def reverse(self) -> Tensor:
        """For each edge, the position of the edge in the opposite direction."""
        return self.source.argsort(stable=True)

    def matrix(self, weight: Tensor) -> Tensor:
        """Build a sparse matrix of shape (n_nodes, n_read) from weights of edges."""
        shape = len(self.bounds) - 1, len(self.degree)
        return csr_tensor(self.bounds, self.source, weight, shape)

    def total(self, values: Tensor, weight: Tensor | None = None) -> Tensor:
        """Sum the sources' weighted values, of shape (n_read, n), over the edges into each node."""
        weight = values.new_ones(len(self.source)) if weight is None else weight
        if has_csr_products(values.device.type):
            return self.matrix(weight) @ values
        messages = weight[:, None] * values.index_select(0, self.source)
        out = values.new_zeros(len(self.bounds) - 1, values.shape[1])
        return out.index_add_(0, self.target, messages)

    def products(self, targets: Tensor, sources: Tensor) -> Tensor:
        """Compute inner products (n_edges,) of `targets` (n_nodes, n) and `sources` (n_read, n)."""
        if has_csr_products(sources.device.type):
            pattern = self.matrix(sources.new_ones(len(self.source)))
            return torch.sparse.sampled_addmm(pattern, targets, sources.T, beta=0.0).values()
        ends = targets.index_select(0, self.target), sources.index_select(0, self.source)
        return (ends[0] * ends[1]).sum(dim=1)


@dataclass(frozen=True, eq=False)
class SparseFeatures:
    matrix: Tensor  # (n_nodes, n_features), sparse CSR, float32
    transpose: Tensor  # its transpose, which torch would otherwise rebuild for each gradient

    @classmethod
    def from_scipy(cls, matrix: sparse.csr_array) -> SparseFeatures:
        both = []
        for m in (matrix, sparse.csr_array(matrix.T)):
            bounds, columns = (torch.tensor(x, dtype=torch.int32) for x in (m.indptr, m.indices))
            values = torch.tensor(m.data, dtype=torch.float32)
            both.append(csr_tensor(bounds, columns, values, m.shape))
        return cls(*both)

    @property
    def shape(self) -> torch.Size:
        return self.matrix.shape

    def to(self, device: torch.device | str) -> Features:
        if not has_csr_products(torch.device(device).type):
            return self.to_dense().to(device)
        return SparseFeatures(self.matrix.to(device), self.transpose.to(device))

    def to_dense(self) -> Tensor:
        return self.matrix.to_dense()

    def to_scipy(self) -> sparse.csr_array:
        m = self.matrix.cpu()
        parts = (part.numpy() for part in (m.values(), m.col_indices(), m.crow_indices()))
        return sparse.csr_array(tuple(parts), shape=tuple(m.shape))


Features = Tensor | SparseFeatures


def as_features(values: Any) -> Features:
    """Convert a matrix to float32, sparse if most values are zero; a memory map stays on disk."""
    if isinstance(values, np.memmap):
        if values.dtype != np.float32:
            raise ValueError(f"Features on disk must be float32, got {values.dtype}; convert them.")
    else:
        if isinstance(values, Tensor) and values.layout != torch.strided:
            values = values.to_dense()
        values = sparse.csr_array(values) if sparse.issparse(values) else as_array(values)
        with np.errstate(over="ignore"):  # values beyond the range of float32 raise an error below
            values = values.astype(np.float32)
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(
            f"Node features must have shape (n_nodes, n_features), got {values.shape}."
        )
    numbers = values.data if sparse.issparse(values) else values
    for rows in gen_batches(len(numbers), max(1, CHECKED_FLOATS // values.shape[1])):
        if not np.isfinite(numbers[rows]).all():
            raise ValueError(
                "Node features contain NaN, infinity or a value too large for float32. Replace "
                "missing values, and rescale large values."
            )
    if isinstance(values, np.memmap):
        with warnings.catch_warnings():
            # A read-only map is safe, because features are never written to.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(values)
    n_nonzero = values.nnz if sparse.issparse(values) else np.count_nonzero(values)
    if n_nonzero < SPARSE_BELOW * np.prod(values.shape):
        return SparseFeatures.from_scipy(sparse.csr_array(values))
    return torch.tensor(values.toarray() if sparse.issparse(values) else values)


@dataclass(repr=False, eq=False)
class NodeGraph:
    """An undirected graph with node features, built by `as_node_graph`; immutable."""

    adjacency: sparse.csr_array  # (n_nodes, n_nodes), float64; symmetric, no self-loops
    features: Features  # (n_nodes, n_features), float32
    original: Any = None  # the DGL or PyG graph before its conversion, for users' networks
    on_disk: bool = False  # whether the features stay in a file
    device = torch.device("cpu")  # device on which networks are evaluated

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
        return self  # so that scikit-learn's clone shares the graph

    def __getstate__(self) -> dict[str, Any]:
        return {name: x for name, x in vars(self).items() if name not in ("edges", "similar")}

    @cached_property
    def edges(self) -> LoopedEdges:
        """Edges with a self-loop at every node, on `device`."""
        looped = sparse.csr_array(self.adjacency + sparse.eye_array(self.n_nodes))
        return LoopedEdges.of(looped, np.diff(looped.indptr)).to(self.device)

    @cached_property
    def similar(self) -> sparse.csr_array:
        """Adjacency matrix that joins each node with the ten nodes of most similar features."""
        if self.on_disk:
            raise ValueError(
                "Finding similar nodes needs the features of all nodes in memory, but the features "
                "of this graph are on disk. Use propagation='diffusion'."
            )
        x = self.features
        features = sparse.csr_array(x.cpu().numpy()) if isinstance(x, Tensor) else x.to_scipy()
        return similar_nodes(self.adjacency, features)

    def prepare(self, scheme: str | None) -> None:
        """Find similar nodes before training if the scheme needs them, to raise errors early."""
        if scheme == "similarity":
            _ = self.similar

    def propagate(self, alpha: FloatArray, scheme: Propagation | None) -> FloatArray:
        """Propagate the concentrations of all nodes, (n_nodes, n_classes)."""
        if scheme == "similarity":
            return propagate(self.similar, self.propagate(alpha, "diffusion"), "diffusion")
        return propagate(self.adjacency, alpha, scheme)

    def is_same(self, other: NodeGraph) -> bool:
        ours, theirs = self.features, other.features
        if self is other or ours.shape != theirs.shape:
            return self is other
        if isinstance(ours, SparseFeatures) and isinstance(theirs, SparseFeatures):
            same = (ours.to_scipy() != theirs.to_scipy()).nnz == 0
        else:
            same = torch.equal(ours.to_dense(), theirs.to_dense())
        return same and (self.adjacency != other.adjacency).nnz == 0

    def to(self, device: torch.device) -> NodeGraph:
        """Return the graph on a device; the graph itself if it is already there."""
        if device == self.device:
            return self
        moved = replace(self, features=self.features.to(device))
        moved.device = device
        if "similar" in vars(self):  # copied; `edges` are rebuilt on the device when needed
            vars(moved)["similar"] = self.similar
        return moved


def from_matrices(adjacency: Any, features: Any) -> NodeGraph:
    if isinstance(adjacency, Tensor):
        edges = adjacency.detach().cpu().to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        adjacency = sparse.coo_array((edges.values(), tuple(edges.indices())), shape=edges.shape)
    if sparse.issparse(adjacency) and adjacency.format == "csr" and _is_undirected(adjacency):
        ones = np.ones(adjacency.nnz)
        shared = sparse.csr_array((ones, adjacency.indices, adjacency.indptr), adjacency.shape)
        return checked_graph(shared, features, None)
    matrix = sparse.coo_array(adjacency)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    if not square or not np.isfinite(matrix.data).all():
        raise ValueError(
            "The adjacency matrix contains NaN or infinity, or is not square, got shape "
            f"{matrix.shape}."
        )
    matrix.eliminate_zeros()
    return checked_graph(from_edges(matrix.row, matrix.col, matrix.shape[0]), features, None)


def _is_undirected(matrix: Any) -> bool:
    """Return whether a CSR matrix is symmetric, without stored self-loops, zeros or duplicates.

    If so, the graph shares the arrays of the matrix; a new matrix needs several times the memory.
    """
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    if not square or not matrix.has_canonical_format or matrix.diagonal().any():
        return False
    if not np.isfinite(matrix.data).all() or not matrix.data.all():
        return False
    ones = np.ones(matrix.nnz, np.int8)
    mirrored = sparse.csc_array((ones, matrix.indices, matrix.indptr), matrix.shape).tocsr()
    same_bounds = np.array_equal(mirrored.indptr, matrix.indptr)
    return same_bounds and np.array_equal(mirrored.indices, matrix.indices)


def from_edges(source: ArrayLike, target: ArrayLike, n_nodes: int) -> sparse.csr_array:
    """Build an undirected adjacency matrix without self-loops or duplicate edges."""
    u, v = np.asarray(source), np.asarray(target)
    if len(u) and not 0 <= min(u.min(), v.min()) <= max(u.max(), v.max()) < n_nodes:
        raise ValueError(
            f"The endpoints of the edges of `graph` must be node ids from 0 to {n_nodes - 1}, got "
            f"{min(u.min(), v.min())} to {max(u.max(), v.max())}."
        )
    # 32-bit indices and booleans save memory. Sums of booleans are boolean: duplicates count once.
    joining, index = u != v, np.int32 if n_nodes < 2**31 else np.int64
    ends = u[joining].astype(index), v[joining].astype(index)
    along = sparse.csr_array((np.ones(len(ends[0]), bool), ends), shape=(n_nodes, n_nodes))
    matrix = along + sparse.csr_array(along.T)
    return sparse.csr_array((np.ones(matrix.nnz), matrix.indices, matrix.indptr), matrix.shape)


def checked_graph(adjacency: sparse.csr_array, features: Any, original: Any) -> NodeGraph:
    taken, n_nodes = as_features(features), adjacency.shape[0]
    if taken.shape[0] != n_nodes:
        raise ValueError(f"`graph` has {n_nodes} nodes, but {taken.shape[0]} rows of features.")
    return NodeGraph(adjacency, taken, original, on_disk=isinstance(features, np.memmap))


def checked_nodes(X: Any, n_nodes: int) -> NDArray[np.int64]:
    """Validate node ids of shape (n,) or (n, 1), or convert a boolean mask of all nodes to ids."""
    ids = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X)
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids[:, 0]
    if ids.dtype == bool:
        if ids.shape != (n_nodes,):
            raise ValueError(
                f"A mask over the nodes must have shape ({n_nodes},), got {ids.shape}."
            )
        ids = np.flatnonzero(ids)
    if ids.ndim != 1 or len(ids) == 0:
        raise ValueError(
            f"X must be one or more node ids, shape (n,) or (n, 1), got shape {ids.shape}."
        )
    if len(ids) == n_nodes > 2 and np.isin(ids, (0, 1)).all():
        raise ValueError(
            f"X contains {n_nodes} values, all 0 or 1, and looks like a mask of dtype {ids.dtype}. "
            "Pass a boolean mask, such as X == 1, or node ids."
        )
    whole = ids.dtype.kind in "iu" or (ids.dtype.kind == "f" and (ids == ids.round()).all())
    if not whole or not 0 <= ids.min() <= ids.max() < n_nodes:
        given = f"{ids.min()} to {ids.max()}" if whole else f"dtype {ids.dtype}"
        raise ValueError(f"Node ids must be integers between 0 and {n_nodes - 1}, got {given}.")
    return ids.astype(np.int64)


def propagate(
    adjacency: sparse.csr_array, alpha: FloatArray, scheme: Propagation | None
) -> FloatArray:
    """Propagate concentrations over edges; for "similarity", see `NodeGraph.propagate`.

    The weights of "vacuity" and "evidence" are those of the works that the paper cites; the paper
    swaps these weights. Its Eq. 90 is for the strength alpha_0, but its Section 4.1 propagates the
    vacuity ``C / alpha_0``. Results are close to the published results only if the vacuity is
    propagated, because a few nodes of enormous strength dominate a mean of strengths.
    """
    if scheme in ("evidence", "both"):
        alpha = propagate_evidence(adjacency, alpha)  # Eq. 91
    if scheme in ("diffusion", "vacuity", "both"):
        vacuity = alpha.shape[1] / alpha.sum(axis=1)  # Eq. 7
        # Unlike in Eq. 91, each row of a diffusion matrix sums to 1; a high degree therefore does
        # not count as evidence. The vacuity of a neighbour with enormous evidence is close to 0,
        # so such a neighbour cannot dominate the mean.
        average = diffuse if scheme == "diffusion" else smooth  # Eq. 90
        alpha = (vacuity / average(adjacency, vacuity))[:, None] * alpha
    return alpha


def smooth(
    adjacency: sparse.csr_array, values: FloatArray, *, n_steps: int = 2, keep: float = 0.5
) -> FloatArray:
    """Average, in each step, a node's value (weight `keep`) and the mean value of its neighbours.

    The values are energies (Eq. 86; Wu et al., ICLR 2023) or vacuities (Eq. 90).
    """
    degree = np.asarray(adjacency.sum(axis=1), dtype=np.float64)
    alone = degree == 0  # isolated nodes keep their own values
    inverse = sparse.diags_array(1 / np.where(alone, 1, degree))
    mean = sparse.csr_array(inverse @ adjacency + sparse.diags_array(alone.astype(np.float64)))
    for _ in range(n_steps):
        values = keep * values + (1 - keep) * (mean @ values)  # Eq. 86 and 90
    return values


def propagate_evidence(
    adjacency: sparse.csr_array, alpha: FloatArray, *, n_steps: int = 10, teleport: float = 0.1
) -> FloatArray:
    """Propagate concentrations by personalised PageRank (Eq. 91; Stadler et al., NeurIPS 2021)."""
    looped = adjacency + sparse.eye_array(adjacency.shape[0])
    scale = sparse.diags_array(1 / np.sqrt(looped.sum(axis=1)))
    matrix = sparse.csr_array(scale @ looped @ scale)  # D^-1/2 (A + I) D^-1/2
    propagated = alpha
    for _ in range(n_steps):
        propagated = (1 - teleport) * (matrix @ propagated) + teleport * alpha  # Eq. 91
    return propagated


def diffuse(
    adjacency: sparse.csr_array, values: FloatArray, *, n_steps: int = 10, teleport: float = 0.1
) -> FloatArray:
    """Average values over random walks: personalised PageRank with a row-stochastic matrix."""
    count = np.asarray(adjacency.sum(axis=1)) + 1.0
    count = count.reshape(-1, *[1] * (values.ndim - 1))
    averaged = values
    for _ in range(n_steps):
        mean = (adjacency @ averaged + averaged) / count  # over the node and its neighbours
        averaged = (1 - teleport) * mean + teleport * values
    return averaged


def similar_nodes(adjacency: sparse.csr_array, features: sparse.csr_array) -> sparse.csr_array:
    """Build an adjacency matrix that joins each node to the ten nodes with most similar features.

    Features are diffused over the graph, and then compared by their cosine. In a citation graph, a
    paper has few words, but the words of neighbouring papers identify its subject. A node with only
    zero features around it stays isolated. Among 20,000 or more nodes, some pairs may be missed.
    """
    values = normalize(features)
    if min(values.shape) > N_COMPONENTS:  # the SVD approximately preserves inner products
        values = TruncatedSVD(N_COMPONENTS, random_state=0).fit_transform(values)
    else:
        values = values.toarray()
    diffused = normalize(diffuse(adjacency, np.asarray(values, dtype=np.float64)))
    diffused = diffused.astype(np.float32)
    described = np.flatnonzero(diffused.any(axis=1))
    n_similar = min(N_SIMILAR, len(described) - 1)
    if n_similar < 1:
        return sparse.csr_array(adjacency.shape)
    targets = described[nearest_others(diffused[described], n_similar)].ravel()
    sources = np.repeat(described, n_similar)
    pairs = np.ones(len(sources)), (sources, targets)
    similar = sparse.csr_array(pairs, shape=adjacency.shape)
    similar.setdiag(0)
    similar.eliminate_zeros()
    return sparse.csr_array(similar.maximum(similar.T))
