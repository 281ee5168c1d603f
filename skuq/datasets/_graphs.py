"""Graphs with node features and node classes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, validate_params

from skuq.datasets._files import Arrays, expect, load_as


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


def load_graph(name: str, data_dir: str | os.PathLike[str]) -> GraphData:
    """Read a graph from a local ``.npz`` file.

    Parameters
    ----------
    name, data_dir
        As in `load_npz`. The file contains the adjacency matrix as ``adj_indptr`` and
        ``adj_indices``, the features as ``feat_data``, ``feat_indices``, ``feat_indptr`` and
        ``feat_shape``, the classes ``labels``, and optionally ``split`` and the left-out classes
        ``ood_os1``, ``ood_os2`` and so on.

    Returns
    -------
    GraphData
        The graph. If the file has no ``split``, `splits` has zero rows.

    Raises
    ------
    FileNotFoundError
        If the file does not exist.
    ValueError
        If the file does not contain a graph in this format.
    """
    needed = {"adj_indptr", "adj_indices", "labels"}
    needed |= {"feat_indptr", "feat_indices", "feat_data", "feat_shape"}
    return load_as("graph", _as_graph, needed, name, data_dir)


def _as_graph(arrays: Arrays) -> GraphData:
    labels = arrays["labels"]
    n_nodes = labels.size
    expect(labels.shape == (n_nodes,), f"labels has shape {labels.shape} instead of ({n_nodes},)")
    feat_shape = tuple(arrays["feat_shape"].ravel().astype(int).tolist())
    expect(
        len(feat_shape) == 2 and feat_shape[0] == n_nodes,
        f"feat_shape is {feat_shape} instead of ({n_nodes}, n_features)",
    )
    splits = arrays.get("split", np.empty((0, n_nodes), np.int8))
    expect(
        splits.ndim == 2 and splits.shape[1] == n_nodes,
        f"split has shape {splits.shape} instead of (n_splits, {n_nodes})",
    )
    ones = np.ones(arrays["adj_indices"].shape, np.float32)
    return GraphData(
        _sparse(arrays, "adj", ones, (n_nodes, n_nodes)),
        _sparse(arrays, "feat", arrays["feat_data"].astype(np.float32), feat_shape),
        labels,
        splits,
        {f"OS-{n}": arrays[f"ood_os{n}"] for n in range(1, 100) if f"ood_os{n}" in arrays},
    )


def _sparse(
    arrays: Arrays, part: str, values: NDArray[np.float32], shape: tuple[int, int]
) -> sparse.csr_array:
    """Build a matrix from index arrays and check that the indices are within the shape."""
    indices, indptr = (arrays[f"{part}_{name}"] for name in ("indices", "indptr"))
    expect(
        indices.dtype.kind in "iu" and indptr.dtype.kind in "iu",
        f"{part}_indices and {part}_indptr are not integers",
    )
    try:
        matrix = sparse.csr_array(
            (values, indices.astype(np.int64), indptr.astype(np.int64)), shape=shape
        )
        matrix.check_format(full_check=True)
    except ValueError as error:
        raise ValueError(
            f"{part}_indices and {part}_indptr are invalid for a matrix of shape {shape} ({error})"
        ) from error
    # Convert after the check, since indices too large for 32 bits would wrap around.
    matrix.indices, matrix.indptr = (x.astype(np.int32) for x in (matrix.indices, matrix.indptr))
    return matrix


@validate_params(
    {
        "n_nodes": [Interval(Integral, 0, None, closed="left")],
        "n_classes": [Interval(Integral, 1, None, closed="left")],
        "n_features": [Interval(Integral, 0, None, closed="left")],
        "mean_degree": [Interval(Real, 0, None, closed="left")],
        "homophily": [Interval(Real, 0, 1, closed="both")],
        "random_state": ["random_state"],
    },
    prefer_skip_nested_validation=True,
)
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
