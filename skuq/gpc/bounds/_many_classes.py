"""Bounds for more than three classes: an expansion around independent classes, and pairs.

The latent functions of a posterior hardly depend on each other once a shift that all classes
share, which no output of the softmax depends on, is left out. Averages over independent functions
are one integral for any number of classes; what is left is small, and bounded. Equations are those
of the proofs page of the user guide (`docs/guide/robust_gpc_proofs.rst`), whose symbols are used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from skuq.gpc.bounds._expansion import Expansion
from skuq.gpc.bounds._links import Minimum, Outputs
from skuq.gpc.bounds._pairs import LEAST, Pairs
from skuq.gpc.bounds._quadratic import box_minimum
from skuq.gpc.bounds._softmax_link import Reach, absolute_sum, independent_reach
from skuq.gpc.inference._independent_classes import (
    ACCURACY,
    ClassAverages,
    Split,
    independent_averages,
    split,
)


class ManyClassesLink:
    """Values of one class c beside all others, as branch and bound uses them.

    - "margin": ``p_c - max_j p_j``;
    - "smallest": ``p_c - 1``;
    - "largest": ``-p_c``.

    Objectives are `LEAST`, which no value is below, for the class c, and 0 for all others.

    Parameters
    ----------
    kind : {"margin", "smallest", "largest"}
        The value.
    n_classes : int
        Number of classes.
    most_variance : float
        Of one latent function.
    indefinite : float
        Largest negative variance that rounding may leave.
    device : torch.device
        Where to compute.
    """

    def __init__(
        self,
        kind: str,
        n_classes: int,
        most_variance: float,
        indefinite: float,
        device: torch.device,
    ):
        self._pairs = Pairs(kind, n_classes, most_variance, device)
        identity = torch.eye(n_classes, dtype=torch.float64, device=device)
        others = [torch.cat([identity[:c], identity[c + 1 :]]) for c in range(n_classes)]
        self._constant = -1.0 if kind == "smallest" else 0.0
        # Weights of probabilities in the values of class c, of which the least counts.
        if kind == "margin":
            self._weights = identity[:, None] - torch.stack(others)
        else:
            self._weights = (1.0 if kind == "smallest" else -1.0) * identity[:, None]
        self._size = float(self._weights[0, 0].abs().sum())
        self._rounding = self._size * n_classes**2 * indefinite / 8  # as of `SoftmaxLink`

    def evaluate(self, objective: Tensor, mean: Tensor, covariance: Tensor) -> Outputs:
        weights = self._weights[objective.argmin(-1)]
        parts = split(covariance, mean.shape[1])
        averages = independent_averages(mean, parts.D)
        values, least = self._values(weights, averages, parts).min(-1)
        decisive = torch.take_along_dim(weights, least[:, None, None], 1)
        nothing = torch.zeros_like(values)
        reach = Reach(nothing, absolute_sum(parts), nothing, parts.whitened, parts.whitened)
        error = self._size * reach.loss() + self._inexact(reach)
        return Outputs(
            values + self._constant,
            torch.minimum(error, -values - self._constant + 1.0),  # no value is above 1
            (decisive @ averages.by_mean)[:, 0],
            (decisive @ averages.by_pair)[:, 0],
        )

    def minimum(self, objective: Tensor, expansion: Expansion, target: Tensor) -> Minimum:
        by_pairs = self._pairs.minimum(objective, expansion, target)
        weights = self._weights[objective.argmin(-1)]
        parts = split(expansion.covariance.value, weights.shape[-1])
        averages = independent_averages(expansion.mean.value, parts.D)
        linear = expansion.mean.combine(weights @ averages.by_mean).plus(
            expansion.covariances(weights @ averages.by_pair)
        )
        gradient, hessian = linear.gradient.flatten(0, 1), linear.hessian.flatten(0, 1)
        n, count = linear.value.shape
        ball = None if linear.ball is None else linear.ball.repeat(count)
        value = self._values(weights, averages, parts)
        least, point = box_minimum(value.flatten(), gradient, hessian, ball)
        # Eq. 36
        reach = independent_reach(expansion, parts)
        loss = self._size * reach.loss()
        bounds = least.view(n, count) - linear.rest
        bound, decisive = bounds.min(-1)
        bound = bound + self._constant - loss - self._inexact(reach)
        flat = torch.arange(n, device=bound.device) * count + decisive
        share = expansion.mean.gradient.abs().sum(1) + expansion.covariance.gradient.abs().sum(1)
        share = share / share.sum(-1, keepdim=True).clamp(min=1e-300)
        curvature = hessian[flat].abs().sum(-1) + 2 * loss[:, None] * share
        rest = linear.rest.flatten()[flat]
        better = bound > by_pairs.bound
        return Minimum(
            torch.where(better, bound, by_pairs.bound).clamp(min=LEAST),
            torch.where(better[:, None], point[flat], by_pairs.point),
            torch.where(better[:, None], curvature, by_pairs.curvature),
            torch.where(better, rest, by_pairs.rest),
            by_pairs.slopes,
        )

    def _values(self, weights: Tensor, averages: ClassAverages, parts: Split) -> Tensor:
        """Weighted probabilities to first order in E (Eq. 35), shape (b, o)."""
        proba = averages.proba[..., None] + averages.by_pair @ parts.E[..., None]
        return (weights @ proba)[..., 0]

    def _inexact(self, reach: Reach) -> Tensor:
        """Bound of the errors of the integrals: of values, and of slopes times their reach."""
        return self._size * ACCURACY * (1 + reach.means + reach.covariances) + self._rounding
