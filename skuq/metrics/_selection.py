"""Selective prediction: risk among the least uncertain samples, by coverage."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import digamma

from skuq.base import BoolArray, FloatArray
from skuq.validation import errors_and_uncertainty


class RiskCoverage(NamedTuple):
    """Risk-coverage curve, one point per distinct value of the uncertainty.

    Attributes
    ----------
    coverage : ndarray of shape (n_thresholds,), float64
        Share of samples answered, increasing, in (0, 1].
    risk : ndarray of shape (n_thresholds,), float64
        Error rate among the samples answered, in [0, 1].
    threshold : ndarray of shape (n_thresholds,), float64
        A sample is answered if its uncertainty is at most this.
    """

    coverage: FloatArray
    risk: FloatArray
    threshold: FloatArray


def risk_coverage_curve(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    uncertainty: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
) -> RiskCoverage:
    """Error rate among the least uncertain samples, at every coverage.

    Samples of equal uncertainty are answered together or not at all, so the curve
    does not depend on the order of the rows.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,)
        True and predicted labels.
    uncertainty : array-like of shape (n_samples,)
        Any finite score that is larger where the prediction is less certain.
    sample_weight : array-like of shape (n_samples,), optional
        Weights >= 0; a weight of 2 counts as the sample twice. Default: 1 each.

    Returns
    -------
    RiskCoverage
        Arrays of shape (n_thresholds,), by increasing coverage. The last point is the
        error rate over all samples.

    Raises
    ------
    ValueError
        If the inputs do not fit together or `uncertainty` is not finite.

    References
    ----------
    .. [1] Geifman, El-Yaniv, "Selective Classification for Deep Neural Networks",
       NeurIPS 2017.

    Examples
    --------
    >>> from skuq.metrics import risk_coverage_curve
    >>> curve = risk_coverage_curve([0, 1, 1, 0], [0, 1, 1, 1], [0.1, 0.3, 0.1, 0.8])
    >>> curve.coverage
    array([0.5 , 0.75, 1.  ])
    >>> curve.risk
    array([0.  , 0.  , 0.25])
    """
    checked = errors_and_uncertainty(y_true, y_pred, uncertainty, sample_weight)
    threshold, size, errors = _tie_blocks(*checked)
    answered = np.cumsum(size)
    return RiskCoverage(answered / answered[-1], np.cumsum(errors) / answered, threshold)


def area_under_risk_coverage(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    uncertainty: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Average the selective risk over all coverages from 1/n to 1 (AURC).

    Samples of equal uncertainty count as if in random order: each carries the mean
    error of its tie block, which gives the expected value over that order.

    Parameters
    ----------
    y_true, y_pred, uncertainty
        As in `risk_coverage_curve`.
    sample_weight : array-like of shape (n_samples,), optional
        Weights >= 0; a weight of 2 counts as the sample twice. Coverage starts at one sample,
        so that their scale matters: let them add up to the number of samples that they stand
        for, not to 1. Default: 1 each.

    Returns
    -------
    float
        In [0, 1]; 0 is best. The error rate if `uncertainty` is constant.

    References
    ----------
    .. [1] Geifman, El-Yaniv, "Selective Classification for Deep Neural Networks",
       NeurIPS 2017 (selective risk).
    .. [2] Geifman, Uziel, El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural
       Classifiers", ICLR 2019 (AURC).

    Examples
    --------
    >>> from skuq.metrics import area_under_risk_coverage
    >>> area_under_risk_coverage([0, 1, 1, 0], [0, 1, 1, 1], [0.1, 0.3, 0.2, 0.8])
    0.0625
    """
    wrong, scores, weight = errors_and_uncertainty(y_true, y_pred, uncertainty, sample_weight)
    _, size, errors = _tie_blocks(wrong, scores, weight)
    if sample_weight is None:
        expected_error = np.repeat(errors / size, size.astype(np.int64))  # least uncertain first
        return float((np.cumsum(expected_error) / np.arange(1, len(wrong) + 1)).mean())
    # The sum over a block of n samples with error rate r, after N samples with E errors, of
    # (E + j r) / (N + j) for j = 1 .. n, written for n and N that need not be integers.
    before, errors_before = np.cumsum(size) - size, np.cumsum(errors) - errors
    harmonic = digamma(before + size + 1) - digamma(before + 1)
    risk = errors + (errors_before - errors / size * before) * harmonic
    return float(risk.sum() / size.sum())


def _tie_blocks(
    wrong: BoolArray, scores: FloatArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Distinct uncertainties in increasing order, and the weights of samples and errors at each."""
    threshold, block = np.unique(scores, return_inverse=True)
    size, errors = (np.bincount(block, weights=share) for share in (weight, weight * wrong))
    return threshold, size.astype(np.float64), errors.astype(np.float64)
