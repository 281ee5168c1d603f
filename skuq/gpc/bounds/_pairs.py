"""Bounds for many classes by pairs: each class beside each other, as if there were no third.

Nothing here is exponential in the classes. Equations are those of the proofs page of the user
guide (`docs/guide/robust_gpc_proofs.rst`), whose symbols c, j, s_j are used.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from skuq.base import FloatArray
from skuq.gpc.bounds._expansion import Expansion
from skuq.gpc.bounds._links import LogitLink, Minimum, Slopes

LEAST = -1.0  # no value is below, by definition


class Pairs:
    """Bounds of one class over boxes, from its pairs with the other classes.

    With s_j the average of ``sigmoid(f_c - f_j)`` and the bound P of p_c, the product of all
    s_j or ``1 - sum_j (1 - s_j)`` (Eq. 32), values are

    - "margin": ``P - max_j (1 - s_j)``, no more than ``p_c - max_j p_j``;
    - "smallest": ``P - 1``, no more than ``p_c - 1``;
    - "largest": ``-min_j s_j``, no more than ``-p_c``;

    or `LEAST` if that is more. Objectives are `LEAST` for the class c, and 0 for all others.

    Parameters
    ----------
    kind : {"margin", "smallest", "largest"}
        The value.
    n_classes : int
        Number of classes.
    most_variance : float
        Of one latent function.
    device : torch.device
        Where to compute.
    """

    def __init__(self, kind: str, n_classes: int, most_variance: float, device: torch.device):
        self.kind = kind
        self._logit = LogitLink(4 * most_variance)  # of the difference of two latent functions
        tables = zip(*(_differences(n_classes, own) for own in range(n_classes)), strict=True)
        stacked = [torch.as_tensor(np.stack(table), device=device) for table in tables]
        self._by_mean, self._by_variance, self._by_covariance = stacked

    def minimum(self, objective: Tensor, expansion: Expansion, target: Tensor) -> Minimum:
        own = objective.argmin(-1)
        sign = -1.0 if self.kind == "largest" else 1.0
        leads = expansion.mean.combine(sign * self._by_mean[own])
        n, count = leads.value.shape
        variances = expansion.covariances(self._by_variance[own])
        single = Expansion(leads.flatten(), variances.flatten())
        deviation = (self._logit.widening + single.covariance.value.clamp(min=0)).sqrt()
        middle = torch.special.ndtr(single.mean.value / deviation)[:, 0]
        second = torch.stack([torch.zeros_like(middle), torch.ones_like(middle)], -1)
        found = self._logit.minimum(second, single, middle)
        least = found.bound.view(n, count).clamp(0, 1)
        if self.kind == "largest":  # which are least values of 1 - s_j
            bound, decisive = (least - 1).max(-1)
        else:
            crossed = expansion.covariances(self._by_covariance[own]).range()[0]
            bound = self._value(least, (crossed >= 0).all(-1))
            decisive = least.argmin(-1)
        bound = (bound - 1e-14 * count).clamp(min=LEAST)
        flat = torch.arange(n, device=least.device) * count + decisive
        nothing, all_pairs = 0 * expansion.mean.value, 0 * expansion.covariance.value
        slopes = Slopes(nothing, nothing + 1e300, all_pairs, all_pairs + 1e300)  # unknown
        curvature, rest = found.curvature[flat], found.rest[flat]
        return Minimum(bound, found.point[flat], curvature, rest, slopes)

    def _value(self, s: Tensor, associated: Tensor) -> Tensor:
        """Value by the least averages s_j, shape (b, C - 1)."""
        union, product = 1 - (1 - s).sum(-1), s.prod(-1)
        P = torch.where(associated, torch.maximum(product, union), union)  # Eq. 32
        return P - 1 if self.kind == "smallest" else P - (1 - s).amax(-1)


def _differences(n_classes: int, own: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Weights of latent moments in those of the leads ``f_c - f_j``.

    Of the means (C - 1, C), and of the pairs in the leads' variances (C - 1, n_pairs) and
    covariances (all pairs of leads, n_pairs).
    """
    rows, columns = np.triu_indices(n_classes)
    leads = np.delete(np.eye(n_classes)[own] - np.eye(n_classes), own, axis=0)

    def folded(first: FloatArray, second: FloatArray) -> FloatArray:
        total = first[:, rows] * second[:, columns] + first[:, columns] * second[:, rows]
        return total * np.where(rows == columns, 0.5, 1.0)

    one, other = np.triu_indices(n_classes - 1, 1)
    return leads, folded(leads, leads), folded(leads[one], leads[other])
