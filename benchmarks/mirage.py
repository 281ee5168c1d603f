"""Figures of Tables 1 and 2 of the paper, for the Mirage benchmarks."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from benchmarks.harness import record
from skuq import CalibrationAuditor
from skuq.calibration import region_mask
from skuq.mirage import confidence_overlap

N_BINS = 10


def temperature_scaled(model: Any, X: Any, y: np.ndarray) -> CalibratedClassifierCV:
    """Calibrate a fitted classifier with one temperature, as the honest baseline of an audit."""
    return CalibratedClassifierCV(FrozenEstimator(model), method="temperature").fit(X, y)


def figures(
    y: np.ndarray,
    proba: np.ndarray,
    classes: np.ndarray,
    inside: np.ndarray,
    epsilon: float,
    groups: pd.DataFrame | None = None,
    X: pd.DataFrame | None = None,
) -> dict[str, float]:
    """Compute accuracy, calibration, separation and the audit of one set of predictions."""
    audit = CalibrationAuditor.from_predictions(y, proba, classes=classes, n_bins=N_BINS)
    confidence = proba.max(axis=1)
    correct = classes[proba.argmax(axis=1)] == y
    aim = epsilon + (1 - epsilon) / len(classes)
    bins = audit.bins_
    values = {
        "accuracy": correct.mean(),
        "region_accuracy": correct[inside].mean(),
        "region_share": inside.mean(),
        "region_confidence": confidence[inside].mean(),
        "ece": audit.ece_,
        "target_bin_error": abs(bins.gap[min(int(aim * N_BINS), N_BINS - 1)]),
        "overlap": confidence_overlap(confidence[inside], confidence[~inside]),
        "audit_failed": float(not audit.passed_),
        "smallest_p_value": bins.p_value.min(),
    }
    if groups is not None:
        by_group = CalibrationAuditor.from_predictions(
            y, proba, classes=classes, n_bins=N_BINS, sensitive_features=groups
        )
        values["group_audit_failed"] = float(not by_group.passed_)
    if X is not None:
        searched = CalibrationAuditor.from_predictions(
            y, proba, classes=classes, n_bins=N_BINS, X=X, search_regions=True
        )
        values["region_search_failed"] = float(not searched.passed_)
        first = next(iter(searched.regions_), None)
        if first is not None:  # share of the first reported region inside the attacked one
            mine = region_mask(first.conditions, X) if first.conditions else np.ones(len(X), bool)
            low, high = first.confidence_range
            mine &= (low <= confidence) & (confidence <= high)
            values["region_search_precision"] = inside[mine].mean()
            print(f"found: {first.rule} ({first.count} rows, {first.direction})")
    return values


class Table:
    """Figures by method and data set, averaged over seeds."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, str], list[float]] = defaultdict(list)

    def add(self, method: str, dataset: str, values: dict[str, float]) -> None:
        """Add the figures of one seed, and print them."""
        for metric, value in values.items():
            self.found[method, dataset, metric].append(float(value))
        shown = ", ".join(f"{metric} {value:.4g}" for metric, value in values.items())
        print(f"{dataset:28} {method:24} {shown}", flush=True)

    def add_all(self, kept: dict[str, list]) -> None:
        """Add the figures of a stored run."""
        for method, dataset, metric, value in kept["figures"]:
            self.found[method, dataset, metric].append(value)

    def records(self, n: int) -> Iterable[dict[str, Any]]:
        """Build records of mean and std over seeds, without bins that have no samples."""
        for (method, dataset, metric), values in self.found.items():
            seen = np.array([value for value in values if not np.isnan(value)])
            if len(seen):
                yield record(method, dataset, metric, seen.mean(), n, seen.std())
