"""Checks before a fit: required memory, scales of features, and overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, KernelOperator

from skuq.base import FloatArray
from skuq.devices import available_memory
from skuq.gpc.inference._hyperparameters import length_scales
from skuq.validation import warn_user

_DISPARITY = 100.0  # a largest spread above this multiple of the median spread causes a warning
_SAME = 1e-12  # relative; smaller differences between inputs are rounding errors
# Limits for inputs, length-scales, and inputs in units of length-scales. They keep squares and
# products of squares within the range of float64.
_LARGEST, _LEAST = 1e100, 1e-100


def check_memory(n: int, n_classes: int, likelihood: str, kernel: Any) -> None:
    """Raise if an exact fit needs matrices that exceed the available memory."""
    needed, free = exact_fit_bytes(n, n_classes, likelihood, kernel), available_memory()
    if needed > free:
        raise MemoryError(
            f"An exact fit to {n:,} rows needs about {needed / 1e9:.1f} GB of memory, and only "
            f"{free / 1e9:.1f} GB are available; use inducing points (n_inducing=200), or fit to "
            "fewer rows."
        )


def exact_fit_bytes(n: int, n_classes: int, likelihood: str, kernel: Any) -> int:
    """Estimate the peak memory of an exact fit, to within 25 % of measured values."""
    matrices = 6 * max(1, _n_leaves(kernel)) + (3 * n_classes if likelihood == "softmax" else 2)
    return 8 * n**2 * matrices


def _n_leaves(kernel: Any) -> int:
    if isinstance(kernel, KernelOperator):
        return _n_leaves(kernel.k1) + _n_leaves(kernel.k2)
    return 0 if isinstance(kernel, ConstantKernel) else 1


def warn_of_scales(X: FloatArray, kernel: Any) -> None:
    """Warn if features of very different spread share one length-scale."""
    # X (n, n_features)
    scales = [
        np.size(value)
        for name, value in kernel.get_params().items()
        if name.endswith("length_scale")
    ]
    spread = X.std(axis=0)
    moving = spread[spread > 0]
    if max(scales, default=0) != 1 or len(moving) < 2:
        return
    median = float(np.median(moving))
    if moving.max() > _DISPARITY * median:
        warn_user(
            f"Feature {int(spread.argmax())} has a standard deviation of {moving.max():.3g}, and "
            f"the median over features is {median:.3g}. This feature dominates all distances, "
            "because all features share one length-scale; scale the features "
            "(sklearn.preprocessing.StandardScaler)."
        )


def deviations(X: FloatArray, sample_weight: FloatArray | None = None) -> FloatArray:
    """Standard deviation of each feature, exactly 0 for constant features."""
    # X (n, n_features), sample_weight (n,) -> (n_features,)
    center = np.average(X, axis=0, weights=sample_weight)
    spread = np.sqrt(np.average((X - center) ** 2, axis=0, weights=sample_weight))
    return np.where(np.ptp(X, axis=0) > 0, spread, 0.0)


def length_of(spread: FloatArray, X: FloatArray) -> float:
    """Euclidean norm of the deviations; the largest absolute input if all inputs are equal."""
    length, size = float(np.sqrt((spread**2).sum())), float(np.abs(X).max())
    return length if length > _SAME * size else size or 1.0


def check_sizes(X: FloatArray, kernel: Any = None) -> None:
    """Raise if squares of inputs, or of inputs in units of length-scales, would overflow."""
    # X (n, n_features)
    _refuse_large(X, X, "")
    for name, scale in ({} if kernel is None else length_scales(kernel)).items():
        lengths = np.broadcast_to(scale, X.shape[1])
        if not ((lengths >= _LEAST) & (lengths <= _LARGEST)).all():
            raise ValueError(
                f"The kernel's {name} must be between {_LEAST:g} and {_LARGEST:g}, so that float64 "
                f"can represent its square, got {scale}; rescale the features."
            )
        _refuse_large(X / lengths, X, " times its length-scale")


def _refuse_large(sizes: FloatArray, X: FloatArray, unit: str) -> None:
    large = np.abs(sizes) > _LARGEST
    if large.any():
        row, column = np.argwhere(large)[0]
        raise ValueError(
            f"Feature {column} is {X[row, column]:.3g} in row {row}. Features must not exceed "
            f"{_LARGEST:g}{unit} in absolute value, because their squares would overflow float64; "
            "correct the value, or rescale the feature."
        )
