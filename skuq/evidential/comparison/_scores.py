"""Uncertainty scores of logits."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from skuq.base import FloatArray
from skuq.information import entropy

Score = Literal["entropy", "max-score", "energy"]


def logit_score(logits: Tensor, score: Score) -> FloatArray:
    """Compute the uncertainty score of logits.

    Parameters
    ----------
    logits : Tensor of shape (n_samples, n_classes)
        Logits.
    score : {"entropy", "max-score", "energy"}
        Entropy of the class probabilities in nats (Eq. 82), 1 minus the largest of them
        (Eq. 83), or minus the logarithm of the summed exponentials (Eq. 84 at temperature 1,
        which is printed without the logarithm).

    Returns
    -------
    ndarray of shape (n_samples,), float64

    References
    ----------
    Hendrycks and Gimpel, ICLR 2017; Liu et al., NeurIPS 2020; Yu et al., AISTATS 2025,
    Eq. 82 to 84.

    Examples
    --------
    >>> logits = torch.tensor([[0.0, 0.0]])
    >>> logit_score(logits, "max-score")
    array([0.5])
    """
    logits = logits.double()
    if score == "energy":
        values = -torch.logsumexp(logits, dim=1)  # Eq. 84
    elif score == "entropy":
        values = entropy(logits.log_softmax(dim=1))  # Eq. 82
    else:
        values = 1 - logits.softmax(dim=1).amax(dim=1)  # Eq. 83
    return np.asarray(values.numpy(), dtype=np.float64)
