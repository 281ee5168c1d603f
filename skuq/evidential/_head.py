"""Heads of the probe, which turn representations into evidence, and the loss that trains them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import torch
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor, nn

from skuq.evidential._network_outputs import Layer
from skuq.networks import seeded
from skuq.validation import checked_widths, refuse_ineffective

Activation = Literal["exp", "softplus"]

# Largest logarithm of a class evidence: far above any level that matters, while its square, which
# the losses need, is still finite in float32.
LOG_CAP = 16.0
# Smallest probability in the loss, since digamma(0) is infinite.
SMALLEST = 1e-6

_ACTIVATION = [StrOptions({"exp", "softplus"})]
_NOT_NEGATIVE = [Interval(Real, 0, None, closed="left")]


@dataclass(repr=False, eq=False)
class LogitHead(BaseEstimator):
    """Head of a probe that reads evidence from the classifier's own logits.

    Class evidence is ``q = exp(a z + b)`` for logits z; only the scale a and the offset b are
    learned. Where the offset of the logits is fixed by a convention, the mean of each sample's
    logits is subtracted first.

    Parameters
    ----------
    activation : {"exp", "softplus"}, default="exp"
        Function that makes evidence positive.

    Examples
    --------
    >>> from skuq import EvidentialProbe
    >>> from skuq.evidential import LogitHead
    >>> EvidentialProbe(head=LogitHead(activation="softplus")).get_params()["head__activation"]
    'softplus'
    """

    activation: Activation = "exp"

    layer: ClassVar[Layer] = -1
    _parameter_constraints: ClassVar[dict[str, Any]] = {"activation": _ACTIVATION}

    def _new(self, z: Tensor, inputs: dict[str, Tensor], n_classes: int, level: float) -> nn.Module:
        """Module whose mean log-evidence on labelled samples is that of a level of evidence."""
        centred = has_conventional_offset(z)
        log_evidence = (centre(z) if centred else z).logsumexp(dim=1)
        weight = inputs["label_weight"]
        mean = (weight * log_evidence).sum() / weight.sum()
        return LogitEvidence(float(math.log(level) - mean), centred, self.activation)


@dataclass(repr=False, eq=False)
class NetworkHead(BaseEstimator):
    """Head of a probe with a network of its own on a representation (Eq. 18).

    Parameters
    ----------
    layer : int or str, default=-1
        Representation that the network reads: -1 for the logits, -2 for the input of the last
        layer, and so on, or the name of a module.
    hidden_sizes : sequence of int, default=()
        Width of further layers before that of class evidence, with ReLU between them.
    activation : {"exp", "softplus"}, default="exp"
        Function that makes evidence positive.

    Examples
    --------
    >>> from skuq import EvidentialProbe
    >>> from skuq.evidential import NetworkHead
    >>> probe = EvidentialProbe(head=NetworkHead(layer=-2, hidden_sizes=(32,)))
    >>> probe.set_params(head__layer=-1).head
    NetworkHead(hidden_sizes=(32,))
    """

    layer: Layer = -1
    hidden_sizes: Sequence[int] = ()
    activation: Activation = "exp"

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "layer": [Interval(Integral, None, -1, closed="right"), str],
        "hidden_sizes": ["array-like"],
        "activation": _ACTIVATION,
    }

    def _new(self, z: Tensor, inputs: dict[str, Tensor], n_classes: int, level: float) -> nn.Module:
        mean, scale = mean_and_scale(z, inputs["weight"])
        widths = checked_widths(self.hidden_sizes)
        return NetworkEvidence(mean, scale, n_classes, widths, self.activation)


ProbeHead = LogitHead | NetworkHead

HEADS: dict[str, type[ProbeHead]] = {"logits": LogitHead, "network": NetworkHead}


@dataclass(repr=False, eq=False)
class EvidenceLoss(BaseEstimator):
    """Loss that trains the head of a probe (Eq. 15).

    The cross-entropy expected under the Dirichlet distribution (Eq. 12), plus regularisers with
    these weights. ``EvidenceLoss(ice_weight=0, pcl_weight=0)`` gives the plain probe.

    Parameters
    ----------
    ice_weight : float, default=1e-5
        Weight of intra-class evidence regularisation (Eq. 13), lambda_1 in the paper.
    pcl_weight : float, default=1e-4
        Weight of positive-confidence learning (Eq. 14), lambda_2 in the paper.
    evidence_id, evidence_ood : float, default=100.0 and 0.0
        Target levels of evidence for in-distribution and out-of-distribution inputs (Eq. 14). A
        `LogitHead` starts at the first.
    weight_decay : float, default=1e-4
        L2 penalty on the parameters of the head.

    Examples
    --------
    >>> from skuq import EvidentialProbe
    >>> from skuq.evidential import EvidenceLoss
    >>> probe = EvidentialProbe(loss=EvidenceLoss(pcl_weight=1e-3))
    >>> probe.set_params(loss__ice_weight=0).loss
    EvidenceLoss(ice_weight=0, pcl_weight=0.001)
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

    def _check(self, head: ProbeHead) -> None:
        """Refuse values that are not valid, or that have no effect with this head."""
        self._validate_params()
        if self.evidence_ood >= self.evidence_id:
            raise ValueError(
                f"`evidence_ood`={self.evidence_ood} must be smaller than "
                f"`evidence_id`={self.evidence_id}."
            )
        if not self.pcl_weight:
            levels = ["evidence_ood", "evidence_id"]
            unused = levels[:1] if isinstance(head, LogitHead) else levels
            refuse_ineffective(
                self, unused, "with pcl_weight=0; they are the levels of that regulariser."
            )


def checked_head(head: ProbeHead | Literal["logits", "network"]) -> ProbeHead:
    """Return the head that a shortcut stands for, or a given one, validated."""
    found = HEADS[head]() if isinstance(head, str) else head
    found._validate_params()
    return found


def new_head(
    head: ProbeHead, inputs: dict[str, Tensor], n_classes: int, *, level: float, seed: int
) -> nn.Module:
    """Build the module of a head, with its initial weights, for samples to train on."""
    with seeded(seed):
        return head._new(inputs["inputs"], inputs, n_classes, level)


def safe_exp(x: Tensor, cap: float = LOG_CAP) -> Tensor:
    """Exponential that saturates smoothly: 1 part in 10^4 off 10 below the cap, never above it."""
    return torch.exp(cap - nn.functional.softplus(cap - x))


class LogitEvidence(nn.Module):
    """Class evidence from the model's own logits, with a learned scale and offset.

    With a scale of 1 it is proportional to the class probabilities, and its total is the
    exponential of minus the model's energy.
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


class NetworkEvidence(nn.Module):
    """Class evidence from a network on representations, with ``w = 1, b = 0`` in its last layer.

    Inputs are standardised first, which only speeds up the training.
    """

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


def mean_and_scale(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Compute weighted means and standard deviations of columns; 1 for constant columns."""
    hidden = hidden.double()
    share = (weight / weight.sum(dtype=torch.float64))[:, None]
    mean = (share * hidden).sum(dim=0)
    scale = (share * (hidden - mean).square()).sum(dim=0).sqrt()
    scale[scale <= 1e-6 * mean.abs() + 1e-12] = 1
    return mean.float(), scale.float()


def uce_loss(alpha: Tensor, codes: Tensor) -> Tensor:
    """Cross-entropy expected under Dirichlet distributions, in nats, of shape (n_samples,)."""
    alpha_y = alpha.gather(1, codes[:, None]).squeeze(1)
    alpha_0 = alpha.sum(dim=1)
    return torch.digamma(alpha_0) - torch.digamma(alpha_y)  # Eq. 8 and 12


def ice_loss(class_evidence: Tensor, proba: Tensor) -> Tensor:
    """Squared distance of class evidence from the concentration that it implies."""
    q, p, C = class_evidence, proba, proba.shape[1]
    e = q.sum(dim=1, keepdim=True)  # Eq. 10
    alpha = (C + e) * p  # Eq. 11
    return (alpha - q).square().sum(dim=1)  # Eq. 13


def pcl_loss(
    total_evidence: Tensor, confidence: Tensor, evidence_id: float, evidence_ood: float
) -> Tensor:
    """Loss that asks for high evidence where the model is confident, and for low elsewhere.

    Between the two levels its minimum is at ``r evidence_id + (1 - r) evidence_ood`` for a
    confidence r, the largest class probability.
    """
    e, r = total_evidence, confidence
    lacking = (evidence_id - e).clamp_min(0).square()
    excessive = (e - evidence_ood).clamp_min(0).square()
    return lacking + (1 - r) / r * excessive  # Eq. 14


class ProbeLoss(nn.Module):
    """Objective of the probe (Eq. 15)."""

    def __init__(self, loss: EvidenceLoss):
        super().__init__()
        self.ice_weight, self.pcl_weight = loss.ice_weight, loss.pcl_weight
        self.levels = loss.evidence_id, loss.evidence_ood

    def forward(self, q: Tensor, codes: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Mean over labelled samples of Eq. 12, plus the mean over all of Eq. 13 and 14."""
        p = inputs["proba"].to(q)
        weight = inputs["weight"].to(q)
        e = q.sum(dim=1)  # Eq. 10
        labelled = codes >= 0
        alpha = (p.shape[1] + e)[:, None] * p.clamp_min(SMALLEST)  # Eq. 11
        uce = uce_loss(alpha[labelled], codes[labelled])  # Eq. 12
        loss = _mean(uce, inputs["label_weight"].to(q)[labelled])
        if self.ice_weight:
            loss = loss + self.ice_weight * _mean(ice_loss(q, p), weight)  # Eq. 13
        if self.pcl_weight:
            pcl = pcl_loss(e, p.amax(dim=1), *self.levels)  # Eq. 14
            loss = loss + self.pcl_weight * _mean(pcl, weight)
        return loss  # Eq. 15


def _positive(scores: Tensor, activation: Activation) -> Tensor:
    return safe_exp(scores) if activation == "exp" else nn.functional.softplus(scores)


def _mean(values: Tensor, weight: Tensor) -> Tensor:
    return (weight * values).sum() / weight.sum()
