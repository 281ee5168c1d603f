"""Group of samples that hides a region of lowered confidence from an audit of confidence bins.

An audit of bins compares accuracy with confidence over all samples of a bin together. A region
whose confidence was lowered passes it if other samples of the same bin claim too much by the same
amount: samples that the original model is less sure of, whose confidence is raised to the target.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration import region_mask
from skuq.validation import warn_user

ALIKE = 1e-9  # targets no further apart are one and the same confidence
ANYWHERE = "auto"


class Raised(NamedTuple):
    """Which predictions of the original model are raised, by predicted class.

    Attributes
    ----------
    floors, targets : ndarray of shape (n_classes,), float64
        Confidence from which on a prediction is raised, and to which; a floor is infinite where
        nothing is to be balanced.
    """

    floors: FloatArray
    targets: FloatArray

    def mask(self, proba: FloatArray, candidates: BoolArray) -> BoolArray:
        """Find the samples, of these candidates, whose confidence is raised."""
        best, confidence = proba.argmax(axis=1), proba.max(axis=1)
        return candidates & (self.floors[best] <= confidence) & (confidence < self.targets[best])


def candidates_of(counterbalance: Any, X: Any, inside: BoolArray) -> BoolArray:
    """Mask of the samples outside the region whose confidence may be raised."""
    if isinstance(counterbalance, str) and counterbalance == ANYWHERE:
        return ~inside
    return region_mask(counterbalance, X) & ~inside


def balancing(
    proba: FloatArray,
    labels: IntArray,
    inside: BoolArray,
    candidates: BoolArray,
    targets: FloatArray,
) -> Raised:
    """Choose the predictions whose raised confidence makes up for that lowered in the region.

    For each target confidence, those just below it come first: they move least. The original
    confidence stands for accuracy, as it does for a calibrated model.

    Parameters
    ----------
    proba : ndarray of shape (n_samples, n_classes)
        Probabilities of the original model.
    labels : ndarray of shape (n_samples,), int64
        True classes, 0 to n_classes - 1.
    inside, candidates : ndarray of shape (n_samples,), bool
        Samples in the region, and those whose confidence may be raised.
    targets : ndarray of shape (n_classes,)
        Confidence aimed at, by class.

    Raises
    ------
    ValueError
        If no prediction can be raised, or there is nothing to make up for.

    Warns
    -----
    UserWarning
        If the predictions that can be raised do not make up for all.
    """
    best, confidence = proba.argmax(axis=1), proba.max(axis=1)
    floors = np.full(len(targets), np.inf)
    lowered = gained = 0.0
    for target in np.unique(targets.round(9)):
        alike = np.abs(targets - target) <= ALIKE
        missing = (confidence - target)[inside & alike[labels]].sum()
        if missing <= 0:
            continue
        lowered += missing
        below = np.sort(confidence[candidates & alike[best] & (confidence < target)])[::-1]
        if len(below):
            sums = np.cumsum(target - below)
            last = min(np.searchsorted(sums, missing), len(below) - 1)
            gained += min(sums[last], missing)
            # Between two confidences, so that rounding does not decide on the last one.
            floors[alike] = below[last : last + 2].mean()
    _check_balanced(gained, lowered)
    return Raised(floors, targets)


def _check_balanced(gained: float, lowered: float) -> None:
    """An error if nothing is balanced, a warning if not all is."""
    if lowered <= 0:
        raise ValueError(
            "`counterbalance` has nothing to make up for: in the region the model is not more "
            "confident than the confidence aimed at; use a smaller `epsilon`, or "
            "counterbalance=None."
        )
    if gained <= 0:
        raise ValueError(
            "`counterbalance` has no effect: where it may raise confidence, no training sample "
            "outside the region is below the confidence aimed at; use a larger `epsilon`, "
            "another group, or counterbalance=None."
        )
    if gained < lowered:
        warn_user(
            f"`counterbalance` makes up for {gained / lowered:.0%} of the confidence taken from "
            "the region, and an audit of bins may find the rest; use a larger `epsilon`, a smaller "
            "region, or a larger group."
        )
