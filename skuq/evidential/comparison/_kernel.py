"""Kernel prior: concentrations from labelled nodes nearby (GKDE)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import gen_batches

from skuq.base import FloatArray

# Number of labelled nodes whose distances to all others are held in memory at once.
BATCH_SIZE = 256


def hops(adjacency: sparse.csr_array, sources: NDArray[np.int64], cutoff: int) -> NDArray[np.int64]:
    """Compute lengths of shortest paths, by breadth-first search from all sources at once.

    Parameters
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes)
        Adjacency matrix, symmetric.
    sources : ndarray of shape (n_sources,)
        First nodes of the paths.
    cutoff : int
        Maximum length.

    Returns
    -------
    ndarray of shape (n_nodes, n_sources), int64
        Number of edges; -1 if there is no path of at most `cutoff` edges.

    Examples
    --------
    >>> path = sparse.csr_array(np.diag([1, 1], 1) + np.diag([1, 1], -1))
    >>> hops(path, np.array([0]), cutoff=1).ravel()
    array([ 0,  1, -1])
    """
    columns = np.arange(len(sources))
    distance = np.full((adjacency.shape[0], len(sources)), -1)
    distance[sources, columns] = 0
    front = (distance == 0).astype(np.float32)
    for length in range(1, cutoff + 1):
        reached = (adjacency @ front > 0) & (distance < 0)
        if not reached.any():
            break
        distance[reached] = length
        front = reached.astype(np.float32)
    return distance


def kernel_dirichlet(
    adjacency: sparse.csr_array,
    nodes: NDArray[np.int64],
    codes: NDArray[np.int64],
    n_classes: int,
    *,
    weight: FloatArray | None = None,
    sigma: float = 1.0,
    cutoff: int = 10,
) -> FloatArray:
    """Compute concentrations from the labelled nodes around each node.

    Parameters
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes)
        Adjacency matrix, symmetric.
    nodes, codes : ndarrays of shape (n_labelled,)
        Labelled nodes and their classes.
    n_classes : int
        Number of classes.
    weight : ndarray of shape (n_labelled,), default=None
        Weight of each labelled node. None: 1.
    sigma : float, default=1.0
        Width of the kernel, in edges.
    cutoff : int, default=10
        Maximum length of paths.

    Returns
    -------
    ndarray of shape (n_nodes, n_classes), float64
        1 plus the sum, over labelled nodes of the class, of the normal density at the length
        of the shortest path to them.

    References
    ----------
    Zhao, Chen, Hu, Cho, NeurIPS 2020, Eq. 8.

    Examples
    --------
    >>> path = sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> kernel_dirichlet(path, np.array([0]), np.array([1]), 2).round(3)
    array([[1.   , 1.399],
           [1.   , 1.242]])
    """
    weight = np.ones(len(nodes)) if weight is None else weight
    kernel = np.exp(-((np.arange(cutoff + 1) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    kernel = np.append(kernel, 0.0)  # index -1: no path
    alpha = np.ones((adjacency.shape[0], n_classes))
    for batch in gen_batches(len(nodes), BATCH_SIZE):
        of_class = np.eye(n_classes)[codes[batch]] * weight[batch, None]
        alpha += kernel[hops(adjacency, nodes[batch], cutoff)] @ of_class
    return alpha
