"""Bounds on softmax averages of three classes from their second-order expansion.

The error of a linearisation is of second order in the widths of a box. The quadratic functions in
this module include all second-order terms; their error is of third order. Equation numbers and
symbols refer to the proofs page of the user guide (`docs/guide/robust_gpc_proofs.rst`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from skuq.gpc.bounds._expansion import Expansion
from skuq.gpc.bounds._links import Outputs
from skuq.gpc.bounds._regions import Moments, box_minimum
from skuq.gpc.inference._softmax_averages import ACCURACY, difference_derivatives, split

_SMALL = 0.9  # largest relative change of covariances, theta, for which boxes are expanded
_INEXACT = 1e-4  # error of derivatives of order 3 and 4, in units of standard deviations (Eq. 38)
_NOTHING = 1e-6  # smaller whitened covariances are rounding errors
_PANELS = 8  # number of integration intervals along a line that starts at the centre's moments

# For two differences between latent functions, z contains the changes of five moments: of the two
# means, the two variances and the covariance. The derivative with respect to an entry of z is a
# factor in `_FACTORS` times a derivative with respect to the two means, whose orders are in
# `_ORDERS`.
_ORDERS = torch.tensor([(1, 0), (0, 1), (2, 0), (1, 1), (0, 2)])
_FACTORS = torch.tensor([1.0, 1.0, 0.5, 1.0, 0.5], dtype=torch.float64)
# Linear maps to z from the means of three latent functions, and from the covariances of six pairs.
_MEANS = torch.tensor([(1, 0, -1), (0, 1, -1)], dtype=torch.float64)
_PAIRS = torch.tensor(
    [(1, 0, -2, 0, 0, 1), (0, 1, -1, 0, -1, 1), (0, 0, 0, 1, -2, 1)], dtype=torch.float64
)


class SecondOrder(NamedTuple):
    """Weighted sums of class probabilities over boxes, to second order in the changes z."""

    rows: Tensor  # (b,), indices of the small boxes with independent classes at the centre
    objective: Tensor  # (b, 3), weights of the classes
    expansion: Expansion  # of the latent moments
    whitened: Tensor  # (b,), deviation from independence at the centres, due to rounding
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
        """Expand over all boxes that are small enough."""
        parts = split(expansion.covariance.value, 3)
        rows = torch.nonzero((parts.whitened < _NOTHING) & (spectral < _SMALL))[:, 0]
        objective, expansion, D = objective[rows], expansion.select(rows), parts.D[rows]
        derivatives = difference_derivatives(objective, expansion.mean.value, D)
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
        """Write values, errors and slopes of the expanded boxes to the outputs of all boxes."""
        outputs.value[self.rows] = self.value
        outputs.error[self.rows] = self._size() * (ACCURACY + 4 * self.whitened)  # Eq. 38
        outputs.mean_slope[self.rows] = self.slope[:, :2] @ _MEANS.to(self.slope)
        outputs.covariance_slope[self.rows] = self.slope[:, 2:] @ _PAIRS.to(self.slope)

    def improve(
        self, bound: Tensor, point: Tensor, curvature: Tensor, distance: Tensor, error: Tensor
    ) -> None:
        """Improve fields of `Minimum` in place, where the second-order bound is better.

        For all boxes, `distance` bounds the change of the average from its value at the centre, and
        `error` bounds the numerical error of that value and of first derivatives.
        """
        least, best, by_feature = self._minimum(distance[self.rows])
        least = least - error[self.rows]
        better = least > bound[self.rows]
        rows = self.rows[better]
        bound[rows], point[rows] = least[better], best[better]
        curvature[rows] = by_feature[better]

    def _minimum(self, distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Bounds, likely minimisers, and slack of the bounds by feature (Eq. 37)."""
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
        """Bound on the third-order remainder (Eq. 39)."""
        low, high = self.objective.amin(-1), self.objective.amax(-1)
        radius, middle = (high - low) / 2, (high + low) / 2
        distance = distance + 32 * self.whitened * self._size()
        off = ((self.value - middle).abs() - distance).clamp(min=0)
        V = (radius**2 - off**2).clamp(min=0).sqrt()
        stretch = 1 + 2 * self.whitened  # the norms were whitened with the full covariance, not D
        return V * third_derivative(
            stretch * self.shift, stretch * self.change, stretch * self.spectral
        )

    def _size(self) -> Tensor:
        """Sum of absolute weights."""
        return self.objective.abs().sum(-1)

    def _combined(self, weights: Tensor) -> Moments:
        """Expansions of weighted sums of z, with weights of shape (b, o, 5)."""
        means, pairs = weights[..., :2] @ _MEANS.to(weights), weights[..., 2:] @ _PAIRS.to(weights)
        return self.expansion.mean.combine(means).plus(self.expansion.covariances(pairs))


def second_derivative(shift: Tensor, change: Tensor, spectral: Tensor) -> Tensor:
    """Bound on the integral of ``(1 - s) |F''|`` along the line, for deviation 1 (Eq. 24, 39)."""
    v, eta, theta = shift**2, change**2, spectral**2
    mixed = (eta + 2 * theta) / 3
    return _along((2 * v**2, 6 * v * mixed, 24 / 16 * eta * mixed), 2, spectral)


def third_derivative(shift: Tensor, change: Tensor, spectral: Tensor) -> Tensor:
    """Bound on the integral of ``(1 - s)^2 / 2 |F'''|`` on the line, for deviation 1 (Eq. 39)."""
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
    """Bound on the integral of the root of ``sum_k squares_k / (1 - s spectral)^k`` (Eq. 40)."""
    # k starts at `order`; the weight of the integrand at s is
    # ``(1 - s)^(order - 1) / (order - 1)!``. Because the root is convex in s, chords between grid
    # points are an upper bound.
    s = torch.arange(_PANELS + 1, dtype=spectral.dtype, device=spectral.device) / _PANELS
    left = 1 - s * spectral.clamp(max=1 - 1e-9)[..., None]
    total = torch.zeros_like(left)
    for k, square in enumerate(squares, order):
        total = total + square[..., None] / left**k
    integral = total.sqrt() @ _chords(order).to(total) * (1 + 1e-9)
    return torch.where(spectral < 1, integral, torch.inf)


def _chords(order: int) -> Tensor:
    """Quadrature weights for the integral of chords: second differences of A in Eq. 40."""
    left = 1 - torch.arange(-1, _PANELS + 2, dtype=torch.float64) / _PANELS
    A = left.clamp(min=0) ** (order + 1) / math.factorial(order + 1)
    A[0] = A[1] + 1 / (math.factorial(order) * _PANELS)  # no interval precedes s = 0
    return (A[2:] - 2 * A[1:-1] + A[:-2]) * _PANELS
