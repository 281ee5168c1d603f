"""Envelopes of covariances over a box: separable quadratic and linear functions of the input.

The covariances ``r(x) = k(inputs, x)`` are convex and decreasing in the squared distances
that they depend on. Over a box, a tangent is therefore a lower and a chord an upper bound,
both affine in the squared distances, hence a sum of one concave quadratic per feature.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from skuq.base import FloatArray
from skuq.gpc.bounds._stationary import Profile, StationaryKernel, Term


class Envelope(NamedTuple):
    """One function ``constant + linear @ t + quadratic @ t**2`` per input.

    Attributes
    ----------
    constant : ndarray of shape (m,)
        Values at the centre of the box, in units of the kernel.
    linear, quadratic : ndarray of shape (m, n_free)
        Coefficients of the offset t from the centre; ``quadratic <= 0``.
    """

    constant: FloatArray
    linear: FloatArray
    quadratic: FloatArray


class Relaxation(NamedTuple):
    """Bounds of the covariances ``r(x)`` for all x in a box.

    Attributes
    ----------
    centre : ndarray of shape (n_features,)
        Of the box.
    free : ndarray of shape (n_features,), bool
        Features that vary within the box.
    half_widths : ndarray of shape (n_free,)
        Of the free features.
    floor, ceiling : ndarray of shape (m,)
        Smallest and largest value of each covariance; they are attained.
    below, above : Envelope
        Bounds on each covariance, as functions of the free features.
    """

    centre: FloatArray
    free: np.ndarray
    half_widths: FloatArray
    floor: FloatArray
    ceiling: FloatArray
    below: Envelope
    above: Envelope

    def point(self, t: FloatArray) -> FloatArray:
        """Input of shape (n_features,) at the offset `t`, shape (n_free,), from the centre."""
        x = self.centre.copy()
        x[self.free] += t
        return x

    def lines_below(self) -> tuple[FloatArray, FloatArray]:
        """Constants (m,) and slopes (m, n_free) of linear lower bounds.

        A concave quadratic lies above its chord, that is ``t**2 <= half_width**2``.
        """
        constant, linear, quadratic = self.below
        return constant + quadratic @ self.half_widths**2, linear

    def lines_above(self) -> tuple[FloatArray, FloatArray]:
        """Constants (m,) and slopes (m, n_free) of linear upper bounds, tangents at the centre."""
        return self.above.constant, self.above.linear


def relax(
    kernel: StationaryKernel, inputs: FloatArray, lower: FloatArray, upper: FloatArray
) -> Relaxation:
    """Bound the covariances between all inputs and any point of a box.

    Parameters
    ----------
    kernel : StationaryKernel
        Kernel with parameters on the CPU.
    inputs : ndarray of shape (m, n_features)
        Inputs of the Gaussian process.
    lower, upper : ndarray of shape (n_features,)
        Corners of the box; features with ``lower == upper`` are constants.

    Returns
    -------
    Relaxation

    Raises
    ------
    ValueError
        If a lower corner exceeds its upper corner or is not finite.

    References
    ----------
    Cardelli et al., "Robustness Guarantees for Bayesian Inference with Gaussian Processes",
    AAAI 2019; Blaas et al., AISTATS 2020, Appendix D.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.bounds._stationary import from_sklearn
    >>> box = relax(from_sklearn(RBF(), 1), np.zeros((1, 1)), np.zeros(1), np.ones(1))
    >>> box.floor.round(3), box.ceiling
    (array([0.607]), array([1.]))
    """
    lower, upper = np.asarray(lower, float), np.asarray(upper, float)
    if not (np.isfinite(lower) & np.isfinite(upper) & (lower <= upper)).all():
        raise ValueError(f"A box needs finite corners with lower <= upper, got {lower}, {upper}.")
    centre, half_widths = (lower + upper) / 2, (upper - lower) / 2
    offset = centre - inputs
    near = np.maximum(np.abs(offset) - half_widths, 0.0) ** 2
    far = (np.abs(offset) + half_widths) ** 2
    free = half_widths > 0
    parts = [_bound_term(term, near, far) for term in kernel.terms]
    floor, ceiling, low, high = (sum(part[1:], part[0]) for part in zip(*parts, strict=True))
    return Relaxation(
        centre,
        free,
        half_widths[free],
        floor,
        ceiling,
        _around_centre(low, offset, free),
        _around_centre(high, offset, free),
    )


def _around_centre(planes: FloatArray, offset: FloatArray, free: np.ndarray) -> Envelope:
    """Rewrite rows (intercept, coefficient of each squared distance) in terms of t."""
    intercept, coefficient = planes[:, 0], planes[:, 1:]
    constant = intercept + (coefficient * offset**2).sum(1)
    return Envelope(constant, (2 * coefficient * offset)[:, free], coefficient[:, free])


def _bound_term(
    term: Term, near: FloatArray, far: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Smallest and largest value, plane below and plane above a product of profiles.

    `near` and `far` are the ranges (m, n_features) of the squared distance along each
    feature; a plane has rows (intercept, coefficient of each of them).
    """
    precisions = term.precisions.numpy()
    s_near, s_far = near @ precisions.T, far @ precisions.T
    floor, ceiling = np.full((2, len(near)), term.variance)
    for profile, first, last in zip(term.profiles, s_near.T, s_far.T, strict=True):
        floor, ceiling = floor * _values(profile, last)[0], ceiling * _values(profile, first)[0]
    below = _tangent(term, (s_near + s_far) / 2)
    above = _chord(term, s_near, s_far)
    # From squared distances of the profiles to those of the features.
    mix = np.block(
        [[np.ones((1, 1)), np.zeros((1, near.shape[1]))], [0 * s_near[:1].T, precisions]]
    )
    return floor, ceiling, below @ mix, above @ mix


def _values(profile: Profile, s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A profile and its derivative."""
    value, slope = profile.derivatives(torch.from_numpy(np.ascontiguousarray(s)), 1)
    return value.numpy(), slope.numpy()


def _tangent(term: Term, s: FloatArray) -> FloatArray:
    """Tangent planes of a term at `s`, (m, 1 + n_profiles); the term is convex.

    Profiles are completely monotone, so their logarithms are convex and so is a product of
    profiles of different arguments.
    """
    plane = np.zeros((len(s), 1 + s.shape[1]))
    plane[:, 0] = value = np.full(len(s), term.variance)
    for p, profile in enumerate(term.profiles):
        factor, slope = _values(profile, s[:, p])
        plane *= factor[:, None]
        plane[:, 1 + p] = value * slope
        plane[:, 0] -= value * slope * s[:, p]
        value = value * factor
    return plane


def _chord(term: Term, near: FloatArray, far: FloatArray) -> FloatArray:
    """Planes above a term over a box of squared distances, (m, 1 + n_profiles).

    The chord of each profile is multiplied in by one of the two upper planes of McCormick's
    for a product over a rectangle, whichever is lower in the middle.
    """
    plane = np.zeros((len(near), 1 + near.shape[1]))
    plane[:, 0] = low = high = np.full(len(near), term.variance)
    for p, profile in enumerate(term.profiles):
        first, last = _values(profile, near[:, p])[0], _values(profile, far[:, p])[0]
        width = far[:, p] - near[:, p]
        slope = np.divide(last - first, width, out=np.zeros_like(width), where=width > 0)
        # u v <= low v + v_max u - low v_max and u v <= high v + v_min u - high v_min.
        middle = plane[:, 0] + (plane[:, 1:] * (near + far) / 2).sum(1)
        half = (first + last) / 2
        lows, highs = low * (half - first) + first * middle, high * (half - last) + last * middle
        u, v = np.where(lows < highs, low, high), np.where(lows < highs, first, last)
        plane *= v[:, None]
        plane[:, 0] += u * (first - slope * near[:, p]) - u * v
        plane[:, 1 + p] = u * slope
        low, high = low * last, high * first
    return plane
