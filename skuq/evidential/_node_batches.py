"""Evaluation of a user's graph network in batches of nodes, for graphs larger than memory.

The network returns the same outputs for a batch on its subgraph as on the whole graph. The subgraph
contains all nodes whose messages reach the batch, and one placeholder node, which replaces all
other nodes at the ends of edges. Nodes thereby keep their degrees, by which convolutions divide.
The receptive field is measured by calling the network on a test graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import gen_batches
from sklearn.utils._param_validation import Interval
from torch import Tensor, nn

from skuq._progress import progress
from skuq.evidential._graph_libraries import Ids, Part, call_on_part, given_edges
from skuq.evidential._graphs import NodeGraph

# Function that calls its argument to evaluate a network, and returns logits and representations.
Read = Callable[[Callable[[], Tensor]], tuple[Tensor, Tensor]]

# Number of paths of the test graph, and number of hops from the middle of a path to each end.
N_PATHS, FARTHEST = 64, 16

_COUNT = Interval(Integral, 1, None, closed="left")
_NONE = np.empty(0, np.int64)


@dataclass(repr=False, eq=False)
class NodeBatches(BaseEstimator):
    """Evaluation of a graph network in batches of nodes, each with its receptive field.

    Parameters
    ----------
    batch_size : int
        Number of nodes for which the network is evaluated at once.
    max_neighbors : int, default=None
        Maximum number of edges into each node, apart from a self-loop. If a node has more edges,
        `max_neighbors` of them are drawn at random. None: all edges, as in one pass.

    Examples
    --------
    >>> from skuq import EvidentialProbe
    >>> from skuq.evidential import NodeBatches
    >>> EvidentialProbe(batches=NodeBatches(1000)).set_params(batches__max_neighbors=10).batches
    NodeBatches(batch_size=1000, max_neighbors=10)
    """

    batch_size: int
    max_neighbors: int | None = None

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "batch_size": [_COUNT],
        "max_neighbors": [_COUNT, None],
    }


def batched_outputs(
    network: nn.Module,
    graph: NodeGraph,
    read: Read,
    device: torch.device,
    batches: NodeBatches,
    *,
    seed: int = 0,
    verbose: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute logits and representations of all nodes; `seed` determines the drawn edges."""
    edges = Edges(graph, batches.max_neighbors, seed)
    call = partial(call_on_part, network, graph, device)
    kept: list[Tensor] = []
    bar = progress(total=graph.n_nodes, desc="batches", unit="node", verbose=verbose)
    with bar, torch.no_grad():
        field = receptive_field(call, graph.n_nodes, edges.ids)
        for rows in gen_batches(graph.n_nodes, batches.batch_size):
            nodes = np.arange(rows.start, rows.stop)
            part = edges.around(nodes, field)
            outputs = read(partial(call, part))
            if not kept:  # allocate results once, because many small results would fragment memory
                kept = [torch.empty(graph.n_nodes, *x.shape[1:], dtype=x.dtype) for x in outputs]
            for whole, values in zip(kept, outputs, strict=True):
                whole[rows] = values[: len(nodes)].cpu()
            bar.update(len(nodes))
    logits, hidden = kept
    return logits, hidden


class ReceptiveField(NamedTuple):
    """Nodes and edges on which the network's output for a node depends."""

    hops: int  # distance of the farthest nodes whose features affect the output
    against: bool = False  # whether messages also travel against the direction of edges
    into: bool = False  # whether the in-degree of the farthest nodes affects the output
    out_of: bool = False  # whether the out-degree of any node affects the output


class Edges:
    """Directed edges of a graph, indexed by their sources and by their targets."""

    def __init__(self, graph: NodeGraph, max_neighbors: int | None = None, seed: int = 0):
        self.n_nodes = graph.n_nodes
        self.source, self.target = given_edges(graph)
        self.ids: Ids = np.arange(len(self.source), dtype=np.int32)
        if max_neighbors is not None:
            self.ids = _drawn(self.source, self.target, max_neighbors, seed)
            self.source, self.target = self.source[self.ids], self.target[self.ids]

    @cached_property
    def into(self) -> sparse.csr_array:
        """Matrix (n_nodes, n_edges): 1 where an edge points into a node."""
        return _incidence(self.target, self.n_nodes)

    @cached_property
    def out_of(self) -> sparse.csr_array:
        return _incidence(self.source, self.n_nodes)

    def around(self, nodes: Ids, field: ReceptiveField) -> Part:
        """Build the subgraph on which the outputs of `nodes` depend; `nodes` come first."""
        inside = np.zeros(self.n_nodes, bool)
        inside[nodes] = True
        rings = [nodes]
        for _ in range(field.hops):
            near = self.source[self.into[rings[-1]].indices]  # messages travel along the edges
            if field.against:
                near = np.append(near, self.target[self.out_of[rings[-1]].indices])
            rings.append(np.unique(near[~inside[near]]))
            inside[near] = True
        members = np.concatenate(rings)
        inner, border = np.split(members, [len(members) - len(rings[-1])])
        kept = self._incident(inner, border, inside, field)
        # Nodes outside the part get the last position, that of the placeholder.
        position = np.full(self.n_nodes, len(members), np.int32)
        position[members] = np.arange(len(members))
        source, target = position[self.source[kept]], position[self.target[kept]]
        if len(kept):  # add a self-loop to the placeholder: some layers fail for in-degree 0
            kept = np.append(kept, kept[0])
            source, target = (np.append(ends, len(members)) for ends in (source, target))
        return Part(np.append(members, nodes[0]), source, target, self.ids[kept])

    def _incident(
        self, inner: Ids, border: Ids, inside: NDArray[np.bool_], field: ReceptiveField
    ) -> Ids:
        """Select edges that carry messages to the batch, or that count in degrees."""
        into_border = self.into[border]
        entering = into_border.indices
        if not field.into:  # in-degrees of border nodes do not matter, except that 0 is avoided
            entering = entering[into_border.indptr[:-1][np.diff(into_border.indptr) > 0]]
        if not field.out_of:
            return np.append(self.into[inner].indices, entering)
        from_outside = entering[~inside[self.source[entering]]]
        return np.concatenate(
            [self.out_of[inner].indices, self.out_of[border].indices, from_outside]
        )


def _incidence(ends: Ids, n_nodes: int) -> sparse.csr_array:
    pairs = ends, np.arange(len(ends), dtype=ends.dtype)
    return sparse.csr_array((np.ones(len(ends), np.int8), pairs), shape=(n_nodes, len(ends)))


def _drawn(source: Ids, target: Ids, max_neighbors: int, seed: int) -> Ids:
    """Draw edges into each node without replacement, and keep self-loops; return positions."""
    loops = source == target
    others = np.flatnonzero(~loops)
    ends = target[others]
    order = np.lexsort([np.random.default_rng(seed).random(len(ends), np.float32), ends])
    ends = ends[order]
    rank = np.arange(len(ends)) - np.searchsorted(ends, ends)
    return np.sort(np.append(np.flatnonzero(loops), others[order[rank < max_neighbors]]))


def receptive_field(call: Callable[[Part], Tensor], n_nodes: int, edges: Ids) -> ReceptiveField:
    """Measure on a test graph which outputs depend on a node's features, and which on degrees."""
    if not len(edges):
        return ReceptiveField(0)
    paths = _Paths(call, n_nodes, edges)
    reached = paths.changed(paths.others)
    counted = paths.changed(paths.nodes, paths.outside, paths.middle)
    against, along = (int(side.max(initial=0)) for side in (-reached, reached))
    beyond = len(counted) and (counted[0] < -against or counted[-1] > along)
    # For example, outputs of PyG's LSTM aggregation depend on the maximum degree of the graph.
    if not len(reached) or max(against, along) == FARTHEST or beyond:
        raise ValueError(
            "`batches` cannot be used with this network: its outputs must depend on features of "
            f"nodes less than {FARTHEST} edges away. They may also depend on the degrees of these "
            "nodes, but not on other degrees or the maximum degree. Use batches=None."
        )
    if against:
        return ReceptiveField(against + along, against=True, into=True, out_of=True)
    out_of = len(paths.changed(paths.nodes, paths.middle, paths.outside)) > 0
    return ReceptiveField(along, into=along in counted, out_of=out_of)


class _Paths:
    """Test graph: directed paths plus one node, self-loops, and data of random nodes and edges."""

    def __init__(self, call: Callable[[Part], Tensor], n_nodes: int, edges: Ids):
        random = np.random.default_rng(0)
        n_path = 2 * FARTHEST + 1
        paths = np.arange(N_PATHS * n_path).reshape(N_PATHS, n_path)
        self.call, self.shape, self.middle = call, paths.shape, paths[:, FARTHEST]
        self.nodes = random.integers(n_nodes, size=paths.size + 1)
        self.others, self.outside = self.nodes.copy(), np.full(N_PATHS, paths.size)
        self.others[self.middle] = random.integers(n_nodes, size=N_PATHS)
        loops = np.arange(paths.size + 1)
        self.source = np.append(loops, paths[:, :-1])
        self.target = np.append(loops, paths[:, 1:])
        self.edges = edges[random.integers(len(edges), size=len(self.source) + N_PATHS)]
        self.plain = self._outputs(self.nodes)
        # Outputs of repeated calls differ if the order of summation varies, as on a GPU.
        self.noise = 10 * (self._outputs(self.nodes) - self.plain).abs().max()

    def changed(self, nodes: Ids, *edges: Ids) -> NDArray[np.int64]:
        """Find positions, relative to the middle, where `nodes` or added `edges` change outputs."""
        changes = (self._outputs(nodes, *edges) - self.plain).abs() > self.noise
        differs = changes.any(dim=1)[:-1].reshape(self.shape)
        return np.flatnonzero(differs.any(dim=0).cpu().numpy()) - FARTHEST

    def _outputs(self, nodes: Ids, source: Ids = _NONE, target: Ids = _NONE) -> Tensor:
        source, target = np.append(self.source, source), np.append(self.target, target)
        return self.call(Part(nodes, source, target, self.edges[: len(source)])).nan_to_num()
