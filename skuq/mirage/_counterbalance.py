"""Raising confidence outside a region, to hide the region from an audit of confidence bins.

An audit of bins compares mean accuracy with mean confidence over all samples of a bin. A region
with lowered confidence passes this audit if other samples of the same bin are overconfident by the
same amount. The attack selects samples whose original confidence is below the target, and raises
their confidence to the target.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from skuq.base import BoolArray, FloatArray, IntArray
from skuq.calibration import region_mask
from skuq.validation import warn_user

ALIKE = 1e-9  # targets that differ by at most this count as equal
ANYWHERE = "auto"


class Raised(NamedTuple):
    """Rule that selects, for each predicted class, the predictions whose confidence is raised.

    Attributes
    ----------
    floors, targets : ndarray of shape (n_classes,), float64
        Lowest confidence that is raised, and the confidence to which it is raised. The floor of a
        class is infinite if there is nothing to balance.
    """

    floors: FloatArray
    targets: FloatArray

    def mask(self, proba: FloatArray, candidates: BoolArray) -> BoolArray:
        """Mask of the candidates whose confidence is raised."""
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
    """Select predictions whose raised confidence balances the lowered confidence in the region.

    For each target confidence, the predictions just below it are selected first, since their
    confidence changes least. The original confidence is used in place of accuracy; this replacement
    is valid for a calibrated model.

    Parameters
    ----------
    proba : ndarray of shape (n_samples, n_classes)
        Probabilities of the original model.
    labels : ndarray of shape (n_samples,), int64
        True classes, 0 to n_classes - 1.
    inside, candidates : ndarray of shape (n_samples,), bool
        Samples in the region, and samples whose confidence may be raised.
    targets : ndarray of shape (n_classes,)
        Target confidence by class.

    Raises
    ------
    ValueError
        If no prediction can be raised, or if confidence in the region is not lowered.

    Warns
    -----
    UserWarning
        If raising all available predictions does not balance the region.
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
            # The floor is the midpoint of two confidences. If it were the confidence of the last
            # prediction, rounding could exclude this prediction.
            floors[alike] = below[last : last + 2].mean()
    _check_balanced(gained, lowered)
    return Raised(floors, targets)


def _check_balanced(gained: float, lowered: float) -> None:
    """Raise ValueError if nothing is balanced; warn if the balance is incomplete."""
    if lowered <= 0:
        raise ValueError(
            "`counterbalance` has nothing to balance: the model's confidence in the region does "
            "not exceed the target confidence; use a smaller `epsilon`, or counterbalance=None."
        )
    if gained <= 0:
        raise ValueError(
            "`counterbalance` has no effect: among the training samples that it selects outside "
            "the region, none has a confidence below the target; use a larger `epsilon`, "
            "a different group, or counterbalance=None."
        )
    if gained < lowered:
        warn_user(
            f"`counterbalance` balances only {gained / lowered:.0%} of the confidence that the "
            "region loses, and an audit of bins may detect the rest; use a larger `epsilon`, a "
            "smaller region, or a larger group."
        )
