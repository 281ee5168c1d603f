"""Class probabilities of the softmax likelihood: values, and minima over boxes.

Equations are those of the proofs page of the user guide (`docs/guide/robust_gpc_proofs.rst`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skuq.gpc.bounds._expansion import Expansion
from skuq.gpc.bounds._links import LogitLink, Minimum, Outputs, Slopes
from skuq.gpc.bounds._quadratic import box_minimum
from skuq.gpc.inference._quadrature import Nodes, affordable_accuracy, normal_nodes

_ENTRIES = 500_000  # numbers in the largest temporary array: what fits into a cache is faster
# Of the quadrature; the first that is affordable is used, and its error is part of the bounds.
_ACCURACIES = (1e-5, 1e-4, 1e-3, 1e-2)

# The derivatives of a softmax output are joint cumulants of indicators of classes. With
# indicators x centred, |E x y| <= 1/4, |E x y z| <= 1/8, |E x y z w| <= 1/12 and
# |E x y z w v| <= 0.068, which bounds the cumulants of order three to five as follows (Eq. 23).
_SECOND, _THIRD, _FOURTH = 1 / 8, 1 / 12 + 3 / 16, 0.068 + 10 / 32
_LEAST = 1e-12  # variance of differences below which nothing is made of its smoothing
_ALONG = 0.0963  # second derivative along arguments that differ by at most 1

# A Gaussian average of outputs between 0 and 1 has derivatives of its own bound: of order k
# along unit vectors, at most half the root of k! in units of the Gaussian's deviation.
_SMOOTH = [math.sqrt(math.factorial(k)) / 2 for k in range(5)]


class Reach(NamedTuple):
    """Largest distance of moments in a box from those of an expansion.

    The first two are sums of absolute values; the next two are norms after whitening with the
    covariance of the expansion; all of shape (b,).
    """

    means: Tensor
    covariances: Tensor
    shift: Tensor
    change: Tensor

    def smooth(self, order: int) -> Tensor:
        """Largest derivative of this order of an average, in whitened units.

        Anywhere in the box, the covariance is at least ``1 - change`` times that of the
        expansion (Eq. 24, in which `change` is eta).
        """
        return _SMOOTH[order] / (1 - self.change).clamp(min=1e-50) ** (order / 2)

    def loss(self) -> Tensor:
        """Largest distance of the average of an output from its linearisation (Eq. 22)."""
        second = self._smaller(2, _ALONG * self.means**2, self.shift**2)
        third = self._smaller(3, _THIRD * self.means * self.covariances, self.shift * self.change)
        fourth = self._smaller(4, _FOURTH * self.covariances**2, self.change**2)
        return second + third + fourth / 4

    def _smaller(self, order: int, derivative: Tensor, size: Tensor) -> Tensor:
        """The better bound of a derivative, integrated against ``1 - s`` along the line."""
        eta = self.change.clamp(min=1e-3, max=1 - 1e-12)
        left = 1 - eta
        integral = {
            2: (eta + left * left.log()) / eta**2,
            3: 2 * (1 - left.sqrt()) ** 2 / eta**2,
            4: -(left.log() + eta) / eta**2,
        }[order]
        smooth = torch.where(self.change < 1, _SMOOTH[order] * integral * (1 + 1e-9), math.inf)
        return torch.minimum(derivative / 2, smooth * size)


class SoftmaxLink:
    """``P(y = c) = E[softmax(f)_c]`` by a quadrature of known error over the differences."""

    def __init__(self, n_classes: int, most_variance: float, indefinite: float = 0.0):
        # No second derivative of an output exceeds 1/4; rounding may leave variances negative.
        self._rounding = n_classes**2 * indefinite / 8
        self._logit = LogitLink(4 * most_variance)  # of the difference of two latent functions
        rows, columns = np.triu_indices(n_classes)
        self.n_classes = n_classes
        self.rows, self.columns = torch.as_tensor(rows), torch.as_tensor(columns)

    def evaluate(self, objective: Tensor, mean: Tensor, covariance: Tensor) -> Outputs:
        values, vectors = torch.linalg.eigh(self._of_differences(covariance))
        deviations = vectors * values.clamp(min=0).sqrt()[:, None]
        scales = _largest(deviations)
        accuracy = affordable_accuracy(scales, _ACCURACIES)
        if accuracy is None:  # such outputs are all but steps, and pairs of classes bound them
            return self._unknown(objective, mean, covariance)
        nodes = normal_nodes(scales, accuracy, mean)
        size = max(1, _ENTRIES // (len(nodes.weights) * self.n_classes**2))
        parts = [
            self._average(objective[rows], mean[rows], deviations[rows], nodes)
            for rows in torch.split(torch.arange(len(mean), device=mean.device), size)
        ]
        value, by_mean, by_covariance = (torch.cat(part) for part in zip(*parts, strict=True))
        error = objective.abs().sum(-1) * nodes.error
        return Outputs(value, error, by_mean, by_covariance)

    def _unknown(self, objective: Tensor, mean: Tensor, covariance: Tensor) -> Outputs:
        """Between the least and the largest weight of a class, with no derivative known."""
        low, high = objective.amin(-1), objective.amax(-1)
        slopes = torch.zeros_like(mean), torch.zeros_like(covariance)
        return Outputs((low + high) / 2, (high - low) / 2, *slopes)

    def minimum(self, objective: Tensor, expansion: Expansion, target: Tensor) -> Minimum:
        outputs = self.evaluate(objective, expansion.mean.value, expansion.covariance.value)
        linear = expansion.mean.combine(outputs.mean_slope[:, None]).plus(
            expansion.covariance.combine(outputs.covariance_slope[:, None])
        )
        gradient, hessian = linear.gradient[:, 0], linear.hessian[:, 0]
        origin = torch.zeros_like(outputs.value)
        bound, point = box_minimum(origin, gradient, hessian, linear.ball)
        reach, whitener = self._reach(expansion)
        loss = objective.abs().sum(-1) * reach.loss()
        error = outputs.error * (1 + 2 * reach.means + 2 * reach.covariances)
        error = error + objective.abs().sum(-1) * self._rounding
        bound = outputs.value + bound - linear.rest[:, 0] - loss - error
        share = expansion.mean.gradient.abs().sum(1) + expansion.covariance.gradient.abs().sum(1)
        share = share / share.sum(-1, keepdim=True).clamp(min=1e-300)
        curvature = hessian.abs().sum(-1) + 2 * loss[:, None] * share
        bound = torch.maximum(bound, self._pairwise(objective, expansion))
        slopes = self._slopes(objective, outputs, reach, whitener)
        return Minimum(bound, point, curvature, linear.rest[:, 0], slopes)

    def _pairwise(self, objective: Tensor, expansion: Expansion) -> Tensor:
        """Bound by pairs of classes, each pair on its own: best where probabilities saturate.

        No output exceeds the logistic function of its lead on any other class, and 1 minus an
        output is at most the sum of the logistic functions of the others' leads.
        """
        total = torch.zeros_like(objective[:, 0])
        for sign, classes in ((1.0, objective.argmax(-1)), (-1.0, objective.argmin(-1))):
            weight = objective.gather(1, classes[:, None])[:, 0]
            rows = torch.nonzero(weight * sign > 0)[:, 0]
            if len(rows) == 0:
                continue
            least = self._least_leads(classes[rows], sign, expansion.select(rows))
            lower, upper = 1 - (1 - least).sum(-1), (1 - least).amin(-1)  # Eq. 25
            extreme = (lower if sign > 0 else upper).clamp(0, 1)
            total = total.index_add(0, rows, weight[rows] * extreme)
        return total

    def _least_leads(self, classes: Tensor, sign: float, expansion: Expansion) -> Tensor:
        """Lower bounds of ``E[sigmoid(sign * (f_c - f_j))]`` for all j but c, (b, C - 1)."""
        identity = torch.eye(self.n_classes).to(expansion.mean.value)
        chosen = identity[classes]
        others = identity.expand(len(chosen), -1, -1)[chosen == 0].view(
            len(chosen), -1, len(identity)
        )
        leads = sign * (chosen[:, None] - others)
        squares = self._folded(torch.einsum("bic,bid->bicd", leads, leads))
        single = Expansion(
            expansion.mean.combine(leads).flatten(), expansion.covariance.combine(squares).flatten()
        )
        target = torch.special.ndtr(
            single.mean.value / (self._logit.widening + single.covariance.value.clamp(min=0)).sqrt()
        )[:, 0]
        second = torch.stack([torch.zeros_like(target), torch.ones_like(target)], -1)
        bound = self._logit.minimum(second, single, target).bound
        return bound.view(len(chosen), -1)

    def _slopes(
        self, objective: Tensor, outputs: Outputs, reach: Reach, whitener: Tensor
    ) -> Slopes:
        """Derivatives of the objective by the moments anywhere in a box."""
        weight, error = objective.abs().sum(-1)[:, None], 2 * outputs.error[:, None]
        each = torch.linalg.vector_norm(whitener, dim=1)  # (b, C)
        by_mean = torch.minimum(
            (_SECOND * reach.means + _THIRD / 2 * reach.covariances)[:, None],
            each * (reach.smooth(2) * reach.shift + reach.smooth(3) / 2 * reach.change)[:, None],
        )
        by_pair = torch.minimum(
            (_THIRD * reach.means + _FOURTH / 2 * reach.covariances)[:, None],
            each[:, self.rows]
            * each[:, self.columns]
            * (reach.smooth(3) * reach.shift + reach.smooth(4) / 2 * reach.change)[:, None],
        )
        multiplicity = 1 - 0.5 * (self.rows == self.columns).to(by_pair)
        return Slopes(
            outputs.mean_slope,
            weight * by_mean + error,
            outputs.covariance_slope,
            weight * by_pair * multiplicity + error,
        )

    def _reach(self, expansion: Expansion) -> tuple[Reach, Tensor]:
        """Reach of ``f_c - f_last``, and what whitens these at the centre, (b, C - 1, C)."""
        values, vectors = torch.linalg.eigh(self._of_differences(expansion.covariance.value))
        contrast = self._contrast(values).expand(len(values), -1, -1)
        sure = values * (1 - 1e-9) - 1e-13 * values[:, -1:].abs()  # in spite of rounding
        widths = sure.clamp(min=_LEAST).sqrt()
        whitener = (vectors / widths[:, None]).mT @ contrast
        means = expansion.mean.combine(contrast).reach()
        shift = expansion.mean.combine(whitener).reach()
        change = expansion.covariance.combine(self._products(whitener)).reach()
        reach = Reach(
            means.sum(-1),
            expansion.covariance.combine(self._products(contrast)).reach().sum(-1),
            torch.linalg.vector_norm(shift, dim=-1),
            torch.where((sure < _LEAST).any(-1), 1e30, torch.linalg.vector_norm(change, dim=-1)),
        )
        return reach, whitener

    def _products(self, rows: Tensor) -> Tensor:
        """Weights of all pairs in the covariances of combinations of latent functions."""
        product = torch.einsum("bic,bjd->bijcd", rows, rows).flatten(1, 2)
        return self._folded(product)

    def _folded(self, matrix: Tensor) -> Tensor:
        """Weights of all entries of a covariance matrix as weights of the pairs."""
        folded = matrix[..., self.rows, self.columns] + matrix[..., self.columns, self.rows]
        return folded * (1 - 0.5 * (self.rows == self.columns).to(folded))

    def _contrast(self, like: Tensor) -> Tensor:
        """Matrix that takes latent functions to their differences to the last."""
        count = self.n_classes - 1
        return torch.cat([torch.eye(count), -torch.ones(count, 1)], 1).to(like)

    def _of_differences(self, covariance: Tensor) -> Tensor:
        """Covariance of ``f_c - f_last``, shape (b, C - 1, C - 1)."""
        full = covariance.new_zeros(len(covariance), self.n_classes, self.n_classes)
        full[:, self.rows, self.columns] = full[:, self.columns, self.rows] = covariance
        contrast = self._contrast(covariance)
        matrix: Tensor = contrast @ full @ contrast.T
        return matrix

    def _average(
        self, objective: Tensor, mean: Tensor, deviations: Tensor, nodes: Nodes
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Average of the objective and of its derivatives by means and covariances."""
        # Classes come before nodes: the long axis last is what vectorises.
        differences = (mean[:, :-1] - mean[:, -1:])[..., None] + deviations @ nodes.points.T
        logits = torch.cat([differences, torch.zeros_like(differences[:, :1])], 1)
        s = torch.softmax(logits, 1)  # (b, C, nodes)
        output = objective[:, None] @ s
        weighted = nodes.weights * s * (objective[..., None] - output)
        # d2 (v s) / df_j df_k = delta_jk slope_j - slope_j s_k - s_j slope_k
        crossed = weighted @ s.mT
        second = torch.diag_embed(weighted.sum(-1)) - crossed - crossed.mT
        multiplicity = 1 - 0.5 * (self.rows == self.columns).to(second)
        return (
            output[:, 0] @ nodes.weights,
            weighted.sum(-1),
            multiplicity * second[:, self.rows, self.columns],
        )


def _largest(deviations: Tensor) -> list[float]:
    """Largest change of any difference of latent functions with each standard normal."""
    padded = torch.cat([deviations, torch.zeros_like(deviations[:, :1])], 1)
    scales: list[float] = (padded.amax(1) - padded.amin(1)).amax(0).tolist()
    return scales
