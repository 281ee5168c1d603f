"""Checks of inputs: memory that a fit takes, scales of features, and sizes of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, KernelOperator

from skuq.base import FloatArray
from skuq.gpc.inference._hyperparameters import length_scales
from skuq.memory import available_memory
from skuq.validation import warn_user

_DISPARITY = 100.0  # ratio of the largest and the median spread that one length-scale cannot bridge
_SAME = 1e-12  # relative; inputs that differ less differ by rounding
# Of inputs, of length-scales, and of inputs in units of length-scales: squares of all of them, and
# products of these, must be float64 numbers.
_LARGEST, _LEAST = 1e100, 1e-100


def check_memory(n: int, n_classes: int, likelihood: str, kernel: Any) -> None:
    """Raise if the matrices of an exact fit are larger than the memory that is left."""
    needed, free = exact_fit_bytes(n, n_classes, likelihood, kernel), available_memory()
    if needed > free:
        raise MemoryError(
            f"An exact fit to {n:,} rows takes about {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free; represent the rows by a few hundred "
            "inducing points (n_inducing=200), or fit fewer of them."
        )


def exact_fit_bytes(n: int, n_classes: int, likelihood: str, kernel: Any) -> int:
    """Estimate the peak memory of an exact fit; within a quarter of what was measured."""
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
            f"the median of all is {median:.3g}: with one length-scale it alone decides. Scale the "
            "features (sklearn.preprocessing.StandardScaler)."
        )


def deviations(X: FloatArray, sample_weight: FloatArray | None = None) -> FloatArray:
    """Standard deviation of each feature, exactly 0 for one that does not vary."""
    # X (n, n_features), sample_weight (n,) -> (n_features,)
    center = np.average(X, axis=0, weights=sample_weight)
    spread = np.sqrt(np.average((X - center) ** 2, axis=0, weights=sample_weight))
    return np.where(np.ptp(X, axis=0) > 0, spread, 0.0)


def length_of(spread: FloatArray, X: FloatArray) -> float:
    """Length of the deviations of all features, or the size of inputs that are all the same."""
    length, size = float(np.sqrt((spread**2).sum())), float(np.abs(X).max())
    return length if length > _SAME * size else size or 1.0


def check_sizes(X: FloatArray, kernel: Any = None) -> None:
    """Raise if squares of inputs, in any unit that is computed with, leave the float64 numbers."""
    # X (n, n_features)
    _refuse_large(X, X, "")
    for name, scale in ({} if kernel is None else length_scales(kernel)).items():
        lengths = np.broadcast_to(scale, X.shape[1])
        if not ((lengths >= _LEAST) & (lengths <= _LARGEST)).all():
            raise ValueError(
                f"The kernel's {name}, {scale}, is not between {_LEAST:g} and {_LARGEST:g}: the "
                "squares of others leave the range of float64. Rescale the features."
            )
        _refuse_large(X / lengths, X, " of its length-scales")


def _refuse_large(sizes: FloatArray, X: FloatArray, unit: str) -> None:
    large = np.abs(sizes) > _LARGEST
    if large.any():
        row, column = np.argwhere(large)[0]
        raise ValueError(
            f"Feature {column} is {X[row, column]:.3g} in row {row}, which is beyond "
            f"{_LARGEST:g}{unit}: squares of such numbers leave the range of float64. Correct the "
            "value, or rescale the feature."
        )
