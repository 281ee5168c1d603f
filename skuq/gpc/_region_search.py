"""Searches over regions around points, shared by `RobustGPC` and `RobustGPRegressor`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed, effective_n_jobs
from numpy.typing import NDArray
from sklearn.utils import gen_batches
from sklearn.utils.validation import check_is_fitted, validate_data
from tqdm.auto import tqdm

from skuq._networks import resolve_device
from skuq.base import FloatArray
from skuq.devices import with_gradients
from skuq.gpc._certificates import Bisection, Certificate, SafeRadius
from skuq.gpc._fit_checks import check_sizes
from skuq.gpc._neighbourhoods import (
    NORMS,
    around,
    check_norm,
    check_number,
    feature_indices,
    limits_of,
)
from skuq.gpc.bounds._probability_model import Limits
from skuq.gpc.bounds._regions import Region

_BATCH = 64  # points per batch


def certificate_device(device: str | torch.device) -> torch.device:
    """Resolve a ``device`` parameter to a device that supports float64."""
    if str(device).partition(":")[0] == "mps":
        raise ValueError(
            "`device`='mps' cannot compute certificates: guarantees need float64, which MPS does "
            "not support; use 'cpu', or 'auto', which never selects MPS."
        )
    return resolve_device(device)


class RegionSearchMixin(ABC):
    """Regions, batches and bisections for estimators with a Gaussian posterior."""

    device: Any
    n_jobs: int | None
    verbose: int
    _deviations: FloatArray
    _length: float
    _region_models: dict[str, Any]  # cache of models for bounds, by device

    @abstractmethod
    def _new_region_model(self, device: str) -> Any:
        """Build, on a device, the model that bounds predictions."""

    def __getstate__(self) -> dict[str, Any]:
        """State without the models for bounds, which are rebuilt on demand."""
        state: Any = super().__getstate__()
        return {**state, "_region_models": {}} if "_region_models" in state else state

    def _region_model(self) -> Any:
        device = str(certificate_device(self.device))
        if device not in self._region_models:
            self._region_models[device] = self._new_region_model(device)
        return self._region_models[device]

    @with_gradients()
    def _in_batches(
        self, answer: Callable[..., Any], limits: Limits, *of_points: Any, quiet: bool = False
    ) -> list[NDArray[Any]]:
        """Apply `answer` to batches of points, in `n_jobs` processes, and concatenate the results.

        `answer` receives the model and, from each array in `of_points`, the rows of the batch. The
        time limit is divided equally among the batches.
        """
        model, n = self._region_model(), len(of_points[0])
        model.prepare()  # once in this process, not in every worker
        batches = list(gen_batches(n, _BATCH))
        n_workers = min(len(batches), effective_n_jobs(self.n_jobs))
        share = limits._replace(max_time=limits.max_time * n_workers / len(batches))
        parts = []
        with self._bar(n, quiet) as bar:
            report = bar.update if n_workers == 1 else None  # a progress bar cannot be pickled
            jobs = (
                delayed(answer)(
                    model, *(each[rows] for each in of_points), limits=share, progress=report
                )
                for rows in batches
            )
            for part in Parallel(n_jobs=n_workers, return_as="generator")(jobs):
                parts.append(part)
                bar.update(sum(len(done[0]) for done in parts) - bar.n)
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _bar(self, total: int, quiet: bool = False) -> Any:
        disable = quiet or not self.verbose
        return tqdm(total=total, desc=type(self).__name__, unit="point", disable=disable)

    def _points(self, X: Any) -> FloatArray:
        check_is_fitted(self)
        points: FloatArray = validate_data(self, X, dtype=np.float64, reset=False)
        check_sizes(points)
        return points

    def _deviation(self, order: float, features: Any) -> float:
        """Norm of the training data's standard deviations in the given features; never 0."""
        names = getattr(self, "feature_names_in_", None)
        free = feature_indices(features, len(self._deviations), names)
        return float(np.linalg.norm(self._deviations[free], order)) or self._length

    def _around(
        self, points: FloatArray, radius: Any, region: Any, norm: str, features: Any, domain: Any
    ) -> Region:
        names = getattr(self, "feature_names_in_", None)
        return around(points, radius, region, norm, features, domain, names)

    def _bisect(
        self,
        points: FloatArray,
        decide: Callable[..., Certificate],
        of_points: NDArray[Any],
        limits: Limits,
        *,
        max_radius: float | None,
        precision: float,
        norm: str,
        features: Any,
        domain: Any,
    ) -> SafeRadius:
        """Bisect the radius up to which `decide` certifies each point.

        `decide` also receives the rows of `of_points` (labels or tolerances) for the points to be
        decided.
        """
        check_norm(norm)
        order = NORMS[norm] or np.inf
        if max_radius is None:
            max_radius = self._deviation(order, features)
        for value, name in ((max_radius, "max_radius"), (precision, "precision")):
            check_number(value, name, positive=True)
        ends = None if domain is None else limits_of(domain, points, "domain")
        deadline = time.monotonic() + limits.max_time
        bisection = Bisection(points, order, max_radius, precision * max_radius)
        with self._bar(len(points)) as bar:
            while len(rows := bisection.open) and (left := deadline - time.monotonic()) > 0:
                radii = bisection.trial[rows]
                inside = None if ends is None else (ends[0][rows], ends[1][rows])
                regions = self._around(points[rows], radii, None, norm, features, inside)
                share = limits._replace(max_time=left)
                found = self._in_batches(decide, share, regions, of_points[rows], quiet=True)
                bisection.learn(Certificate(*found))
                bar.update(len(points) - len(bisection.open) - bar.n)
            bar.update(len(points) - bar.n)
        return bisection.result()
