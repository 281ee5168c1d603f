"""Metrics of rankings by uncertainty, for detection and selective prediction."""

from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import digamma
from sklearn.exceptions import UndefinedMetricWarning

from skuq import validation
from skuq.base import FloatArray
from skuq.validation import Loss, check_same_length, checked_labels, finite, sum_rounding, weights


class Detection(NamedTuple):
    """Scores of how well uncertainty separates positives from negatives.

    Attributes
    ----------
    auroc : float
        Area under the ROC curve, in [0, 1]; 0.5 for a random score.
    aupr : float
        Average precision, in [0, 1]; equal to the share of positives for a random score.
    fpr95 : float
        False positive rate at the highest threshold that detects at least 95% of the positives.
    """

    auroc: float
    aupr: float
    fpr95: float


def detection_metrics(
    uncertainty_negative: ArrayLike, uncertainty_positive: ArrayLike
) -> Detection:
    """Measure how well uncertainty separates positives from negatives.

    Positives are the inputs that should be more uncertain, such as out-of-distribution inputs or
    wrong predictions; negatives are all others.

    Parameters
    ----------
    uncertainty_negative, uncertainty_positive : array-like of shape (n,)
        Uncertainties of the negatives and of the positives; all must be finite.

    References
    ----------
    Hendrycks, Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in
    Neural Networks", ICLR 2017; Liang, Li, Srikant, "Enhancing the Reliability of
    Out-of-Distribution Image Detection in Neural Networks", ICLR 2018 (FPR at 95% TPR).

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
    # Import here, because importing `sklearn.metrics` is slow and most metrics do not need it.
    from sklearn.metrics import auc, average_precision_score, roc_curve

    fpr, tpr, _ = roc_curve(is_positive, scores, drop_intermediate=False)
    enough = 0.95 * (1 - sum_rounding(len(scores)))
    return Detection(
        auroc=float(auc(fpr, tpr)),
        aupr=float(average_precision_score(is_positive, scores)),
        fpr95=float(fpr[np.searchsorted(tpr, enough)]),
    )


def misclassification_auroc(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    uncertainty: ArrayLike,
    *,
    sample_weight: ArrayLike | None = None,
) -> float:
    """Compute the AUROC of detecting wrong predictions by their uncertainty.

    Parameters
    ----------
    y_true, y_pred, uncertainty, sample_weight
        As in `risk_coverage_curve`, but only for classification.

    Returns
    -------
    float
        In [0, 1]; NaN, with an `sklearn.exceptions.UndefinedMetricWarning`, if all predictions are
        right or all are wrong.

    Examples
    --------
    >>> from skuq.metrics import misclassification_auroc
    >>> misclassification_auroc([0, 1, 1], [0, 1, 0], [0.1, 0.2, 0.7])
    1.0
    """
    wrong, scores, weight = losses_and_uncertainty(y_true, y_pred, uncertainty, sample_weight)
    if wrong.all() or not wrong.any():
        validation.warn_user(
            "Detection of misclassified samples needs both right and wrong predictions, got only "
            f"{'wrong' if wrong.any() else 'right'} predictions for {len(wrong)} samples. The "
            "result is NaN; use more samples.",
            UndefinedMetricWarning,
        )
        return float("nan")
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(wrong, scores, sample_weight=weight))


class RiskCoverage(NamedTuple):
    """Risk-coverage curve, one point per distinct value of the uncertainty.

    Attributes
    ----------
    coverage : ndarray of shape (n_thresholds,), float64
        Share of accepted samples, increasing, in (0, 1].
    risk : ndarray of shape (n_thresholds,), float64
        Mean loss of the accepted samples, such as the error rate for "zero_one".
    threshold : ndarray of shape (n_thresholds,), float64
        Largest uncertainty of the accepted samples.
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
    """Compute the mean loss of the least uncertain samples, for each number of these samples.

    Samples of equal uncertainty are accepted together, so the order of rows does not matter.

    Parameters
    ----------
    y_true, y_pred : array-like of shape (n_samples,)
        True and predicted labels; in regression, true and predicted values in the same unit.
    uncertainty : array-like of shape (n_samples,)
        Finite scores, larger for less certain predictions; only the ranking by score matters.
    loss : {"zero_one", "squared_error", "absolute_error"}, default="zero_one"
        "zero_one" is 1 for a wrong label, else 0; the other two losses are for regression.
    sample_weight : array-like of shape (n_samples,), optional
        As in `calibration_table`.

    References
    ----------
    Geifman, El-Yaniv, "Selective Classification for Deep Neural Networks", NeurIPS 2017.

    Examples
    --------
    >>> from skuq.metrics import risk_coverage_curve
    >>> curve = risk_coverage_curve([0, 1, 1, 0], [0, 1, 1, 1], [0.1, 0.3, 0.1, 0.8])
    >>> curve.coverage, curve.risk
    (array([0.5 , 0.75, 1.  ]), array([0.  , 0.  , 0.25]))
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
    """Average the risk over all coverages 1/n, 2/n, ..., 1 (AURC).

    Samples of equal uncertainty share their mean loss: the expectation over their random orders.

    Parameters
    ----------
    y_true, y_pred, uncertainty, loss
        As in `risk_coverage_curve`.
    sample_weight : array-like of shape (n_samples,), optional
        Weights that sum to a number of samples, not to 1, because the smallest coverage is that of
        one sample. A mean weight below 0.1 or above 10 raises a warning.

    Returns
    -------
    float
        In [0, 1] for "zero_one", otherwise in (squared) units of the target; 0 is best.

    References
    ----------
    Geifman, Uziel, El-Yaniv, "Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers",
    ICLR 2019 (AURC).

    Examples
    --------
    >>> from skuq.metrics import area_under_risk_coverage
    >>> area_under_risk_coverage([0, 1, 1, 0], [0, 1, 1, 1], [0.1, 0.3, 0.2, 0.8])
    0.0625
    """
    checked = losses_and_uncertainty(y_true, y_pred, uncertainty, sample_weight, loss=loss)
    _, size, losses = _tie_blocks(*checked)
    if sample_weight is None:
        # Give each sample the mean loss of its tie block; samples are sorted by uncertainty.
        expected_loss = np.repeat(losses / size, size.astype(np.int64))
        return float((np.cumsum(expected_loss) / np.arange(1, len(expected_loss) + 1)).mean())
    validation.warn_of_relative_weights(checked[2])
    # Let n samples tie, with mean loss r, after N less uncertain samples of total loss E. They add
    # the sum over j = 1 .. n of (E + j r) / (N + j). Digamma functions allow fractional N and n.
    before, losses_before = np.cumsum(size) - size, np.cumsum(losses) - losses
    harmonic = digamma(before + size + 1) - digamma(before + 1)
    risk = losses + (losses_before - losses / size * before) * harmonic
    return float(risk.sum() / size.sum())


def _tie_blocks(
    losses: NDArray[Any], scores: FloatArray, weight: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return distinct uncertainties in increasing order, with their total weights and losses."""
    threshold, block = np.unique(scores, return_inverse=True)
    size, summed = (np.bincount(block, weights=share) for share in (weight, weight * losses))
    return threshold, size.astype(np.float64), summed.astype(np.float64)


def losses_and_uncertainty(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    uncertainty: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    loss: Loss = "zero_one",
) -> tuple[NDArray[Any], FloatArray, FloatArray]:
    """Check the inputs; return the losses, uncertainties and weights of the samples.

    Losses are booleans for "zero_one". Samples with weight 0 are dropped.
    """
    if loss not in get_args(Loss):
        raise ValueError(f"`loss` must be one of {get_args(Loss)}, got {loss!r}.")
    checked = checked_labels if loss == "zero_one" else finite
    truth, predicted = checked(y_true, "y_true"), checked(y_pred, "y_pred")
    scores = finite(uncertainty, "uncertainty")
    check_same_length(y_true=truth, y_pred=predicted, uncertainty=scores)
    if loss == "zero_one":
        if (truth.dtype.kind == "U") != (predicted.dtype.kind == "U"):
            raise ValueError(
                f"`y_true` has labels of dtype {truth.dtype} and `y_pred` of dtype "
                f"{predicted.dtype}; pass predictions in the same form as the true labels."
            )
        _refuse_quantities(y_true=truth, y_pred=predicted)
        losses: NDArray[Any] = truth != predicted
    else:
        losses = np.abs(predicted - truth)
        losses = losses**2 if loss == "squared_error" else losses
    if sample_weight is None:
        return losses, scores, np.ones(len(scores))
    weight = weights(sample_weight, len(scores))
    return losses[weight > 0], scores[weight > 0], weight[weight > 0]


def _refuse_quantities(**arrays: NDArray[Any]) -> None:
    for name, values in arrays.items():
        fraction = values != np.floor(values) if values.dtype.kind == "f" else np.zeros(1, bool)
        if fraction.any():
            raise ValueError(
                f"`{name}` must contain labels, got the fraction {values[fraction][0]:g} in row "
                f"{fraction.argmax()}. For regression, pass `loss='squared_error'` or "
                "`loss='absolute_error'` to `area_under_risk_coverage`, `risk_coverage_curve`, "
                "`RiskCoverageDisplay` or `uncertainty_scorer`."
            )
