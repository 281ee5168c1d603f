"""Graph that joins nodes with similar features, over which uncertainty is averaged again."""

from __future__ import annotations

from time import perf_counter

import numpy as np
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from skuq.base import FloatArray
from skuq.evidential._dirichlet import diffuse
from skuq.validation import warn_user

N_SIMILAR = 10  # number of nearest neighbours of each node
N_TIMED = 500  # number of nodes whose neighbours are found first, to estimate the total time
LONG_SEARCH = 30.0  # seconds; a longer search is announced
N_COMPONENTS = 64  # wider features are reduced to this width before nodes are compared


def similar_nodes(adjacency: sparse.csr_array, features: sparse.csr_array) -> sparse.csr_array:
    """Build an adjacency matrix that joins each node to the ten nodes with most similar features.

    Features are first diffused over the graph and then compared by their cosine. In a citation
    graph, each paper has only a few words, but the words of the papers around it identify its
    subject. Nodes of an unlabelled class have similar diffused features even if few edges join
    these nodes. A node whose neighbourhood has only zero features stays isolated.
    """
    diffused = normalize(diffuse(adjacency, _compressed(normalize(features))))
    described = np.flatnonzero(diffused.any(axis=1))
    n_similar = min(N_SIMILAR, len(described) - 1)
    if n_similar < 1:
        return sparse.csr_array(adjacency.shape)
    nearest = NearestNeighbors(n_neighbors=n_similar).fit(diffused[described])
    _announce_long_search(nearest, diffused[described])
    targets = described[nearest.kneighbors(return_distance=False)]
    sources = np.repeat(described, n_similar)
    similar = sparse.csr_array(
        (np.ones(len(sources)), (sources, targets.ravel())), shape=adjacency.shape
    )
    return sparse.csr_array(similar.maximum(similar.T))


def _announce_long_search(nearest: NearestNeighbors, points: FloatArray) -> None:
    """Warn of a long search, and state its duration, which is estimated from a few nodes."""
    if len(points) < 10 * N_TIMED:
        return
    start = perf_counter()
    nearest.kneighbors(points[:N_TIMED], return_distance=False)
    expected = (perf_counter() - start) * len(points) / N_TIMED
    if expected > LONG_SEARCH:
        warn_user(
            f"Finding similar nodes among {len(points):,} nodes takes about "
            f"{expected / 60:.1f} minutes; the time is quadratic in the number of nodes. "
            "propagation='diffusion' needs no similar nodes."
        )


def _compressed(features: sparse.csr_array) -> FloatArray:
    """Reduce features to a few dense columns that approximately preserve inner products."""
    if min(features.shape) <= N_COMPONENTS:
        return np.asarray(features.toarray(), dtype=np.float64)
    svd = TruncatedSVD(N_COMPONENTS, random_state=0)
    return np.asarray(svd.fit_transform(features), dtype=np.float64)
