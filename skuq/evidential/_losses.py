"""Losses of the evidential probe."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import torch
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval
from torch import Tensor, nn

from skuq.evidential._head import LogitHead, ProbeHead
from skuq.validation import refuse_ineffective

# Probabilities in the loss are at least this value, because digamma(0) is infinite.
SMALLEST = 1e-6

_NOT_NEGATIVE = [Interval(Real, 0, None, closed="left")]


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
        Target levels of evidence for in-distribution and out-of-distribution inputs (Eq. 14). The
        initial evidence of a `LogitHead` is `evidence_id`.
    weight_decay : float, default=1e-4
        L2 penalty on the parameters of the head.

    References
    ----------
    Yu et al., AISTATS 2025.

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
        """Raise if a parameter is invalid or has no effect with this head."""
        self._validate_params()
        if self.evidence_ood >= self.evidence_id:
            raise ValueError(
                f"`evidence_ood`={self.evidence_ood} must be smaller than "
                f"`evidence_id`={self.evidence_id}."
            )
        if not self.pcl_weight:
            levels = ["evidence_ood", "evidence_id"]
            unused = levels[:1] if isinstance(head, LogitHead) else levels
            context = "with pcl_weight=0, which disables the regulariser with target levels."
            refuse_ineffective(self, unused, context)


def uce_loss(alpha: Tensor, codes: Tensor) -> Tensor:
    """Expected cross-entropy under Dirichlet distributions, in nats, of shape (n_samples,)."""
    alpha_y = alpha.gather(1, codes[:, None]).squeeze(1)
    alpha_0 = alpha.sum(dim=1)
    return torch.digamma(alpha_0) - torch.digamma(alpha_y)  # Eq. 8 and 12


def ice_loss(class_evidence: Tensor, proba: Tensor) -> Tensor:
    """Intra-class evidence loss: squared distance of class evidence from the concentrations."""
    q, p, C = class_evidence, proba, proba.shape[1]
    e = q.sum(dim=1, keepdim=True)  # Eq. 10
    alpha = (C + e) * p  # Eq. 11
    return (alpha - q).square().sum(dim=1)  # Eq. 13


def pcl_loss(
    total_evidence: Tensor, confidence: Tensor, evidence_id: float, evidence_ood: float
) -> Tensor:
    """Positive-confidence loss, which rewards evidence in proportion to the model's confidence.

    With the confidence r, which is the largest class probability, the loss is smallest at evidence
    ``r evidence_id + (1 - r) evidence_ood``.
    """
    e, r = total_evidence, confidence
    lacking = (evidence_id - e).clamp_min(0).square()
    excessive = (e - evidence_ood).clamp_min(0).square()
    return lacking + (1 - r) / r * excessive  # Eq. 14


class ProbeLoss(nn.Module):
    """Training objective of the probe (Eq. 15)."""

    def __init__(self, loss: EvidenceLoss):
        super().__init__()
        self.ice_weight, self.pcl_weight = loss.ice_weight, loss.pcl_weight
        self.levels = loss.evidence_id, loss.evidence_ood

    def forward(self, q: Tensor, codes: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Mean of Eq. 12 over labelled samples, plus means of Eq. 13 and 14 over all samples."""
        p = inputs["proba"].to(q)
        weight = inputs["weight"].to(q)
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
