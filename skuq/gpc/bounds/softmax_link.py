"""Class probabilities of the softmax likelihood: values, and minima over boxes."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from skuq.gpc.bounds.expansion import Expansion
from skuq.gpc.bounds.links import Minimum, Outputs, Slopes
from skuq.gpc.bounds.quadratic import box_minimum
from skuq.gpc.bounds.regions import BallParts
from skuq.gpc.inference.quadrature import Nodes, normal_nodes

_ENTRIES = 20_000_000  # numbers in the largest temporary array
_ACCURACY = 1e-7

# The derivatives of a softmax output are joint cumulants of indicators of classes. With
# indicators x centred, |E x y| <= 1/4, |E x y z| <= 1/8, |E x y z w| <= 1/12 and
# |E x y z w v| <= 0.068, which bounds the cumulants of order three to five as follows.
_SECOND, _THIRD, _FOURTH = 1 / 8, 1 / 12 + 3 / 16, 0.068 + 10 / 32
_ALONG = 0.0963  # second derivative along arguments that differ by at most 1


class SoftmaxLink:
    """``P(y = c) = E[softmax(f)_c]`` by a quadrature of known error over the differences."""

    def __init__(self, n_classes: int):
        rows, columns = np.triu_indices(n_classes)
        self.n_classes = n_classes
        self.rows, self.columns = torch.as_tensor(rows), torch.as_tensor(columns)

    def evaluate(self, objective: Tensor, mean: Tensor, covariance: Tensor) -> Outputs:
        deviations = self._deviations(covariance)
        nodes = normal_nodes(_largest(deviations), _ACCURACY, self.n_classes - 1, mean)
        size = max(1, _ENTRIES // (len(nodes.weights) * self.n_classes**2))
        parts = [
            self._average(objective[rows], mean[rows], deviations[rows], nodes)
            for rows in torch.split(torch.arange(len(mean), device=mean.device), size)
        ]
        value, by_mean, by_covariance = (torch.cat(part) for part in zip(*parts, strict=True))
        error = objective.abs().sum(-1) * nodes.error
        return Outputs(value, error, by_mean, by_covariance)

    def minimum(
        self, objective: Tensor, expansion: Expansion, target: Tensor, ball: BallParts | None
    ) -> Minimum:
        outputs = self.evaluate(objective, expansion.mean.value, expansion.covariance.value)
        linear = expansion.mean.combine(outputs.mean_slope).plus(
            expansion.covariance.combine(outputs.covariance_slope)
        )
        origin = torch.zeros_like(outputs.value)
        gradient, hessian = linear.gradient[:, 0], linear.hessian[:, 0]
        reach = None if ball is None else ball.linear_minimum(gradient)
        bound, point = box_minimum(origin, gradient, hessian, reach)
        means, total, pairs = self._spreads(expansion)
        apart = means.topk(2).values.sum(-1)  # how far differences of means may move
        bend = _ALONG * apart**2 + _THIRD * total * pairs + _FOURTH / 4 * pairs**2
        slack = outputs.error * (1 + 2 * total + 2 * pairs)
        weight = objective.abs().sum(-1)
        bound = outputs.value + bound - linear.rest[:, 0] - weight * bend / 2 - slack
        share = expansion.mean.gradient.abs().sum(1)
        share = share / share.sum(-1, keepdim=True).clamp(min=1e-300)
        curvature = hessian.abs().sum(-1) + (weight * bend)[:, None] * share
        bound = torch.maximum(bound, objective.amin(-1))
        return Minimum(bound, point, curvature, linear.rest[:, 0])

    def slopes(self, objective: Tensor, expansion: Expansion) -> Slopes:
        outputs = self.evaluate(objective, expansion.mean.value, expansion.covariance.value)
        _, total, pairs = self._spreads(expansion)
        weight = objective.abs().sum(-1)
        by_mean = weight * (_SECOND * total + _THIRD / 2 * pairs) + 2 * outputs.error
        by_pair = weight * (_THIRD * total + _FOURTH / 2 * pairs) / 2 + 2 * outputs.error
        multiplicity = 2 - (self.rows == self.columns).to(by_pair)
        return Slopes(
            outputs.mean_slope,
            by_mean[:, None].expand_as(outputs.mean_slope),
            outputs.covariance_slope,
            by_pair[:, None] * multiplicity.to(by_pair),
        )

    def _spreads(self, expansion: Expansion) -> tuple[Tensor, Tensor, Tensor]:
        """How far means, their sum and the sum of all covariances may be from the centre's."""
        means = expansion.mean.range()[1] - expansion.mean.value
        covariances = expansion.covariance.range()[1] - expansion.covariance.value
        multiplicity = (2 - (self.rows == self.columns).to(means)).to(means)
        return means, means.sum(-1), (covariances * multiplicity).sum(-1)

    def _deviations(self, covariance: Tensor) -> Tensor:
        """Factors of the covariance of ``f_c - f_last``, shape (b, C - 1, C - 1)."""
        c = self.n_classes
        full = covariance.new_zeros(len(covariance), c, c)
        full[:, self.rows, self.columns] = full[:, self.columns, self.rows] = covariance
        contrast = torch.cat([torch.eye(c - 1), -torch.ones(c - 1, 1)], 1).to(covariance)
        values, vectors = torch.linalg.eigh(contrast @ full @ contrast.T)
        return vectors * values.clamp(min=0).sqrt()[:, None]

    def _average(
        self, objective: Tensor, mean: Tensor, deviations: Tensor, nodes: Nodes
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Average of the objective and of its first two derivatives."""
        differences = (mean[:, :-1] - mean[:, -1:])[:, None] + nodes.points @ deviations.mT
        logits = torch.cat([differences, torch.zeros_like(differences[..., :1])], -1)
        s = torch.softmax(logits, -1)  # (b, nodes, C)
        output = (s @ objective[..., None])[..., 0]
        apart = objective[:, None] - output[..., None]
        slope = s * apart
        weighted = nodes.weights[:, None] * slope
        # d2 (v s) / df_j df_k = delta_jk slope_j - slope_j s_k - s_j slope_k
        crossed = weighted.mT @ s
        second = torch.diag_embed(weighted.sum(1)) - crossed - crossed.mT
        multiplicity = 1 - 0.5 * (self.rows == self.columns).to(second)
        return (
            output @ nodes.weights,
            weighted.sum(1),
            multiplicity * second[:, self.rows, self.columns],
        )


def _largest(deviations: Tensor) -> float:
    """Largest change of any difference of latent functions with one standard normal."""
    padded = torch.cat([deviations, torch.zeros_like(deviations[:, :1])], 1)
    return float((padded.amax(1) - padded.amin(1)).max()) if len(padded) else math.nan
