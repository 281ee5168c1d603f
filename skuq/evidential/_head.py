"""Heads of the probe, which turn representations into evidence, and their objective."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from skuq.evidential._losses import ice_loss, pcl_loss, uce_loss

Activation = Literal["exp", "softplus"]

# Largest logarithm of a class evidence: far above any level that matters, while its square, which
# the losses need, is still finite in float32.
LOG_CAP = 16.0
# Smallest probability in the loss, since digamma(0) is infinite.
SMALLEST = 1e-6


def safe_exp(x: Tensor, cap: float = LOG_CAP) -> Tensor:
    """Exponential that saturates smoothly.

    Equal to ``exp(x)`` within 1 part in 10^4 as long as x is at least 10 below the cap, and
    never above ``exp(cap)``.

    Parameters
    ----------
    x : Tensor
        Exponents.
    cap : float
        Limit of the exponent.

    Returns
    -------
    Tensor of the shape of `x`

    Examples
    --------
    >>> safe_exp(torch.tensor([0.0, 1e6])).log()
    tensor([ 0., 16.])
    """
    return torch.exp(cap - nn.functional.softplus(cap - x))


class LogitHead(nn.Module):
    """Class evidence from the model's own logits, with a learned scale and offset.

    ``q = exp(a z + b)`` for logits z. With ``a = 1`` it is proportional to the class
    probabilities, and its total is the exponential of minus the model's energy.

    Parameters
    ----------
    offset : float
        Initial value of b; that of a is 1.
    centred : bool, default=False
        Whether the mean of each sample's logits is subtracted, for logits whose own offset is
        fixed by convention.
    activation : {"exp", "softplus"}, default="exp"
        Function that makes evidence positive.
    """

    def __init__(self, offset: float, centred: bool = False, activation: Activation = "exp"):
        super().__init__()
        self.centred = centred
        self.activation = activation
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.offset = nn.Parameter(torch.tensor(offset))

    def forward(self, z: Tensor) -> Tensor:
        if self.centred:
            z = centre(z)
        return _positive(self.log_scale.exp() * z + self.offset, self.activation)


class NetworkHead(nn.Module):
    """Class evidence from a network of its own on hidden representations.

    The network of Eq. 18 with ``w = 1`` and ``b = 0`` in its last layer. Inputs are
    standardised first, which only speeds up the training.

    Parameters
    ----------
    mean, scale : Tensors of shape (n_hidden,)
        Mean and standard deviation of the representations.
    n_classes : int
        Number of classes.
    hidden_sizes : sequence of int, default=()
        Width of further layers before the class evidence, with ReLU between them.
    activation : {"exp", "softplus"}, default="exp"
        Function that makes evidence positive.

    References
    ----------
    Yu et al., AISTATS 2025, Eq. 10 and 18.
    """

    mean: Tensor
    scale: Tensor

    def __init__(
        self,
        mean: Tensor,
        scale: Tensor,
        n_classes: int,
        hidden_sizes: Sequence[int] = (),
        activation: Activation = "exp",
    ):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)
        self.activation = activation
        widths = [len(mean), *hidden_sizes, n_classes]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, z: Tensor) -> Tensor:
        scores = self.layers((z - self.mean) / self.scale)
        return _positive(scores, self.activation)  # Eq. 18


def centre(logits: Tensor) -> Tensor:
    """Subtract the mean over classes from logits of shape (n_samples, n_classes)."""
    return logits - logits.mean(dim=1, keepdim=True)


def has_conventional_offset(logits: Tensor) -> bool:
    """Whether the offset of logits is fixed for all samples, so that it carries no information.

    So it is in log-probabilities, and in the logits (0, z) of two classes.
    """
    spread = torch.cat([logits, logits.logsumexp(dim=1, keepdim=True)], dim=1).std(dim=0)
    return bool(spread.min() < 1e-4 * logits.std())


def logit_head(
    logits: Tensor, label_weight: Tensor, evidence_id: float, activation: Activation
) -> LogitHead:
    """Build a head whose mean log-evidence on labelled samples is that of `evidence_id`."""
    centred = has_conventional_offset(logits)
    log_evidence = (centre(logits) if centred else logits).logsumexp(dim=1)
    mean = (label_weight * log_evidence).sum() / label_weight.sum()
    return LogitHead(float(math.log(evidence_id) - mean), centred, activation)


def mean_and_scale(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Compute weighted means and standard deviations of columns; 1 for constant columns."""
    hidden = hidden.double()
    share = (weight / weight.sum(dtype=torch.float64))[:, None]
    mean = (share * hidden).sum(dim=0)
    scale = (share * (hidden - mean).square()).sum(dim=0).sqrt()
    scale[scale <= 1e-6 * mean.abs() + 1e-12] = 1
    return mean.float(), scale.float()


class ProbeLoss(nn.Module):
    """Objective of the probe (Eq. 15).

    Parameters
    ----------
    lambda_ice, lambda_pcl : float
        Weights of the regularisers.
    evidence_id, evidence_ood : float
        Levels of Eq. 14.
    """

    def __init__(
        self, lambda_ice: float, lambda_pcl: float, evidence_id: float, evidence_ood: float
    ):
        super().__init__()
        self.lambda_ice = lambda_ice
        self.lambda_pcl = lambda_pcl
        self.levels = evidence_id, evidence_ood

    def forward(self, q: Tensor, codes: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Mean over labelled samples of Eq. 12, plus the mean over all of Eq. 13 and 14."""
        p = inputs["proba"].to(q)
        weight = inputs["weight"].to(q)
        e = q.sum(dim=1)  # Eq. 10
        labelled = codes >= 0
        alpha = (p.shape[1] + e)[:, None] * p.clamp_min(SMALLEST)  # Eq. 11
        uce = uce_loss(alpha[labelled], codes[labelled])  # Eq. 12
        loss = _mean(uce, inputs["label_weight"].to(q)[labelled])
        if self.lambda_ice:
            loss = loss + self.lambda_ice * _mean(ice_loss(q, p), weight)  # Eq. 13
        if self.lambda_pcl:
            pcl = pcl_loss(e, p.amax(dim=1), *self.levels)  # Eq. 14
            loss = loss + self.lambda_pcl * _mean(pcl, weight)
        return loss  # Eq. 15


def _positive(scores: Tensor, activation: Activation) -> Tensor:
    return safe_exp(scores) if activation == "exp" else nn.functional.softplus(scores)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return (weight * values).sum() / weight.sum()
