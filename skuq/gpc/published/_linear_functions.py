"""Extremes of linear functions of the covariances over a box.

Over a box, each covariance lies between two concave quadratics, two lines and two constants
(`skuq.gpc.published._relaxation`). The latent mean is bounded in closed form from the
quadratics; other linear functions, which the bounds of the latent variance need, by a linear
programme.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from skuq.base import FloatArray
from skuq.gpc.published._relaxation import Relaxation


class Extremes(NamedTuple):
    """Bounds on a function over a box, and inputs where it is likely to be extreme.

    Attributes
    ----------
    lower, upper : float
        The function lies between them.
    at_lower, at_upper : ndarray of shape (n_features,)
        Inputs in the box where the relaxed function attains or approaches them.
    """

    lower: float
    upper: float
    at_lower: FloatArray
    at_upper: FloatArray


class LinearMinimum(NamedTuple):
    """A lower bound on a linear function, with the minimiser of the relaxed problem.

    Attributes
    ----------
    value : float
        Lower bound.
    offset : ndarray of shape (n_free,)
        Input, relative to the centre of the box.
    covariances : ndarray of shape (m,)
        The relaxed covariances there.
    """

    value: float
    offset: FloatArray
    covariances: FloatArray


def mean_bounds(box: Relaxation, weights: FloatArray) -> Extremes:
    """Bound ``weights @ r(x)`` over a box, in closed form.

    Parameters
    ----------
    box : Relaxation
        Envelopes of the covariances.
    weights : ndarray of shape (m,)
        Coefficients of the latent mean.

    Returns
    -------
    Extremes
        Each bound is the exact minimum or maximum of a sum of one quadratic per feature.

    References
    ----------
    Blaas et al., AISTATS 2020, Eq. 7 and Appendix D.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.published._relaxation import relax
    >>> from skuq.gpc.bounds._stationary import from_sklearn
    >>> box = relax(from_sklearn(RBF(), 1), np.zeros((1, 1)), -np.ones(1), np.ones(1))
    >>> bounds = mean_bounds(box, np.ones(1))
    >>> round(bounds.lower, 3), round(bounds.upper, 3)
    (0.607, 1.0)
    """
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
    """Minimise ``coefficients @ r`` over all r and x that the relaxation admits.

    Parameters
    ----------
    box : Relaxation
        Envelopes of the covariances.
    coefficients : ndarray of shape (m,)
        Of any sign.

    Returns
    -------
    LinearMinimum

    Notes
    -----
    With c for the coefficients, the minimum is that of ``sum_i |c_i| max(0, gap_i(x))`` plus
    a constant, where ``gap_i`` is the difference between the line and the constant that bound
    ``r_i`` from the side that c_i pulls it to. Its dual has one row per free feature. Every
    dual point yields a lower bound in closed form, and that is what is returned, so that
    tolerances of the solver cannot make the bound invalid.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.published._relaxation import relax
    >>> from skuq.gpc.bounds._stationary import from_sklearn
    >>> box = relax(from_sklearn(RBF(), 1), np.zeros((1, 1)), np.zeros(1), np.ones(1))
    >>> round(minimise_linear(box, np.ones(1)).value, 3)
    0.607
    """
    (below, slope_below), (above, slope_above) = box.lines_below(), box.lines_above()
    pulled_down = coefficients >= 0
    constant = coefficients @ np.where(pulled_down, box.floor, box.ceiling)
    gap = np.where(pulled_down, below - box.floor, box.ceiling - above)
    slope = np.where(pulled_down[:, None], slope_below, -slope_above)
    multipliers, t = _solve_dual(gap, slope, np.abs(coefficients), box.half_widths)
    value = constant + multipliers @ gap - np.abs(multipliers @ slope) @ box.half_widths
    hinge = np.maximum(gap + slope @ t, 0.0)
    covariances = np.where(pulled_down, box.floor + hinge, box.ceiling - hinge)
    return LinearMinimum(max(float(value), float(constant)), t, covariances)


def _solve_dual(
    gap: FloatArray, slope: FloatArray, limits: FloatArray, half_widths: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Maximise ``y @ gap - |y @ slope| @ half_widths`` over ``0 <= y <= limits``.

    Returns y and the offset t, which is the multiplier of the rows
    ``y @ slope == positive - negative``.
    """
    n_free = len(half_widths)
    if n_free == 0:
        return np.where(gap > 0, limits, 0.0), half_widths
    identity, top = np.eye(n_free), np.concatenate([limits, np.full(2 * n_free, np.inf)])
    solution = linprog(
        np.concatenate([-gap, half_widths, half_widths]),
        A_eq=np.hstack([slope.T, -identity, identity]),
        b_eq=np.zeros(n_free),
        bounds=np.column_stack([np.zeros(len(top)), top]),
        method="highs",
        options={"presolve": False},  # on so few rows it takes longer than it saves
    )
    if solution.x is None:  # zero multipliers are valid as well: they leave the constants
        return np.zeros_like(limits), np.zeros(n_free)
    multipliers = np.clip(solution.x[: len(gap)], 0.0, limits)
    return multipliers, np.clip(solution.eqlin.marginals, -half_widths, half_widths)
