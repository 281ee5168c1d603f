"""Calibration errors and scores of predicted probabilities, intervals and quantiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import FloatArray
from skuq.calibration import BinSums, Strategy, bin_edges, bin_sums, top_label_predictions
from skuq.labels import columns_and_proba
from skuq.quantities import check_coverage, values_and_limits, values_and_quantiles
from skuq.validation import check_n_bins, weighted_mean, weights

if TYPE_CHECKING:
    import pandas as pd


class CalibrationTable(NamedTuple):
    """Confidence and accuracy of predictions, one row per confidence bin.

    Attributes
    ----------
    lower, upper : ndarray of shape (n_bins,), float64
        Edges of the bins ``[lower, upper)``; the last bin includes its upper edge.
    count : ndarray of shape (n_bins,), int64, or float64 with weights
        Number of samples in each bin, or sum of their weights.
    confidence, accuracy : ndarray of shape (n_bins,), float64
        Mean top-label probability, and share of correct predictions; NaN in an empty bin.
    gap : ndarray of shape (n_bins,), float64
        ``accuracy - confidence``: negative where the model is overconfident.
    """

    lower: FloatArray
    upper: FloatArray
    count: NDArray[Any]  # type: ignore[assignment]  # hides tuple.count, which is not needed
    confidence: FloatArray
    accuracy: FloatArray
    gap: FloatArray

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame with one row per bin."""
        import pandas as pd

        return pd.DataFrame(self._asdict())


def calibration_table(
    y_true: ArrayLike,
    proba: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    n_bins: int = 10,
    strategy: Strategy = "uniform",
    sample_weight: ArrayLike | None = None,
) -> CalibrationTable:
    """Compare top-label confidence with accuracy, bin by bin.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels.
    proba : array-like or DataFrame of shape (n_samples, n_classes)
        Predicted probabilities. Each row must sum to 1 within 1e-4, or within the rounding error of
        half precision or of a fixed number of decimals. Columns that are named after labels, as
        ``yes`` or ``p(yes)``, can be in any order; other names of labels raise an error.
    classes : array-like of shape (n_classes,), optional
        Labels in column order, such as ``estimator.classes_``. Default: the labels in the column
        names, or else the sorted labels of `y_true`, one for each column.
    n_bins : int, default=10
        Number of bins.
    strategy : {"uniform", "quantile"}, default="uniform"
        "uniform": bins of equal width on [0, 1]. "quantile": bins of equal numbers of samples,
        between the smallest and the largest confidence. Samples of equal confidence share a bin, so
        quantile bins with ties can have unequal numbers of samples, or none.
    sample_weight : array-like of shape (n_samples,), optional
        Weights >= 0; a sample of weight 2 counts twice. Default: 1 for every sample.

    Returns
    -------
    CalibrationTable
        Confidences are rounded to nine decimals, as in `skuq.CalibrationAuditor`.

    References
    ----------
    Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017 (uniform
    bins). Nguyen, O'Connor, "Posterior Calibration and Exploratory Analysis for Natural Language
    Processing Models", EMNLP 2015 (equal-mass bins).

    Examples
    --------
    >>> from skuq.metrics import calibration_table
    >>> proba = [[0.9, 0.1], [0.7, 0.3], [0.1, 0.9], [0.3, 0.7]]
    >>> table = calibration_table(["a", "b", "b", "b"], proba, n_bins=4)
    >>> table.count
    array([0, 0, 2, 2])
    """
    sums = _sums(y_true, proba, classes, n_bins, strategy, sample_weight)
    return CalibrationTable(
        sums.lower, sums.upper, sums.count, sums.mean_confidence, sums.accuracy, sums.gap
    )


def expected_calibration_error(
    y_true: ArrayLike,
    proba: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    n_bins: int = 10,
    strategy: Strategy = "uniform",
    sample_weight: ArrayLike | None = None,
) -> float:
    """Compute the expected calibration error (ECE): the mean distance of confidence from accuracy.

    Parameters
    ----------
    y_true, proba, classes, n_bins, strategy, sample_weight
        As in `calibration_table`.

    Returns
    -------
    float
        Mean of ``|gap|`` over the bins, weighted by bin size, in [0, 1]; 0 is best.

    Examples
    --------
    >>> from skuq.metrics import expected_calibration_error
    >>> expected_calibration_error([0, 0, 0, 1], [[0.75, 0.25]] * 4)
    0.0
    """
    sums = _sums(y_true, proba, classes, n_bins, strategy, sample_weight)
    return sums.expected_calibration_error


def _sums(
    y_true: ArrayLike,
    proba: ArrayLike,
    classes: ArrayLike | None,
    n_bins: int,
    strategy: Strategy,
    sample_weight: ArrayLike | None,
) -> BinSums:
    check_n_bins(n_bins)
    predictions = top_label_predictions(y_true, proba, classes=classes)
    weight = None
    if sample_weight is not None:
        weight = weights(sample_weight, len(predictions.confidence))
        predictions, weight = predictions.at(weight > 0), weight[weight > 0]
    edges = bin_edges(predictions.confidence, int(n_bins), strategy, weight=weight)
    return bin_sums(predictions, edges, weight=weight)


# Unlike scikit-learn's `brier_score_loss` and `log_loss`, the next two functions accept columns in
# any order, name the invalid rows in error messages, and need no memory for one-hot labels.


def brier_score(
    y_true: ArrayLike,
    proba: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Compute the mean squared distance between the probabilities and the one-hot true labels.

    Parameters
    ----------
    y_true, proba, classes, sample_weight
        As in `calibration_table`.

    Returns
    -------
    float
        In [0, 2]; 0 is best. With two classes, this is twice scikit-learn's `brier_score_loss`.

    References
    ----------
    Brier, "Verification of Forecasts Expressed in Terms of Probability", Monthly Weather Review
    78(1), 1950.

    Examples
    --------
    >>> from skuq.metrics import brier_score
    >>> brier_score([0, 1], [[1.0, 0.0], [0.5, 0.5]])
    0.25
    """
    column, checked, _ = columns_and_proba(y_true, proba, classes)
    residual = checked.astype(np.float64)
    residual[np.arange(len(column)), column] -= 1.0
    return weighted_mean(np.einsum("ij,ij->i", residual, residual), sample_weight)


def negative_log_likelihood(
    y_true: ArrayLike,
    proba: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Compute the mean negative logarithm of the predicted probability of the true label.

    Parameters
    ----------
    y_true, proba, classes, sample_weight
        As in `calibration_table`.

    Returns
    -------
    float
        In nats, >= 0; 0 is best. As in `sklearn.metrics.log_loss`, probabilities below the machine
        epsilon of their dtype (for half precision: of float32) are replaced by this epsilon.

    Examples
    --------
    >>> from skuq.metrics import negative_log_likelihood
    >>> round(negative_log_likelihood([0, 1], [[1.0, 0.0], [0.5, 0.5]]), 4)
    0.3466
    """
    column, checked, _ = columns_and_proba(y_true, proba, classes)
    likelihood = checked[np.arange(len(column)), column]
    clipped = np.clip(likelihood.astype(np.float64), np.finfo(likelihood.dtype).eps, 1.0)
    return weighted_mean(-np.log(clipped), sample_weight)


def interval_score(
    y_true: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    *,
    coverage: float = 0.9,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Compute the interval score: mean width plus a penalty for values outside their intervals.

    The penalty is the distance of the value from the interval times ``2 / (1 - coverage)``. The
    expected score, also called the Winkler score, is smallest for the interval between the true
    quantiles at ``(1 - coverage) / 2`` and ``(1 + coverage) / 2``.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True values.
    lower, upper : array-like of shape (n_samples,)
        Limits of the intervals, in units of the target.
    coverage : float, default=0.9
        Nominal coverage of the intervals, in (0, 1).
    sample_weight : array-like of shape (n_samples,), optional
        As in `calibration_table`.

    Returns
    -------
    float
        In units of the target, >= 0; smaller is better. Infinite if a limit is infinite.

    References
    ----------
    Gneiting, Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", Journal of the
    American Statistical Association 102, 2007 (Eq. 43).

    Examples
    --------
    >>> from skuq.metrics import interval_score
    >>> round(interval_score([1.0, 2.0, 5.0], [0.0, 1.0, 3.0], [2.0, 3.0, 4.5], coverage=0.8), 6)
    3.5
    """
    check_coverage(coverage)
    truth, low, high = values_and_limits(y_true, lower, upper)
    outside = np.maximum(low - truth, 0.0) + np.maximum(truth - high, 0.0)
    return weighted_mean(high - low + 2 / (1 - coverage) * outside, sample_weight)  # Eq. 43


def interval_coverage(
    y_true: ArrayLike, lower: ArrayLike, upper: ArrayLike, *, sample_weight: ArrayLike | None = None
) -> float:
    """Compute the fraction of true values inside their intervals, which include both limits.

    Parameters
    ----------
    y_true, lower, upper, sample_weight
        As in `interval_score`.

    Returns
    -------
    float
        In [0, 1]; the best value is the nominal coverage of the intervals.

    Examples
    --------
    >>> from skuq.metrics import interval_coverage
    >>> interval_coverage([1.0, 2.0, 5.0, 3.0], [0.0, 1.0, 3.0, 3.0], [2.0, 3.0, 4.5, 4.0])
    0.75
    """
    truth, low, high = values_and_limits(y_true, lower, upper)
    return weighted_mean(((low <= truth) & (truth <= high)).astype(np.float64), sample_weight)


def pinball_loss(
    y_true: ArrayLike,
    y_quantiles: ArrayLike,
    levels: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Average the pinball loss of predicted quantiles over samples and levels.

    The expected loss is smallest for the true quantiles. Twice the average over evenly spaced
    levels, such as 0.05, 0.15, ..., 0.95, approximates the continuous ranked probability score.

    Parameters
    ----------
    y_true, sample_weight
        As in `interval_score`.
    y_quantiles : array-like of shape (n_samples, n_levels)
        Predicted quantiles, one column for each level, in units of the target.
    levels : array-like of shape (n_levels,)
        Levels of the quantiles, in (0, 1).

    Returns
    -------
    float
        In units of the target, >= 0; smaller is better.

    References
    ----------
    Koenker, Bassett, "Regression Quantiles", Econometrica 46(1), 1978.

    Examples
    --------
    >>> from skuq.metrics import pinball_loss
    >>> round(pinball_loss([1.0, 2.0], [[0.0, 1.5], [1.0, 4.0]], levels=[0.1, 0.9]), 6)
    0.1125
    """
    truth, quantiles, asked = values_and_quantiles(y_true, y_quantiles, levels)
    above = truth[:, None] - quantiles  # (n_samples, n_levels)
    return weighted_mean(np.maximum(asked * above, (asked - 1) * above).mean(axis=1), sample_weight)
