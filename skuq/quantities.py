"""Validation of predicted quantities, and functions that predict them with any estimator."""

from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skuq.base import FloatArray
from skuq.validation import check_same_length, finite, finite_columns, numbers
from skuq.wrappers import walk_to


def check_coverage(coverage: float) -> None:
    """Reject a coverage outside (0, 1)."""
    if not 0 < coverage < 1:
        raise ValueError(f"`coverage` must lie strictly between 0 and 1, got {coverage}.")


def interval_limits(lower: ArrayLike, upper: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Validate interval limits, (n_samples,) each; an unbounded side is infinite."""
    low, high = numbers(lower, "lower"), numbers(upper, "upper")
    check_same_length(lower=low, upper=high)
    for name, values, beyond in (("lower", low, np.inf), ("upper", high, -np.inf)):
        bad = np.isnan(values) | (values == beyond)
        if bad.any():
            raise ValueError(
                f"`{name}` must contain numbers or {-beyond} (unbounded), got {values[bad][0]} in "
                f"row {bad.argmax()}."
            )
    crossed = low > high
    if crossed.any():
        row = crossed.argmax()
        raise ValueError(
            f"`lower` must be <= `upper`, got {low[row]:g} > {high[row]:g} in row {row}; sort "
            "crossing quantiles first."
        )
    return low, high


def values_and_limits(
    y_true: ArrayLike, lower: ArrayLike, upper: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Validate true values and interval limits, (n_samples,) each."""
    truth = finite(y_true, "y_true")
    low, high = interval_limits(lower, upper)
    check_same_length(y_true=truth, lower=low, upper=high)
    return truth, low, high


def values_and_quantiles(
    y_true: ArrayLike, y_quantiles: ArrayLike, levels: ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Validate true values, predicted quantiles (n_samples, n_levels), and quantile levels."""
    truth, quantiles = finite(y_true, "y_true"), finite_columns(y_quantiles, "y_quantiles")
    check_same_length(y_true=truth, y_quantiles=quantiles)
    checked = checked_levels(levels)
    if len(checked) != quantiles.shape[1]:
        raise ValueError(
            f"`y_quantiles` must have one column per level, got {quantiles.shape[1]} columns for "
            f"{len(checked)} levels."
        )
    return truth, quantiles, checked


def checked_levels(levels: ArrayLike) -> FloatArray:
    """Validate quantile levels, which lie strictly between 0 and 1."""
    checked = finite(levels, "levels")
    if checked.min() <= 0 or checked.max() >= 1:
        raise ValueError(
            "`levels` must lie strictly between 0 and 1, got levels from "
            f"{checked.min():g} to {checked.max():g}."
        )
    return checked


def values_and_gaussian(
    y_true: ArrayLike, mean: ArrayLike, std: ArrayLike, *, mean_name: str = "mean"
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Validate true values, predicted means and predicted standard deviations."""
    truth, centre, scale = finite(y_true, "y_true"), finite(mean, mean_name), finite(std, "std")
    check_same_length(**{"y_true": truth, mean_name: centre, "std": scale})
    if scale.min() <= 0:
        row = scale.argmin()
        raise ValueError(
            f"`std` must be > 0, got {scale[row]:g} in row {row}; pass the standard deviation of "
            "the prediction including noise, which is never 0."
        )
    return truth, centre, scale


def predicted_interval(estimator: Any, X: Any, coverage: float) -> tuple[FloatArray, FloatArray]:
    """Predict intervals with any estimator, pipeline or search with `predict_interval`."""
    check_coverage(coverage)
    model, inputs = _walk_to("predict_interval", estimator, X)
    lower, upper = model.predict_interval(inputs, coverage=coverage)
    return lower, upper


def predicted_quantiles(estimator: Any, X: Any, levels: ArrayLike) -> FloatArray:
    """Predict quantiles with any estimator, pipeline or search with `predict_quantiles`."""
    model, inputs = _walk_to("predict_quantiles", estimator, X)
    quantiles: FloatArray = model.predict_quantiles(inputs, levels)
    return quantiles


def predicted_gaussian(estimator: Any, X: Any) -> tuple[FloatArray, FloatArray]:
    """Predict means and standard deviations if `predict` of the estimator has `return_std`."""
    model, inputs = _walk_to("predict(X, return_std=True)", estimator, X)
    mean, std = model.predict(inputs, return_std=True)
    return mean, std


def _walk_to(call: str, estimator: Any, X: Any) -> tuple[Any, Any]:
    """Unwrap to the estimator that supports a `call` such as ``predict(X, return_std=True)``."""
    method = call.partition("(")[0]

    def has(inside: Any) -> bool:
        found = getattr(inside, method, None)
        return found is not None and (call == method or "return_std" in signature(found).parameters)

    def missing(path: list[str]) -> str:
        return (
            f"{' -> '.join(path)}: {path[-1]} has no `{call}` and does not delegate to a single "
            f"fitted estimator that has it. Use a regressor with `{call}`, or compute the "
            "predictions yourself and pass them as arrays."
        )

    return walk_to(estimator, X, has, missing)
