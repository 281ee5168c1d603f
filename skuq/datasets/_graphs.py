"""Graphs with node features and node classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_random_state


class GraphData(NamedTuple):
    """A graph with node features and node classes.

    Attributes
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes)
        Adjacency matrix, nonzero for pairs of neighbours.
    features : scipy.sparse.csr_array or ndarray of shape (n_nodes, n_features), float32
        Node features.
    labels : ndarray of shape (n_nodes,)
        Node classes.
    splits : ndarray of shape (n_splits, n_nodes), int8
        0 for training nodes, 1 for validation nodes, 2 for test nodes.
    left_out : mapping of str to ndarray
        Classes to leave out of training, by the name of the setting, such as ``"OS-1"``.
    """

    adjacency: sparse.csr_array
    features: Any
    labels: NDArray[Any]
    splits: NDArray[np.int8]
    left_out: Mapping[str, NDArray[Any]]

    @property
    def graph(self) -> tuple[sparse.csr_array, Any]:
        """The pair (adjacency, features), which the estimators accept as `graph`."""
        return self.adjacency, self.features


def make_node_classes(
    n_nodes: int = 1000,
    *,
    n_classes: int = 4,
    n_features: int = 16,
    mean_degree: float = 6.0,
    homophily: float = 0.8,
    separation: float = 1.0,
    random_state: Any = None,
) -> GraphData:
    """Draw a graph in which neighbours tend to have the same class.

    Features are normally distributed with unit variance around class means.

    Parameters
    ----------
    n_nodes : int, default=1000
        Number of nodes.
    n_classes : int, default=4
        Number of classes, which are equally probable.
    n_features : int, default=16
        Number of features.
    mean_degree : float, default=6.0
        Expected number of neighbours, before duplicate edges and self-loops are removed.
    homophily : float, default=0.8
        Share of edges drawn within a class; all other edges join random nodes.
    separation : float, default=1.0
        Root mean square of the class means, per feature.
    random_state : int, RandomState instance or None, default=None
        Source of randomness.

    Returns
    -------
    GraphData
        A graph with one split. A fifth of all nodes are test nodes. Of the other nodes, 20 per
        class (or half of the class, if this is less) are training nodes; the rest are validation
        nodes. The setting "OS-1" leaves out the last class.

    Examples
    --------
    >>> from skuq.datasets import make_node_classes
    >>> data = make_node_classes(200, random_state=0)
    >>> data.adjacency.shape, data.features.shape
    ((200, 200), (200, 16))
    """
    rng = check_random_state(random_state)
    labels = rng.randint(n_classes, size=n_nodes)
    means = separation * rng.normal(size=(n_classes, n_features))
    features = (means[labels] + rng.normal(size=(n_nodes, n_features))).astype(np.float32)
    source = rng.randint(n_nodes, size=round(n_nodes * mean_degree / 2))
    target = rng.randint(n_nodes, size=len(source))
    within = rng.uniform(size=len(source)) < homophily
    target[within] = _same_class(labels, source[within], rng)
    keep = source != target
    ends = (
        np.concatenate([source[keep], target[keep]]),
        np.concatenate([target[keep], source[keep]]),
    )
    adjacency = sparse.csr_array(
        (np.ones(len(ends[0]), np.float32), ends), shape=(n_nodes, n_nodes)
    )
    adjacency.sum_duplicates()
    adjacency.data[:] = 1
    left_out = {"OS-1": np.array([n_classes - 1])}
    return GraphData(adjacency, features, labels, _split(labels, rng)[None], left_out)


def _same_class(
    labels: NDArray[np.int64], nodes: NDArray[np.int64], rng: np.random.RandomState
) -> NDArray[np.int64]:
    """Draw, for each given node, a random node of the same class."""
    by_class = np.argsort(labels, kind="stable")
    count = np.bincount(labels)
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    own = labels[nodes]
    chosen: NDArray[np.int64] = by_class[
        start[own] + (rng.uniform(size=len(nodes)) * count[own]).astype(np.int64)
    ]
    return chosen


def _split(labels: NDArray[np.int64], rng: np.random.RandomState) -> NDArray[np.int8]:
    split = np.ones(len(labels), np.int8)
    order = rng.permutation(len(labels))
    split[order[: len(labels) // 5]] = 2
    rest = order[len(labels) // 5 :]
    for label in np.unique(labels):
        own = rest[labels[rest] == label]
        split[own[: min(20, len(own) // 2)]] = 0
    return split
