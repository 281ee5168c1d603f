"""Graphs whose nodes have features and classes."""

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
    """A graph with features and classes of its nodes.

    Attributes
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes)
        Not zero where two nodes are neighbours.
    features : scipy.sparse.csr_array or ndarray of shape (n_nodes, n_features), float32
        Features.
    labels : ndarray of shape (n_nodes,)
        Classes.
    splits : ndarray of shape (n_splits, n_nodes), int8
        0 for nodes to train on, 1 for validation, 2 for test.
    left_out : mapping of str to ndarray
        Classes to hide from training, by the name of the setting, such as ``"OS-1"``.
    """

    adjacency: sparse.csr_array
    features: Any
    labels: NDArray[Any]
    splits: NDArray[np.int8]
    left_out: Mapping[str, NDArray[Any]]

    @property
    def graph(self) -> tuple[sparse.csr_array, Any]:
        """Adjacency and features, the form in which the estimators take a graph."""
        return self.adjacency, self.features


def load_graph(name: str, data_dir: str | os.PathLike[str]) -> GraphData:
    """Read a graph from a local ``.npz`` file.

    Parameters
    ----------
    name, data_dir
        As in `load_npz`. The file holds the adjacency matrix as ``adj_indptr`` and
        ``adj_indices``, the features as ``feat_data``, ``feat_indices``, ``feat_indptr`` and
        ``feat_shape``, classes ``labels``, and, where there are any, ``split`` and the
        left-out classes ``ood_os1``, ``ood_os2`` and so on.

    Returns
    -------
    GraphData
        Without splits in the file, `splits` has no rows.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it holds no graph of this form.
    """
    needed = {"adj_indptr", "adj_indices", "labels"}
    needed |= {"feat_indptr", "feat_indices", "feat_data", "feat_shape"}
    return load_as("graph", _as_graph, needed, name, data_dir)


def _as_graph(arrays: Arrays) -> GraphData:
    labels = arrays["labels"]
    n_nodes = labels.size
    expect(labels.shape == (n_nodes,), f"labels of shape {labels.shape} are not one per node")
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
    """Adjacency or features, whose indices scipy by itself does not compare with the shape."""
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
            f"{part}_indices and {part}_indptr are not those of a matrix of shape {shape} ({error})"
        ) from error
    # Only now, since numbers too large for 32 bits would wrap around to some that fit.
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
    """Draw a graph whose neighbours tend to share their class.

    Features are normal with unit variance around a mean of each class.

    Parameters
    ----------
    n_nodes : int, default=1000
        Number of nodes.
    n_classes : int, default=4
        Number of classes, equally probable.
    n_features : int, default=16
        Number of features.
    mean_degree : float, default=6.0
        Expected number of neighbours, before repeated edges and self-loops are dropped.
    homophily : float, default=0.8
        Share of edges drawn within a class; the others join nodes at random.
    separation : float, default=1.0
        Root mean square distance of a class mean from the origin, per feature.
    random_state : int, RandomState instance or None, default=None
        Source of randomness.

    Returns
    -------
    GraphData
        Nodes are in random order; one split: a fifth of all nodes tests, 20 nodes per class (or
        half of those that do not test, if that is less) train, the others validate. The setting
        "OS-1" leaves out the last class.

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
    """A random node of the class of each given node."""
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
