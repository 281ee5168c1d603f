"""What a graph network reads for the output of a node, found out by calling it.

Counting its layers would not do: they may be of any kind, read several hops each, divide by degrees
or send messages against the edges.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from skuq.evidential._graph_parts import Ids, Part, Reads

N_PATHS, FARTHEST = 64, 16


def what_is_read(call: Callable[[Part], Tensor], n_nodes: int, edges: Ids) -> Reads:
    """Find out which features and degrees the outputs of a network depend on.

    The network is called on directed paths. The nodes in the middle are given the features of
    others, and then further edges: the outputs that change show what is read.

    Parameters
    ----------
    call : callable
        Evaluates the network.
    n_nodes : int
        Number of nodes of the graph, some of whose features the paths have.
    edges : ndarray of shape (n_edges,), int
        Ids of its edges, some of whose data the paths have.

    Returns
    -------
    Reads

    Raises
    ------
    ValueError
        If no output depends on features, or outputs depend on nodes `FARTHEST` edges away.
    """
    if not len(edges):
        return Reads(0)
    paths = _Paths(call, n_nodes, edges)
    reached = paths.changed(other_features=True)
    if not len(reached):
        raise ValueError(
            "`batch_size`: what the network reads of the graph cannot be found out, because its "
            "outputs do not depend on the features of nodes. Use batch_size=None."
        )
    against, along = int(max(0, -reached[0])), int(max(0, reached[-1]))
    if max(against, along) == FARTHEST:
        raise ValueError(
            f"`batch_size`: outputs of the network depend on nodes {FARTHEST} edges away or more, "
            "perhaps on all nodes, so that parts of the graph are not enough. Use batch_size=None."
        )
    if against:
        return Reads(against + along, against=True, into=True, out_of=True)
    return Reads(
        along,
        into=along in paths.changed(edges_into=True),
        out_of=len(paths.changed(edges_out_of=True)) > 0,
    )


class _Paths:
    """Directed paths with loops, and one more node; features and data of edges are drawn."""

    def __init__(self, call: Callable[[Part], Tensor], n_nodes: int, edges: Ids):
        random = np.random.default_rng(0)
        n_path = 2 * FARTHEST + 1
        paths = np.arange(N_PATHS * n_path).reshape(N_PATHS, n_path)
        self.call, self.shape, self.middle = call, paths.shape, paths[:, FARTHEST]
        self.nodes = random.integers(n_nodes, size=paths.size + 1)
        self.others = random.integers(n_nodes, size=N_PATHS)
        loops = np.arange(paths.size + 1)
        self.source = np.append(loops, paths[:, :-1])
        self.target = np.append(loops, paths[:, 1:])
        self.edges = edges[random.integers(len(edges), size=len(self.source) + N_PATHS)]
        self.plain = self._outputs()
        # Equal calls differ where sums are in no fixed order, as on a GPU.
        self.noise = 10 * (self._outputs() - self.plain).abs().max()

    def changed(self, **how: bool) -> NDArray[np.int64]:
        """Places on the paths, 0 for the middle, whose outputs change."""
        changes = (self._outputs(**how) - self.plain).abs() > self.noise
        differs = changes.any(dim=1)[:-1].reshape(self.shape)
        return np.flatnonzero(differs.any(dim=0).cpu().numpy()) - FARTHEST

    def _outputs(
        self, *, other_features: bool = False, edges_into: bool = False, edges_out_of: bool = False
    ) -> Tensor:
        nodes, source, target = self.nodes.copy(), self.source, self.target
        outside = np.full(N_PATHS, len(nodes) - 1)
        if other_features:
            nodes[self.middle] = self.others
        if edges_into:
            source, target = np.append(source, outside), np.append(target, self.middle)
        if edges_out_of:
            source, target = np.append(source, self.middle), np.append(target, outside)
        return self.call(Part(nodes, source, target, self.edges[: len(source)])).nan_to_num()
