"""Losses of evidential networks: Eq. 12 to 14 of the probe, and those of its rivals.

Pure functions on tensors; each returns one value per node or sample, in nats unless stated
otherwise, and averaging is left to the caller.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def uce_loss(alpha: Tensor, codes: Tensor) -> Tensor:
    """Uncertainty cross-entropy: cross-entropy expected under a Dirichlet distribution.

    Parameters
    ----------
    alpha : Tensor of shape (n_samples, n_classes)
        Concentration, positive.
    codes : Tensor of shape (n_samples,), int64
        True classes.

    Returns
    -------
    Tensor of shape (n_samples,)
        ``digamma(alpha_0) - digamma(alpha_y)`` in nats.

    References
    ----------
    Yu et al., AISTATS 2025, Eq. 8; with ``alpha = (C + e) p`` it is Eq. 12.

    Examples
    --------
    >>> uce_loss(torch.tensor([[2.0, 1.0]]), torch.tensor([0]))
    tensor([0.5000])
    """
    of_class = alpha.gather(1, codes[:, None]).squeeze(1)
    return torch.digamma(alpha.sum(dim=1)) - torch.digamma(of_class)


def ice_loss(class_evidence: Tensor, proba: Tensor) -> Tensor:
    """Intra-class evidence: distance of the class evidence from the concentration it implies.

    Parameters
    ----------
    class_evidence : Tensor of shape (n_samples, n_classes)
        Output q of the hidden layer of the probe, whose sum is the total evidence e.
    proba : Tensor of shape (n_samples, n_classes)
        Class probabilities p of the pre-trained model.

    Returns
    -------
    Tensor of shape (n_samples,)
        ``|| (C + e) p - q ||^2``, in squared evidence.

    References
    ----------
    Yu et al., AISTATS 2025, Eq. 13.

    Examples
    --------
    >>> ice_loss(torch.tensor([[3.0, 1.0]]), torch.tensor([[0.5, 0.5]]))
    tensor([4.])
    """
    total = class_evidence.sum(dim=1, keepdim=True)
    implied = (proba.shape[1] + total) * proba
    return (implied - class_evidence).square().sum(dim=1)


def pcl_loss(
    total_evidence: Tensor,
    confidence: Tensor,
    evidence_id: float = 100.0,
    evidence_ood: float = 0.0,
) -> Tensor:
    """Positive-confidence learning: high evidence for what the model is confident about.

    Between the two levels its minimum lies at ``r evidence_id + (1 - r) evidence_ood``.

    Parameters
    ----------
    total_evidence : Tensor of shape (n_samples,)
        Total evidence e.
    confidence : Tensor of shape (n_samples,)
        Largest class probability r of the pre-trained model, positive.
    evidence_id, evidence_ood : float
        Levels that known and foreign inputs are drawn to.

    Returns
    -------
    Tensor of shape (n_samples,)
        ``max(0, e_id - e)^2 + (1 - r) / r max(0, e - e_ood)^2``, in squared evidence.

    References
    ----------
    Yu et al., AISTATS 2025, Eq. 14.

    Examples
    --------
    >>> pcl_loss(torch.tensor([50.0]), torch.tensor([0.5]))
    tensor([5000.])
    """
    lacking = (evidence_id - total_evidence).clamp_min(0).square()
    excessive = (total_evidence - evidence_ood).clamp_min(0).square()
    return lacking + (1 - confidence) / confidence * excessive


def dirichlet_kl(alpha: Tensor, other: Tensor) -> Tensor:
    """Kullback-Leibler divergence of one Dirichlet distribution from another.

    Parameters
    ----------
    alpha, other : Tensors of shape (n_samples, n_classes)
        Concentrations, positive.

    Returns
    -------
    Tensor of shape (n_samples,)
        ``KL(Dir(alpha) || Dir(other))`` in nats.

    Examples
    --------
    >>> ones = torch.ones(1, 3)
    >>> dirichlet_kl(ones, ones)
    tensor([0.])
    """
    dtype = alpha.dtype
    alpha, other = alpha.double(), other.double()  # logarithms of gamma functions cancel
    total, other_total = alpha.sum(dim=1), other.sum(dim=1)
    normaliser = torch.lgamma(total) - torch.lgamma(alpha).sum(dim=1)
    other_normaliser = torch.lgamma(other_total) - torch.lgamma(other).sum(dim=1)
    moved = (alpha - other) * (torch.digamma(alpha) - torch.digamma(total)[:, None])
    return (normaliser - other_normaliser + moved.sum(dim=1)).to(dtype)


def dirichlet_entropy(alpha: Tensor) -> Tensor:
    """Differential entropy of Dirichlet distributions.

    Parameters
    ----------
    alpha : Tensor of shape (n_samples, n_classes)
        Concentration, positive.

    Returns
    -------
    Tensor of shape (n_samples,)
        In nats; 0 or negative for one that is uniform on the simplex of two classes or narrower.

    Examples
    --------
    >>> dirichlet_entropy(torch.ones(1, 2))
    tensor([-0.])
    """
    n_classes = alpha.shape[1]
    uniform = -math.lgamma(n_classes)  # log volume of the simplex
    return uniform - dirichlet_kl(alpha, torch.ones_like(alpha))


def expected_square_loss(alpha: Tensor, codes: Tensor) -> Tensor:
    """Squared error of the class probabilities, expected under a Dirichlet distribution.

    Parameters
    ----------
    alpha : Tensor of shape (n_samples, n_classes)
        Concentration, positive.
    codes : Tensor of shape (n_samples,), int64
        True classes.

    Returns
    -------
    Tensor of shape (n_samples,)
        In squared probability.

    References
    ----------
    Sensoy et al., NeurIPS 2018, Eq. 5; Yu et al., AISTATS 2025, first term of Eq. 88.

    Examples
    --------
    >>> expected_square_loss(torch.ones(1, 2), torch.tensor([0]))
    tensor([0.6667])
    """
    total = alpha.sum(dim=1, keepdim=True)
    mean = alpha / total
    true = torch.nn.functional.one_hot(codes, alpha.shape[1]).to(mean)
    return ((true - mean).square() + mean * (1 - mean) / (total + 1)).sum(dim=1)
