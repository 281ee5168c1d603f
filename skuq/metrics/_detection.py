"""Detection of out-of-distribution inputs, or of wrong predictions, by uncertainty."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import UndefinedMetricWarning

from skuq.base import BoolArray, FloatArray
from skuq.metrics._errors import errors_and_uncertainty
from skuq.sample_weights import sum_rounding, weights
from skuq.validation import finite, warn_user


class Detection(NamedTuple):
    """Separation of positives from negatives by uncertainty.

    Attributes
    ----------
    auroc : float
        Area under the ROC curve, in [0, 1]; 0.5 for a random score.
    aupr : float
        Average precision, in [0, 1]; equal to the share of positives for a random score.
    fpr95 : float
        False positive rate at the highest threshold that detects at least 95% of the
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
    """Measure how well uncertainty separates positives from negatives.

    Positives are the inputs that should be more uncertain. If these are out-of-distribution inputs,
    negatives are in-distribution inputs; if they are wrong predictions, negatives are right
    predictions.

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
    # Imported here because the import is slow and most metrics do not need it.
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
    """Measure how well uncertainty separates wrong predictions from right ones.

    Parameters
    ----------
    y_true, y_pred, uncertainty, sample_weight
        As in `risk_coverage_curve`, but only for classification: the prediction of a regressor is
        neither right nor wrong.

    Returns
    -------
    Detection
        Detection metrics; the positives are the wrong predictions.

    Raises
    ------
    ValueError
        If all predictions are right or all are wrong, or if a label is a number with decimals.

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
    """AUROC of detecting wrong predictions; NaN if undefined.

    Suitable for cross-validation: on a fold in which all predictions are right, this function
    returns NaN with a warning, whereas `misclassification_detection` raises an error.

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
    """Error message if all predictions are right or all are wrong; otherwise None."""
    if wrong.any() and not wrong.all():
        return None
    return (
        "Detection of misclassified samples needs both right and wrong predictions, got only "
        f"{'wrong' if wrong.any() else 'right'} predictions for {len(wrong)} samples; use more "
        "samples."
    )
