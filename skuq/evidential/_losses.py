"""Losses of evidential networks: Eq. 12 to 14 of the probe, and the expected squared error.

Pure functions on tensors; each returns one value per node or sample, in nats unless stated
otherwise, and averaging is left to the caller.
"""

from __future__ import annotations

import torch
from torch import Tensor


def uce_loss(alpha: Tensor, codes: Tensor) -> Tensor:
    """Compute the cross-entropy expected under a Dirichlet distribution (UCE).

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
    alpha_y = alpha.gather(1, codes[:, None]).squeeze(1)
    alpha_0 = alpha.sum(dim=1)
    return torch.digamma(alpha_0) - torch.digamma(alpha_y)  # Eq. 8 and 12


def ice_loss(class_evidence: Tensor, proba: Tensor) -> Tensor:
    """Compute the distance of class evidence from the concentration that it implies (ICE).

    Parameters
    ----------
    class_evidence : Tensor of shape (n_samples, n_classes)
        Class evidence q, whose sum is the total evidence e.
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
    q, p, C = class_evidence, proba, proba.shape[1]
    e = q.sum(dim=1, keepdim=True)  # Eq. 10
    alpha = (C + e) * p  # Eq. 11
    return (alpha - q).square().sum(dim=1)  # Eq. 13


def pcl_loss(
    total_evidence: Tensor,
    confidence: Tensor,
    evidence_id: float = 100.0,
    evidence_ood: float = 0.0,
) -> Tensor:
    """Compute the loss of positive-confidence learning (PCL).

    It asks for high evidence where the model is confident, and for low evidence elsewhere.
    Between the two levels its minimum is at ``r evidence_id + (1 - r) evidence_ood``.

    Parameters
    ----------
    total_evidence : Tensor of shape (n_samples,)
        Total evidence e.
    confidence : Tensor of shape (n_samples,)
        Largest class probability r of the pre-trained model, positive.
    evidence_id, evidence_ood : float
        Target levels of evidence for in-distribution and out-of-distribution inputs.

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
    e, r = total_evidence, confidence
    lacking = (evidence_id - e).clamp_min(0).square()
    excessive = (e - evidence_ood).clamp_min(0).square()
    return lacking + (1 - r) / r * excessive  # Eq. 14


def expected_square_loss(alpha: Tensor, codes: Tensor) -> Tensor:
    """Compute the squared error of class probabilities expected under a Dirichlet distribution.

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
    alpha_0 = alpha.sum(dim=1, keepdim=True)
    p = alpha / alpha_0
    y = torch.nn.functional.one_hot(codes, alpha.shape[1]).to(p)
    return ((y - p).square() + p * (1 - p) / (alpha_0 + 1)).sum(dim=1)  # Eq. 88, first term
