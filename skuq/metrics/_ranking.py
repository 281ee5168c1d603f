"""Uncertainty as a ranking of the samples: selective prediction, and detection.

Detection is of out-of-distribution inputs, or of wrong predictions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma
from sklearn.exceptions import UndefinedMetricWarning

from skuq.base import BoolArray, FloatArray
from skuq.validation import (
    Loss,
    errors_and_uncertainty,
    finite,
    losses_and_uncertainty,
    sum_rounding,
    warn_user,
    weights,
)


class RiskCoverage(NamedTuple):
    """Risk-coverage curve, one point per distinct value of the uncertainty.

    Attributes
    ----------
    coverage : ndarray of shape (n_thresholds,), float64
        Share of samples answered, increasing, in (0, 1].
    risk : ndarray of shape (n_thresholds,), float64
        Mean loss of the samples answered: the error rate, in [0, 1]; for quantities the mean
        squared error, in squared units of the target, or the mean absolute error, in its units.
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
    loss: Loss = "zero_one",
    sample_weight: ArrayLike | None = None,
) -> RiskCoverage:
    """Error among the least uncertain samples, at every coverage.

    Samples of equal uncertainty are answered together or not at all, so the curve
    does not depend on the order of the rows.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,)
        True and predicted labels, or quantities in the same unit.
    uncertainty : array-like of shape (n_samples,)
        Any finite score that is larger where the prediction is less certain. Only its order
        matters, so that a variance and its square root give the same.
    loss : {"zero_one", "squared_error", "absolute_error"}, default="zero_one"
        Loss of one prediction. The first is 1 for a wrong label; the others are for quantities.
    sample_weight : array-like of shape (n_samples,), optional
        Weights >= 0; a weight of 2 counts as the sample twice. Default: 1 each.

    Returns
    -------
    RiskCoverage
        Arrays of shape (n_thresholds,), by increasing coverage. The last point is the
        mean loss of all samples: error rate, mean squared or mean absolute error.

    Raises
    ------
    ValueError
        If the inputs do not fit together, `uncertainty` is not finite, or the loss is that of
        labels and a value is a number with decimals.

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

    Samples of equal uncertainty count as if in random order: each carries the mean
    loss of its tie block, which gives the expected value over that order.

    Parameters
    ----------
    y_true, y_pred, uncertainty, loss
        As in `risk_coverage_curve`.
    sample_weight : array-like of shape (n_samples,), optional
        Weights >= 0; a weight of 2 counts as the sample twice. Coverage starts at one sample,
        so that their scale matters: let them add up to the number of samples that they stand
        for, not to 1. Default: 1 each.

    Returns
    -------
    float
        Mean loss of all samples if `uncertainty` is constant, less if it ranks well; 0 is best.
        In [0, 1] for labels; for quantities in squared units of the target, or in its units.

    Raises
    ------
    ValueError
        As `risk_coverage_curve`.

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
        expected_loss = np.repeat(losses / size, size.astype(np.int64))  # least uncertain first
        return float((np.cumsum(expected_loss) / np.arange(1, len(expected_loss) + 1)).mean())
    # The sum over a block of n samples with mean loss r, after N samples with summed loss E, of
    # (E + j r) / (N + j) for j = 1 .. n, written for n and N that need not be integers.
    before, losses_before = np.cumsum(size) - size, np.cumsum(losses) - losses
    harmonic = digamma(before + size + 1) - digamma(before + 1)
    risk = losses + (losses_before - losses / size * before) * harmonic
    return float(risk.sum() / size.sum())


def _tie_blocks(
    losses: NDArray[Any], scores: FloatArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Distinct uncertainties in increasing order, the weight of samples and summed loss at each."""
    threshold, block = np.unique(scores, return_inverse=True)
    size, summed = (np.bincount(block, weights=share) for share in (weight, weight * losses))
    return threshold, size.astype(np.float64), summed.astype(np.float64)


class Detection(NamedTuple):
    """Separation of positives from negatives by uncertainty.

    Attributes
    ----------
    auroc : float
        Area under the ROC curve, in [0, 1]; 0.5 for a random score.
    aupr : float
        Average precision, in [0, 1]; the share of positives for a random score.
    fpr95 : float
        False positive rate at the highest threshold that finds at least 95% of the
        positives, in [0, 1]; lower is better.
    """

    auroc: float
    aupr: float
    fpr95: float


def detection_metrics(
    uncertainty_negative: ArrayLike,
    uncertainty_positive: ArrayLike,
    *,
    weight_negative: ArrayLike | None = None,
    weight_positive: ArrayLike | None = None,
) -> Detection:
    """Measure how well uncertainty tells positives from negatives.

    Positives are the inputs that should be more uncertain: out-of-distribution inputs
    against inputs of the training distribution, or wrong predictions against right ones.

    Parameters
    ----------
    uncertainty_negative : array-like of shape (n_negative,)
        Finite uncertainty of the negatives.
    uncertainty_positive : array-like of shape (n_positive,)
        Finite uncertainty of the positives.
    weight_negative : array-like of shape (n_negative,), optional
        Sample weights of the negatives, >= 0. Default: 1 each.
    weight_positive : array-like of shape (n_positive,), optional
        Sample weights of the positives.

    Returns
    -------
    Detection
        AUROC, average precision and false positive rate at 95% true positive rate.

    Raises
    ------
    ValueError
        If either input is empty, not finite or not one-dimensional.

    References
    ----------
    .. [1] Hendrycks, Gimpel, "A Baseline for Detecting Misclassified and
       Out-of-Distribution Examples in Neural Networks", ICLR 2017.
    .. [2] Liang, Li, Srikant, "Enhancing the Reliability of Out-of-Distribution Image
       Detection in Neural Networks", ICLR 2018 (FPR at 95% TPR).

    Examples
    --------
    >>> from skuq.metrics import detection_metrics
    >>> detection_metrics([0.1, 0.2, 0.6, 0.3], [0.5, 0.9])
    Detection(auroc=0.875, aupr=0.8333333333333333, fpr95=0.25)
    """
    negative = finite(uncertainty_negative, "uncertainty_negative")
    positive = finite(uncertainty_positive, "uncertainty_positive")
    is_positive = np.repeat([False, True], [len(negative), len(positive)])
    scores = np.concatenate([negative, positive])
    weight = None
    if weight_negative is not None or weight_positive is not None:
        weight = np.concatenate(
            [_weights(weight_negative, negative), _weights(weight_positive, positive)]
        )
    # It takes long to import, and most metrics do without.
    from sklearn.metrics import auc, average_precision_score, roc_curve

    fpr, tpr, _ = roc_curve(is_positive, scores, sample_weight=weight, drop_intermediate=False)
    enough = 0.95 * (1 - sum_rounding(len(scores)))
    return Detection(
        auroc=float(auc(fpr, tpr)),
        aupr=float(average_precision_score(is_positive, scores, sample_weight=weight)),
        fpr95=float(fpr[np.searchsorted(tpr, enough)]),
    )


def _weights(sample_weight: ArrayLike | None, scores: FloatArray) -> FloatArray:
    return np.ones(len(scores)) if sample_weight is None else weights(sample_weight, len(scores))


def misclassification_detection(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    uncertainty: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
) -> Detection:
    """Measure how well uncertainty tells wrong predictions from right ones.

    Parameters
    ----------
    y_true, y_pred, uncertainty, sample_weight
        As in `risk_coverage_curve`; labels only, because a predicted quantity is neither right
        nor wrong.

    Returns
    -------
    Detection
        The positives are the wrong predictions.

    Raises
    ------
    ValueError
        If all predictions are right or all are wrong: there is nothing to tell apart. Or if a
        label is a number with decimals.

    Examples
    --------
    >>> from skuq.metrics import misclassification_detection
    >>> misclassification_detection([0, 1, 1], [0, 1, 0], [0.1, 0.2, 0.7]).auroc
    1.0
    """
    wrong, scores, weight = errors_and_uncertainty(y_true, y_pred, uncertainty, sample_weight)
    problem = _one_sided(wrong)
    if problem:
        raise ValueError(problem)
    return detection_metrics(
        scores[~wrong],
        scores[wrong],
        weight_negative=weight[~wrong],
        weight_positive=weight[wrong],
    )


def misclassification_auroc(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    uncertainty: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
) -> float:
    """AUROC of detecting wrong predictions, NaN where it is undefined.

    The form for cross-validation: a fold on which all predictions are right gives NaN
    and a warning, where `misclassification_detection` raises.

    Parameters
    ----------
    y_true, y_pred, uncertainty, sample_weight
        As in `misclassification_detection`.

    Returns
    -------
    float
        In [0, 1], or NaN with an `sklearn.exceptions.UndefinedMetricWarning` if all
        predictions are right or all are wrong.

    Examples
    --------
    >>> from skuq.metrics import misclassification_auroc
    >>> misclassification_auroc([0, 1, 1], [0, 1, 0], [0.1, 0.2, 0.7])
    1.0
    """
    wrong, scores, weight = errors_and_uncertainty(y_true, y_pred, uncertainty, sample_weight)
    problem = _one_sided(wrong)
    if problem:
        warn_user(f"{problem} The result is NaN.", UndefinedMetricWarning)
        return float("nan")
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(wrong, scores, sample_weight=weight))


def _one_sided(wrong: BoolArray) -> str | None:
    """Message for predictions that are all right or all wrong, else None."""
    if wrong.any() and not wrong.all():
        return None
    return (
        "Detection of misclassified samples needs both right and wrong predictions, got "
        f"{len(wrong)} samples that are all {'wrong' if wrong.any() else 'right'}; use more "
        "samples."
    )
