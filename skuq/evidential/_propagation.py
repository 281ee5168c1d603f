"""Propagation over a graph: of vacuity, concentrations and scores (Eq. 86, 90 and 91).

Concentrations `alpha` have shape (n_nodes, n_classes). Adjacency matrices have no self-loops.
"""

from typing import Literal

import numpy as np
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from skuq.base import FloatArray

Propagation = Literal["diffusion", "similarity", "vacuity", "evidence", "both"]

N_SIMILAR = 10  # number of nearest neighbours of each node
N_COMPONENTS = 64  # wider features are reduced to this width before nodes are compared


def propagate(
    adjacency: sparse.csr_array, alpha: FloatArray, scheme: Propagation | None
) -> FloatArray:
    """Propagate concentrations over the edges of a graph; `NodeGraph.propagate` does "similarity".

    The weights of "vacuity" and "evidence" are those of the works that the paper cites; the paper
    swaps them. It prints Eq. 90 for the strength alpha_0, but propagates the vacuity
    ``C / alpha_0`` according to Section 4.1. Results are close to the published results only if the
    vacuity is propagated, because a few nodes of enormous strength dominate a mean of strengths.
    """
    if scheme in ("evidence", "both"):
        alpha = propagate_evidence(adjacency, alpha)  # Eq. 91
    if scheme in ("diffusion", "vacuity", "both"):
        vacuity = alpha.shape[1] / alpha.sum(axis=1)  # Eq. 7
        # Unlike in Eq. 91, the rows of the matrix of a diffusion sum to 1, so that a high degree
        # does not count as evidence. Vacuity is at most 1, so that a neighbour with enormous
        # evidence cannot dominate the mean.
        average = diffuse if scheme == "diffusion" else smooth  # Eq. 90
        alpha = (vacuity / average(adjacency, vacuity))[:, None] * alpha
    return alpha


def neighbour_mean(adjacency: sparse.csr_array) -> sparse.csr_array:
    """Matrix ``D^-1 A``, which averages over neighbours; an isolated node keeps its own value."""
    degree = np.asarray(adjacency.sum(axis=1), dtype=np.float64)
    alone = degree == 0
    inverse = sparse.diags_array(1 / np.where(alone, 1, degree))
    return sparse.csr_array(inverse @ adjacency + sparse.diags_array(alone.astype(np.float64)))


def smooth(
    adjacency: sparse.csr_array, values: FloatArray, *, n_steps: int = 2, keep: float = 0.5
) -> FloatArray:
    """Mix each node's value, with the weight `keep`, with the mean of its neighbours' values.

    The values are energies (Eq. 86; Wu et al., ICLR 2023) or vacuities (Eq. 90).
    """
    mean = neighbour_mean(adjacency)
    for _ in range(n_steps):
        values = keep * values + (1 - keep) * (mean @ values)  # Eq. 86 and 90
    return values


def propagate_evidence(
    adjacency: sparse.csr_array, alpha: FloatArray, *, n_steps: int = 10, teleport: float = 0.1
) -> FloatArray:
    """Propagate concentrations by personalised PageRank (Eq. 91; Stadler et al., NeurIPS 2021)."""
    looped = adjacency + sparse.eye_array(adjacency.shape[0])
    scale = sparse.diags_array(1 / np.sqrt(looped.sum(axis=1)))
    matrix = sparse.csr_array(scale @ looped @ scale)  # D^-1/2 (A + I) D^-1/2
    propagated = alpha
    for _ in range(n_steps):
        propagated = (1 - teleport) * (matrix @ propagated) + teleport * alpha  # Eq. 91
    return propagated


def diffuse(
    adjacency: sparse.csr_array, values: FloatArray, *, n_steps: int = 10, teleport: float = 0.1
) -> FloatArray:
    """Average values over random walks: personalised PageRank with a row-stochastic matrix."""
    count = np.asarray(adjacency.sum(axis=1)) + 1.0
    count = count.reshape(-1, *[1] * (values.ndim - 1))
    averaged = values
    for _ in range(n_steps):
        mean = (adjacency @ averaged + averaged) / count  # over the node and its neighbours
        averaged = (1 - teleport) * mean + teleport * values
    return averaged


def similar_nodes(adjacency: sparse.csr_array, features: sparse.csr_array) -> sparse.csr_array:
    """Build an adjacency matrix that joins each node to the ten nodes with most similar features.

    Features are first diffused over the graph and then compared by their cosine. In a citation
    graph, each paper has only a few words, but the words of the papers around it identify its
    subject. Nodes of an unlabelled class have similar diffused features even if few edges join
    these nodes. A node whose neighbourhood has only zero features stays isolated.
    """
    values = normalize(features)
    if min(values.shape) > N_COMPONENTS:  # inner products are approximately preserved
        values = TruncatedSVD(N_COMPONENTS, random_state=0).fit_transform(values)
    else:
        values = values.toarray()
    diffused = normalize(diffuse(adjacency, np.asarray(values, dtype=np.float64)))
    described = np.flatnonzero(diffused.any(axis=1))
    n_similar = min(N_SIMILAR, len(described) - 1)
    if n_similar < 1:
        return sparse.csr_array(adjacency.shape)
    nearest = NearestNeighbors(n_neighbors=n_similar).fit(diffused[described])
    targets = described[nearest.kneighbors(return_distance=False)].ravel()
    sources = np.repeat(described, n_similar)
    pairs = np.ones(len(sources)), (sources, targets)
    similar = sparse.csr_array(pairs, shape=adjacency.shape)
    return sparse.csr_array(similar.maximum(similar.T))
