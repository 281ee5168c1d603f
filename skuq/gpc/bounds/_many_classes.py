"""Bounds for more than three classes, at a cost that is polynomial in the number of classes.

Apart from a shift of all latent functions, which does not change the softmax, the latent functions
of a posterior are almost independent. For independent functions, averages of the softmax are
one-dimensional integrals. Averages for a posterior are expanded around these integrals, and the
remainder is bounded. Bounds from pairs of classes, used too, are tighter near probability 0 or 1.
"""

import torch
from torch import Tensor

from skuq.gpc.bounds._latent_bounds import Expansion, leads_of_classes, pair_weights
from skuq.gpc.bounds._links import LogitLink, Minimum, Outputs, Slopes
from skuq.gpc.bounds._regions import box_minimum
from skuq.gpc.bounds._softmax_link import Reach, covariance_norms, largest_norm
from skuq.gpc.inference import _softmax_averages as softmax
from skuq.gpc.inference._softmax_averages import ClassAverages, Split

LEAST = -1.0  # lower bound on every objective, at any input


class Pairs:
    """Bounds on an objective of a class c over boxes, from pairs of c and one other class."""

    # s_j is the average of ``sigmoid(f_c - f_j)``. P is a lower bound on p_c: the product of all
    # s_j, or ``1 - sum_j (1 - s_j)`` (Eq. 32). Objective and bound depend on `kind`:
    # - "margin": the objective ``p_c - max_j p_j`` is at least ``P - max_j (1 - s_j)``;
    # - "smallest": the objective ``p_c - 1`` is at least ``P - 1``;
    # - "largest": the objective ``-p_c`` is at least ``-min_j s_j``.
    # Smaller bounds are raised to `LEAST`. The argument `objective` of methods encodes the class c:
    # it is `LEAST` for c and 0 for all other classes.

    def __init__(self, kind: str, n_classes: int, most_variance: float, device: torch.device):
        self.kind = kind
        self._logit = LogitLink(4 * most_variance)  # for differences of two latent functions
        leads = leads_of_classes(n_classes).to(device)
        one, other = torch.triu_indices(n_classes - 1, n_classes - 1, 1)
        self._by_mean, self._by_variance = leads, pair_weights(leads, leads)
        self._by_covariance = pair_weights(leads[:, one], leads[:, other])

    def minimum(self, objective: Tensor, expansion: Expansion, target: Tensor) -> Minimum:
        own = objective.argmin(-1)
        sign = -1.0 if self.kind == "largest" else 1.0
        n, count = len(own), self._by_mean.shape[1]
        found = self._logit.leads(expansion, sign * self._by_mean[own], self._by_variance[own])
        least = found.bound.view(n, count).clamp(0, 1)
        if self.kind == "largest":  # here, `least` is a lower bound on 1 - s_j
            bound, decisive = (least - 1).max(-1)
        else:
            crossed = expansion.covariances(self._by_covariance[own]).range()[0]
            bound = self._value(least, (crossed >= 0).all(-1))
            decisive = least.argmin(-1)
        bound = (bound - 1e-14 * count).clamp(min=LEAST)
        flat = torch.arange(n, device=least.device) * count + decisive
        nothing, all_pairs = 0 * expansion.mean.value, 0 * expansion.covariance.value
        # The derivatives are unknown, so the radii of their ranges are huge.
        slopes = Slopes(nothing, nothing + 1e300, all_pairs, all_pairs + 1e300)
        curvature, rest = found.curvature[flat], found.rest[flat]
        return Minimum(bound, found.point[flat], curvature, rest, slopes)

    def _value(self, s: Tensor, associated: Tensor) -> Tensor:
        """Compute bounds (b,) for "margin" or "smallest" from lower bounds on s_j, (b, C - 1)."""
        union, product = 1 - (1 - s).sum(-1), s.prod(-1)
        P = torch.where(associated, torch.maximum(product, union), union)  # Eq. 32
        return P - 1 if self.kind == "smallest" else P - (1 - s).amax(-1)


class ManyClassesLink:
    """Link for objectives of one class if there are more than three; `Pairs` lists objectives."""

    def __init__(
        self,
        kind: str,
        n_classes: int,
        most_variance: float,
        indefinite: float,
        device: torch.device,
    ):
        self._pairs = Pairs(kind, n_classes, most_variance, device)
        self._constant = -1.0 if kind == "smallest" else 0.0
        # weights[c] @ p is a vector of linear combinations of the probabilities p. The objective of
        # class c is the smallest of these, plus `_constant`.
        if kind == "margin":
            self._weights = leads_of_classes(n_classes).to(device)
        else:
            identity = torch.eye(n_classes, dtype=torch.float64, device=device)
            self._weights = (1.0 if kind == "smallest" else -1.0) * identity[:, None]
        self._size = float(self._weights[0, 0].abs().sum())
        self._rounding = self._size * n_classes**2 * indefinite / 8  # as in `SoftmaxLink`

    def evaluate(self, objective: Tensor, mean: Tensor, covariance: Tensor) -> Outputs:
        weights = self._weights[objective.argmin(-1)]
        parts = softmax.split(covariance, mean.shape[1])
        averages = softmax.independent_averages(mean, parts.D)
        values, least = self._values(weights, averages, parts).min(-1)
        decisive = torch.take_along_dim(weights, least[:, None, None], 1)
        nothing = torch.zeros_like(values)
        reach = Reach(nothing, absolute_sum(parts), nothing, parts.whitened, parts.whitened)
        error = self._size * reach.loss() + self._inexact(reach)
        values = values + self._constant
        error = torch.minimum(error, 1.0 - values)  # because no exact value exceeds 1
        slopes = ((decisive @ part)[:, 0] for part in (averages.by_mean, averages.by_pair))
        return Outputs(values, error, *slopes)

    def minimum(self, objective: Tensor, expansion: Expansion, target: Tensor) -> Minimum:
        by_pairs = self._pairs.minimum(objective, expansion, target)
        weights = self._weights[objective.argmin(-1)]
        parts = softmax.split(expansion.covariance.value, weights.shape[-1])
        averages = softmax.independent_averages(expansion.mean.value, parts.D)
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
        """Compute weighted sums of probabilities to first order in E (Eq. 35), (b, o)."""
        proba = averages.proba[..., None] + averages.by_pair @ parts.E[..., None]
        return (weights @ proba)[..., 0]

    def _inexact(self, reach: Reach) -> Tensor:
        """Bound the error of the expansion due to quadrature errors of its value and slopes."""
        error = softmax.ACCURACY * (1 + reach.means + reach.covariances)
        return self._size * error + self._rounding


def absolute_sum(parts: Split) -> Tensor:
    n_classes = parts.D.shape[1]
    j, k = torch.triu_indices(n_classes, n_classes, device=parts.D.device)
    return (torch.where(j == k, 1.0, 2.0) * parts.E.abs()).sum(-1)


def independent_reach(expansion: Expansion, parts: Split) -> Reach:
    """Bound by how much moments in a box differ from those of independent Gaussians (Eq. 36)."""
    # The Gaussians have variances D. The weighted mean of all means is subtracted, because a shift
    # of all latent functions does not change the softmax.
    D = parts.D
    precision = 1 / D
    common = (precision / precision.sum(-1, keepdim=True))[:, None]
    identity = torch.eye(D.shape[1], dtype=D.dtype, device=D.device)
    means = expansion.mean.combine(identity - common)
    j, k = torch.triu_indices(D.shape[1], D.shape[1], device=D.device)
    moved = (torch.where(j == k, 1.0, 2.0) * expansion.covariance.reach()).sum(-1)
    norms = covariance_norms(expansion, None, D, precision.amax(-1) * (1 + 1e-9))
    covariances, shift = absolute_sum(parts) + moved, largest_norm(means, precision.sqrt())
    norms_of_both = (parts.whitened + norm for norm in norms)
    return Reach(means.reach().sum(-1), covariances, shift, *norms_of_both)
