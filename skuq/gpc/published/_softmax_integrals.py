"""Bounds on softmax probabilities, given bounds on the moments of the latent functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skuq.base import FloatArray
from skuq.gpc.published._integrals import mass_bounds

_MOST_CLASSES = 3
_WINDOW = 6.0  # standard deviations that the finite cells reach beyond the means

Interval = tuple[FloatArray, FloatArray]  # lower and upper ends; arrays broadcast


def softmax_bounds(
    mean: tuple[FloatArray, FloatArray],
    covariance: tuple[FloatArray, FloatArray],
    *,
    n_intervals: int = 40,
) -> tuple[FloatArray, FloatArray]:
    """Bounds on the expected softmax over ranges of the latent moments.

    Parameters
    ----------
    mean : tuple of two ndarray of shape (n_classes,)
        Lower and upper bounds on the means of two or three latent functions.
    covariance : tuple of two ndarray of shape (n_classes, n_classes)
        Lower and upper bounds on each entry of their covariance.
    n_intervals : int, default=40
        Intervals per latent function; the grid has ``n_intervals ** n_classes`` cells. The
        outer ones are unbounded.

    Returns
    -------
    lower, upper : ndarray of shape (n_classes,)
        Bounds on the probability of each class.

    Raises
    ------
    ValueError
        If there are fewer than two or more than three classes, or if `n_intervals` is less
        than 2.

    Notes
    -----
    Proposition 4 prints the mean of a latent function given others as
    ``mu_i - S_iI S_II^-1 (f - mu_I)``; a Gaussian's conditional mean has a plus there, and so
    it has here. The extremes of the conditional moments, which the paper leaves open, are
    bounded by interval arithmetic.

    References
    ----------
    Blaas et al., AISTATS 2020, Propositions 3 and 4, Lemma 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.gpc.published._softmax_integrals import softmax_bounds
    >>> zero, one = np.zeros(2), np.eye(2)
    >>> low, high = softmax_bounds((zero, zero), (one, one), n_intervals=100)
    >>> low.round(2), high.round(2)
    (array([0.48, 0.48]), array([0.52, 0.52]))
    """
    n_classes = len(mean[0])
    if not 2 <= n_classes <= _MOST_CLASSES:
        raise ValueError(
            f"The grid of Proposition 3 grows as n_intervals ** n_classes; it is built for 2 or "
            f"{_MOST_CLASSES} classes, got {n_classes}."
        )
    if n_intervals < 2:
        raise ValueError(f"n_intervals must be at least 2, got {n_intervals}.")
    start, stop = _cells(mean, covariance, n_intervals)
    least, most = box_mass_bounds(start, stop, mean, covariance)
    lower, upper = np.zeros(n_classes), np.ones(n_classes)
    for c in range(n_classes):
        smallest, largest = softmax_range(start, stop, c)
        lower[c] = max(0.0, float((smallest * least).sum()))
        upper[c] = min(1.0, float((largest * most).sum()))
    return lower, upper


def softmax_range(
    start: Sequence[FloatArray], stop: Sequence[FloatArray], c: int
) -> tuple[FloatArray, FloatArray]:
    """Smallest and largest softmax of class c over boxes of latent values.

    Parameters
    ----------
    start, stop : sequence of ndarray
        Ends of the boxes along each latent function; the arrays broadcast.
    c : int
        Class.

    Returns
    -------
    smallest, largest : ndarray
        Values at the two vertices that are extreme for class c.

    References
    ----------
    Blaas et al., AISTATS 2020, Lemma 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.gpc.published._softmax_integrals import softmax_range
    >>> low, high = softmax_range([np.zeros(1), np.zeros(1)], [np.ones(1), np.ones(1)], 0)
    >>> low.round(3), high.round(3)
    (array([0.269]), array([0.731]))
    """
    others = [j for j in range(len(start)) if j != c]
    with np.errstate(over="ignore"):
        against = sum((np.exp(stop[j] - start[c]) for j in others), np.zeros(1))
        in_favour = sum((np.exp(start[j] - stop[c]) for j in others), np.zeros(1))
    return 1 / (1 + against), 1 / (1 + in_favour)


def _cells(
    mean: tuple[FloatArray, FloatArray], covariance: tuple[FloatArray, FloatArray], n: int
) -> tuple[list[FloatArray], list[FloatArray]]:
    """Ends of all cells along each latent function, shaped to broadcast to the grid."""
    reach = _WINDOW * np.sqrt(np.diag(covariance[1]))
    start, stop = [], []
    for c, (low, high) in enumerate(zip(mean[0] - reach, mean[1] + reach, strict=True)):
        edges = np.concatenate([[-np.inf], np.linspace(low, high, n - 1), [np.inf]])
        shape = [-1 if j == c else 1 for j in range(len(reach))]
        start.append(edges[:-1].reshape(shape))
        stop.append(edges[1:].reshape(shape))
    return start, stop


def box_mass_bounds(
    start: Sequence[FloatArray],
    stop: Sequence[FloatArray],
    mean: tuple[FloatArray, FloatArray],
    covariance: tuple[FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Bounds on the Gaussian probability of boxes over ranges of the moments.

    Parameters
    ----------
    start, stop : sequence of ndarray
        Ends of the boxes along each of at most three latent functions; the arrays broadcast.
    mean, covariance : tuple of two ndarray
        Lower and upper bounds on the moments, as for `softmax_bounds`.

    Returns
    -------
    lower, upper : ndarray
        Products of bounds for each latent function given those after it.

    References
    ----------
    Blaas et al., AISTATS 2020, Proposition 4.

    Examples
    --------
    >>> import numpy as np
    >>> from skuq.gpc.published._softmax_integrals import box_mass_bounds
    >>> zero, one = np.zeros(2), np.eye(2)
    >>> start, stop = [np.zeros(1), np.zeros(1)], [np.full(1, np.inf), np.full(1, np.inf)]
    >>> box_mass_bounds(start, stop, (zero, zero), (one, one))
    (array([0.25]), array([0.25]))
    """
    pairs = np.stack(covariance, -1)
    entries = [[(pair[0], pair[1]) for pair in row] for row in pairs]
    least, most = np.ones(1), np.ones(1)
    for i, full in enumerate(entries[i][i] for i in range(len(entries))):
        conditional_mean: Interval = (mean[0][i], mean[1][i])
        reduction: Interval = (np.zeros(()), np.zeros(()))
        for j, coefficient in enumerate(_regression(entries, i), i + 1):
            deviation = (start[j] - mean[1][j], stop[j] - mean[0][j])
            conditional_mean = _add(conditional_mean, _times(coefficient, deviation))
            reduction = _add(reduction, _times(coefficient, entries[i][j]))
        # Conditioning never increases a variance, whatever interval arithmetic says.
        variance = (
            np.maximum(full[0] - reduction[1], 0.0),
            np.minimum(full[1], full[1] - reduction[0]),
        )
        low, high = mass_bounds(start[i], stop[i], conditional_mean, variance)
        least, most = least * low, most * high
    return least, most


def _regression(entries: list[list[Interval]], i: int) -> list[Interval]:
    """Intervals of ``S_iI S_II^-1`` for I, the at most two latent functions after i.

    Where the interval of a determinant reaches zero, the coefficients are unbounded.
    """
    n_rest = len(entries) - 1 - i
    if n_rest == 0:
        return []
    if n_rest == 1:
        return [_times(entries[i][i + 1], _reciprocal(entries[i + 1][i + 1]))]
    first, second, cross = entries[1][1], entries[2][2], entries[1][2]
    inverse = _reciprocal(_minus(_times(first, second), _times(cross, cross)))
    to_first = _minus(_times(entries[0][1], second), _times(entries[0][2], cross))
    to_second = _minus(_times(entries[0][2], first), _times(entries[0][1], cross))
    return [_times(to_first, inverse), _times(to_second, inverse)]


def _add(u: Interval, v: Interval) -> Interval:
    return u[0] + v[0], u[1] + v[1]


def _minus(u: Interval, v: Interval) -> Interval:
    return u[0] - v[1], u[1] - v[0]


def _times(u: Interval, v: Interval) -> Interval:
    """Products of intervals; zero times an infinite end is zero."""
    with np.errstate(invalid="ignore"):
        products = [
            np.nan_to_num(a * b, nan=0.0, posinf=np.inf, neginf=-np.inf) for a in u for b in v
        ]
    products = list(np.broadcast_arrays(*products))
    return np.minimum.reduce(products), np.maximum.reduce(products)


def _reciprocal(u: Interval) -> Interval:
    """Reciprocal of an interval of positive numbers whose lower end may not show that."""
    with np.errstate(divide="ignore"):
        return 1 / np.asarray(u[1]), 1 / np.maximum(u[0], 0.0)
