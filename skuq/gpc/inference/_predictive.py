"""Predictive probabilities and entropies from latent moments."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm, qmc
from torch import Tensor

from skuq.base import FloatArray
from skuq.gpc.inference._independent_classes import (
    Split,
    corrected_probabilities,
    correction_error,
    split,
)
from skuq.gpc.inference._quadrature import Nodes, affordable_accuracy, normal_nodes
from skuq.gpc.inference._three_classes import three_class_probabilities
from skuq.information import entropy

_ACCURACIES = (1e-10, 1e-8, 1e-6)  # the first that is affordable is used
_ENTRIES = 500_000  # numbers in the largest temporary array: what fits into a cache is faster
TIE = 1e-9  # difference of probabilities that counts as none
UNSURE = 0.0125  # error of probabilities beyond three classes
_LOG_DRAWS = 13  # quasi-random points: 2 to this power
_NARROW = 1.5  # deviation up to which a rule for all three classes at once is quicker


def class_probabilities(likelihood: str, mean: FloatArray, covariance: FloatArray) -> FloatArray:
    """Average the likelihood over the Gaussian of the latent functions.

    Parameters
    ----------
    likelihood : {"probit", "logit", "softmax"}
        Turns latent functions into probabilities.
    mean : ndarray of shape (n, L)
        Latent means; L is 1 for the binary likelihoods and the number of classes otherwise.
    covariance : ndarray of shape (n, L, L)
        Latent covariances.

    Returns
    -------
    ndarray of shape (n, n_classes), float64
        Probabilities. Exact up to 1e-10 for two and three classes, and for four as long as the
        deviations of their latent functions' differences are moderate (about 1). Else, up to
        1e-2: this is proven where classes hardly depend on each other once a shift of all is
        left out (Eq. 35 of the proofs page of the user guide), and otherwise the error of 8,192
        quasi-random points.

    Examples
    --------
    >>> class_probabilities("probit", np.zeros((1, 1)), np.ones((1, 1, 1)))
    array([[0.5, 0.5]])
    """
    if likelihood == "probit":
        z = torch.as_tensor(mean[:, 0] / np.sqrt(1 + covariance[:, 0, 0]))
        return torch.stack([torch.special.ndtr(-z), torch.special.ndtr(z)], -1).numpy()
    proba = np.empty((len(mean), mean.shape[1] + (mean.shape[1] == 1)))
    wide = np.zeros(len(mean), dtype=bool)
    if likelihood == "softmax" and mean.shape[1] == 3:
        wide = _principal(torch.as_tensor(covariance))[0].amax(-1).numpy() > _NARROW
        proba[wide] = three_class_probabilities(mean[wide], covariance[wide])
    elif likelihood == "softmax" and mean.shape[1] > 3:
        pairs = covariance[:, *np.triu_indices(mean.shape[1])]
        parts = split(torch.as_tensor(pairs), mean.shape[1])
        wide = (correction_error(parts) < 0.8 * UNSURE).numpy()  # rows are scaled to a sum of 1
        parts = Split(*(part[wide] for part in parts))
        found = corrected_probabilities(torch.as_tensor(mean[wide]), parts)
        proba[wide] = found.clamp(min=0).numpy()
    narrow = np.flatnonzero(~wide)
    for rows, latent, weights in _draws(mean[narrow], covariance[narrow]):
        if likelihood == "softmax":
            proba[narrow[rows]] = torch.softmax(latent, 1) @ weights
        else:
            proba[narrow[rows]] = torch.sigmoid(torch.cat([-latent, latent], 1)) @ weights
    return proba / proba.sum(axis=1, keepdims=True)


def most_probable(proba: FloatArray) -> NDArray[np.intp]:
    """Index of the most probable class of each row, the first of those that tie.

    Far from all data the classes tie, up to rounding: what decides must not be the rounding.

    Parameters
    ----------
    proba : ndarray of shape (n, n_classes)
        Probabilities.

    Returns
    -------
    ndarray of shape (n,)

    Examples
    --------
    >>> most_probable(np.array([[0.5 - 1e-12, 0.5 + 1e-12], [0.4, 0.6]]))
    array([0, 1])
    """
    return (proba >= proba.max(axis=1, keepdims=True) - TIE).argmax(axis=1)


def expected_entropy(likelihood: str, mean: FloatArray, covariance: FloatArray) -> FloatArray:
    """Average entropy of the class probabilities that single latent functions give.

    Parameters
    ----------
    likelihood, mean, covariance
        As for `class_probabilities`.

    Returns
    -------
    ndarray of shape (n,), float64
        In nats; what remains uncertain when the latent functions are known.
    """
    result = np.empty(len(mean))
    for rows, latent, weights in _draws(mean, covariance):
        result[rows] = entropy(_log_proba(likelihood, latent).movedim(1, -1)) @ weights
    return result


def _draws(
    mean: FloatArray, covariance: FloatArray
) -> Iterator[tuple[NDArray[np.intp], Tensor, Tensor]]:
    """Rows, nodes of their latent Gaussians (b, L, nodes), and the nodes' weights.

    Points of similar deviations share nodes, which depend on no other point: the results for
    a point are the same in any company.
    """
    center = torch.as_tensor(mean, dtype=torch.float64)
    roots, vectors = _principal(torch.as_tensor(covariance, dtype=torch.float64))
    # Entries of a unit vector differ by root 2 at most. A hair more keeps round numbers, such
    # as prior variances, from the border of two groups.
    reach = (1.45 * roots).clamp(min=2.0**-4)
    octaves, group = np.unique(reach.log2().ceil().numpy(), axis=0, return_inverse=True)
    for index, octave in enumerate(octaves):
        scales, factor = list(2.0**octave), vectors * roots[:, None]
        accuracy = affordable_accuracy(scales, _ACCURACIES)
        if accuracy is not None:
            nodes = normal_nodes(scales, accuracy, center)
        else:
            # The symmetric root does not hinge on the choice among equivalent vectors.
            nodes, factor = _quasi_random(center), factor @ vectors.mT
        size = max(1, _ENTRIES // (len(nodes.weights) * (center.shape[1] + 1)))
        members = np.flatnonzero(group.ravel() == index)
        for rows in np.split(members, range(size, len(members), size)):
            yield rows, center[rows, :, None] + factor[rows] @ nodes.points.T, nodes.weights


def _principal(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Deviations (n, variables) and directions (n, L, variables) that differences vary in."""
    n_latent = covariance.shape[-1]
    if n_latent == 1:
        return covariance[:, 0].clamp(min=0).sqrt(), torch.ones_like(covariance)
    contrast = torch.eye(n_latent).to(covariance) - 1 / n_latent
    values, vectors = torch.linalg.eigh(contrast @ covariance @ contrast)
    return values[:, 1:].clamp(min=0).sqrt(), vectors[..., 1:]


def _quasi_random(like: Tensor) -> Nodes:
    uniform = qmc.Sobol(like.shape[1], seed=0).random_base2(_LOG_DRAWS)
    points = torch.as_tensor(norm.ppf(np.clip(uniform, 1e-12, 1 - 1e-12)))
    return Nodes(points, torch.full((len(points),), 1 / len(points)).to(like), math.inf)


def _log_proba(likelihood: str, latent: Tensor) -> Tensor:
    if likelihood == "softmax":
        return torch.log_softmax(latent, 1)
    log_cdf = torch.special.log_ndtr if likelihood == "probit" else torch.nn.functional.logsigmoid
    return torch.cat([log_cdf(-latent), log_cdf(latent)], 1)
