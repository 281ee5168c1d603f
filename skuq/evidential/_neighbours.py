"""Some nodes of a graph with all of their neighbours."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse


class Neighbours(NamedTuple):
    """Consecutive nodes, and all that a layer reads for them.

    Attributes
    ----------
    ids : ndarray of shape (n_read,), int
        The nodes and their neighbours, sorted.
    own : slice
        Positions of the nodes among these.
    matrix : scipy.sparse.csr_array of shape (n_nodes, n_read), float32
        1 for each node itself and its neighbours.
    degree : ndarray of shape (n_read,), float32
        Number of neighbours in the whole graph, and the node itself.
    """

    ids: NDArray[np.integer]
    own: slice
    matrix: sparse.csr_array
    degree: NDArray[np.float32]

    @classmethod
    def of(
        cls, adjacency: sparse.csr_array, nodes: slice, degree: NDArray[np.integer]
    ) -> Neighbours:
        """Read rows of an adjacency matrix without self-loops.

        Parameters
        ----------
        adjacency : scipy.sparse.csr_array of shape (n_all, n_all)
            Adjacency matrix of the whole graph.
        nodes : slice
            Consecutive nodes.
        degree : ndarray of shape (n_all,), int
            Numbers of neighbours.

        Returns
        -------
        Neighbours

        Examples
        --------
        >>> path = sparse.csr_array(np.diag([1.0, 1, 1], 1) + np.diag([1.0, 1, 1], -1))
        >>> near = Neighbours.of(path, slice(2, 4), np.diff(path.indptr))
        >>> near.ids, near.own, near.degree
        (array([1, 2, 3], dtype=int32), slice(1, 3, None), array([3., 3., 2.], dtype=float32))
        """
        own = np.arange(nodes.start, nodes.stop)
        bounds = adjacency.indptr[nodes.start : nodes.stop + 1]
        neighbours = adjacency.indices[bounds[0] : bounds[-1]]
        ids = np.unique(np.concatenate([neighbours, own.astype(neighbours.dtype)]))
        first = int(np.searchsorted(ids, nodes.start))
        shape = (len(own), len(ids))
        columns = np.searchsorted(ids, neighbours), bounds - bounds[0]
        beside = sparse.csr_array((np.ones(len(neighbours), np.float32), *columns), shape=shape)
        itself = sparse.eye_array(*shape, k=first, dtype=np.float32, format="csr")
        return cls(
            ids,
            slice(first, first + len(own)),
            sparse.csr_array(beside + itself),
            (degree[ids] + 1).astype(np.float32),
        )
