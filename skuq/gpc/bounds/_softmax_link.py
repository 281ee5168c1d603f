"""Link for the softmax likelihood: class probabilities, and lower bounds on them over boxes.

`SoftmaxLink` expands probabilities to first order in the latent moments. For three classes,
`SecondOrder` adds all second-order terms, which leaves an error of third order in the box's widths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skuq.gpc.bounds._latent_bounds import Expansion, leads_of_classes, pair_weights, unfold
from skuq.gpc.bounds._links import LogitLink, Minimum, Outputs, Slopes
from skuq.gpc.bounds._regions import Moments, box_minimum
from skuq.gpc.inference import _softmax_averages as softmax
from skuq.gpc.inference._likelihoods import Nodes, affordable_accuracy, normal_nodes

_ENTRIES = 500_000  # maximum number of entries in a temporary array, to fit into the CPU cache
# Accuracies of the quadrature, tried in this order until one does not need too many nodes. Bounds
# include the error of the quadrature.
_ACCURACIES = (1e-5, 1e-4, 1e-3, 1e-2)

# Bounds on the derivatives of order 2 to 4 of a softmax output. These derivatives are joint
# cumulants of class indicators, whose centred moments are bounded: |E x y| <= 1/4,
# |E x y z| <= 1/8, |E x y z w| <= 1/12 and |E x y z w v| <= 0.068 (Eq. 23).
_SECOND, _THIRD, _FOURTH = 1 / 8, 1 / 12 + 3 / 16, 0.068 + 10 / 32
_NOTHING = 1e-6  # if `Split.whitened` is smaller, E is a rounding error: functions are independent
_LEAST = 1e-12  # if a difference of functions has a smaller variance, `_SMOOTH` is not used
_ALONG = 0.0963  # bound on the second derivative along directions whose entries differ by at most 1

# The average of a function with values in [0, 1] over a Gaussian is smooth in the mean. In units of
# the standard deviation, its derivatives of order k along unit vectors are at most sqrt(k!)/2.
_SMOOTH = [math.sqrt(math.factorial(k)) / 2 for k in range(5)]
# Bound on second derivatives along one unit vector: half the mean of |z^2 - 1| for a normal z.
_SQUARE = 0.48395

_SMALL = 0.9  # `SecondOrder` expands only boxes whose theta (`Reach.spectral`) is smaller
_INEXACT = 1e-4  # error of derivatives of order 3 and 4, in units of standard deviations (Eq. 38)
_PANELS = 8  # number of intervals for the integrals over s from 0 to 1 (Eq. 40)

# For two differences between latent functions, z contains the changes of the two means, the two
# variances and the covariance. A derivative with respect to an entry of z is an entry of `_FACTORS`
# times a derivative with respect to the two means, of the orders in `_ORDERS`.
_ORDERS = torch.tensor([(1, 0), (0, 1), (2, 0), (1, 1), (0, 2)])
_FACTORS = torch.tensor([1.0, 1.0, 0.5, 1.0, 0.5], dtype=torch.float64)
# Linear maps from the means of three functions, and from the covariances of six pairs, to z.
_MEANS = torch.tensor([(1, 0, -1), (0, 1, -1)], dtype=torch.float64)
_PAIRS = torch.tensor(
    [(1, 0, -2, 0, 0, 1), (0, 1, -1, 0, -1, 1), (0, 0, 0, 1, -2, 1)], dtype=torch.float64
)


class Reach(NamedTuple):
    """Bounds (b,) on changes of the moments in a box from the moments at the expansion's centre."""

    # `shift`, `change` and `spectral` are whitened with the covariance at the centre.

    means: Tensor  # sum of absolute changes of means
    covariances: Tensor  # sum of absolute changes of covariances
    shift: Tensor  # norm of the whitened change of the means
    change: Tensor  # Frobenius norm of the whitened change of covariances, eta in Eq. 24
    spectral: Tensor  # spectral norm of the whitened change of covariances, theta in Eq. 24

    @property
    def mixed(self) -> Tensor:
        """Norm of the change of covariances that appears in mixed terms of Eq. 24."""
        return ((self.change**2 + 2 * self.spectral**2) / 3).sqrt()

    def smooth(self, order: int) -> Tensor:
        """Bound an average's derivatives of this order with respect to whitened means."""
        # The covariance in the box is at least ``1 - spectral`` times the covariance at the centre.
        return _SMOOTH[order] / (1 - self.spectral).clamp(min=1e-50) ** (order / 2)

    def loss(self) -> Tensor:
        """Bound the error of a first-order expansion of the average of an output (Eq. 22)."""
        second = self._smaller(2, _ALONG * self.means**2, _SQUARE / _SMOOTH[2] * self.shift**2)
        third = self._smaller(3, _THIRD * self.means * self.covariances, self.shift * self.mixed)
        fourth = self._smaller(4, _FOURTH * self.covariances**2, self.change * self.mixed)
        together = second_derivative(self.shift, self.change, self.spectral) / 2
        return torch.minimum(second + third + fourth / 4, together)

    def _smaller(self, order: int, derivative: Tensor, size: Tensor) -> Tensor:
        """Integrate each of two bounds on a derivative, times ``1 - s``; return the smaller one."""
        theta = self.spectral.clamp(min=1e-3, max=1 - 1e-12)
        left = 1 - theta
        integral = {
            2: (theta + left * left.log()) / theta**2,
            3: 2 * (1 - left.sqrt()) ** 2 / theta**2,
            4: -(left.log() + theta) / theta**2,
        }[order]
        smooth = _SMOOTH[order] * integral * (1 + 1e-9) * size
        return torch.where(self.spectral < 1, smooth, math.inf).minimum(derivative / 2)


class SoftmaxLink:
    """Link with ``P(y = c) = E[softmax(f)_c]``, by quadrature over differences of functions."""

    def __init__(self, n_classes: int, most_variance: float, indefinite: float = 0.0):
        # Bound on the error of clipping negative variances to 0: second derivatives are <= 1/4.
        self._rounding = n_classes**2 * indefinite / 8
        self._logit = LogitLink(4 * most_variance)  # for differences of two latent functions
        rows, columns = np.triu_indices(n_classes)
        self.n_classes = n_classes
        self.rows, self.columns = torch.as_tensor(rows), torch.as_tensor(columns)

    def evaluate(self, objective: Tensor, mean: Tensor, covariance: Tensor) -> Outputs:
        results = [torch.zeros_like(mean[:, 0]) for _ in range(2)]
        results += [torch.zeros_like(mean), torch.zeros_like(covariance)]
        for members, average in self._rules(covariance):
            rows = torch.nonzero(members)[:, 0]
            found = average(objective[rows], mean[rows], covariance[rows])
            for whole, part in zip(results, found, strict=True):
                whole[rows] = part
        return Outputs(*results)

    def _rules(
        self, covariance: Tensor
    ) -> Iterator[tuple[Tensor, Callable[..., tuple[Tensor, ...]]]]:
        """Yield pairs of a mask of points and the function that computes averages at these points.

        The function of a point does not depend on the other points.
        """
        independent = torch.zeros_like(covariance[:, 0], dtype=torch.bool)
        if self.n_classes == 3:  # adding a shift makes any covariance of three classes diagonal
            independent = softmax.split(covariance, 3).whitened < _NOTHING
            yield independent, self._independently
        # Points with similar standard deviations share quadrature nodes.
        steps = (2 * self._largest(covariance).clamp(min=2.0**-4).log2()).ceil()
        for step in torch.unique(steps[~independent], dim=0):
            rule = partial(self._by_quadrature, scales=(2 ** (step / 2)).tolist())
            yield ~independent & (steps == step).all(-1), rule

    def _independently(
        self, objective: Tensor, mean: Tensor, covariance: Tensor
    ) -> tuple[Tensor, ...]:
        """Compute the `Outputs` of three classes that a shift makes independent (Eq. 33, 35)."""
        parts = softmax.split(covariance, 3)
        averages = softmax.independent_averages(mean, parts.D)
        value, by_mean, by_covariance = (
            torch.einsum("bc,bc...->b...", objective, part) for part in averages
        )
        value = value + (by_covariance * parts.E).sum(-1)  # E is a rounding error
        error = softmax.ACCURACY + softmax.correction_error(parts)
        return value, objective.abs().sum(-1) * error, by_mean, by_covariance

    def _by_quadrature(
        self, objective: Tensor, mean: Tensor, covariance: Tensor, scales: list[float]
    ) -> tuple[Tensor, ...]:
        """Compute the `Outputs` at points whose standard deviations do not exceed `scales`."""
        accuracy = affordable_accuracy(scales, _ACCURACIES)
        if accuracy is None:  # large variances need too many nodes, but then `_pairwise` is tight
            return tuple(self._unknown(objective, mean, covariance))
        nodes, deviations = normal_nodes(scales, accuracy, mean), self._deviations(covariance)
        size = max(1, _ENTRIES // (len(nodes.weights) * self.n_classes**2))
        parts = [
            self._average(objective[rows], mean[rows], deviations[rows], nodes)
            for rows in torch.split(torch.arange(len(mean), device=mean.device), size)
        ]
        value, by_mean, by_covariance = (torch.cat(part) for part in zip(*parts, strict=True))
        return value, objective.abs().sum(-1) * nodes.error, by_mean, by_covariance

    def minimum(self, objective: Tensor, expansion: Expansion, target: Tensor) -> Minimum:
        reach, lengths = self._reach(expansion)
        size = objective.abs().sum(-1)
        loss = size * reach.loss()
        useful, second = loss < objective.amax(-1) - objective.amin(-1), None
        if self.n_classes == 3:
            norms = reach.shift, reach.change, reach.spectral
            second = SecondOrder.over(objective, expansion, *norms)
            useful[second.rows] = False
        mean, covariance = expansion.mean.value, expansion.covariance.value
        outputs = self._unknown(objective, mean, covariance)
        some = self.evaluate(objective[useful], mean[useful], covariance[useful])
        for whole, part in zip(outputs, some, strict=True):
            whole[useful] = part
        if second is not None:
            second.write(outputs)
        linear = expansion.mean.combine(outputs.mean_slope[:, None]).plus(
            expansion.covariances(outputs.covariance_slope[:, None])
        )
        gradient, hessian = linear.gradient[:, 0], linear.hessian[:, 0]
        origin = torch.zeros_like(outputs.value)
        bound, point = box_minimum(origin, gradient, hessian, linear.ball)
        error = outputs.error * (1 + 2 * reach.means + 2 * reach.covariances)
        error = error + size * self._rounding
        bound = outputs.value + bound - linear.rest[:, 0] - loss - error
        share = expansion.mean.gradient.abs().sum(1) + expansion.covariance.gradient.abs().sum(1)
        share = share / share.sum(-1, keepdim=True).clamp(min=1e-300)
        curvature = hessian.abs().sum(-1) + 2 * loss[:, None] * share
        if second is not None:
            distance = linear.reach()[:, 0] + loss + error
            second.improve(bound, point, curvature, distance, error)
        bound = torch.maximum(bound, self._pairwise(objective, expansion))
        slopes = self._slopes(objective, outputs, reach, lengths)
        return Minimum(bound, point, curvature, linear.rest[:, 0], slopes)

    def _unknown(self, objective: Tensor, mean: Tensor, covariance: Tensor) -> Outputs:
        """Return outputs whose bounds are the smallest and largest weight, with slopes 0."""
        low, high = objective.amin(-1), objective.amax(-1)
        slopes = torch.zeros_like(mean), torch.zeros_like(covariance)
        return Outputs((low + high) / 2, (high - low) / 2, *slopes)

    def _pairwise(self, objective: Tensor, expansion: Expansion) -> Tensor:
        """Compute lower bounds from pairs of classes, tightest for probabilities near 0 or 1."""
        # Output c is at most ``sigmoid(f_c - f_j)`` for every j, and 1 minus output c is at most
        # the sum of ``sigmoid(f_j - f_c)`` over all j.
        total = torch.zeros_like(objective[:, 0])
        for sign, classes in ((1.0, objective.argmax(-1)), (-1.0, objective.argmin(-1))):
            weight = objective.gather(1, classes[:, None])[:, 0]
            rows = torch.nonzero(weight * sign > 0)[:, 0]
            if len(rows) == 0:
                continue
            part = expansion.select(rows)
            leads = sign * leads_of_classes(self.n_classes).to(weight.device)[classes[rows]]
            found = self._logit.leads(part, leads, pair_weights(leads, leads))
            least = found.bound.view(leads.shape[:2])
            lower, upper = 1 - (1 - least).sum(-1), (1 - least).amin(-1)  # Eq. 25
            if sign > 0:
                crossed = part.covariances(_products(leads)).range()[0]
                product = least.clamp(min=0).prod(-1)  # Eq. 32
                lower = torch.where((crossed >= 0).all(-1), torch.maximum(lower, product), lower)
            extreme = (lower if sign > 0 else upper).clamp(0, 1)
            total = total.index_add(0, rows, weight[rows] * extreme)
        return total

    def _slopes(self, objective: Tensor, outputs: Outputs, reach: Reach, each: Tensor) -> Slopes:
        weight, error = objective.abs().sum(-1)[:, None], 2 * outputs.error[:, None]
        plain = (_SECOND * reach.means + _THIRD / 2 * reach.covariances)[:, None]
        smooth = (reach.smooth(2) * reach.shift + reach.smooth(3) / 2 * reach.mixed)[:, None]
        by_mean = torch.minimum(plain, each * smooth)
        plain = (_THIRD * reach.means + _FOURTH / 2 * reach.covariances)[:, None]
        smooth = (reach.smooth(3) * reach.shift + reach.smooth(4) / 2 * reach.change)[:, None]
        by_pair = torch.minimum(plain, each[:, self.rows] * each[:, self.columns] * smooth)
        multiplicity = 1 - 0.5 * (self.rows == self.columns).to(by_pair)
        radii = weight * by_mean + error, weight * by_pair * multiplicity + error
        return Slopes(outputs.mean_slope, radii[0], outputs.covariance_slope, radii[1])

    def _reach(self, expansion: Expansion) -> tuple[Reach, Tensor]:
        """Compute the `Reach` over boxes, and the norms of the whitener's columns, (b, C)."""
        values, vectors = torch.linalg.eigh(self._of_differences(expansion.covariance.value))
        contrast = self._contrast(values).expand(len(values), -1, -1)
        # `sure` contains lower bounds on the exact eigenvalues.
        sure = values * (1 - 1e-9) - 1e-13 * values[:, -1:].abs()
        widths = sure.clamp(min=_LEAST).sqrt()
        whitener = (vectors / widths[:, None]).mT @ contrast
        ones = torch.ones_like(values)
        count, n = values.shape
        i, j = torch.triu_indices(n, n, device=values.device)
        entries = _products(whitener).view(count, n, n, -1)[:, i, j]
        stretch = torch.linalg.eigvalsh(whitener @ whitener.mT)[:, -1] * (1 + 1e-9)
        norms = covariance_norms(expansion, entries, ones, stretch)
        lost = (sure < _LEAST).any(-1)
        means = expansion.mean.combine(contrast).reach().sum(-1)
        covariances = expansion.covariance.combine(_products(contrast)).reach().sum(-1)
        shift = largest_norm(expansion.mean.combine(whitener), ones)
        sure_norms = (torch.where(lost, 1e30, norm) for norm in norms)
        reach = Reach(means, covariances, shift, *sure_norms)
        return reach, torch.linalg.vector_norm(whitener, dim=1)

    def _contrast(self, like: Tensor) -> Tensor:
        """Return the matrix that maps the latent functions to ``f_c - f_last`` for all other c."""
        count = self.n_classes - 1
        return torch.cat([torch.eye(count), -torch.ones(count, 1)], 1).to(like)

    def _of_differences(self, covariance: Tensor) -> Tensor:
        """Compute the covariance of ``f_c - f_last``, shape (b, C - 1, C - 1)."""
        contrast = self._contrast(covariance)
        matrix: Tensor = contrast @ unfold(covariance, self.n_classes) @ contrast.T
        return matrix

    def _deviations(self, covariance: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(self._of_differences(covariance))
        deviations: Tensor = vectors * values.clamp(min=0).sqrt()[:, None]
        return deviations

    def _largest(self, covariance: Tensor) -> Tensor:
        """Find each normal variable's largest effect on a difference of functions, (b, C - 1)."""
        deviations = self._deviations(covariance)
        padded = torch.cat([deviations, torch.zeros_like(deviations[:, :1])], 1)
        return padded.amax(1) - padded.amin(1)

    def _average(
        self, objective: Tensor, mean: Tensor, deviations: Tensor, nodes: Nodes
    ) -> tuple[Tensor, Tensor, Tensor]:
        # The axis of the nodes is last: it is the longest, which makes computations fastest.
        differences = (mean[:, :-1] - mean[:, -1:])[..., None] + deviations @ nodes.points.T
        logits = torch.cat([differences, torch.zeros_like(differences[:, :1])], 1)
        s = torch.softmax(logits, 1)  # (b, C, nodes)
        output = objective[:, None] @ s
        weighted = nodes.weights * s * (objective[..., None] - output)
        # d2 (v s) / df_j df_k = delta_jk slope_j - slope_j s_k - s_j slope_k
        crossed = weighted @ s.mT
        second = torch.diag_embed(weighted.sum(-1)) - crossed - crossed.mT
        multiplicity = 1 - 0.5 * (self.rows == self.columns).to(second)
        by_pair = multiplicity * second[:, self.rows, self.columns]
        return output[:, 0] @ nodes.weights, weighted.sum(-1), by_pair


def _products(rows: Tensor) -> Tensor:
    """Return `pair_weights` for all pairs of n linear combinations, (b, n * n, n_pairs)."""
    return pair_weights(rows[:, :, None], rows[:, None]).flatten(1, 2)


def largest_norm(moments: Moments, weights: Tensor) -> Tensor:
    """Bound the Euclidean norm of the weighted changes from the centre, for each box."""
    # The norm of the vector of linear terms is bounded by (Eq. 36), for any w_i > 0,
    # ``|G t|^2 <= sum_i w_i * lambda_max(G diag(1 / w) G')``.
    G = weights[..., None] * moments.gradient
    w = (G.mT @ G).abs().sum(-1)
    scaled = G / w.sqrt().clamp(min=1e-150)[:, None]
    largest = torch.linalg.eigvalsh(scaled @ scaled.mT)[:, -1].clamp(min=0)
    squared = largest * w.sum(-1)
    if moments.ball is not None:
        largest = torch.linalg.eigvalsh(G @ G.mT)[:, -1].clamp(min=0)
        squared = torch.minimum(squared, largest * moments.ball.squared_length())
    linear = squared.sqrt() * (1 + 1e-9)
    rest = weights * (moments.quadratic_reach() + moments.rest)
    return linear + torch.linalg.vector_norm(rest, dim=-1)


def covariance_norms(
    expansion: Expansion, entries: Tensor | None, D: Tensor, stretch: Tensor
) -> tuple[Tensor, Tensor]:
    """Bound Frobenius and spectral norm (b,) of ``D^-1/2 M D^-1/2``, eta and theta in Eq. 24.

    M is the change of a linear map of the covariances over boxes, apart from shifts, and `D` (b, n)
    contains variances. `entries` (b, n (n + 1) / 2, n_pairs) are the weights of this map (None for
    the identity), and `stretch` (b,) is the largest factor by which it increases spectral norms.
    """
    moments = expansion.covariance if entries is None else expansion.covariance.combine(entries)
    weights, n = softmax.whitening_weights(D), D.shape[1]
    frobenius = spectral = torch.linalg.vector_norm(weights * moments.rest, dim=-1)
    if expansion.contrast_rest is not None:
        spectral = torch.minimum(spectral, stretch * expansion.contrast_rest)
        rank = expansion.mean.value.shape[1] - 1
        frobenius = torch.minimum(frobenius, math.sqrt(rank) * spectral)
    polynomial = moments._replace(rest=torch.zeros_like(moments.rest))
    frobenius = frobenius + largest_norm(polynomial, weights)
    sizes = unfold(polynomial.reach(), n) / (D[:, None] * D[..., None]).sqrt()
    return frobenius, torch.minimum(frobenius, spectral + sizes.sum(-1).amax(-1))


class SecondOrder(NamedTuple):
    """Second-order expansions in z of weighted sums of three class probabilities, over boxes."""

    rows: Tensor  # (b,), indices of expanded boxes, which are small and have independent classes
    objective: Tensor  # (b, 3), weights of the classes
    expansion: Expansion  # of the latent moments
    whitened: Tensor  # (b,), `Split.whitened` at the centres, a rounding error
    shift: Tensor  # (b,), as in `Reach`
    change: Tensor  # (b,), as in `Reach`
    spectral: Tensor  # (b,), as in `Reach`
    unit: Tensor  # (b, 5), units of z
    value: Tensor  # (b,), weighted sums at the centres
    slope: Tensor  # (b, 5), first derivatives with respect to z
    Q: Tensor  # (b, 5, 5), second derivatives with respect to z

    @classmethod
    def over(
        cls,
        objective: Tensor,
        expansion: Expansion,
        shift: Tensor,
        change: Tensor,
        spectral: Tensor,
    ) -> SecondOrder:
        """Expand over all boxes with a small theta and independent classes at the centre."""
        parts = softmax.split(expansion.covariance.value, 3)
        rows = torch.nonzero((parts.whitened < _NOTHING) & (spectral < _SMALL))[:, 0]
        objective, expansion, D = objective[rows], expansion.select(rows), parts.D[rows]
        derivatives = softmax.difference_derivatives(objective, expansion.mean.value, D)
        i, j = _ORDERS.to(D.device).T
        factors = _FACTORS.to(D)
        deviations = D[:, :2].clamp(min=1).sqrt()
        unit = deviations[:, :1] ** i * deviations[:, 1:] ** j / factors
        value, slope = derivatives[:, 0, 0], factors * derivatives[:, i, j]
        Q = factors[:, None] * factors * derivatives[:, i[:, None] + i, j[:, None] + j]
        whitened, shift, change = parts.whitened[rows], shift[rows], change[rows]
        norms = whitened, shift, change, spectral[rows]
        return cls(rows, objective, expansion, *norms, unit, value, slope, Q)

    def write(self, outputs: Outputs) -> None:
        """Write values, errors and slopes of the expanded boxes into the outputs of all boxes."""
        outputs.value[self.rows] = self.value
        outputs.error[self.rows] = self._size() * (softmax.ACCURACY + 4 * self.whitened)  # Eq. 38
        outputs.mean_slope[self.rows] = self.slope[:, :2] @ _MEANS.to(self.slope)
        outputs.covariance_slope[self.rows] = self.slope[:, 2:] @ _PAIRS.to(self.slope)

    def improve(
        self, bound: Tensor, point: Tensor, curvature: Tensor, distance: Tensor, error: Tensor
    ) -> None:
        """Replace fields of `Minimum` in place where the second-order bound is larger.

        For all boxes, `distance` bounds the change of the average from its value at the centre, and
        `error` the numerical error of this value and of the first derivatives.
        """
        least, best, by_feature = self._minimum(distance[self.rows])
        least = least - error[self.rows]
        better = least > bound[self.rows]
        rows = self.rows[better]
        bound[rows], point[rows] = least[better], best[better]
        curvature[rows] = by_feature[better]

    def _minimum(self, distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return bounds, likely minimisers, and the slack of the bounds by feature (Eq. 37)."""
        linear = self._combined(self.slope[:, None])
        identity = torch.eye(5).to(self.Q)
        changes = self._combined(identity.expand(len(self.Q), -1, -1))
        G, QG = changes.gradient, self.Q @ changes.gradient
        hessian = linear.hessian[:, 0] + G.mT @ QG
        least, point = box_minimum(self.value, linear.gradient[:, 0], hessian, linear.ball)
        crossed = self._combined(QG.mT)
        cubic = crossed.hessian + crossed.hessian.movedim(1, 2) + crossed.hessian.movedim(1, 3)
        e = changes.quadratic_reach() + changes.rest
        quartic = ((self.Q.abs() @ e[..., None])[..., 0] * e).sum(-1) / 2
        inexact = self._size() * _INEXACT / 2 * (changes.reach() / self.unit).sum(-1) ** 2  # Eq. 38
        loss = linear.rest[:, 0] + cubic.abs().sum((-3, -2, -1)) / 6 + crossed.rest.sum(-1)
        loss = loss + quartic + inexact + self._third(distance)
        share = torch.linalg.vector_norm(G / self.unit[..., None], dim=1)
        share = share / share.sum(-1, keepdim=True).clamp(min=1e-300)
        return least - loss, point, hessian.abs().sum(-1) + loss[:, None] * share

    def _third(self, distance: Tensor) -> Tensor:
        """Bound the third-order remainder of the expansion (Eq. 39)."""
        low, high = self.objective.amin(-1), self.objective.amax(-1)
        radius, middle = (high - low) / 2, (high + low) / 2
        distance = distance + 32 * self.whitened * self._size()
        off = ((self.value - middle).abs() - distance).clamp(min=0)
        V = (radius**2 - off**2).clamp(min=0).sqrt()
        stretch = 1 + 2 * self.whitened  # because norms are whitened with the covariance, not D
        norms = (stretch * norm for norm in (self.shift, self.change, self.spectral))
        return V * third_derivative(*norms)

    def _size(self) -> Tensor:
        return self.objective.abs().sum(-1)

    def _combined(self, weights: Tensor) -> Moments:
        """Expand weighted sums of z, with weights of shape (b, o, 5)."""
        means, pairs = weights[..., :2] @ _MEANS.to(weights), weights[..., 2:] @ _PAIRS.to(weights)
        return self.expansion.mean.combine(means).plus(self.expansion.covariances(pairs))


def second_derivative(shift: Tensor, change: Tensor, spectral: Tensor) -> Tensor:
    """Bound the integral of ``(1 - s) |F''(s)|`` over s, for standard deviation 1 (Eq. 24, 39)."""
    v, eta, theta = shift**2, change**2, spectral**2
    mixed = (eta + 2 * theta) / 3
    return _along((2 * v**2, 6 * v * mixed, 24 / 16 * eta * mixed), 2, spectral)


def third_derivative(shift: Tensor, change: Tensor, spectral: Tensor) -> Tensor:
    """Bound the integral of ``(1 - s)^2 / 2 |F'''(s)|``, for standard deviation 1 (Eq. 39)."""
    v, eta, theta = shift**2, change**2, spectral**2
    mixed = (eta**2 + 6 * eta * theta + 8 * theta**2) / 15
    squares = (
        6 * v**3,
        24 * (3 / 2) ** 2 * v**2 * (eta + 5 * theta) / 6,
        120 * (3 / 4) ** 2 * v * mixed,
        720 * (1 / 8) ** 2 * eta * mixed,
    )
    return _along(squares, 3, spectral)


def _along(squares: tuple[Tensor, ...], order: int, spectral: Tensor) -> Tensor:
    """Bound a weighted integral of the root of ``sum_k squares_k / (1 - s spectral)^k``, Eq. 40."""
    # k starts at `order`, and the weight is ``(1 - s)^(order - 1) / (order - 1)!``. The root is
    # convex in s, so chords between grid points are an upper bound.
    s = torch.arange(_PANELS + 1, dtype=spectral.dtype, device=spectral.device) / _PANELS
    left = 1 - s * spectral.clamp(max=1 - 1e-9)[..., None]
    total = torch.zeros_like(left)
    for k, square in enumerate(squares, order):
        total = total + square[..., None] / left**k
    integral = total.sqrt() @ _chords(order).to(total) * (1 + 1e-9)
    return torch.where(spectral < 1, integral, torch.inf)


def _chords(order: int) -> Tensor:
    """Return quadrature weights of grid points that integrate chords exactly (Eq. 40)."""
    left = 1 - torch.arange(-1, _PANELS + 2, dtype=torch.float64) / _PANELS
    A = left.clamp(min=0) ** (order + 1) / math.factorial(order + 1)
    A[0] = A[1] + 1 / (math.factorial(order) * _PANELS)  # no interval precedes s = 0
    return (A[2:] - 2 * A[1:-1] + A[:-2]) * _PANELS
