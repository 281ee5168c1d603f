"""Entropies and divergences of categorical and normal distributions, for numpy and torch.

Everything returns nats. Categorical distributions are given as log-probabilities, classes on
the last axis; an outcome of probability zero (log-probability minus infinity) contributes
zero. Normal distributions are given by mean and variance, elementwise.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "Decomposition",
    "array_namespace",
    "centred",
    "cross_entropy",
    "decompose_expected",
    "decompose_pairwise",
    "decompose_selected",
    "entropy",
    "gaussian_entropy",
    "gaussian_kl",
    "gaussian_pairwise_kl",
    "has_conventional_offset",
    "kl_divergence",
    "log_softmax",
    "logsumexp",
]


class Decomposition(NamedTuple):
    """Aleatoric and epistemic part of predictive uncertainty, each of shape (...), in nats."""

    aleatoric: Any
    epistemic: Any


def array_namespace(array: Any) -> Any:
    """Return the library that an array belongs to; torch is not imported for numpy users.

    Parameters
    ----------
    array : array or Tensor
        Any array.

    Returns
    -------
    module
        numpy or torch.

    Examples
    --------
    >>> import numpy as np
    >>> array_namespace(np.zeros(2)).__name__
    'numpy'
    """
    if type(array).__module__.startswith("torch"):
        import torch

        return torch
    return np


def _expectation(log_p: Any, values: Any) -> Any:
    """``sum_k p_k values_k``, where ``0 * inf`` is 0."""
    return _weighted(array_namespace(log_p).exp(log_p), values).sum(-1)


def _weighted(weights: Any, values: Any) -> Any:
    """Products of weights and values, where ``0 * inf`` is 0."""
    # Chosen before the product, whose gradient would be infinite where it is not taken.
    return weights * array_namespace(weights).where(weights > 0, values, 0 * weights)


def log_softmax(logits: Any) -> Any:
    """Log-probabilities of logits.

    Parameters
    ----------
    logits : array or Tensor of shape (..., n_classes)
        Logits; log-probabilities are returned as they are, within rounding.

    Returns
    -------
    array or Tensor of shape (..., n_classes)
        Log-probabilities, of the dtype of the logits.

    Examples
    --------
    >>> import numpy as np
    >>> np.exp(log_softmax(np.log([1.0, 3.0])))
    array([0.25, 0.75])
    """
    xp = array_namespace(logits)
    if xp is not np:
        return logits.log_softmax(-1)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def centred(logits: Any) -> Any:
    """Logits with a mean of 0 over classes.

    Parameters
    ----------
    logits : array or Tensor of shape (..., n_classes)
        Logits.

    Returns
    -------
    array or Tensor of shape (..., n_classes)
        The logits minus their mean.
    """
    return logits - logits.mean(-1)[..., None]


def has_conventional_offset(logits: Any) -> bool:
    """Whether the offset of logits is fixed for all samples, so that it carries no information.

    So it is in log-probabilities, and in the logits (0, z) of two classes.

    Parameters
    ----------
    logits : array or Tensor of shape (n_samples, n_classes)
        Logits of several samples.

    Returns
    -------
    bool

    Examples
    --------
    >>> import numpy as np
    >>> has_conventional_offset(np.array([[0.0, 1.0], [0.0, -2.0], [0.0, 0.5]]))
    True
    """
    xp = array_namespace(logits)
    total = logsumexp(logits)[:, None]
    spread = xp.concatenate([logits, total], 1).std(0)
    return bool(spread.min() < 1e-4 * logits.std())


def logsumexp(logits: Any) -> Any:
    """Logarithm of the summed exponentials over classes; minus the energy (Liu et al., 2020).

    Parameters
    ----------
    logits : array or Tensor of shape (..., n_classes)
        Logits.

    Returns
    -------
    array or Tensor of shape (...)
    """
    if array_namespace(logits) is not np:
        return logits.logsumexp(-1)
    largest = logits.max(axis=-1, keepdims=True)
    return np.log(np.exp(logits - largest).sum(axis=-1)) + largest[..., 0]


def entropy(log_p: Any) -> Any:
    """Shannon entropy.

    Parameters
    ----------
    log_p : array or Tensor of shape (..., n_classes)
        Log-probabilities.

    Returns
    -------
    array or Tensor of shape (...)
        Entropy in nats.

    Examples
    --------
    >>> import numpy as np
    >>> float(entropy(np.log([0.5, 0.5])) / np.log(2))
    1.0
    """
    return _expectation(log_p, -log_p)


def cross_entropy(log_p: Any, log_q: Any) -> Any:
    """Cross-entropy ``-sum_k p_k log q_k``, infinite where q excludes what p allows.

    Parameters
    ----------
    log_p, log_q : arrays or Tensors of shape (..., n_classes)
        Log-probabilities, broadcast against each other.

    Returns
    -------
    array or Tensor of shape (...)
        Cross-entropy in nats.

    Examples
    --------
    >>> import numpy as np
    >>> log_p = np.log([0.5, 0.5])
    >>> bool(cross_entropy(log_p, log_p) == entropy(log_p))
    True
    """
    xp = array_namespace(log_p)
    log_p, log_q = (
        xp.broadcast_tensors(log_p, log_q) if xp is not np else np.broadcast_arrays(log_p, log_q)
    )
    return _expectation(log_p, -log_q)


def kl_divergence(log_p: Any, log_q: Any) -> Any:
    """Kullback-Leibler divergence of q from p, never negative.

    Parameters
    ----------
    log_p, log_q : arrays or Tensors of shape (..., n_classes)
        Log-probabilities, broadcast against each other.

    Returns
    -------
    array or Tensor of shape (...)
        Divergence in nats; rounding errors below zero are cut off.

    Examples
    --------
    >>> import numpy as np
    >>> float(kl_divergence(np.log([0.5, 0.5]), np.log([0.5, 0.5])))
    0.0
    """
    return (cross_entropy(log_p, log_q) - entropy(log_p)).clip(0)


def decompose_expected(log_proba: Any, weights: Any) -> Decomposition:
    """Uncertainty expected over plausible models: entropy of their average, split up.

    Parameters
    ----------
    log_proba : array or Tensor of shape (..., n_models, n_classes)
        Log-probabilities that each model predicts.
    weights : array or Tensor of shape (..., n_models)
        Posterior weight of each model, summing to 1.

    Returns
    -------
    Decomposition
        Expected entropy, and mutual information of prediction and model, in nats; their
        sum is the entropy of the model average.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Eq. 1.

    Examples
    --------
    >>> import numpy as np
    >>> with np.errstate(divide="ignore"):
    ...     certain_but_opposed = np.log([[1.0, 0.0], [0.0, 1.0]])
    >>> aleatoric, epistemic = decompose_expected(certain_but_opposed, np.array([0.5, 0.5]))
    >>> float(aleatoric), float(epistemic / np.log(2))
    (0.0, 1.0)
    """
    xp = array_namespace(log_proba)
    aleatoric = (weights * entropy(log_proba)).sum(-1)
    # The clip keeps a class that no model allows from giving log 0; entropy ignores it.
    mean = (weights[..., None] * xp.exp(log_proba)).sum(-2)
    total = entropy(xp.log(mean.clip(xp.finfo(mean.dtype).tiny)))
    return Decomposition(aleatoric, (total - aleatoric).clip(0))


def decompose_selected(log_reference: Any, log_proba: Any, weights: Any) -> Decomposition:
    """Uncertainty of one given model, against the plausible models that might be true.

    Parameters
    ----------
    log_reference : array or Tensor of shape (..., n_classes)
        Log-probabilities that the given model predicts.
    log_proba : array or Tensor of shape (..., n_models, n_classes)
        Log-probabilities that each candidate model predicts.
    weights : array or Tensor of shape (..., n_models)
        Posterior weight of each candidate, summing to 1.

    Returns
    -------
    Decomposition
        Entropy of the given model, and its expected KL divergence to the candidates, in
        nats; their sum is the expected cross-entropy.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Eq. 2.

    Examples
    --------
    >>> import numpy as np
    >>> given = np.log([0.5, 0.5])
    >>> decompose_selected(given, given[None], np.array([1.0])).epistemic
    np.float64(0.0)
    """
    divergence = kl_divergence(log_reference[..., None, :], log_proba)
    return Decomposition(entropy(log_reference), _weighted(weights, divergence).sum(-1))


def decompose_pairwise(log_proba: Any, weights: Any) -> Decomposition:
    """Uncertainty of a plausible model, against another one drawn independently of it.

    Parameters
    ----------
    log_proba : array or Tensor of shape (..., n_models, n_classes)
        Log-probabilities that each model predicts.
    weights : array or Tensor of shape (..., n_models)
        Posterior weight of each model, summing to 1.

    Returns
    -------
    Decomposition
        Expected entropy, and expected KL divergence over all pairs of models, in nats; their
        sum is the expected cross-entropy of pairs. Infinite where a model excludes a class that
        another one allows.

    References
    ----------
    Schweighofer et al., "On Information-Theoretic Measures of Predictive Uncertainty", UAI 2025.

    Examples
    --------
    >>> import numpy as np
    >>> log_proba = np.log([[0.9, 0.1], [0.1, 0.9]])
    >>> weights = np.array([0.5, 0.5])
    >>> pairs = kl_divergence(log_proba[:, None], log_proba)  # all four of them
    >>> bool(np.isclose(decompose_pairwise(log_proba, weights).epistemic, pairs.mean()))
    True
    """
    xp = array_namespace(log_proba)
    aleatoric = (weights * entropy(log_proba)).sum(-1)
    # sum_ij w_i w_j CE(p_i, p_j) is linear in p_i and in log p_j: no pair needs to be formed.
    mean = (weights[..., None] * xp.exp(log_proba)).sum(-2)
    mean_log = _weighted(weights[..., None], log_proba).sum(-2)
    total = _weighted(mean, -mean_log).sum(-1)
    return Decomposition(aleatoric, (total - aleatoric).clip(0))


def gaussian_entropy(variance: Any) -> Any:
    """Differential entropy of normal distributions; negative where they are narrow.

    Parameters
    ----------
    variance : array or Tensor of shape (...)
        Variances, positive.

    Returns
    -------
    array or Tensor of shape (...)
        ``log(2 pi variance) / 2 + 1 / 2``, in nats.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Eq. 24, where the factor 1/2 of ``log(2 pi)`` is missing
    in print.

    Examples
    --------
    >>> import numpy as np
    >>> round(float(gaussian_entropy(np.array(1.0))), 4)
    1.4189
    """
    return (array_namespace(variance).log(variance) + (math.log(2 * math.pi) + 1)) / 2


def gaussian_kl(mean_p: Any, var_p: Any, mean_q: Any, var_q: Any) -> Any:
    """Kullback-Leibler divergence of a normal distribution q from p, never negative.

    Parameters
    ----------
    mean_p, var_p : arrays or Tensors of shape (...)
        Mean and variance of p.
    mean_q, var_q : arrays or Tensors of shape (...)
        Mean and variance of q, broadcast against those of p.

    Returns
    -------
    array or Tensor of shape (...)
        Divergence in nats; rounding errors below zero are cut off.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Eq. 25.

    Examples
    --------
    >>> import numpy as np
    >>> p_mean, q_mean, variance = np.array(1.0), np.array(4.0), np.array(1.0)
    >>> float(gaussian_kl(p_mean, variance, q_mean, variance))
    4.5
    """
    ratio = var_p / var_q
    spread = (ratio - 1 - array_namespace(ratio).log(ratio)).clip(0)
    return (spread + (mean_p - mean_q) ** 2 / var_q) / 2


def gaussian_pairwise_kl(mean: Any, variance: Any, weights: Any) -> Any:
    """Expected Kullback-Leibler divergence over all pairs of normal distributions.

    Parameters
    ----------
    mean, variance : arrays or Tensors of shape (..., n_models)
        Mean and variance that each model predicts.
    weights : array or Tensor of shape (..., n_models)
        Weight of each model, summing to 1.

    Returns
    -------
    array or Tensor of shape (...)
        ``sum_ij w_i w_j KL(p_i, p_j)``, in nats; rounding errors below zero are cut off.

    References
    ----------
    Schweighofer et al., NeurIPS 2023, Eq. 25, in the expectation of Schweighofer et al., "On
    Information-Theoretic Measures of Predictive Uncertainty", UAI 2025.

    Examples
    --------
    >>> import numpy as np
    >>> mean, variance, weights = np.array([1.0, 4.0]), np.ones(2), np.array([0.5, 0.5])
    >>> float(gaussian_pairwise_kl(mean, variance, weights))  # half of the pairs diverge by 4.5
    2.25
    """
    centre = (weights * mean).sum(-1)[..., None]
    scatter = (weights * (mean - centre) ** 2).sum(-1)[..., None]
    precision = weights / variance
    # The logarithms of Eq. 25 cancel over pairs.
    spread = ((weights * variance).sum(-1) * precision.sum(-1) - 1).clip(0)
    return (spread + (precision * (scatter + (mean - centre) ** 2)).sum(-1)) / 2
