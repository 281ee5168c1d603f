"""Softmax probabilities averaged over Gaussians, without a grid over all classes.

For three classes, ``p_c = E[1 / (1 + e^u + e^v)]``, where u and v are the other two latent
functions minus that of class c. Given u, with ``A = 1 + e^u``, the average over v is
``1 / A * E[sigmoid(log A - v)]``. The remaining integral over u uses panels that are short where
the integrand bends (Eq. 29 of the guide's proofs page).

For any number of classes, a softmax output is the probability that its latent function plus a
Gumbel variable is the largest of such sums. If the latent functions are independent Gaussians,
``p_c = int B_c'(x) prod_{k != c} B_k(x) dx``, where ``B_k`` is the distribution function of the sum
of class k (Eq. 33, whose symbols are used here).
"""

import math
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skuq.base import FloatArray
from skuq.gpc.inference._likelihoods import normal_nodes

_REACH = 8.3  # standard deviations beyond which the normal probability is below 1e-16
_PANEL = 3.0  # width of the integration panels where the logistic function bends
_GROWTH = 2.0  # ratio of the distances of a panel's end and start from the bend, after the first
_DEVIATIONS = 4.0  # largest width of a panel, in standard deviations
_SATURATED = 27.0  # end of the integral over u, beyond which the integrand is below exp(-27)
_ORDER = 16  # nodes of the Gauss-Legendre rule per panel
# For larger standard deviations, averages are computed with nodes of the logistic or Gumbel
# density, which is then narrower than the normal density.
_WIDE = 1.3
_LOGISTIC_STEP, _LOGISTIC_REACH = 0.7, 26.0
_ENTRIES = 500_000  # maximum number of entries in a temporary array, to fit into the CPU cache
ACCURACY = 2e-8  # error bound of probabilities and their derivatives (Eq. 34)
_TAIL = 6.2  # standard deviations beyond which the normal probability is below 3e-10
_LEFT, _RIGHT = 3.1, 22.0  # limits beyond which the Gumbel probability is below 3e-10 per side
_STRIP = 1.3  # half-width of the complex strip for integrals of Gumbel densities; must be < pi / 2
_STEP = 0.32  # step of these integrals, for which exp(2 pi strip / step) is 1e11
_DIGITS = 26.0  # -log of the relative error of the outer integral, second bound of Eq. 34
_LEAST = 1e-9  # smaller variances are replaced by this value
# If e is proportional to exp(-y), each derivative of exp(-e) by y is exp(-e) times a polynomial in
# e. Its coefficients, lowest power first, are signed Stirling numbers.
_POLYNOMIALS = (
    (1.0,),
    (0.0, 1.0),
    (0.0, -1.0, 1.0),
    (0.0, 1.0, -3.0, 1.0),
    (0.0, -1.0, 7.0, -6.0, 1.0),
    (0.0, 1.0, -15.0, 25.0, -10.0, 1.0),
)


def three_class_probabilities(mean: FloatArray, covariance: FloatArray) -> FloatArray:
    # mean (n, 3), covariance (n, 3, 3) -> (n, 3). Errors are below 1e-10 for standard deviations up
    # to 1e4. The result for a point does not depend on the other points.
    means, covariances = torch.as_tensor(mean), torch.as_tensor(covariance)
    proba = torch.stack([_own_probability(means, covariances, own) for own in range(3)], dim=-1)
    return (proba / proba.sum(-1, keepdim=True)).numpy()


def _own_probability(mean: Tensor, covariance: Tensor, own: int) -> Tensor:
    contrast = torch.eye(3, dtype=mean.dtype)[[c for c in range(3) if c != own]]
    contrast[:, own] = -1.0
    center, spread = mean @ contrast.T, contrast @ covariance @ contrast.T
    # u is the difference with the larger variance, so the regression of the other difference, v, on
    # u has a slope of at most 1.
    swap = spread[:, 1, 1] > spread[:, 0, 0]
    center = torch.where(swap[:, None], center.flip(1), center)
    variance = spread.diagonal(dim1=1, dim2=2).clamp(min=0)
    variance = torch.where(swap[:, None], variance.flip(1), variance)
    width = variance[:, 0].sqrt()
    slope = (spread[:, 0, 1] / variance[:, 0].clamp(min=1e-300)).clamp(-1, 1)
    rest = (variance[:, 1] - slope**2 * variance[:, 0]).clamp(min=0).sqrt()
    result = torch.empty_like(width)
    # Points with similar `width` use the same panels.
    octaves = (width.clamp(min=0.1).log2() + 1e-3).ceil()
    for octave in np.unique(octaves.numpy()):
        for wide in (False, True):
            members = torch.nonzero((octaves == octave) & ((rest > _WIDE) == wide))[:, 0]
            edges = _edges(float(2**octave))
            size = max(1, _ENTRIES // (3 * len(edges) * _ORDER * len(_logistic_nodes(wide)[0])))
            for rows in torch.split(members, size):
                parts = (center[rows], width[rows], slope[rows], rest[rows])
                result[rows] = _integral(*parts, edges, wide)
    return result


def _edges(width: float) -> Tensor:
    """Return distances of panel boundaries from the point at which the integrand bends."""
    distances, panel = [0.0], _PANEL
    while distances[-1] < 2 * _REACH * width:
        distances.append(distances[-1] + panel)
        panel = max(panel, (_GROWTH - 1) * distances[-1])
    return torch.tensor(distances, dtype=torch.float64)


def _integral(
    center: Tensor, width: Tensor, slope: Tensor, rest: Tensor, distances: Tensor, wide: bool
) -> Tensor:
    """Integrate over ``u = center + width * t`` on panels, shape (b,)."""
    (u, v), scale = center.T, width.clamp(min=1e-300)
    # The integrand bends at u = 0, and where the mean of v given u is 0, if u < 0 there.
    bend = (u - v / torch.where(slope == 0, 1e-300, slope)).clamp(-1e300, 0.0)
    right = torch.arange(0, _SATURATED + _PANEL, _PANEL, dtype=u.dtype)
    places = torch.cat([-distances, right]).expand(len(u), -1)
    places = torch.cat([places, bend[:, None] - distances, bend[:, None] + distances], 1)
    whole = torch.linspace(-_REACH, _REACH, 1 + math.ceil(2 * _REACH / _DEVIATIONS), dtype=u.dtype)
    borders = torch.cat([(places - u[:, None]) / scale[:, None], whole.expand(len(u), -1)], 1)
    most = ((_SATURATED - u) / scale).clamp(-_REACH, _REACH)
    borders = torch.minimum(borders.clamp(min=-_REACH), most[:, None]).sort(1).values
    half = borders.diff(dim=1) / 2
    kept = (half > 0).any(0)
    half, middle = half[:, kept, None], (borders[:, 1:] + borders[:, :-1])[:, kept, None] / 2
    x, weights = (torch.as_tensor(part) for part in np.polynomial.legendre.leggauss(_ORDER))
    t = (middle + half * x).flatten(1)
    mass = (half * weights).flatten(1) * torch.exp(-(t**2) / 2) / math.sqrt(2 * math.pi)
    at = u[:, None] + width[:, None] * t
    lead = torch.nn.functional.softplus(at) - v[:, None] - (slope * width)[:, None] * t
    return (mass * torch.sigmoid(-at) * _logistic_average(lead, rest, wide)).sum(1)


def _logistic_average(mean: Tensor, deviation: Tensor, wide: bool) -> Tensor:
    """Compute ``E[sigmoid(f)]`` for means (b, k); `wide` tells if all deviations are > `_WIDE`."""
    points, weights = _logistic_nodes(wide)
    if wide:  # E[sigmoid(f)] = P(e < f) = E[Phi((mean - e) / deviation)] for a logistic variable e
        return torch.special.ndtr((mean[..., None] - points) / deviation[:, None, None]) @ weights
    return torch.sigmoid(mean[..., None] + deviation[:, None, None] * points) @ weights


@cache
def _logistic_nodes(wide: bool) -> tuple[Tensor, Tensor]:
    if not wide:
        nodes = normal_nodes([_WIDE], 1e-12, torch.empty(0, dtype=torch.float64))
        return nodes.points[:, 0], nodes.weights
    count = math.ceil(_LOGISTIC_REACH / _LOGISTIC_STEP)
    points = _LOGISTIC_STEP * torch.arange(-count, count + 1, dtype=torch.float64)
    density = torch.sigmoid(points) * torch.sigmoid(-points)
    return points, density / density.sum()


class ClassAverages(NamedTuple):
    proba: Tensor  # (b, C)
    by_mean: Tensor  # (b, C, C), derivatives with respect to the means
    # (b, C, n_pairs), derivatives with respect to the covariances of the pairs ``j <= k``, in the
    # order of ``np.triu_indices(C)``, including the covariances that are 0
    by_pair: Tensor


class Split(NamedTuple):
    """Decomposition of a covariance into a diagonal D, a remainder E and a shift."""

    D: Tensor  # (b, C), variances
    # (b, n_pairs), covariance - D + a_j + a_k; the shift a_j + a_k changes no softmax average
    E: Tensor
    whitened: Tensor  # (b,), Frobenius norm of ``D^-1/2 E D^-1/2``, eta in Eq. 35


def split(covariance: Tensor, n_classes: int) -> Split:
    """Decompose covariances into independent variances and a small remainder (Eq. 35)."""
    # `covariance` is (b, n_pairs). Any D and shift are valid; this shift minimises the sum of
    # squares of the off-diagonal entries that remain.
    j, k = torch.triu_indices(n_classes, n_classes, device=covariance.device)
    off = torch.where(j == k, 0.0, covariance)
    rows = covariance.new_zeros(len(covariance), n_classes)
    rows = rows.index_add(1, j, off).index_add(1, k, off)
    a = -(rows - rows.sum(-1, keepdim=True) / (2 * n_classes - 2)) / (n_classes - 2)
    shifted = covariance + a[:, j] + a[:, k]
    D = shifted[:, j == k].clamp(min=_LEAST)
    E = shifted - torch.where(j == k, D[:, j], 0.0)
    return Split(D, E, ((E * whitening_weights(D)) ** 2).sum(-1).sqrt())


def whitening_weights(D: Tensor) -> Tensor:
    """Return the weights of entries of E in the Frobenius norm of ``D^-1/2 E D^-1/2``."""
    j, k = torch.triu_indices(D.shape[1], D.shape[1], device=D.device)
    return torch.where(j == k, 1.0, math.sqrt(2)) / (D[:, j] * D[:, k]).sqrt()


def corrected_probabilities(mean: Tensor, parts: Split) -> Tensor:
    """Average the softmax to first order in E, (b, C), with errors below `correction_error`."""
    averages = independent_averages(mean, parts.D)
    return averages.proba + (averages.by_pair @ parts.E[..., None])[..., 0]


def correction_error(parts: Split) -> Tensor:
    """Bound the error of `corrected_probabilities`, (b,); the bound is infinite for eta >= 1."""
    eta = parts.whitened.clamp(max=1.0)
    rest = math.sqrt(24) / 8 * (-torch.log1p(-eta) - eta)
    return rest + ACCURACY * (1 + parts.E.abs().sum(-1))


def independent_averages(mean: Tensor, variance: Tensor) -> ClassAverages:
    """Average the softmax, and its derivatives, over independent Gaussians."""
    # `mean` and `variance` are (b, C). Errors are below `ACCURACY`.
    n_classes = mean.shape[1]
    shapes = (n_classes,), (n_classes, n_classes), (n_classes, n_classes * (n_classes + 1) // 2)
    results = [mean.new_zeros(len(mean), *shape) for shape in shapes]
    for rows, B, weight in _nodes(mean, variance, 3):
        for whole, part in zip(results, _integrals(B, weight), strict=True):
            whole[rows] = part
    return ClassAverages(*results)


def difference_derivatives(objective: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return derivatives, up to order four, of the average of a weighted sum of three outputs."""
    # (b, 3) each -> (b, 5, 5): entry (i, j) is the derivative of order i by the first mean and of
    # order j by the second mean, valid for i + j <= 4. Errors are below `ACCURACY` up to order two.
    # For orders three and four, errors are below 1e-4 if the unit of each mean is its standard
    # deviation or 1, whichever is larger (Eq. 38).
    result = mean.new_zeros(len(mean), 5, 5)
    for rows, B, weight in _nodes(mean, variance, 5):
        stack = torch.stack(B)  # (order of derivative, b, class, node)
        for c in range(3):
            one, other, last = (
                stack[k == c : (k == c) + (5 if k < 2 else 1), :, k].movedim(0, 1) for k in range(3)
            )
            share = objective[rows, c, None, None] * weight[:, None] * last
            result[rows] += (share * one) @ other.mT
    signs = (-1.0) ** torch.arange(5, dtype=mean.dtype, device=mean.device)
    return result * signs[:, None] * signs


def _nodes(
    mean: Tensor, variance: Tensor, order: int
) -> Iterator[tuple[Tensor, list[Tensor], Tensor]]:
    """Yield rows, their ``B_k`` and its derivatives at nodes (b, C, x), and node weights (b, x)."""
    n_classes = mean.shape[1]
    deviation = variance.clamp(min=0).sqrt()
    low = (mean - _TAIL * deviation).amax(-1) - _LEFT
    high = (mean + _TAIL * deviation).amax(-1) + _RIGHT
    # Step of the outer integral: the larger of two steps that are valid by Eq. 34.
    smooth = math.pi * (2 / (_DIGITS * (1 / variance.clamp(min=1e-300)).sum(-1))).sqrt()
    step = smooth.clamp(min=_STEP)
    counts = ((high - low) / step).ceil() + 1
    # Points with similar numbers of nodes are computed together.
    by_count = torch.argsort(counts, stable=True)
    most = max([1, *counts.int().tolist()])
    for rows in torch.split(by_count, max(1, _ENTRIES // (64 * n_classes * most))):
        if len(rows) == 0:
            return
        i = torch.arange(int(counts[rows].max()), dtype=mean.dtype, device=mean.device)
        x = low[rows, None] + step[rows, None] * i
        weight = step[rows, None] * (i < counts[rows, None])
        y = x[:, None] - mean[rows][..., None]
        yield rows, _distribution(y, deviation[rows, :, None].expand_as(y), order), weight


def _integrals(B: list[Tensor], weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute probabilities and derivatives (Eq. 33) from ``B_k`` and its derivatives (b, C, x)."""
    n_classes = B[0].shape[1]
    tiny = B[0].clamp(min=1e-300)
    first, second, third = (part / tiny for part in B[1:])  # B' / B, B'' / B and B''' / B
    product = (weight * B[0].prod(1))[:, None]
    proba = (product * first).sum(-1)
    crossed = (product * first) @ first.mT
    bent = (product * second) @ first.mT  # [:, j, k]: integral with B_j'' B_k'
    own = (product * second).sum(-1)
    eye = torch.eye(n_classes, dtype=torch.bool, device=weight.device)
    by_mean = -torch.where(eye, torch.diag_embed(own), crossed)
    outer = (first[:, :, None] * first[:, None]).flatten(1, 2)
    triple = (outer @ (product * first).mT).view(-1, n_classes, n_classes, n_classes)  # b, j, k, c
    j, k = torch.triu_indices(n_classes, n_classes, device=weight.device)
    by_pair = triple[:, j, k].mT.clone()  # (b, c, pairs)
    pairs = torch.arange(len(j), device=weight.device)
    by_pair[:, j, pairs] = bent[:, j, k]
    by_pair[:, k, pairs] = bent[:, k, j]
    same = torch.nonzero(j == k)[:, 0]
    by_pair[:, :, same] = bent.mT / 2
    classes = torch.arange(n_classes, device=weight.device)
    by_pair[:, classes, same] = (product * third).sum(-1) / 2
    return proba, by_mean, by_pair


def _distribution(y: Tensor, deviation: Tensor, order: int) -> list[Tensor]:
    """Compute ``B(y) = E exp(-exp(deviation z - y))`` and derivatives up to `order` (<= 5)."""
    shape, y, deviation = y.shape, y.flatten(), deviation.flatten()
    results = [torch.empty_like(y) for _ in range(order + 1)]
    wide = deviation > _WIDE
    for members, rule in ((wide, _gumbel_average), (~wide, _normal_average)):
        rows = torch.nonzero(members)[:, 0]
        for part in torch.split(rows, 4096):
            if len(part):
                found = rule(y[part, None], deviation[part, None], order)
                for whole, values in zip(results, found, strict=True):
                    whole[part] = values
    return [result.view(shape) for result in results]


def _gumbel_average(y: Tensor, deviation: Tensor, order: int) -> Iterator[Tensor]:
    """Average the normal distribution function and its derivatives over a Gumbel variable."""
    points, weights = (part.to(y.device) for part in _gumbel_nodes())
    z = (y - points) / deviation
    density = torch.exp(-(z**2) / 2) / (math.sqrt(2 * math.pi) * deviation)
    yield torch.special.ndtr(z) @ weights
    hermite = [density, -z * density]
    for k in range(2, order):
        hermite.append(-z * hermite[-1] - (k - 1) * hermite[-2])
    for k in range(order):
        yield (hermite[k] @ weights) / deviation[:, 0] ** k


def _normal_average(y: Tensor, deviation: Tensor, order: int) -> Iterator[Tensor]:
    """Average the Gumbel distribution function and its derivatives over a normal variable."""
    points, weights = (part.to(y.device) for part in _normal_nodes())
    e = torch.exp((deviation * points - y).clamp(max=300.0))
    powers = [torch.exp(-e)]  # e^k exp(-e)
    for _ in range(order):
        powers.append(powers[-1] * e)
    averages = torch.stack([power @ weights for power in powers], dim=-1)
    for coefficients in _POLYNOMIALS[: order + 1]:
        yield averages[:, : len(coefficients)] @ averages.new_tensor(coefficients)


@cache
def _gumbel_nodes() -> tuple[Tensor, Tensor]:
    count = math.ceil((_LEFT + _RIGHT) / _STEP)
    points = _STEP * torch.arange(count + 1, dtype=torch.float64) - _LEFT
    density = torch.exp(-points - torch.exp(-points))
    return points, density / density.sum()


@cache
def _normal_nodes() -> tuple[Tensor, Tensor]:
    """Return nodes for functions that are bounded in a strip of half-width `_STRIP`."""
    nodes = normal_nodes([_WIDE * math.pi / (2 * _STRIP)], 1e-11, torch.empty(0).double())
    return nodes.points[:, 0], nodes.weights
