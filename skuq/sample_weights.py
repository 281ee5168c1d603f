"""Weights of samples: numbers of samples, with one meaning everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import _check_sample_weight

from skuq.base import FloatArray
from skuq.validation import finite, warn_user

#: Mean weights that can be numbers of samples; others are taken to be meant as proportions.
FEWEST_SAMPLES, MOST_SAMPLES = 0.1, 10.0
#: Sum of weights, up to which whole numbers of samples are exact.
LARGEST_SUM = 2.0**53


def weights(sample_weight: ArrayLike, n_samples: int) -> FloatArray:
    """Sample weights as a float64 array, checked: a weight is a number of samples."""
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
    _refuse_endless(weight)
    return weight


def training_weights(sample_weight: Any, n_samples: int) -> FloatArray:
    """Weights for a `fit`, as scikit-learn takes them: one number is that of each sample.

    A weight is a number of samples, and 0 leaves one out. A mean that can hardly be a number of
    samples is a warning: uncertainty depends on how many there are.
    """
    weight = unwarned_weights(sample_weight, n_samples)
    warn_of_relative_weights(weight)
    return weight


def unwarned_weights(sample_weight: Any, n_samples: int) -> FloatArray:
    """Weights for a `fit`, where they are looked at before the step that warns of their mean."""
    weight: FloatArray = _check_sample_weight(
        sample_weight, np.empty((n_samples, 0)), dtype=np.float64, ensure_non_negative=True
    )
    if not weight.any():  # which older versions of scikit-learn let pass
        raise ValueError("`sample_weight` must have at least one non-zero number, got zeros alone.")
    _refuse_endless(weight)
    return weight


def warn_of_relative_weights(weight: FloatArray) -> None:
    """Warn of weights that do not look like numbers of samples, where their size counts."""
    warn_of_mean_weight(float(weight.sum()), int(np.count_nonzero(weight)), len(weight))


def warn_of_mean_weight(total: float, n_counted: int, n_samples: int | None = None) -> None:
    """The same, given the sum of weights, how many are not 0, and how many there are."""
    mean = total / n_counted
    low, high = FEWEST_SAMPLES * (1 - 1e-9), MOST_SAMPLES * (1 + 1e-9)  # of a mean of rounded ones
    if not low <= mean <= high:
        name = "w" if n_counted == n_samples else "w[w > 0]"
        warn_user(
            f"The mean of `sample_weight` is {mean:.3g}. A weight is a number of samples, 2 is the "
            f"sample twice: these weights make {total:.3g} samples of {n_counted}, and "
            "uncertainty depends on how many there are. If only their proportions are meant, "
            f"divide them by their mean: w / {name}.mean()."
        )


def _refuse_endless(weight: FloatArray) -> None:
    """Refuse weights of which a sum or a square would overflow."""
    largest = float(weight.max())
    if largest > LARGEST_SUM / len(weight):
        raise ValueError(
            f"The sum of `sample_weight` is too large: the largest weight is {largest:.3g}, and "
            f"all of them may add up to {LARGEST_SUM:.3g} at most. A weight is a number of "
            "samples; if only proportions are meant, divide the weights by the largest."
        )


def sum_rounding(n_terms: int) -> float:
    """Upper bound on the relative rounding error when comparing two sums of n weights."""
    return 2 * n_terms * float(np.finfo(np.float64).eps)


def weighted_mean(values: FloatArray, sample_weight: ArrayLike | None) -> float:
    """Mean over the samples; one of weight 0 is left out, even if its value is infinite."""
    if sample_weight is None:
        return float(values.mean())
    weight = weights(sample_weight, len(values))
    counted = weight > 0
    return float(np.average(values[counted], weights=weight[counted]))
