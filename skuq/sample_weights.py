"""Sample weights: a weight of w always means that the sample counts w times."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import _check_sample_weight

from skuq.base import FloatArray
from skuq.validation import finite, warn_user

#: Range of plausible mean weights. If the mean is outside this range, the weights are probably
#: meant as proportions.
FEWEST_SAMPLES, MOST_SAMPLES = 0.1, 10.0
#: Largest sum of weights. Up to this number, float64 represents all integers exactly.
LARGEST_SUM = 2.0**53


def weights(sample_weight: ArrayLike, n_samples: int) -> FloatArray:
    """Validate sample weights and convert them to float64."""
    weight = finite(sample_weight, "sample_weight")
    if len(weight) != n_samples:
        raise ValueError(
            f"`sample_weight` must have one weight per sample, got {len(weight)} weights for "
            f"{n_samples} samples."
        )
    if weight.min() < 0 or weight.max() == 0:
        raise ValueError(
            "`sample_weight` must be >= 0 and not all 0, got weights from "
            f"{weight.min():.6g} to {weight.max():.6g}."
        )
    _check_sum(weight)
    return weight


def training_weights(sample_weight: Any, n_samples: int) -> FloatArray:
    """Validate the sample weights of `fit`; None means 1, and a scalar applies to all samples.

    A sample of weight w counts w times; a sample of weight 0 is left out. An implausible mean
    weight raises a warning, because uncertainty depends on the number of samples.
    """
    weight = unwarned_weights(sample_weight, n_samples)
    warn_of_relative_weights(weight)
    return weight


def unwarned_weights(sample_weight: Any, n_samples: int) -> FloatArray:
    """Validate the sample weights of `fit` like `training_weights`, without the warning."""
    weight: FloatArray = _check_sample_weight(
        sample_weight, np.empty((n_samples, 0)), dtype=np.float64, ensure_non_negative=True
    )
    if not weight.any():  # older versions of scikit-learn accept zeros
        raise ValueError("`sample_weight` must have at least one non-zero number, got only zeros.")
    _check_sum(weight)
    return weight


def warn_of_relative_weights(weight: FloatArray) -> None:
    """Warn if the mean weight is implausible, given that a weight is a number of samples."""
    warn_of_mean_weight(float(weight.sum()), int(np.count_nonzero(weight)), len(weight))


def warn_of_mean_weight(total: float, n_counted: int, n_samples: int | None = None) -> None:
    """Warn like `warn_of_relative_weights`, given the sum and the number of non-zero weights."""
    mean = total / n_counted
    low, high = FEWEST_SAMPLES * (1 - 1e-9), MOST_SAMPLES * (1 + 1e-9)  # tolerance for rounding
    if not low <= mean <= high:
        name = "w" if n_counted == n_samples else "w[w > 0]"
        warn_user(
            f"The mean of `sample_weight` is {mean:.3g}. A weight is a number of samples, so these "
            f"{n_counted} samples count as {total:.3g}; uncertainty depends on the number of "
            "samples. If only the proportions of the weights matter, divide them by their mean: "
            f"w / {name}.mean()."
        )


def _check_sum(weight: FloatArray) -> None:
    """Reject weights whose sum is too large for exact arithmetic."""
    largest = float(weight.max())
    if largest > LARGEST_SUM / len(weight):
        raise ValueError(
            f"The sum of `sample_weight` is too large: it must be at most {LARGEST_SUM:.3g}, and "
            f"the largest of {len(weight)} weights is {largest:.3g}. If only the proportions of "
            "the weights matter, divide them by the largest."
        )


def sum_rounding(n_terms: int) -> float:
    """Upper bound on the relative rounding error when comparing two sums of n weights."""
    return 2 * n_terms * float(np.finfo(np.float64).eps)


def weighted_mean(values: FloatArray, sample_weight: ArrayLike | None) -> float:
    """Weighted mean; samples of weight 0 are left out, even if their value is infinite."""
    if sample_weight is None:
        return float(values.mean())
    weight = weights(sample_weight, len(values))
    counted = weight > 0
    return float(np.average(values[counted], weights=weight[counted]))
