"""Checks before a fit: whether its matrices fit into memory, and the scales of the features."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, KernelOperator

from skuq.base import FloatArray
from skuq.validation import warn_user

_DISPARITY = 100.0  # ratio of the largest and the median spread that one length-scale cannot bridge


def check_memory(n: int, n_classes: int, likelihood: str, kernel: Any) -> None:
    """Raise if the matrices of an exact fit are larger than the memory that is left."""
    needed, free = exact_fit_bytes(n, n_classes, likelihood, kernel), available_bytes()
    if free is not None and needed > free:
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


def available_bytes() -> int | None:
    """Memory that this process may still take, None where the system does not tell."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
        group = Path("/sys/fs/cgroup")
        limit = (group / "memory.max").read_text().strip()
        if limit != "max":
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            cached = int(stat["inactive_file"]) + int(stat["active_file"])  # given back if needed
            found.append(int(limit) - int((group / "memory.current").read_text()) + cached)
    except (OSError, ValueError):
        pass
    try:
        import resource

        limit_of_addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit_of_addresses != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found.append(limit_of_addresses - pages * os.sysconf("SC_PAGE_SIZE"))
    except (ImportError, OSError, ValueError):
        pass
    return max(0, min(found)) if found else None


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
