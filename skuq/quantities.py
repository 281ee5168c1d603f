"""Predictions of quantities: how they are checked, and how they are asked of any estimator."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.validation import check_same_length, finite, finite_columns, numbers
from skuq.wrappers import walk_to


def check_coverage(coverage: float) -> None:
    """Refuse a coverage that no interval can be asked for."""
    if not 0 < coverage < 1:
        raise ValueError(f"`coverage` must lie strictly between 0 and 1, got {coverage}.")


def interval_limits(lower: ArrayLike, upper: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Limits of intervals, one each per sample; an open side is infinite."""
    low, high = numbers(lower, "lower"), numbers(upper, "upper")
    check_same_length(lower=low, upper=high)
    for name, values, beyond in (("lower", low, np.inf), ("upper", high, -np.inf)):
        bad = np.isnan(values) | (values == beyond)
        if bad.any():
            raise ValueError(
                f"`{name}` must hold limits, got {values[bad][0]} in row {bad.argmax()}; an open "
                f"side is {-beyond}."
            )
    crossed = low > high
    if crossed.any():
        row = crossed.argmax()
        raise ValueError(
            f"`lower` must be <= `upper`, got {low[row]:g} > {high[row]:g} in row {row}; sort "
            "quantiles that cross."
        )
    return low, high


def values_and_limits(
    y_true: ArrayLike, lower: ArrayLike, upper: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """True values and the limits of their intervals, one each per sample."""
    truth = finite(y_true, "y_true")
    low, high = interval_limits(lower, upper)
    check_same_length(y_true=truth, lower=low, upper=high)
    return truth, low, high


def values_and_quantiles(
    y_true: ArrayLike, y_quantiles: ArrayLike, levels: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """True values, (n_samples, n_levels) quantiles of their predictions, and the levels."""
    truth, quantiles = finite(y_true, "y_true"), finite_columns(y_quantiles, "y_quantiles")
    check_same_length(y_true=truth, y_quantiles=quantiles)
    asked = checked_levels(levels)
    if len(asked) != quantiles.shape[1]:
        raise ValueError(
            f"`y_quantiles` must have one column per level, got {quantiles.shape[1]} columns for "
            f"{len(asked)} levels."
        )
    return truth, quantiles, asked


def checked_levels(levels: ArrayLike) -> FloatArray:
    """Levels of quantiles, strictly between 0 and 1."""
    asked = finite(levels, "levels")
    if asked.min() <= 0 or asked.max() >= 1:
        raise ValueError(
            "`levels` must lie strictly between 0 and 1, got levels from "
            f"{asked.min():g} to {asked.max():g}."
        )
    return asked


def values_and_gaussian(
    y_true: ArrayLike, mean: ArrayLike, std: ArrayLike, *, mean_name: str = "mean"
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """True values, and mean and standard deviation of their predictions."""
    truth, centre, scale = finite(y_true, "y_true"), finite(mean, mean_name), finite(std, "std")
    check_same_length(**{"y_true": truth, mean_name: centre, "std": scale})
    if scale.min() <= 0:
        row = scale.argmin()
        raise ValueError(
            f"`std` must be > 0, got {scale[row]:g} in row {row}; a variance of both parts of the "
            "uncertainty, noise included, is never 0."
        )
    return truth, centre, scale


def predicted_interval(estimator: Any, X: Any, coverage: float) -> tuple[FloatArray, FloatArray]:
    """Interval of each input, by any estimator, pipeline or search with `predict_interval`."""
    check_coverage(coverage)
    model, inputs = walk_to(estimator, X, _has("predict_interval"), _missing("predict_interval"))
    lower, upper = model.predict_interval(inputs, coverage=coverage)
    return lower, upper


def predicted_quantiles(estimator: Any, X: Any, levels: ArrayLike) -> FloatArray:
    """Quantiles of each input, by any estimator, pipeline or search with `predict_quantiles`."""
    model, inputs = walk_to(estimator, X, _has("predict_quantiles"), _missing("predict_quantiles"))
    quantiles: FloatArray = model.predict_quantiles(inputs, levels)
    return quantiles


def predicted_gaussian(estimator: Any, X: Any) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of each input, as Gaussian processes of scikit-learn do."""
    missing = _missing("predict(X, return_std=True)")
    model, inputs = walk_to(estimator, X, _predicts_std, missing)
    mean, std = model.predict(inputs, return_std=True)
    return mean, std


def _predicts_std(estimator: Any) -> bool:
    """Whether an estimator itself predicts standard deviations."""
    predict = getattr(estimator, "predict", None)
    return predict is not None and "return_std" in signature(predict).parameters


def _has(method: str) -> Callable[[Any], bool]:
    return lambda estimator: hasattr(estimator, method)


def _missing(method: str) -> Callable[[list[str]], str]:
    """Message for a walk that ends at an estimator without the method."""

    def message(path: list[str]) -> str:
        return (
            f"{' -> '.join(path)}: {path[-1]} has no `{method}` and does not delegate to a single "
            "fitted estimator that has it. Predict with a regressor that has, or pass its "
            "predictions to the function of arrays."
        )

    return message
