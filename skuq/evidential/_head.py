"""The probe itself: a small network that turns hidden representations into evidence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from skuq.evidential._losses import ice_loss, pcl_loss, uce_loss

Activation = Literal["exp", "softplus"]

# Largest logarithm of a class evidence. Far above any level that can be told apart, and its
# square, which the losses take, is still a number in float32.
LOG_CAP = 16.0
# Smallest probability that counts as such in the loss: digamma(0) is infinite.
SMALLEST = 1e-6


def safe_exp(x: Tensor, cap: float = LOG_CAP) -> Tensor:
    """Exponential that bends off before it explodes.

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


class EvidenceHead(nn.Module):
    """Class evidence from hidden representations; its sum is the total evidence.

    The network of Eq. 18 with ``w = 1`` and ``b = 0`` in its last layer. Inputs are
    standardised first, which changes nothing but the speed of the training.

    Parameters
    ----------
    mean, scale : Tensors of shape (n_hidden,)
        Of the representations.
    n_classes : int
        Number of classes.
    hidden_sizes : sequence of int, default=()
        Width of further layers before the class evidence, with ReLU between them.
    activation : {"exp", "softplus"}, default="exp"
        What makes evidence positive.

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

    def forward(self, features: Tensor) -> Tensor:
        return _positive(self.layers((features - self.mean) / self.scale), self.activation)


class TiedHead(nn.Module):
    """Class evidence that is the model's own, up to two numbers.

    ``q = exp(a z + b)`` for the model's logits z. With a = 1 it is proportional to the class
    probabilities, and its total is the exponential of minus the model's energy.

    Parameters
    ----------
    level : float
        Where b starts; a starts at 1.
    centred : bool, default=False
        Whether the mean of each sample's logits is taken off: their level says nothing if it
        is a convention, as in log-probabilities or the logits (0, z) of two classes.
    activation : {"exp", "softplus"}, default="exp"
        What makes evidence positive.
    """

    def __init__(self, level: float, centred: bool = False, activation: Activation = "exp"):
        super().__init__()
        self.centred = centred
        self.activation = activation
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.level = nn.Parameter(torch.tensor(level))

    def forward(self, logits: Tensor) -> Tensor:
        if self.centred:
            logits = centre(logits)
        return _positive(self.log_scale.exp() * logits + self.level, self.activation)


def centre(logits: Tensor) -> Tensor:
    """Logits of shape (n_samples, n_classes) whose mean over classes is 0."""
    return logits - logits.mean(dim=1, keepdim=True)


def level_is_convention(logits: Tensor) -> bool:
    """Whether the level of logits is the same for all samples, and so tells nothing of them."""
    spread = torch.cat([logits, logits.logsumexp(dim=1, keepdim=True)], dim=1).std(dim=0)
    return bool(spread.min() < 1e-4 * logits.std())


class ProbeLoss(nn.Module):
    """The objective of the probe (Eq. 15).

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

    def forward(self, evidence: Tensor, codes: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Mean over labelled samples of Eq. 12, plus the mean over all of Eq. 13 and 14."""
        proba = inputs["proba"].to(evidence)
        weight = inputs["weight"].to(evidence)
        total = evidence.sum(dim=1)
        labelled = codes >= 0
        alpha = (proba.shape[1] + total)[:, None] * proba.clamp_min(SMALLEST)
        uce = uce_loss(alpha[labelled], codes[labelled])
        loss = _mean(uce, inputs["label_weight"].to(evidence)[labelled])
        if self.lambda_ice:
            loss = loss + self.lambda_ice * _mean(ice_loss(evidence, proba), weight)
        if self.lambda_pcl:
            pcl = pcl_loss(total, proba.amax(dim=1), *self.levels)
            loss = loss + self.lambda_pcl * _mean(pcl, weight)
        return loss


def _positive(scores: Tensor, activation: Activation) -> Tensor:
    return safe_exp(scores) if activation == "exp" else nn.functional.softplus(scores)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return (weight * values).sum() / weight.sum()
