"""Bounds on expected softmax probabilities over ranges of the latent moments, as published.

The latent space is partitioned into boxes. Over each box, the softmax is bounded by its values at
two vertices. The Gaussian probability of a box is bounded as a product of conditional probabilities
of each latent function given the following functions. Numbers of propositions and lemmas refer to
Blaas et al., "Adversarial Robustness Guarantees for Classification with Gaussian Processes",
AISTATS 2020.

Because the boxes cover the whole latent space, the bounds are valid for any number of intervals.
The number of intervals determines the tightness of the bounds: the conditional mean of a latent
function varies over a box by the regression coefficients times the widths of the box. The number of
boxes is exponential in the number of classes. For correlated functions, no affordable number of
boxes gives tight bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.published_gpc.integrals import LARGE, mass_bounds
from skuq.base import FloatArray

_DEVIATIONS = 5.0  # standard deviations from the range of a mean to the outermost finite edges
_STEEP = 1e100  # replaces infinite regression coefficients, to avoid undefined products


@dataclass(frozen=True)
class Interval:
    """Interval arithmetic for arrays: the range of each entry."""

    low: FloatArray
    high: FloatArray

    def at(self, index: Any) -> Interval:
        """Ranges of the selected entries."""
        return Interval(self.low[index], self.high[index])

    def plus(self, other: Interval) -> Interval:
        """Ranges of sums."""
        return Interval(self.low + other.low, self.high + other.high)

    def minus(self, other: Interval) -> Interval:
        """Ranges of differences."""
        return Interval(self.low - other.high, self.high - other.low)

    def times(self, other: Interval) -> Interval:
        """Ranges of products."""
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(np.minimum.reduce(ends), np.maximum.reduce(ends))

    def over(self, other: Interval) -> Interval:
        """Ranges of quotients by a positive number, whose range may include 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            quotient = self.times(Interval(1 / other.high, 1 / other.low))
        known = other.low > 0
        return Interval(
            np.where(known, quotient.low, -_STEEP), np.where(known, quotient.high, _STEEP)
        )


def conditionals(covariance: Interval) -> list[tuple[Interval, Interval]]:
    """Regression coefficients and variance of each latent function given all later functions."""
    # covariance (L, L) -> for each i the coefficients (L - 1 - i,) and the variance ()
    # Proposition 4, with I = i + 1, ..., L: ``Sigma_{i,I} Sigma_{I,I}^-1``, and Sigma_i^f. The
    # functions are eliminated from the last to the first.
    n_latent = len(covariance.low)
    rest, coefficients = covariance, Interval(*np.zeros((2, n_latent, n_latent)))
    found = []
    for k in reversed(range(n_latent)):
        variance = rest.at((k, k))
        found.append((coefficients.at((k, slice(k + 1, None))), variance))
        column = rest.at((slice(k), k))
        slopes = column.over(variance)
        others = slopes.at((slice(None), None)).times(coefficients.at((k, slice(k + 1, None))))
        earlier = coefficients.at((slice(k), slice(k + 1, None))).minus(others)
        low, high = coefficients.low.copy(), coefficients.high.copy()
        low[:k, k], high[:k, k] = slopes.low, slopes.high
        low[:k, k + 1 :], high[:k, k + 1 :] = earlier.low, earlier.high
        coefficients = Interval(np.maximum(low, -_STEEP), np.minimum(high, _STEEP))
        rest = _given(rest.at((slice(k), slice(k))), column, variance)
    return found[::-1]


def _given(rest: Interval, column: Interval, variance: Interval) -> Interval:
    """Conditional covariances given a function with covariances `column`."""
    # Ranges of variances are clipped, because conditioning does not increase a variance, and a
    # variance is not negative.
    explained = column.at((slice(None), None)).times(column).over(variance)
    left = rest.minus(explained)
    own = np.eye(len(column.low), dtype=bool)
    return Interval(
        np.where(own, np.maximum(left.low, 0.0), left.low),
        np.where(own, np.minimum(left.high, rest.high), left.high),
    )


def box_masses(edges: FloatArray, mean: Interval, covariance: Interval) -> Interval:
    """Gaussian probabilities of all boxes of a grid over ranges of the moments."""
    # edges (L, n + 1), increasing, mean (L,), covariance (L, L) -> (n,) * L
    # Proposition 4, each factor by Proposition 2. Both the paper and the authors' code have
    # ``mu_i - Sigma_{i,I} Sigma_{I,I}^-1 (f - mu_I)``. The mean of a conditional Gaussian, however,
    # has a plus. With the minus, bounds are invalid for correlated functions.
    finite = np.clip(edges, -LARGE, LARGE)
    n_latent, masses = len(edges), Interval(np.ones(()), np.ones(()))
    given = conditionals(covariance)
    for i in reversed(range(n_latent)):
        coefficients, variance = given[i]
        centre = mean.at(i)
        for j in range(i + 1, n_latent):  # mu_i^f for f anywhere in a box
            along = tuple(slice(None) if axis == j else None for axis in range(i + 1, n_latent))
            moved = Interval(finite[j, :-1], finite[j, 1:]).minus(mean.at(j)).at(along)
            centre = centre.plus(coefficients.at(j - i - 1).times(moved))
        own = (slice(None), *(None,) * (n_latent - 1 - i))
        factor = mass_bounds(
            edges[i, :-1][own],
            edges[i, 1:][own],
            (centre.low, centre.high),
            (variance.low, variance.high),
        )
        masses = Interval(factor[0] * masses.low, factor[1] * masses.high)
    return masses


def softmax_extremes(edges: FloatArray, class_: int) -> Interval:
    """Smallest and largest probability of a class over each box of a grid."""
    # edges (L, n + 1) -> (n,) * L
    # Lemma 1: the minimum is at the vertex with the lower endpoint for this class and the upper
    # endpoints for all others; the maximum is at the opposite vertex.
    n_latent = len(edges)

    def odds_against(own: FloatArray, others: FloatArray) -> FloatArray:
        total = np.zeros((1,) * n_latent)
        with np.errstate(over="ignore"):
            for j in set(range(n_latent)) - {class_}:
                total = total + np.exp(_on_axis(others[j], j) - _on_axis(own[class_], class_))
        return total

    def _on_axis(values: FloatArray, axis: int) -> FloatArray:
        return values.reshape([-1 if k == axis else 1 for k in range(n_latent)])

    low, high = edges[:, :-1], edges[:, 1:]
    return Interval(1 / (1 + odds_against(low, high)), 1 / (1 + odds_against(high, low)))


def softmax_bounds(mean: Interval, covariance: Interval, n_intervals: int) -> FloatArray:
    """Bounds on the expected probability of each class over ranges of the latent moments."""
    # mean (L,), covariance (L, L) -> (L, 2)
    # Proposition 3, valid for any partition. The partition used here has intervals of equal length
    # around the range of the means, like the authors' partition.
    reach = _DEVIATIONS * np.sqrt(np.maximum(np.diagonal(covariance.high), 0.0))
    inner = np.linspace(mean.low - reach, mean.high + reach, n_intervals - 1, axis=1)
    ends = np.full((len(inner), 1), np.inf)
    edges = np.hstack([-ends, inner, ends])
    masses, found = box_masses(edges, mean, covariance), []
    for class_ in range(len(edges)):
        value = softmax_extremes(edges, class_)
        least, most = (value.low * masses.low).sum(), (value.high * masses.high).sum()
        found.append((least, min(most, 1.0)))
    return np.array(found)
