"""Calibration: does confidence agree with accuracy?"""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray, IntArray
from skuq.calibration._validation import columns_and_proba

if TYPE_CHECKING:
    import pandas as pd

Strategy = Literal["uniform", "quantile"]


class CalibrationTable(NamedTuple):
    """Confidence against accuracy, one row per confidence bin.

    Attributes
    ----------
    lower, upper : ndarray of shape (n_bins,), float64
        Edges of the bins ``[lower, upper)``; the last bin includes its upper edge.
    count : ndarray of shape (n_bins,), int64
        Number of samples in each bin.
    confidence, accuracy : ndarray of shape (n_bins,), float64
        Mean top-label probability and share of correct predictions, in [0, 1]; NaN
        in an empty bin.
    gap : ndarray of shape (n_bins,), float64
        ``accuracy - confidence``: negative where the model is overconfident.
    """

    lower: FloatArray
    upper: FloatArray
    count: IntArray  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
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
) -> CalibrationTable:
    """Compare top-label confidence with accuracy, bin by bin.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels.
    proba : array-like of shape (n_samples, n_classes)
        Predicted probabilities; rows sum to 1 within 1e-4.
    classes : array-like of shape (n_classes,), optional
        Labels in column order, such as ``estimator.classes_``. Default: the sorted
        labels of `y_true`, which must then be as many as the columns.
    n_bins : int, default=10
        Number of bins.
    strategy : {"uniform", "quantile"}, default="uniform"
        Bins of equal width on [0, 1], or of equal numbers of samples (between the
        smallest and the largest confidence). Equal confidences are never split, so
        quantile bins can be unequal, or empty, where there are ties.

    Returns
    -------
    CalibrationTable
        Arrays of shape (n_bins,).

    Raises
    ------
    ValueError
        If the inputs do not fit together or are not probabilities.

    References
    ----------
    .. [1] Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks",
       ICML 2017 (uniform bins).
    .. [2] Nguyen, O'Connor, "Posterior Calibration and Exploratory Analysis for
       Natural Language Processing Models", EMNLP 2015 (equal-mass bins).

    Examples
    --------
    >>> from skuq.metrics import calibration_table
    >>> proba = [[0.9, 0.1], [0.7, 0.3], [0.1, 0.9], [0.3, 0.7]]
    >>> table = calibration_table(["a", "b", "b", "b"], proba, n_bins=4)
    >>> table.count
    array([0, 0, 2, 2])
    >>> table.accuracy
    array([nan, nan, 0.5, 1. ])
    """
    if not isinstance(n_bins, Integral):
        raise ValueError(f"`n_bins` must be an integer, got {n_bins!r}.")
    if n_bins < 1:
        raise ValueError(f"`n_bins` must be >= 1, got {n_bins}.")
    if strategy not in ("uniform", "quantile"):
        raise ValueError(f"`strategy` must be 'uniform' or 'quantile', got {strategy!r}.")
    column, proba = columns_and_proba(y_true, proba, classes)
    confidence = proba.max(axis=1).astype(np.float64)
    correct = proba.argmax(axis=1) == column
    edges = _bin_edges(confidence, n_bins, strategy)
    # Inner edges only: a confidence of 1, or one rounded to just above 1, stays in.
    index = np.searchsorted(edges[1:-1], confidence, side="right")
    count = np.bincount(index, minlength=n_bins)
    size = np.where(count > 0, count, np.nan)  # empty bins have NaN means
    mean_confidence = np.bincount(index, weights=confidence, minlength=n_bins) / size
    accuracy = np.bincount(index[correct], minlength=n_bins) / size
    return CalibrationTable(
        edges[:-1], edges[1:], count, mean_confidence, accuracy, accuracy - mean_confidence
    )


def expected_calibration_error(
    y_true: ArrayLike,
    proba: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    n_bins: int = 10,
    strategy: Strategy = "uniform",
) -> float:
    """Average the distance between confidence and accuracy over the samples.

    Parameters
    ----------
    y_true, proba, classes, n_bins, strategy
        As in `calibration_table`.

    Returns
    -------
    float
        Bin-size weighted mean of ``|gap|``, in [0, 1]; 0 is best. With
        ``strategy="quantile"`` this is the equal-mass variant.

    References
    ----------
    .. [1] Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks",
       ICML 2017.

    Examples
    --------
    >>> from skuq.metrics import expected_calibration_error
    >>> proba = [[0.75, 0.25], [0.75, 0.25], [0.75, 0.25], [0.75, 0.25]]
    >>> expected_calibration_error([0, 0, 0, 1], proba)
    0.0
    """
    table = calibration_table(y_true, proba, classes=classes, n_bins=n_bins, strategy=strategy)
    return float(np.nansum(table.count * np.abs(table.gap)) / table.count.sum())


def maximum_calibration_error(
    y_true: ArrayLike,
    proba: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    n_bins: int = 10,
    strategy: Strategy = "uniform",
) -> float:
    """Find the largest distance between confidence and accuracy among the bins.

    Parameters
    ----------
    y_true, proba, classes, n_bins, strategy
        As in `calibration_table`.

    Returns
    -------
    float
        Maximum of ``|gap|`` over the bins that are not empty, in [0, 1]; 0 is best.

    References
    ----------
    .. [1] Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks",
       ICML 2017.

    Examples
    --------
    >>> from skuq.metrics import maximum_calibration_error
    >>> maximum_calibration_error([0, 1], [[0.75, 0.25], [0.5, 0.5]])
    0.5
    """
    table = calibration_table(y_true, proba, classes=classes, n_bins=n_bins, strategy=strategy)
    return float(np.nanmax(np.abs(table.gap)))


def _bin_edges(confidence: FloatArray, n_bins: int, strategy: Strategy) -> FloatArray:
    """Edges of the confidence bins, shape (n_bins + 1,)."""
    if strategy == "uniform":
        # A quotient is the float nearest to its decimal: a confidence of 0.7 starts a bin.
        return np.arange(n_bins + 1) / n_bins
    # Order statistics at floor(j n / n_bins) in integers, which quantile levels would round.
    rank = np.arange(1, n_bins) * len(confidence) // n_bins
    inner = np.partition(confidence, rank)[rank]
    return np.concatenate([[confidence.min()], inner, [confidence.max()]])
