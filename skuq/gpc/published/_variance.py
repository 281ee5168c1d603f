"""Extremes of the latent variance over a box, by linear programmes.

The variance is a constant minus a quadratic form in the covariances, which
`skuq.gpc.published._linear_functions` bounds by linear functions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skuq.base import FloatArray
from skuq.gpc.published._linear_functions import Extremes, minimise_linear
from skuq.gpc.published._relaxation import Relaxation

_NEGLIGIBLE = 1e-10  # error of a chord below which a variable's range is not refined
_STEPS, _GAP = 50, 0.02  # Frank-Wolfe: most steps, and gap relative to the distance of the bounds


class Spectrum(NamedTuple):
    """Eigenvalues (m,) and orthonormal eigenvectors, in columns (m, m), of a matrix."""

    values: FloatArray
    vectors: FloatArray


def spectrum(matrix: FloatArray) -> Spectrum:
    """Eigendecomposition of a symmetric matrix (m, m); it is the same for all boxes."""
    return Spectrum(*np.linalg.eigh((matrix + matrix.T) / 2))


def quadratic_bounds(box: Relaxation, form: Spectrum) -> Extremes:
    """Bound ``r(x) @ R @ r(x)`` over a box.

    Parameters
    ----------
    box : Relaxation
        Envelopes of the covariances.
    form : Spectrum
        Of the symmetric matrix R; eigenvalues of either sign.

    Returns
    -------
    Extremes
        In squared units of the kernel.

    Notes
    -----
    The form is a sum of squares of rotated variables, whose ranges take two linear programmes
    each. For the upper bound, chords replace the squares, which leaves one linear programme;
    for the lower bound, Frank-Wolfe's method minimises the convex form, and each of its steps
    is a linear programme whose value is a valid bound. Negative eigenvalues swap the roles.

    References
    ----------
    Blaas et al., AISTATS 2020, Appendix D.1; Rosen and Pardalos, Mathematical Programming
    34, 1986; Jaggi, "Revisiting Frank-Wolfe", ICML 2013 (the bound of each step).
    """
    low, high = _rotated_ranges(box, form)
    middle, centred = (low + high) / 2, ((high - low) / 2) ** 2
    # Between tangents at the middle and chords, u**2 = middle * (2 u - middle) + [0, centred].
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
    """Range of ``u @ r`` for each eigenvector u, where it matters by linear programmes."""
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
    """Lower bound on a convex form plus a linear function, and the last offset."""
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
    """Bound the latent variance ``prior - r(x) @ R @ r(x)`` over a box.

    Parameters
    ----------
    box : Relaxation
        Envelopes of the covariances.
    form : Spectrum
        Of R.
    prior : float
        Variance ``k(x, x)`` of the Gaussian process.

    Returns
    -------
    Extremes
        Bounds are nonnegative, in squared units of the latent function.

    References
    ----------
    Blaas et al., AISTATS 2020, Eq. 8 and Appendix D.1.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from skuq.gpc.published._relaxation import relax
    >>> from skuq.gpc.bounds._stationary import from_sklearn
    >>> box = relax(from_sklearn(RBF(), 1), np.zeros((1, 1)), np.zeros(1), np.ones(1))
    >>> bounds = variance_bounds(box, spectrum(np.eye(1)), prior=1.0)
    >>> round(bounds.lower, 3), round(bounds.upper, 3)
    (0.0, 0.632)
    """
    form_bounds = quadratic_bounds(box, form)
    return Extremes(
        max(0.0, prior - form_bounds.upper),
        max(0.0, prior - form_bounds.lower),
        form_bounds.at_upper,
        form_bounds.at_lower,
    )
