"""Propagation of uncertainty over a graph (Eq. 86, 90 and 91).

Pure functions on a scipy sparse adjacency matrix, symmetric and without self-loops, and
float64 arrays with one row per node.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy import sparse

from skuq.base import FloatArray


def neighbour_mean(adjacency: sparse.csr_array) -> sparse.csr_array:
    """Build the matrix that averages over neighbours: ``D^-1 A``.

    A node without neighbours keeps its own value: its row is that of the identity matrix.

    Parameters
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes)
        Adjacency matrix.

    Returns
    -------
    scipy.sparse.csr_array of shape (n_nodes, n_nodes), float64
        Rows sum to 1.
    """
    degree = np.asarray(adjacency.sum(axis=1), dtype=np.float64)
    alone = degree == 0
    inverse = sparse.diags_array(1 / np.where(alone, 1, degree))
    return sparse.csr_array(inverse @ adjacency + sparse.diags_array(alone.astype(np.float64)))


def normalised_with_loops(adjacency: sparse.csr_array) -> sparse.csr_array:
    """Build the propagation matrix of graph convolutions: ``D^-1/2 (A + I) D^-1/2``.

    Parameters
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes)
        Adjacency matrix; D is the degree with the added self-loop.

    Returns
    -------
    scipy.sparse.csr_array of shape (n_nodes, n_nodes), float64
        Symmetric.
    """
    looped = adjacency + sparse.eye_array(adjacency.shape[0])
    scale = sparse.diags_array(1 / np.sqrt(looped.sum(axis=1)))
    return sparse.csr_array(scale @ looped @ scale)


def smooth(
    adjacency: sparse.csr_array, values: FloatArray, *, n_steps: int = 2, keep: float = 0.5
) -> FloatArray:
    """Average each node's value with the mean over its neighbours, in several steps.

    Parameters
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes)
        Adjacency matrix.
    values : ndarray of shape (n_nodes,) or (n_nodes, n_columns)
        Energies (Eq. 86), vacuities or Dirichlet strengths alpha_0 (Eq. 90).
    n_steps : int, default=2
        Number of steps.
    keep : float, default=0.5
        Share of its own value that a node keeps in each step, in [0, 1].

    Returns
    -------
    ndarray of the shape of `values`, float64
        After the last step.

    References
    ----------
    Yu et al., AISTATS 2025, Eq. 86 and 90; Wu et al., ICLR 2023.

    Examples
    --------
    >>> path = sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> smooth(path, np.array([4.0, 0.0]), n_steps=1, keep=0.75)
    array([3., 1.])
    """
    mean = neighbour_mean(adjacency)
    for _ in range(n_steps):
        values = keep * values + (1 - keep) * (mean @ values)  # Eq. 86 and 90
    return values


def propagate_evidence(
    adjacency: sparse.csr_array, alpha: FloatArray, *, n_steps: int = 10, teleport: float = 0.1
) -> FloatArray:
    """Propagate concentrations by personalised PageRank (Eq. 91).

    Parameters
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes)
        Adjacency matrix.
    alpha : ndarray of shape (n_nodes, n_classes)
        Concentration of each node's Dirichlet distribution.
    n_steps : int, default=10
        Number of steps.
    teleport : float, default=0.1
        Weight of the initial concentration in each step, in [0, 1].

    Returns
    -------
    ndarray of shape (n_nodes, n_classes), float64
        Concentration after the last step.

    References
    ----------
    Yu et al., AISTATS 2025, Eq. 91; Stadler et al., NeurIPS 2021.

    Examples
    --------
    >>> path = sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> propagate_evidence(path, np.array([[4.0], [0.0]]), n_steps=1, teleport=0.5)
    array([[3.],
           [1.]])
    """
    matrix = normalised_with_loops(adjacency)
    propagated = alpha
    for _ in range(n_steps):
        propagated = (1 - teleport) * (matrix @ propagated) + teleport * alpha  # Eq. 91
    return propagated


def diffuse(
    adjacency: sparse.csr_array, values: FloatArray, *, n_steps: int = 10, teleport: float = 0.1
) -> FloatArray:
    """Average values over random walks: personalised PageRank whose rows sum to 1.

    Parameters
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes)
        Adjacency matrix; a walk may also stay where it is.
    values : ndarray of shape (n_nodes,)
        A value for each node.
    n_steps : int, default=10
        Number of steps.
    teleport : float, default=0.1
        Weight of a node's own value in each step, in [0, 1].

    Returns
    -------
    ndarray of shape (n_nodes,), float64
        Between the smallest and the largest value.

    Examples
    --------
    >>> path = sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> diffuse(path, np.array([4.0, 0.0]), n_steps=1, teleport=0.5)
    array([3., 1.])
    """
    count = np.asarray(adjacency.sum(axis=1)) + 1.0
    averaged = values
    for _ in range(n_steps):
        mean = (adjacency @ averaged + averaged) / count  # over the node and its neighbours
        averaged = (1 - teleport) * mean + teleport * values
    return averaged


def diffuse_vacuity(
    adjacency: sparse.csr_array, alpha: FloatArray, *, n_steps: int = 10, teleport: float = 0.1
) -> FloatArray:
    """Average vacuity over random walks in the graph.

    The vacuity ``C / alpha_0`` follows personalised PageRank with the matrix that averages
    over a node and its neighbours. Rows of that matrix sum to 1, so a high degree does not count
    as evidence (in Eq. 91 it does), and vacuity is at most 1, so no single neighbour of enormous
    evidence outweighs all others. Expected class probabilities stay as they are.

    Parameters
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes)
        Adjacency matrix.
    alpha : ndarray of shape (n_nodes, n_classes)
        Concentration of each node's Dirichlet distribution.
    n_steps : int, default=10
        Number of steps.
    teleport : float, default=0.1
        Weight of a node's own vacuity, in [0, 1].

    Returns
    -------
    ndarray of shape (n_nodes, n_classes), float64
        Concentration with the vacuity after the last step.

    Examples
    --------
    >>> path = sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> alpha = np.array([[7.0, 1.0], [1.0, 1.0]])
    >>> diffuse_vacuity(path, alpha, n_steps=1, teleport=0.2).sum(axis=1)
    array([3.63636364, 2.85714286])
    """
    vacuity = alpha.shape[1] / alpha.sum(axis=1)  # Eq. 7
    diffused = diffuse(adjacency, vacuity, n_steps=n_steps, teleport=teleport)
    return (vacuity / diffused)[:, None] * alpha


Propagation = Literal["diffusion", "vacuity", "evidence", "both"]


def propagate(
    adjacency: sparse.csr_array, alpha: FloatArray, scheme: Propagation | None
) -> FloatArray:
    """Apply a propagation scheme to concentrations, with its usual number of steps.

    Parameters
    ----------
    adjacency : scipy.sparse.csr_array of shape (n_nodes, n_nodes)
        Adjacency matrix.
    alpha : ndarray of shape (n_nodes, n_classes)
        Concentration of each node's Dirichlet distribution.
    scheme : {None, "diffusion", "vacuity", "evidence", "both"}
        "diffusion" averages the vacuity over random walks (`diffuse_vacuity`). The paper's
        schemes: "vacuity" smooths the vacuity (2 steps, keeping half), "evidence" propagates the
        concentrations (10 steps, teleport 0.1), "both" is "evidence" followed by "vacuity".
        Only "evidence" and "both" change expected class probabilities.

    Returns
    -------
    ndarray of shape (n_nodes, n_classes), float64

    References
    ----------
    Yu et al., AISTATS 2025, Eq. 90 and 91 and the settings below them. The weights of the two
    are swapped there; these are the ones in the cited papers. Eq. 90 is printed for the
    strength alpha_0, but according to Section 4.1 vacuity is propagated, ``C / alpha_0``, and
    only that comes near the printed results: a mean of strengths is dominated by few nodes of
    enormous strength.

    Examples
    --------
    >>> path = sparse.csr_array(np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> propagate(path, np.array([[6.0, 2.0], [1.0, 1.0]]), "vacuity").sum(axis=1)
    array([3.2, 3.2])
    """
    if scheme == "diffusion":
        return diffuse_vacuity(adjacency, alpha)
    if scheme in ("evidence", "both"):
        alpha = propagate_evidence(adjacency, alpha)  # Eq. 91
    if scheme in ("vacuity", "both"):
        vacuity = alpha.shape[1] / alpha.sum(axis=1)
        alpha = (vacuity / smooth(adjacency, vacuity))[:, None] * alpha  # Eq. 90
    return alpha
