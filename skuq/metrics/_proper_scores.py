"""Proper scores of predicted probabilities.

scikit-learn has both (`log_loss`; `brier_score_loss` of several classes from 1.7 on). These
take columns in any order, name rows that are not probabilities, and cost no table of one-hot
labels, which makes them faster where classes are many.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.validation import columns_and_proba, weights


def brier_score(
    y_true: ArrayLike,
    proba: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean squared distance between the probabilities and the one-hot true labels.

    Parameters
    ----------
    y_true, proba, classes, sample_weight
        As in `calibration_table`.

    Returns
    -------
    float
        Squares summed over the classes and averaged over the samples, in [0, 2]; 0 is
        best. With two classes this is twice the one-column form.

    References
    ----------
    .. [1] Brier, "Verification of Forecasts Expressed in Terms of Probability",
       Monthly Weather Review 78(1), 1950.

    Examples
    --------
    >>> from skuq.metrics import brier_score
    >>> brier_score([0, 1], [[1.0, 0.0], [0.5, 0.5]])
    0.25
    """
    column, checked = columns_and_proba(y_true, proba, classes)
    residual = checked.astype(np.float64)
    residual[np.arange(len(column)), column] -= 1.0
    return _mean(np.einsum("ij,ij->i", residual, residual), sample_weight)


def negative_log_likelihood(
    y_true: ArrayLike,
    proba: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Mean negative logarithm of the probability given to the true label.

    Parameters
    ----------
    y_true, proba, classes, sample_weight
        As in `calibration_table`.

    Returns
    -------
    float
        In nats, >= 0; 0 is best. As in `sklearn.metrics.log_loss`, a probability of 0
        counts as the machine epsilon of its dtype, so that the result is finite.

    Examples
    --------
    >>> from skuq.metrics import negative_log_likelihood
    >>> round(negative_log_likelihood([0, 1], [[1.0, 0.0], [0.5, 0.5]]), 4)
    0.3466
    """
    column, checked = columns_and_proba(y_true, proba, classes)
    likelihood = checked[np.arange(len(column)), column]
    clipped = np.clip(likelihood.astype(np.float64), np.finfo(likelihood.dtype).eps, 1.0)
    return _mean(-np.log(clipped), sample_weight)


def _mean(losses: FloatArray, sample_weight: ArrayLike | None) -> float:
    weight = None if sample_weight is None else weights(sample_weight, len(losses))
    return float(np.average(losses, weights=weight))
