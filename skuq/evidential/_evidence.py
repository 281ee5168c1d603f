"""Class evidence of a probe: heads, losses and Dirichlet distributions (Eq. 6 to 18)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from scipy.special import digamma
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn
from torch.nn.functional import softplus

from skuq._information import centred, entropy, has_conventional_offset
from skuq._networks import MLP, seeded
from skuq.base import FloatArray, Uncertainty
from skuq.validation import checked_widths, refuse_ineffective

Activation = Literal["exp", "softplus"]
Measure = Literal["vacuity", "information"]

# Upper limit of the log-evidence of a class, far above useful levels. It keeps the square of the
# evidence in the losses finite in float32.
LOG_CAP = 16.0
SMALLEST = 1e-6  # smallest probability in the loss, because digamma(0) is infinite

_NOT_NEGATIVE = [Interval(Real, 0, None, closed="left")]


@dataclass(repr=False, eq=False)
class NetworkHead(BaseEstimator):
    """Head of a probe: a separate network on a representation of the classifier (Eq. 18).

    Parameters
    ----------
    layer : int or str, default=-1
        Representation on which the network operates: -1 for the logits, -2 for the input of the
        last layer, and so on. The name of a module selects the output of the module.
    hidden_sizes : sequence of int, default=()
        Widths of hidden layers, with ReLU activations, before the layer of class evidence.
    activation : {"exp", "softplus"}, default="exp"
        Function that makes evidence positive.

    Examples
    --------
    >>> from skuq import EvidentialProbe
    >>> from skuq.evidential import NetworkHead
    >>> EvidentialProbe(head=NetworkHead(layer=-2)).set_params(head__layer=-1).head
    NetworkHead()
    """

    layer: int | str = -1
    hidden_sizes: Sequence[int] = ()
    activation: Activation = "exp"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "layer": [Interval(Integral, None, -1, closed="right"), str],
        "hidden_sizes": ["array-like"],
        "activation": [StrOptions({"exp", "softplus"})],
    }


@dataclass(repr=False, eq=False)
class EvidenceLoss(BaseEstimator):
    """Training loss of an evidential probe (Eq. 15).

    The loss is the expected cross-entropy under the Dirichlet distribution (Eq. 12) plus two
    weighted regularisers. ``EvidenceLoss(ice_weight=0, pcl_weight=0)`` gives the plain probe.

    Parameters
    ----------
    ice_weight : float, default=1e-5
        Weight of intra-class evidence regularisation (Eq. 13), lambda_1 in the paper.
    pcl_weight : float, default=1e-4
        Weight of positive-confidence learning (Eq. 14), lambda_2 in the paper.
    evidence_id, evidence_ood : float, default=100.0 and 0.0
        Target levels of evidence for in-distribution and out-of-distribution inputs (Eq. 14). With
        ``head="logits"``, the initial evidence is `evidence_id`.
    weight_decay : float, default=1e-4
        L2 penalty on the parameters of the head.

    Examples
    --------
    >>> from skuq import EvidentialProbe
    >>> from skuq.evidential import EvidenceLoss
    >>> EvidentialProbe(loss=EvidenceLoss()).set_params(loss__ice_weight=0).loss
    EvidenceLoss(ice_weight=0)
    """

    ice_weight: float = 1e-5
    pcl_weight: float = 1e-4
    evidence_id: float = 100.0
    evidence_ood: float = 0.0
    weight_decay: float = 1e-4

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "ice_weight": _NOT_NEGATIVE,
        "pcl_weight": _NOT_NEGATIVE,
        "evidence_id": [Interval(Real, 0, None, closed="neither")],
        "evidence_ood": _NOT_NEGATIVE,
        "weight_decay": _NOT_NEGATIVE,
    }

    def _check(self, *, on_logits: bool) -> None:
        self._validate_params()
        if self.evidence_ood >= self.evidence_id:
            raise ValueError(f"`evidence_ood`={self.evidence_ood} must be below `evidence_id`.")
        if not self.pcl_weight:
            levels = ["evidence_ood", "evidence_id"]
            context = "with pcl_weight=0, which disables the regulariser with target levels."
            refuse_ineffective(self, levels[:1] if on_logits else levels, context)


def new_head(
    head: NetworkHead | None, inputs: dict[str, Tensor], n_classes: int, *, level: float, seed: int
) -> nn.Module:
    """Build a head for the samples, with seeded initial weights; `head` None is "logits"."""
    z = inputs["inputs"]
    if head is None:
        return LogitEvidence.of(z, inputs["label_weight"], level)
    mean, scale = mean_and_scale(z, inputs["weight"])
    with seeded(seed):
        widths = checked_widths(head.hidden_sizes)
        return NetworkEvidence(mean, scale, n_classes, widths, head.activation)


def safe_exp(x: Tensor, cap: float = LOG_CAP) -> Tensor:
    """Compute exp(x), smoothly limited to exp(cap); at x = cap - 10, the relative error is 5e-5."""
    return torch.exp(cap - softplus(cap - x))


class LogitEvidence(nn.Module):
    """Class evidence from the model's own logits, with a learned scale and offset.

    With a scale of 1, class evidence is proportional to the class probabilities, and total evidence
    is proportional to exp(-energy) of the model.
    """

    def __init__(self, offset: float, centred: bool = False):
        super().__init__()
        self.centred = centred
        self.log_scale = nn.Parameter(torch.tensor(0.0))
        self.offset = nn.Parameter(torch.tensor(offset))

    @classmethod
    def of(cls, z: Tensor, weight: Tensor, level: float) -> LogitEvidence:
        """Build the head; the log of the total evidence is initially log(level) on average."""
        is_centred = has_conventional_offset(z)
        mean = _mean((centred(z) if is_centred else z).logsumexp(dim=1), weight)
        return cls(float(math.log(level) - mean), is_centred)

    def forward(self, z: Tensor) -> Tensor:
        z = centred(z) if self.centred else z
        return safe_exp(self.log_scale.exp() * z + self.offset)


class NetworkEvidence(nn.Module):
    """Class evidence from a network on standardised inputs: Eq. 18 with ``w = 1, b = 0``."""

    mean: Tensor  # (n_hidden,)
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
        self.layers = MLP(len(mean), n_classes, hidden_sizes)

    def forward(self, z: Tensor) -> Tensor:
        scores = self.layers((z - self.mean) / self.scale)  # Eq. 18
        return safe_exp(scores) if self.activation == "exp" else softplus(scores)


def mean_and_scale(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Compute weighted mean and standard deviation of each column; 1 replaces a deviation of 0."""
    hidden = hidden.double()
    share = (weight / weight.sum(dtype=torch.float64))[:, None]
    mean = (share * hidden).sum(dim=0)
    scale = (share * (hidden - mean).square()).sum(dim=0).sqrt()
    scale[scale <= 1e-6 * mean.abs() + 1e-12] = 1
    return mean.float(), scale.float()


def uce_loss(alpha: Tensor, codes: Tensor) -> Tensor:
    """Compute the expected cross-entropy (n_samples,) under Dirichlet distributions, in nats."""
    alpha_y = alpha.gather(1, codes[:, None]).squeeze(1)
    return torch.digamma(alpha.sum(dim=1)) - torch.digamma(alpha_y)  # Eq. 8 and 12


def ice_loss(class_evidence: Tensor, proba: Tensor) -> Tensor:
    q, p, C = class_evidence, proba, proba.shape[1]
    e = q.sum(dim=1, keepdim=True)  # Eq. 10
    alpha = (C + e) * p  # Eq. 11
    return (alpha - q).square().sum(dim=1)  # Eq. 13


def pcl_loss(
    total_evidence: Tensor, confidence: Tensor, evidence_id: float, evidence_ood: float
) -> Tensor:
    """Compute Eq. 14, whose minimum is at evidence ``r evidence_id + (1 - r) evidence_ood``."""
    e, r = total_evidence, confidence
    lacking = (evidence_id - e).clamp_min(0).square()
    excessive = (e - evidence_ood).clamp_min(0).square()
    return lacking + (1 - r) / r * excessive  # Eq. 14


class ProbeLoss(nn.Module):
    """Mean of Eq. 12 over labelled samples, plus means of Eq. 13 and 14 over all samples."""

    def __init__(self, loss: EvidenceLoss):
        super().__init__()
        self.ice_weight, self.pcl_weight = loss.ice_weight, loss.pcl_weight
        self.levels = loss.evidence_id, loss.evidence_ood

    def forward(self, q: Tensor, codes: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        p, weight = inputs["proba"].to(q), inputs["weight"].to(q)
        e = q.sum(dim=1)  # Eq. 10
        alpha = (p.shape[1] + e)[:, None] * p.clamp_min(SMALLEST)  # Eq. 11
        uce = uce_loss(alpha, codes.clamp_min(0))  # Eq. 12; unlabelled samples have weight 0
        loss = _mean(uce, inputs["label_weight"].to(q))
        if self.ice_weight:
            loss = loss + self.ice_weight * _mean(ice_loss(q, p), weight)  # Eq. 13
        if self.pcl_weight:
            pcl = pcl_loss(e, p.amax(dim=1), *self.levels)  # Eq. 14
            loss = loss + self.pcl_weight * _mean(pcl, weight)
        return loss  # Eq. 15


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return (weight * values).sum() / weight.sum()


def dirichlet_uncertainty(alpha: FloatArray, measure: Measure = "vacuity") -> Uncertainty:
    """Split the uncertainty of Dirichlet distributions, (n_samples, n_classes), into its sources.

    See `measure` of `EvidentialProbe`. Eq. 6 omits the 1 of ``1 - max(p)``. Unless Eq. 91 has
    lowered concentrations, vacuity is at most 1. "information" is from Malinin and Gales (2018).
    """
    C, alpha_0 = alpha.shape[1], alpha.sum(axis=1)
    p = alpha / alpha_0[:, None]
    if measure == "vacuity":
        return Uncertainty.from_parts(1 - p.max(axis=1), C / alpha_0)  # Eq. 6 and 7
    expected = expected_entropy(alpha)
    with np.errstate(divide="ignore"):
        total = entropy(np.log(p))
    return Uncertainty.from_parts(expected, (total - expected).clip(0))


def expected_entropy(alpha: FloatArray) -> FloatArray:
    """Compute the expected entropy (n_samples,) of class probabilities in nats."""
    alpha_0 = alpha.sum(axis=1, keepdims=True)
    nats: FloatArray = (alpha / alpha_0 * (digamma(alpha_0 + 1) - digamma(alpha + 1))).sum(axis=1)
    return nats
