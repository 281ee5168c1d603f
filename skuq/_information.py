"""Entropies and divergences of categorical and normal distributions, for numpy and torch.

All results are in nats. Categorical distributions are passed as log-probabilities. Their last axis
holds the classes, and functions sum over it; a class of probability zero (log-probability minus
infinity) contributes zero. Normal distributions are passed as mean and variance, elementwise.
Equations are those of Schweighofer et al., NeurIPS 2023.
"""

import math
from typing import Any, NamedTuple

import numpy as np


class Decomposition(NamedTuple):
    """Aleatoric and epistemic part of predictive uncertainty, each of shape (...), in nats."""

    aleatoric: Any
    epistemic: Any


def array_namespace(array: Any) -> Any:
    """Return the library of an array, numpy or torch; torch is imported only for tensors."""
    if type(array).__module__.startswith("torch"):
        import torch

        return torch
    return np


def _expectation(log_p: Any, values: Any) -> Any:
    """Compute ``sum_k p_k values_k``, where ``0 * inf`` is 0."""
    return _weighted(array_namespace(log_p).exp(log_p), values).sum(-1)


def _weighted(weights: Any, values: Any) -> Any:
    """Multiply weights and values, where ``0 * inf`` is 0."""
    # Mask the values before the product; otherwise, gradients would be infinite.
    return weights * array_namespace(weights).where(weights > 0, values, 0 * weights)


def log_softmax(logits: Any) -> Any:
    """Convert logits to log-probabilities; log-probabilities are returned unchanged."""
    xp = array_namespace(logits)
    if xp is not np:
        return logits.log_softmax(-1)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def centred(logits: Any) -> Any:
    """Shift logits to mean 0 over classes."""
    return logits - logits.mean(-1)[..., None]


def has_conventional_offset(logits: Any) -> bool:
    """Return whether one logit (as in (0, z)) or the logsumexp (log-probabilities) is constant."""
    xp = array_namespace(logits)
    total = logsumexp(logits)[:, None]
    spread = xp.concatenate([logits, total], 1).std(0)
    return bool(spread.min() < 1e-4 * logits.std())


def logsumexp(logits: Any) -> Any:
    """Compute log(sum(exp(logits))) over classes: minus the energy (Liu et al., 2020)."""
    if array_namespace(logits) is not np:
        return logits.logsumexp(-1)
    largest = logits.max(axis=-1, keepdims=True)
    return np.log(np.exp(logits - largest).sum(axis=-1)) + largest[..., 0]


def entropy(log_p: Any) -> Any:
    """Compute the Shannon entropy."""
    return _expectation(log_p, -log_p)


def cross_entropy(log_p: Any, log_q: Any) -> Any:
    """Compute ``-sum_k p_k log q_k``; infinite if q_k = 0 and p_k > 0 for some class k."""
    xp = array_namespace(log_p)
    log_p, log_q = (
        xp.broadcast_tensors(log_p, log_q) if xp is not np else np.broadcast_arrays(log_p, log_q)
    )
    return _expectation(log_p, -log_q)


def kl_divergence(log_p: Any, log_q: Any) -> Any:
    """Compute the Kullback-Leibler divergence KL(p, q), clipped at 0 against rounding errors."""
    return (cross_entropy(log_p, log_q) - entropy(log_p)).clip(0)


def decompose_expected(log_proba: Any, weights: Any) -> Decomposition:
    """Compute expected entropy, and mutual information of prediction and model (QUAM's Eq. 1).

    Shapes: `log_proba` (..., n_models, n_classes), `weights` (..., n_models), which sum to 1.
    """
    xp = array_namespace(log_proba)
    aleatoric = (weights * entropy(log_proba)).sum(-1)
    # Clip to avoid log 0 for classes of probability 0, which contribute nothing to the entropy.
    mean = (weights[..., None] * xp.exp(log_proba)).sum(-2)
    total = entropy(xp.log(mean.clip(xp.finfo(mean.dtype).tiny)))
    return Decomposition(aleatoric, (total - aleatoric).clip(0))


def decompose_selected(log_reference: Any, log_proba: Any, weights: Any) -> Decomposition:
    """Compute a selected model's entropy, and expected KL(selected, candidate) (Eq. 2).

    The sum is the expected cross-entropy. Shapes: `log_reference` (..., n_classes), `log_proba`
    (..., n_models, n_classes), `weights` (..., n_models), which sum to 1.
    """
    divergence = kl_divergence(log_reference[..., None, :], log_proba)
    return Decomposition(entropy(log_reference), _weighted(weights, divergence).sum(-1))


def decompose_pairwise(log_proba: Any, weights: Any) -> Decomposition:
    """Compute expected entropy, and expected KL divergence over all pairs of models.

    The sum is the expected cross-entropy of two models drawn independently from the posterior.
    It is infinite if one model assigns probability 0 to a class and another does not. Shapes are
    those of `decompose_expected`. Schweighofer et al., "On Information-Theoretic Measures of
    Predictive Uncertainty", UAI 2025.
    """
    xp = array_namespace(log_proba)
    aleatoric = (weights * entropy(log_proba)).sum(-1)
    # sum_ij w_i w_j CE(p_i, p_j) is linear in p_i and in log p_j, so the mean of the probabilities
    # and the mean of the log-probabilities suffice.
    mean = (weights[..., None] * xp.exp(log_proba)).sum(-2)
    mean_log = _weighted(weights[..., None], log_proba).sum(-2)
    total = _weighted(mean, -mean_log).sum(-1)
    return Decomposition(aleatoric, (total - aleatoric).clip(0))


def gaussian_entropy(variance: Any) -> Any:
    """Compute the differential entropy. Eq. 24 in print lacks the factor 1/2 of ``log(2 pi)``."""
    return (array_namespace(variance).log(variance) + (math.log(2 * math.pi) + 1)) / 2


def gaussian_kl(mean_p: Any, var_p: Any, mean_q: Any, var_q: Any) -> Any:
    """Compute the Kullback-Leibler divergence KL(p, q) of normal distributions (Eq. 25)."""
    ratio = var_p / var_q
    spread = (ratio - 1 - array_namespace(ratio).log(ratio)).clip(0)
    return (spread + (mean_p - mean_q) ** 2 / var_q) / 2


def gaussian_pairwise_kl(mean: Any, variance: Any, weights: Any) -> Any:
    """Compute ``sum_ij w_i w_j KL(p_i, p_j)`` over pairs of normal distributions.

    Shapes: `mean`, `variance`, `weights` (..., n_models); weights sum to 1. Eq. 25, and the
    expectation over pairs of "On Information-Theoretic Measures of Predictive Uncertainty", UAI
    2025.
    """
    centre = (weights * mean).sum(-1)[..., None]
    scatter = (weights * (mean - centre) ** 2).sum(-1)[..., None]
    precision = weights / variance
    # In the sum over pairs, the logarithms of Eq. 25 cancel.
    spread = ((weights * variance).sum(-1) * precision.sum(-1) - 1).clip(0)
    return (spread + (precision * (scatter + (mean - centre) ** 2)).sum(-1)) / 2
