"""Links, which average a likelihood over the Gaussian distribution of the latent functions.

From the moments of this distribution, a link computes a weighted sum of class probabilities, with a
proven error bound. From bounds on the moments over a box, it computes a lower bound on this sum.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from skuq.gpc.bounds._latent_bounds import Expansion
from skuq.gpc.bounds._regions import box_minimum
from skuq.gpc.inference._likelihoods import normal_nodes

_ACCURACY = 1e-13  # upper bound, with a margin, on the numerical error of `torch.special.ndtr`
_PIECES = 8  # number of intervals into which LogitLink divides the range of the variance


class Outputs(NamedTuple):
    value: Tensor  # (b,)
    error: Tensor  # (b,), bound on the numerical error of `value`
    mean_slope: Tensor  # (b, L), derivatives with respect to the latent means
    covariance_slope: Tensor  # (b, n_pairs), derivatives with respect to the latent covariances


class Slopes(NamedTuple):
    """Ranges of derivatives by the moments over a box; all may be scaled by one positive factor."""

    mean: Tensor  # (b, L), centre of the range of each derivative by a mean
    mean_radius: Tensor  # (b, L), half-width of this range
    covariance: Tensor  # (b, n_pairs)
    covariance_radius: Tensor  # (b, n_pairs)


class Minimum(NamedTuple):
    bound: Tensor  # (b,), lower bound on the objective over the box
    point: Tensor  # (b, f), likely minimiser, in coordinates t of the box, from -1 to 1
    curvature: Tensor  # (b, f), slack of the bound due to each feature's second derivatives
    rest: Tensor  # (b,), slack of the bound due to the Taylor remainder
    slopes: Slopes  # show in which features the objective is monotone

    def select(self, rows: Tensor) -> Minimum:
        slopes = Slopes(*(part[rows] for part in self.slopes))
        return Minimum._make([*(part[rows] for part in self[:4]), slopes])


class Link(Protocol):
    """Interface of links for branch and bound; `objective` (b, C) has the weights of classes."""

    def evaluate(self, objective: Tensor, mean: Tensor, covariance: Tensor) -> Outputs: ...

    def minimum(self, objective: Tensor, expansion: Expansion, target: Tensor) -> Minimum:
        """Compute lower bounds over boxes, tightest for boxes whose minimum is near `target`."""


class _BinaryLink(ABC):
    """Link of one latent function; a change of the mean's sign exchanges the two classes."""

    widening: float
    accuracy: float

    def __init__(self, most_variance: float):
        self.most_variance = most_variance

    @abstractmethod
    def _value(self, mean: Tensor, variance: Tensor) -> Tensor:
        """Return the probability of the second class."""

    @abstractmethod
    def _curve(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        """Return probability, bound on its error, and derivatives by mean and by variance."""

    @abstractmethod
    def _least_on_line(self, start: Tensor, tilt: Tensor, least: Tensor, most: Tensor) -> Tensor:
        """Bound the probability from below over variances if ``mean = start + tilt * variance``."""

    @abstractmethod
    def _tilts(
        self, center: Tensor, reach: Tensor, least: Tensor, most: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the range of slopes d mean / d variance of level lines of the probability."""

    def evaluate(self, objective: Tensor, mean: Tensor, covariance: Tensor) -> Outputs:
        sign, low, span = _affine(objective)
        value, error, by_mean, by_variance = self._curve(sign * mean[:, 0], covariance[:, 0])
        slopes = (span * sign * by_mean)[:, None], (span * by_variance)[:, None]
        return Outputs(low + span * value, span * error + _ACCURACY, *slopes)

    def minimum(self, objective: Tensor, expansion: Expansion, target: Tensor) -> Minimum:
        sign, low, span = _affine(objective)
        mean = expansion.mean.combine(sign[:, None, None])
        center, reach = mean.value[:, 0], mean.reach()[:, 0]
        lower, upper = (end[:, 0] for end in expansion.covariance.range())
        # Rounding can make variances negative. Predictions clip them to 0, and so do bounds.
        missing, least = (-lower).clamp(min=0), lower.clamp(min=0)
        most = upper.clamp(0, self.most_variance)
        level = torch.special.ndtri(((target - low) / span).clamp(1e-12, 1 - 1e-12))
        tilt = level / (2 * (self.widening + expansion.covariance.value[:, 0].clamp(min=0)).sqrt())
        # `tilt` is b of Eq. 17: the slope d mean / d variance of a level line of the probability.
        along = mean.plus(expansion.covariance.combine(-tilt[:, None, None]))
        gradient, hessian = along.gradient[:, 0], along.hessian[:, 0]
        bound, point = box_minimum(along.value[:, 0], gradient, hessian, along.ball)
        start = bound - along.rest[:, 0] - tilt.clamp(min=0) * missing  # L of Eq. 17, 18
        line = self._least_on_line(start, tilt, least, most)
        # Lemma 3 of Blaas et al. (2020)
        corner = self._value(center - reach, torch.where(center >= reach, most, least))
        best = (torch.maximum(line, corner) - self.accuracy).clamp(0, 1)
        curvature = hessian.abs().sum(-1)
        lowest, highest = self._tilts(center, reach, least, most)
        # The derivative with respect to a variance is 0 where the variance is clipped to 0.
        lowest = torch.where(missing > 0, lowest.clamp(max=0), lowest)
        highest = torch.where(missing > 0, highest.clamp(min=0), highest)
        middle, radius = (lowest + highest) / 2, (highest - lowest) / 2
        slopes = Slopes(*(part[:, None] for part in (sign, 0 * sign, -middle, radius)))
        return Minimum(low + span * best - _ACCURACY, point, curvature, along.rest[:, 0], slopes)


class ProbitLink(_BinaryLink):
    widening = 1.0
    accuracy = _ACCURACY

    def _value(self, mean: Tensor, variance: Tensor) -> Tensor:
        return torch.special.ndtr(mean / (1 + variance).sqrt())

    def _curve(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        width = (1 + variance.clamp(min=0)).sqrt()
        z = mean / width
        density = torch.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        value = torch.special.ndtr(z)
        return value, torch.zeros_like(value), density / width, -density * z / (2 * width**2)

    def _least_on_line(self, start: Tensor, tilt: Tensor, least: Tensor, most: Tensor) -> Tensor:
        """Minimise over both endpoints and the only stationary point of mean / width (Eq. 19)."""
        inner = start / torch.where(tilt == 0, 1.0, tilt) - 2
        ends = torch.stack([least, most, torch.clamp(inner, least, most)])
        return self._value(start + tilt * ends, ends).amin(0)

    def _tilts(
        self, center: Tensor, reach: Tensor, least: Tensor, most: Tensor
    ) -> tuple[Tensor, Tensor]:
        means, widths = (center - reach, center + reach), (2 * (1 + least), 2 * (1 + most))
        corners = torch.stack([mean / width for mean in means for width in widths])
        return corners.amin(0), corners.amax(0)


class LogitLink(_BinaryLink):
    widening = 8 / math.pi  # with this variance, Phi has the logistic function's slope 1/4 at 0
    accuracy = 1e-11

    def _value(self, mean: Tensor, variance: Tensor) -> Tensor:
        return self._averages(mean, variance, 1)[0]

    def _curve(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
        value, first, second = self._averages(mean, variance, 3)
        return value, torch.full_like(value, self.accuracy), first, second / 2

    def leads(self, expansion: Expansion, weights: Tensor, squares: Tensor) -> Minimum:
        """Bound the least average of ``sigmoid(weights @ f)`` in each box; results have b * o rows.

        `squares` (b, o, n_pairs) maps the covariances of f to the variances of ``weights @ f``, for
        `weights` of shape (b, o, L).
        """
        means, variances = expansion.mean.combine(weights), expansion.covariances(squares)
        single = Expansion(means.flatten(), variances.flatten())
        deviation = (self.widening + single.covariance.value.clamp(min=0)).sqrt()
        middle = torch.special.ndtr(single.mean.value / deviation)[:, 0]
        second = torch.stack([torch.zeros_like(middle), torch.ones_like(middle)], -1)
        return self.minimum(second, single, middle)

    def _averages(self, mean: Tensor, variance: Tensor, count: int) -> list[Tensor]:
        """Average the logistic function and its first ``count - 1`` derivatives (at most 2)."""
        deviation = variance.clamp(min=0).sqrt()
        nodes = normal_nodes([float(deviation.max())], self.accuracy / 4, mean)
        s = torch.sigmoid(mean[..., None] + deviation[..., None] * nodes.points[:, 0])
        functions = [s, s * (1 - s), s * (1 - s) * (1 - 2 * s)][:count]
        return [function @ nodes.weights for function in functions]

    def _least_on_line(self, start: Tensor, tilt: Tensor, least: Tensor, most: Tensor) -> Tensor:
        """Return the least grid value, minus a bound on the drop between grid points (Eq. 20)."""
        share = torch.linspace(0, 1, _PIECES + 1, dtype=start.dtype, device=start.device)
        variances = least[:, None] + (most - least)[:, None] * share
        values = self._value(start[:, None] + tilt[:, None] * variances, variances)
        second, third, fourth = _largest_derivatives(least)
        bend = second * tilt**2 + third * tilt.abs() + fourth / 4
        return values.amin(-1) - bend * ((most - least) / _PIECES) ** 2 / 8

    def _tilts(
        self, center: Tensor, reach: Tensor, least: Tensor, most: Tensor
    ) -> tuple[Tensor, Tensor]:
        variance, spread = (least + most) / 2, (most - least) / 2
        _, first, second = self._averages(center, variance, 3)
        by_two, by_three, by_four = _largest_derivatives(least)
        slope = by_two * reach + by_three / 2 * spread + self.accuracy
        bend = by_three * reach + by_four / 2 * spread + self.accuracy
        # The slope is minus half the average second derivative divided by the average first
        # derivative. It lies in [-1/2, 1/2], because the absolute second derivative of the logistic
        # function is at most the first.
        firsts = ((first - slope).clamp(min=1e-300), first + slope)
        ends = torch.stack([-part / by for part in (second + bend, second - bend) for by in firsts])
        return ends.amin(0).clamp(-1, 1) / 2, ends.amax(0).clamp(-1, 1) / 2


# Largest absolute values of the second, third and fourth derivative of the logistic function.
_SECOND, _THIRD, _FOURTH = 0.0963, 0.1251, 0.1278


def _largest_derivatives(variance: Tensor) -> tuple[Tensor, ...]:
    """Bound derivatives 2 to 4 of an averaged logistic function, for variances >= `variance`."""
    # Differentiating the Gaussian density instead of the logistic function gives other bounds, with
    # the constants 0.242, 0.399 and 0.551 (Eq. 21). The smaller bounds are used.
    width = variance.clamp(min=1e-300).sqrt()
    own, smooth = (_SECOND, _THIRD, _FOURTH), (0.2420, 0.3990, 0.5507)
    return tuple(torch.clamp(smooth[k] / width ** (k + 2), max=own[k]) for k in range(len(own)))


def _affine(objective: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Write ``v0 (1 - p) + v1 p`` as ``low + span * q`` with span >= 0, where q is p or 1 - p.

    Returns the sign (1 if q is p, -1 if q is 1 - p), low, and span.
    """
    sign = torch.where(objective[:, 1] >= objective[:, 0], 1.0, -1.0).to(objective)
    return sign, objective.amin(-1), objective.amax(-1) - objective.amin(-1)
