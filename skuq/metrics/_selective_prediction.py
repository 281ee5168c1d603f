"""Selective prediction: error among the least uncertain samples when all others are rejected."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma

from skuq.base import FloatArray
from skuq.metrics._errors import losses_and_uncertainty
from skuq.sample_weights import warn_of_relative_weights
from skuq.validation import Loss


class RiskCoverage(NamedTuple):
    """Risk-coverage curve, one point per distinct value of the uncertainty.

    Attributes
    ----------
    coverage : ndarray of shape (n_thresholds,), float64
        Share of accepted samples, increasing, in (0, 1].
    risk : ndarray of shape (n_thresholds,), float64
        Mean loss of the accepted samples. In classification: the error rate, in [0, 1]. In
        regression: the mean squared error, in squared units of the target, or the mean absolute
        error, in units of the target.
    threshold : ndarray of shape (n_thresholds,), float64
        Largest uncertainty of accepted samples.
    """

    coverage: FloatArray
    risk: FloatArray
    threshold: FloatArray


def risk_coverage_curve(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    uncertainty: ArrayLike,
    *,
    loss: Loss = "zero_one",
    sample_weight: ArrayLike | None = None,
) -> RiskCoverage:
    """Compute the risk-coverage curve: the mean loss of the least uncertain samples.

    Samples of equal uncertainty are accepted together. The curve therefore does not depend on the
    order of the rows.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,)
        True and predicted labels; in regression, true and predicted values in the same unit.
    uncertainty : array-like of shape (n_samples,)
        Finite score, larger for less certain predictions. Only its order matters: a variance and
        its square root give the same curve.
    loss : {"zero_one", "squared_error", "absolute_error"}, default="zero_one"
        Loss of one prediction. "zero_one" is 1 for a wrong label and 0 for a correct label. The
        squared and the absolute error are for regression.
    sample_weight : array-like of shape (n_samples,), optional
        Weights >= 0; a sample of weight 2 counts twice. Default: 1 each.

    Returns
    -------
    RiskCoverage
        Arrays of shape (n_thresholds,), by increasing coverage. The last point is the
        mean loss of all samples: error rate, mean squared or mean absolute error.

    Raises
    ------
    ValueError
        If the inputs do not match each other, `uncertainty` is not finite, or `loss` is "zero_one"
        and a label is a number with decimals.

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
    >>> prices, predicted, std = [10.0, 20.0, 30.0], [11.0, 20.0, 24.0], [0.5, 0.1, 2.0]
    >>> risk_coverage_curve(prices, predicted, std, loss="absolute_error").risk
    array([0.        , 0.5       , 2.33333333])
    """
    checked = losses_and_uncertainty(y_true, y_pred, uncertainty, sample_weight, loss=loss)
    threshold, size, losses = _tie_blocks(*checked)
    answered = np.cumsum(size)
    return RiskCoverage(answered / answered[-1], np.cumsum(losses) / answered, threshold)


def area_under_risk_coverage(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    uncertainty: ArrayLike,
    *,
    loss: Loss = "zero_one",
    sample_weight: ArrayLike | None = None,
) -> float:
    """Average the selective risk over all coverages from 1/n to 1 (AURC).

    Ties count as if in random order: each sample has the mean loss of all samples with the same
    uncertainty. This gives the expected value over random orders.

    Parameters
    ----------
    y_true, y_pred, uncertainty, loss
        As in `risk_coverage_curve`.
    sample_weight : array-like of shape (n_samples,), optional
        Weights >= 0; a sample of weight 2 counts twice. The scale of the weights matters,
        since coverage starts at one sample: weights should sum to the number of samples that they
        represent, not to 1. A mean weight below 0.1 or above 10 raises a warning. Default: 1 each.

    Returns
    -------
    float
        0 is best. If `uncertainty` is constant, the result is the mean loss of all samples; it is
        smaller if `uncertainty` ranks well. In [0, 1] for classification. For regression, in
        squared units of the target ("squared_error") or in units of the target ("absolute_error").

    Raises
    ------
    ValueError
        As in `risk_coverage_curve`.

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
    checked = losses_and_uncertainty(y_true, y_pred, uncertainty, sample_weight, loss=loss)
    _, size, losses = _tie_blocks(*checked)
    if sample_weight is None:
        # One expected loss per sample, in ascending order of uncertainty.
        expected_loss = np.repeat(losses / size, size.astype(np.int64))
        return float((np.cumsum(expected_loss) / np.arange(1, len(expected_loss) + 1)).mean())
    warn_of_relative_weights(checked[2])
    # A tie block of n samples with mean loss r, which follows N samples with summed loss E,
    # contributes the sum of (E + j r) / (N + j) for j = 1 .. n. With weights, n and N need not be
    # integers.
    before, losses_before = np.cumsum(size) - size, np.cumsum(losses) - losses
    harmonic = digamma(before + size + 1) - digamma(before + 1)
    risk = losses + (losses_before - losses / size * before) * harmonic
    return float(risk.sum() / size.sum())


def _tie_blocks(
    losses: NDArray[Any], scores: FloatArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Distinct uncertainties in increasing order, with summed weight and summed loss of each."""
    threshold, block = np.unique(scores, return_inverse=True)
    size, summed = (np.bincount(block, weights=share) for share in (weight, weight * losses))
    return threshold, size.astype(np.float64), summed.astype(np.float64)
