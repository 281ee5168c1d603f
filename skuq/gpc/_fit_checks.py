"""Checks before a fit: whether its matrices fit into memory, and the scales of the features."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, KernelOperator

from skuq.base import FloatArray
from skuq.memory import available_memory
from skuq.validation import warn_user

_DISPARITY = 100.0  # ratio of the largest and the median spread that one length-scale cannot bridge


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
