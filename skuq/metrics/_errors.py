"""Input checks of metrics that compare losses with uncertainty."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skuq.base import BoolArray, FloatArray
from skuq.sample_weights import weights
from skuq.validation import Loss, check_same_length, checked_labels, finite


def errors_and_uncertainty(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    uncertainty: ArrayLike,
    sample_weight: ArrayLike | None = None,
) -> tuple[BoolArray, FloatArray, FloatArray]:
    """Check the inputs; return a mask of wrong labels, the uncertainty and the weights.

    Samples with weight 0 are dropped.
    """
    truth, predicted = checked_labels(y_true, "y_true"), checked_labels(y_pred, "y_pred")
    scores = finite(uncertainty, "uncertainty")
    check_same_length(y_true=truth, y_pred=predicted, uncertainty=scores)
    if (truth.dtype.kind == "U") != (predicted.dtype.kind == "U"):
        raise ValueError(
            f"`y_true` has labels of dtype {truth.dtype} and `y_pred` of dtype "
            f"{predicted.dtype}; pass predictions in the same form as the true labels."
        )
    _refuse_quantities(y_true=truth, y_pred=predicted)
    return _counted(truth != predicted, scores, sample_weight)


def losses_and_uncertainty(
    y_true: ArrayLike,
    y_pred: ArrayLike,
    uncertainty: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    loss: Loss,
) -> tuple[NDArray[Any], FloatArray, FloatArray]:
    """Check the inputs; return the loss of each prediction, its uncertainty and weight.

    Samples with weight 0 are dropped.
    """
    if loss not in get_args(Loss):
        raise ValueError(f"`loss` must be one of {get_args(Loss)}, got {loss!r}.")
    if loss == "zero_one":
        return errors_and_uncertainty(y_true, y_pred, uncertainty, sample_weight)
    truth, predicted = finite(y_true, "y_true"), finite(y_pred, "y_pred")
    scores = finite(uncertainty, "uncertainty")
    check_same_length(y_true=truth, y_pred=predicted, uncertainty=scores)
    error = np.abs(predicted - truth)
    return _counted(error**2 if loss == "squared_error" else error, scores, sample_weight)


def _counted(
    losses: NDArray[Any], scores: FloatArray, sample_weight: ArrayLike | None
) -> tuple[NDArray[Any], FloatArray, FloatArray]:
    """Losses, uncertainty and weights of the samples with nonzero weight."""
    if sample_weight is None:
        return losses, scores, np.ones(len(scores))
    weight = weights(sample_weight, len(scores))
    counted = weight > 0
    return losses[counted], scores[counted], weight[counted]


def _refuse_quantities(**arrays: NDArray[Any]) -> None:
    """Refuse numbers with decimals, as scikit-learn does: these are not labels of classes."""
    for name, values in arrays.items():
        fraction = values != np.floor(values) if values.dtype.kind == "f" else np.zeros(1, bool)
        if fraction.any():
            raise ValueError(
                f"`{name}` must contain labels, got the quantity {values[fraction][0]:g} in row "
                f"{fraction.argmax()}. For quantities, pass `loss='squared_error'` or "
                "`loss='absolute_error'` to `area_under_risk_coverage`, `risk_coverage_curve`, "
                "`RiskCoverageDisplay` or `uncertainty_scorer`."
            )
