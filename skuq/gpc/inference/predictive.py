"""Predictive probabilities and entropies from latent moments."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import norm, qmc
from torch import Tensor

from skuq.base import FloatArray
from skuq.gpc.inference.quadrature import MAX_CLASSES, Nodes, normal_nodes
from skuq.information import entropy

_ACCURACY = 1e-11
_ENTRIES = 20_000_000  # numbers in the largest temporary array
_LOG_DRAWS = 10  # quasi-random points for classes too many for a grid: 2 to this power


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
        Probabilities. Exact up to 1e-10, for more than four classes up to the error of 1,024
        quasi-random points.

    Examples
    --------
    >>> class_probabilities("probit", np.zeros((1, 1)), np.ones((1, 1, 1)))
    array([[0.5, 0.5]])
    """
    if likelihood == "probit":
        z = torch.as_tensor(mean[:, 0] / np.sqrt(1 + covariance[:, 0, 0]))
        return torch.stack([torch.special.ndtr(-z), torch.special.ndtr(z)], -1).numpy()
    averages = [
        torch.einsum("bnc,n->bc", log_p.exp(), weights)
        for log_p, weights in _draws(likelihood, mean, covariance)
    ]
    proba = torch.cat(averages)
    return (proba / proba.sum(-1, keepdim=True)).numpy()


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
    averages = [entropy(log_p) @ weights for log_p, weights in _draws(likelihood, mean, covariance)]
    return torch.cat(averages).numpy()


def _draws(
    likelihood: str, mean: FloatArray, covariance: FloatArray
) -> list[tuple[Tensor, Tensor]]:
    """Log probabilities (b, nodes, C) at nodes of the latent Gaussian, in batches of points."""
    center = torch.as_tensor(mean, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(torch.as_tensor(covariance, dtype=torch.float64))
    factor = vectors * values.clamp(min=0).sqrt()[:, None]
    nodes = _nodes(factor, center)
    size = max(1, _ENTRIES // (len(nodes.weights) * (center.shape[1] + 1)))
    batches = zip(torch.split(center, size), torch.split(factor, size), strict=True)
    return [(_log_proba(likelihood, m, f, nodes), nodes.weights) for m, f in batches]


def _nodes(factor: Tensor, like: Tensor) -> Nodes:
    n_latent = factor.shape[-1]
    if n_latent > MAX_CLASSES:
        uniform = qmc.Sobol(n_latent, seed=0).random_base2(_LOG_DRAWS)
        points = torch.as_tensor(norm.ppf(np.clip(uniform, 1e-12, 1 - 1e-12)))
        count = len(points)
        return Nodes(points, torch.full((count,), 1 / count).to(like), math.inf)
    scale = float((factor.amax(1) - factor.amin(1).clamp(max=0)).max()) if len(factor) else 1.0
    return normal_nodes(scale, _ACCURACY, n_latent, like)


def _log_proba(likelihood: str, mean: Tensor, factor: Tensor, nodes: Nodes) -> Tensor:
    latent = mean[:, None] + nodes.points @ factor.mT
    if likelihood == "softmax":
        return torch.log_softmax(latent, -1)
    log_cdf = torch.special.log_ndtr if likelihood == "probit" else torch.nn.functional.logsigmoid
    return torch.cat([log_cdf(-latent), log_cdf(latent)], -1)
