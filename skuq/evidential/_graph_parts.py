"""Parts of a graph on which a network returns, for some nodes, what it returns on the whole graph.

A part holds these nodes, the nodes that messages reach them from, and one node that stands for all
others: it is the other end of the edges that lead out of the part. So the nodes keep their degrees,
by which convolutions divide, and have messages to receive. What the nodes outside send ends at the
border.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from skuq.evidential._graphs import (
    NodeGraph,
    call_on_original,
    feature_rows,
    given_edges,
    import_dgl,
)

Ids = NDArray[np.integer]


class Reads(NamedTuple):
    """What a network reads of a graph for the output of a node.

    Attributes
    ----------
    hops : int
        Number of edges between the node and the farthest nodes whose features it reads.
    against : bool
        Whether it also reads features against the direction of the edges.
    into, out_of : bool
        Whether the numbers of edges into these farthest nodes, and out of any node, matter.
    """

    hops: int
    against: bool = False
    into: bool = False
    out_of: bool = False


class Part(NamedTuple):
    """A part of a graph, or another graph of its nodes and edges.

    Attributes
    ----------
    nodes : ndarray of shape (n_nodes,), int
        Ids of nodes, whose features the nodes of the part have.
    source, target : ndarray of shape (n_edges,), int
        Ends of the edges, as positions in `nodes`.
    edges : ndarray of shape (n_edges,), int
        Ids of edges, whose data the edges of the part have.
    """

    nodes: Ids
    source: Ids
    target: Ids
    edges: Ids


class Edges:
    """Edges of a graph with their directions, listed by their ends.

    Parameters
    ----------
    graph : NodeGraph
        Graph; networks of users are called with the edges of its original.
    max_neighbors : int, default=None
        Number of edges into each node that are kept, besides loops. None: all.
    seed : int, default=0
        Decides which.
    """

    def __init__(self, graph: NodeGraph, max_neighbors: int | None = None, seed: int = 0):
        self.n_nodes = graph.n_nodes
        self.source, self.target = given_edges(graph)
        self.ids: Ids = np.arange(len(self.source), dtype=np.int32)
        if max_neighbors is not None:
            self.ids = _drawn(self.source, self.target, max_neighbors, seed)
            self.source, self.target = self.source[self.ids], self.target[self.ids]

    @cached_property
    def into(self) -> sparse.csr_array:
        """One row per node; its columns are the positions of the edges into it."""
        return self._by(self.target)

    @cached_property
    def out_of(self) -> sparse.csr_array:
        """One row per node; its columns are the positions of the edges out of it."""
        return self._by(self.source)

    def _by(self, ends: Ids) -> sparse.csr_array:
        pairs = ends, np.arange(len(ends), dtype=ends.dtype)
        shape = self.n_nodes, len(ends)
        return sparse.csr_array((np.ones(len(ends), np.int8), pairs), shape=shape)

    def around(self, nodes: Ids, reads: Reads) -> Part:
        """Cut out the part of the graph that a network reads for some nodes, which come first."""
        inside = np.zeros(self.n_nodes, bool)
        inside[nodes] = True
        rings = [nodes]
        for _ in range(reads.hops):
            near = self.source[self.into[rings[-1]].indices]  # messages come along the edges
            if reads.against:
                near = np.append(near, self.target[self.out_of[rings[-1]].indices])
            fresh = np.zeros(self.n_nodes, bool)
            fresh[near] = True
            rings.append(np.flatnonzero(fresh & ~inside))
            inside[near] = True
        members = np.concatenate(rings)
        inner, border = np.split(members, [len(members) - len(rings[-1])])
        kept = self._incident(inner, border, inside, reads)
        position = np.full(self.n_nodes, len(members), np.int32)  # outside, all nodes are the last
        position[members] = np.arange(len(members))
        source, target = position[self.source[kept]], position[self.target[kept]]
        if len(kept):  # some layers refuse nodes without an edge into them
            kept = np.append(kept, kept[0])
            source, target = (np.append(ends, len(members)) for ends in (source, target))
        return Part(np.append(members, nodes[0]), source, target, self.ids[kept])

    def _incident(self, inner: Ids, border: Ids, inside: NDArray[np.bool_], reads: Reads) -> Ids:
        """Edges whose messages are read, and those of which only the number is."""
        into_border = self.into[border]
        entering = into_border.indices
        if not reads.into:  # one of them is enough
            entering = entering[into_border.indptr[:-1][np.diff(into_border.indptr) > 0]]
        if not reads.out_of:
            return np.append(self.into[inner].indices, entering)
        from_outside = entering[~inside[self.source[entering]]]
        return np.concatenate(
            [self.out_of[inner].indices, self.out_of[border].indices, from_outside]
        )


def _drawn(source: Ids, target: Ids, max_neighbors: int, seed: int) -> Ids:
    """Positions of loops, and of edges into each node drawn without replacement."""
    loops = source == target
    others = np.flatnonzero(~loops)
    ends = target[others]
    order = np.lexsort([np.random.default_rng(seed).random(len(ends), np.float32), ends])
    ends = ends[order]
    rank = np.arange(len(ends)) - np.searchsorted(ends, ends)
    return np.sort(np.append(np.flatnonzero(loops), others[order[rank < max_neighbors]]))


def call_on_part(network: nn.Module, graph: NodeGraph, device: torch.device, part: Part) -> Tensor:
    """Evaluate a user's network on a part of the graph, in the form in which it was given."""
    nodes, edges = torch.from_numpy(part.nodes), torch.from_numpy(part.edges)
    ends = torch.from_numpy(np.stack([part.source, part.target]))
    features = feature_rows(graph, nodes)
    if hasattr(graph.original, "edge_index"):
        original = _pyg_part(graph.original, nodes, edges)
        original.x, original.edge_index = features, ends
    else:
        original = _dgl_part(graph.original, nodes, edges, ends)
    outputs = call_on_original(network, original, features, device)
    if outputs.ndim != 2 or len(outputs) != len(nodes):
        raise ValueError(
            f"The model must return logits of shape ({len(nodes)}, n_classes) for "
            f"{len(nodes)} nodes, got {tuple(outputs.shape)}."
        )
    return outputs


def _pyg_part(given: Any, nodes: Tensor, edges: Tensor) -> Any:
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
    return part


def _dgl_part(given: Any, nodes: Tensor, edges: Tensor, ends: Tensor) -> Any:
    idtype = torch.int32 if given is None else given.idtype
    part = import_dgl().graph(tuple(ends), num_nodes=len(nodes), idtype=idtype)
    if given is not None:
        # The part is on the CPU, wherever the graph was given.
        part.ndata.update(
            {k: value[nodes].cpu() for k, value in given.ndata.items() if k != "feat"}
        )
        part.edata.update({k: value[edges].cpu() for k, value in given.edata.items()})
    return part
