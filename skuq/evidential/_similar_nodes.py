"""Neighbours by features, over which uncertainty is averaged after the edges."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from skuq.base import FloatArray
from skuq.evidential._dirichlet import diffuse

N_SIMILAR = 10  # nodes that each node is joined with
N_COMPONENTS = 64  # of features of more columns, before nodes are compared


def similar_nodes(adjacency: sparse.csr_array, features: sparse.csr_array) -> sparse.csr_array:
    """Adjacency matrix that joins each node with the ten of the most similar features.

    Features are diffused over the graph first and compared by their cosine: the words of one paper
    are few, those of its neighbourhood tell its subject. Nodes of a class without labels lie
    together in them even where few edges join them. A node without any feature in its
    neighbourhood is joined with no other.
    """
    diffused = normalize(diffuse(adjacency, _compressed(normalize(features))))
    described = np.flatnonzero(diffused.any(axis=1))
    n_similar = min(N_SIMILAR, len(described) - 1)
    if n_similar < 1:
        return sparse.csr_array(adjacency.shape)
    nearest = NearestNeighbors(n_neighbors=n_similar).fit(diffused[described])
    targets = described[nearest.kneighbors(return_distance=False)]
    sources = np.repeat(described, n_similar)
    similar = sparse.csr_array(
        (np.ones(len(sources)), (sources, targets.ravel())), shape=adjacency.shape
    )
    return sparse.csr_array(similar.maximum(similar.T))


def _compressed(features: sparse.csr_array) -> FloatArray:
    """Dense rows with about the same inner products, of few columns."""
    if min(features.shape) <= N_COMPONENTS:
        return np.asarray(features.toarray(), dtype=np.float64)
    svd = TruncatedSVD(N_COMPONENTS, random_state=0)
    return np.asarray(svd.fit_transform(features), dtype=np.float64)
