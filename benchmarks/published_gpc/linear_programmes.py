"""Bounds on the latent mean and variance over a box, from envelopes and linear programmes.

The covariances ``r(x) = k(inputs, x)`` are convex, decreasing functions of squared distances. Over
a box, a tangent is therefore a lower bound and a chord an upper bound. Tangent and chord are affine
in the squared distances, and thus sums of one concave quadratic per feature. Constant and linear
bounds follow from these sums. The latent mean is bounded in closed form from the quadratics. The
variance is a constant minus a quadratic form in the covariances, which is bounded by linear
programmes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linprog

from skuq.base import FloatArray
from skuq.gpc.bounds import Profile, StationaryKernel, Term

_NEGLIGIBLE = 1e-10  # a variable's range is refined only if the error of its chord is larger
_STEPS, _GAP = 50, 0.02  # Frank-Wolfe: maximum number of steps, and relative duality gap


class Envelope(NamedTuple):
    """Functions ``constant + linear @ t + quadratic @ t**2`` of the offset t, one per input."""

    constant: FloatArray  # (m,), values at the centre of the box
    linear: FloatArray  # (m, n_free)
    quadratic: FloatArray  # (m, n_free), <= 0


class Relaxation(NamedTuple):
    """Bounds on the covariances ``r(x)`` for all x in a box."""

    centre: FloatArray  # (n_features,), of the box
    free: np.ndarray  # (n_features,), mask of the features that vary within the box
    half_widths: FloatArray  # (n_free,), of the free features
    floor: FloatArray  # (m,), minimum of each covariance
    ceiling: FloatArray  # (m,), maximum of each covariance
    below: Envelope  # lower bounds as functions of the free features
    above: Envelope  # upper bounds as functions of the free features

    def point(self, t: FloatArray) -> FloatArray:
        """Input of shape (n_features,) at the offset `t`, shape (n_free,), from the centre."""
        x = self.centre.copy()
        x[self.free] += t
        return x

    def lines_below(self) -> tuple[FloatArray, FloatArray]:
        """Constants (m,) and slopes (m, n_free) of linear lower bounds."""
        # A concave quadratic lies above its chord: ``t**2 <= half_width**2``.
        constant, linear, quadratic = self.below
        return constant + quadratic @ self.half_widths**2, linear

    def lines_above(self) -> tuple[FloatArray, FloatArray]:
        """Constants (m,) and slopes (m, n_free) of linear upper bounds, tangents at the centre."""
        return self.above.constant, self.above.linear


def relax(
    kernel: StationaryKernel, inputs: FloatArray, lower: FloatArray, upper: FloatArray
) -> Relaxation:
    """Bound the covariances between all inputs and any point of a box."""
    # inputs (m, n_features), lower, upper (n_features,)
    # Cardelli et al., "Robustness Guarantees for Bayesian Inference with Gaussian Processes", AAAI
    # 2019; Blaas et al., AISTATS 2020, Appendix D.
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
    """Convert affine functions of squared distances to functions of the offset t.

    Rows of `planes` are (intercept, coefficient of each squared distance).
    """
    intercept, coefficient = planes[:, 0], planes[:, 1:]
    constant = intercept + (coefficient * offset**2).sum(1)
    return Envelope(constant, (2 * coefficient * offset)[:, free], coefficient[:, free])


def _bound_term(
    term: Term, near: FloatArray, far: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Minimum, maximum, lower plane and upper plane of a product of profiles."""
    # `near` and `far` (m, n_features) are the endpoints of the range of squared distances per
    # feature; a plane has rows (intercept, coefficient of each squared distance).
    precisions = term.precisions.numpy()
    s_near, s_far = near @ precisions.T, far @ precisions.T
    floor, ceiling = np.full((2, len(near)), term.variance)
    for profile, first, last in zip(term.profiles, s_near.T, s_far.T, strict=True):
        floor, ceiling = floor * _values(profile, last)[0], ceiling * _values(profile, first)[0]
    below = _tangent(term, (s_near + s_far) / 2)
    above = _chord(term, s_near, s_far)
    # Convert coefficients of each profile's squared distance to coefficients of the squared
    # distance in each feature.
    mix = np.block(
        [[np.ones((1, 1)), np.zeros((1, near.shape[1]))], [0 * s_near[:1].T, precisions]]
    )
    return floor, ceiling, below @ mix, above @ mix


def _values(profile: Profile, s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Values and derivatives of a profile."""
    value, slope = profile.derivatives(torch.from_numpy(np.ascontiguousarray(s)), 1)
    return value.numpy(), slope.numpy()


def _tangent(term: Term, s: FloatArray) -> FloatArray:
    """Tangent planes of a term at `s`, (m, 1 + n_profiles); the term is convex."""
    # Profiles are completely monotone. Therefore their logarithms are convex, and products of
    # profiles with different arguments are convex too.
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
    """Planes above a term over a box of squared distances, (m, 1 + n_profiles)."""
    # Chords of profiles are multiplied one at a time. Over a rectangle, two McCormick planes are
    # upper bounds on a product. The plane that is lower in the middle of the rectangle is used.
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


class Extremes(NamedTuple):
    """Bounds on a function over a box, and inputs close to its likely extremes."""

    lower: float
    upper: float
    at_lower: FloatArray  # (n_features,), input at which the relaxed function is close to `lower`
    at_upper: FloatArray  # (n_features,), input for `upper`


class LinearMinimum(NamedTuple):
    """Lower bound on a linear function, with the minimiser of the relaxed problem."""

    value: float  # lower bound
    offset: FloatArray  # (n_free,), minimiser, relative to the centre of the box
    covariances: FloatArray  # (m,), relaxed covariances at the minimiser


def mean_bounds(box: Relaxation, weights: FloatArray) -> Extremes:
    """Bound ``weights @ r(x)`` over a box, in closed form."""
    # weights (m,)
    # Blaas et al., AISTATS 2020, Eq. 7 and Appendix D.
    lower, t_low = _minimise_mean(box, weights)
    upper, t_high = _minimise_mean(box, -weights)
    return Extremes(lower, -upper, box.point(t_low), box.point(t_high))


def _minimise_mean(box: Relaxation, weights: FloatArray) -> tuple[float, FloatArray]:
    """Lower bound and minimiser of ``weights @ r``."""
    gain, loss = np.maximum(weights, 0.0), np.minimum(weights, 0.0)
    constant, linear, quadratic = (
        gain @ a + loss @ b for a, b in zip(box.below, box.above, strict=True)
    )
    h = box.half_widths
    inner = np.divide(-linear, 2 * quadratic, out=h.copy(), where=quadratic > 0)
    candidates = np.stack([-h, h, np.clip(inner, -h, h)])
    values = quadratic * candidates**2 + linear * candidates
    best = values.argmin(0)
    t = np.take_along_axis(candidates, best[None], axis=0)[0]
    floor = gain @ box.floor + loss @ box.ceiling
    return max(float(constant + values.min(0).sum()), float(floor)), t


def minimise_linear(box: Relaxation, coefficients: FloatArray) -> LinearMinimum:
    """Minimise ``coefficients @ r`` over all r and x that the relaxation admits."""
    # coefficients (m,)
    # With coefficients c, the minimum is a constant plus the minimum of
    # ``sum_i |c_i| max(0, gap_i(x))``. Here ``gap_i`` is the difference between the linear and the
    # constant bound on ``r_i``. The two bounds on ``r_i`` are lower bounds if c_i >= 0, and upper
    # bounds otherwise. The dual problem has one row per free feature. The result is evaluated in
    # closed form at a dual point; it is therefore valid for any tolerances of the solver.
    (below, slope_below), (above, slope_above) = box.lines_below(), box.lines_above()
    pulled_down = coefficients >= 0
    constant = coefficients @ np.where(pulled_down, box.floor, box.ceiling)
    gap = np.where(pulled_down, below - box.floor, box.ceiling - above)
    slope = np.where(pulled_down[:, None], slope_below, -slope_above)
    # Slopes are scaled by the half-widths, because the tolerances of the solver are absolute.
    multipliers, t = _solve_dual(gap, slope * box.half_widths, np.abs(coefficients))
    t = t * box.half_widths
    value = constant + multipliers @ gap - np.abs(multipliers @ slope) @ box.half_widths
    hinge = np.maximum(gap + slope @ t, 0.0)
    covariances = np.where(pulled_down, box.floor + hinge, box.ceiling - hinge)
    return LinearMinimum(max(float(value), float(constant)), t, covariances)


def _solve_dual(
    gap: FloatArray, slope: FloatArray, limits: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Maximise ``y @ gap - |y @ slope|_1`` over ``0 <= y <= limits``."""
    # Returns y, and the offset t in [-1, 1]^n_free. The entries of t are the multipliers of the
    # constraints ``y @ slope == positive - negative``.
    n_free = slope.shape[1]
    if n_free == 0:
        return np.where(gap > 0, limits, 0.0), np.empty(0)
    identity, top = np.eye(n_free), np.concatenate([limits, np.full(2 * n_free, np.inf)])
    solution = linprog(
        np.concatenate([-gap, np.ones(2 * n_free)]),
        A_eq=np.hstack([slope.T, -identity, identity]),
        b_eq=np.zeros(n_free),
        bounds=np.column_stack([np.zeros(len(top)), top]),
        method="highs",
        options={"presolve": False},  # for few rows, presolving takes longer than it saves
    )
    if solution.x is None:  # zero multipliers are valid too
        return np.zeros_like(limits), np.zeros(n_free)
    multipliers = np.clip(solution.x[: len(gap)], 0.0, limits)
    return multipliers, np.clip(solution.eqlin.marginals, -1.0, 1.0)


class Spectrum(NamedTuple):
    """Eigendecomposition of a symmetric matrix."""

    values: FloatArray  # (m,)
    vectors: FloatArray  # (m, m), orthonormal columns


def spectrum(matrix: FloatArray) -> Spectrum:
    """Eigendecomposition of a matrix (m, m), which is symmetrised first."""
    return Spectrum(*np.linalg.eigh((matrix + matrix.T) / 2))


def quadratic_bounds(box: Relaxation, form: Spectrum) -> Extremes:
    """Bound ``r(x) @ R @ r(x)`` over a box."""
    # The form is a weighted sum of squares of rotated variables. Two linear programmes bound the
    # range of each variable.
    # - Upper bound: one linear programme, in which chords replace the squares with positive weights
    #   and tangents replace the squares with negative weights.
    # - Lower bound: chords replace the squares with negative weights. The Frank-Wolfe method then
    #   minimises the convex rest; each of its steps is a linear programme with a valid bound.
    # Blaas et al., AISTATS 2020, Appendix D.1; Rosen and Pardalos, Mathematical Programming 34,
    # 1986; Jaggi, "Revisiting Frank-Wolfe", ICML 2013 (bound of each step).
    low, high = _rotated_ranges(box, form)
    middle, centred = (low + high) / 2, ((high - low) / 2) ** 2
    # u**2 lies between the tangent at the middle, which is middle * (2 u - middle), and the chord,
    # which is larger by `centred`.
    slope = 2 * middle * form.values
    constant = -(middle**2) @ form.values
    top = minimise_linear(box, -(form.vectors @ slope))
    upper = constant + np.maximum(form.values, 0.0) @ centred - top.value
    convex = form.values > 0
    chords = np.where(convex, 0.0, slope)
    base = float(np.where(convex, 0.0, form.values) @ (centred - middle**2))
    squares = Spectrum(form.values[convex], form.vectors[:, convex])
    lower, t = _minimise_convex(box, squares, form.vectors @ chords, float(upper) - base)
    return Extremes(base + lower, float(upper), box.point(t), box.point(top.offset))


def _rotated_ranges(box: Relaxation, form: Spectrum) -> tuple[FloatArray, FloatArray]:
    """Range of ``u @ r`` for each eigenvector u, refined by linear programmes unless negligible."""
    middle, half = (box.floor + box.ceiling) / 2, (box.ceiling - box.floor) / 2
    centre, reach = middle @ form.vectors, half @ np.abs(form.vectors)
    low, high = centre - reach, centre + reach
    for i in np.flatnonzero(np.abs(form.values) * reach**2 > _NEGLIGIBLE):
        low[i] = max(low[i], minimise_linear(box, form.vectors[:, i]).value)
        high[i] = min(high[i], -minimise_linear(box, -form.vectors[:, i]).value)
    return low, high


def _minimise_convex(
    box: Relaxation, squares: Spectrum, linear: FloatArray, upper: float
) -> tuple[float, FloatArray]:
    """Lower bound on a convex form plus a linear function, and the final Frank-Wolfe iterate."""
    t, lower = np.zeros_like(box.half_widths), -np.inf
    (below, _), (above, _) = box.lines_below(), box.lines_above()
    r = (np.maximum(below, box.floor) + np.minimum(above, box.ceiling)) / 2
    for _ in range(_STEPS):
        curved = squares.vectors @ (squares.values * (squares.vectors.T @ r))
        value = r @ curved
        vertex = minimise_linear(box, 2 * curved + linear)
        lower = max(lower, float(vertex.value - value))
        if value + linear @ r - lower <= max(_GAP * (upper - lower), 1e-12):
            break
        direction = vertex.covariances - r
        bend = float(squares.values @ (squares.vectors.T @ direction) ** 2)
        descent = float(-(2 * curved + linear) @ direction)
        length = min(1.0, descent / (2 * bend)) if bend > 0 else 1.0
        r, t = r + length * direction, t + length * (vertex.offset - t)
    return lower, t


def variance_bounds(box: Relaxation, form: Spectrum, prior: float) -> Extremes:
    """Bound the latent variance ``prior - r(x) @ R @ r(x)`` over a box."""
    # Blaas et al., AISTATS 2020, Eq. 8 and Appendix D.1.
    found = covariance_bounds(box, form)
    return found._replace(lower=max(0.0, prior + found.lower), upper=max(0.0, prior + found.upper))


def covariance_bounds(box: Relaxation, form: Spectrum) -> Extremes:
    """Bound the covariance ``-r(x) @ R @ r(x)`` of two latent functions over a box."""
    found = quadratic_bounds(box, form)
    return Extremes(-found.upper, -found.lower, found.at_upper, found.at_lower)
