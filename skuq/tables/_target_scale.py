"""Scale on which a regression target is learnt, and possible values of the target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.stats import skew

from skuq.base import FloatArray
from skuq.stored import stored

SKEWED = 1.0  # smallest skewness for which other scales are tried
SMALLEST_GAIN = 0.01  # relative improvement of the interval score needed to change the scale
# The smallest or largest target is a bound if many rows have this value: at least this share of the
# rows, and at least this number of rows.
PILED_UP, FEWEST_PILED_UP = 0.01, 5
NAMES = {1.0: "target", 0.5: "square root of the target", 0.0: "logarithm of the target"}


@stored("tables.target-scale")
@dataclass(frozen=True)
class TargetScale:
    """Power transform of a target, and the bounds of the target.

    Attributes
    ----------
    power : float
        Exponent of the transform: 1, 0.5, or 0 for the logarithm.
    low, high : float
        Smallest and largest possible value; may be infinite.
    whole : bool
        Whether all values are whole numbers.
    smallest, largest : float
        Range of the training targets.
    """

    power: float
    low: float
    high: float
    whole: bool
    smallest: float
    largest: float

    @classmethod
    def of(cls, y: FloatArray) -> Self:
        """Infer the bounds of a target; return them with the untransformed scale."""
        smallest, largest = float(y.min()), float(y.max())
        enough = max(PILED_UP * len(y), FEWEST_PILED_UP)
        low = smallest if (y == smallest).sum() >= enough else -np.inf
        high = largest if (y == largest).sum() >= enough else np.inf
        whole = bool((y == np.round(y)).all())
        low = max(low, 0.0) if smallest >= 0 else low
        return cls(1.0, low, high, whole, smallest, largest)

    def others(self, y: FloatArray) -> list[TargetScale]:
        """Candidate scales for a skewed, non-negative target; else an empty list."""
        if self.smallest < 0 or skew(y) < SKEWED:
            return []
        powers = [0.5] if self.smallest == 0 else [0.5, 0.0]
        return [replace(self, power=power) for power in powers]

    def transformed(self, y: FloatArray) -> FloatArray:
        """Transform targets to this scale."""
        if self.power == 1:
            return y
        transformed: FloatArray = np.log(y) if self.power == 0 else y**self.power
        return transformed

    def inverse(self, z: FloatArray) -> FloatArray:
        """Transform values back to units of the target, clipped to its bounds."""
        if self.power != 1:
            # Powers extrapolate badly. Therefore, clip to the training range, extended by its width
            # on each side.
            ends = self.transformed(np.array([self.smallest, self.largest]))
            z = np.clip(z, ends[0] - np.ptp(ends), ends[1] + np.ptp(ends))
            z = np.exp(z) if self.power == 0 else np.maximum(z, 0) ** (1 / self.power)
        bounded: FloatArray = np.clip(z, self.low, self.high)
        return bounded

    def slope(self, y: FloatArray) -> FloatArray:
        """Derivative of the target with respect to its transformed value."""
        if self.power == 1:
            return np.ones_like(y)
        slope: FloatArray = y if self.power == 0 else 2 * np.sqrt(np.maximum(y, 0))
        return slope

    def possible(self, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Shrink intervals to possible targets: clip to the bounds, round if `whole`."""
        lower, upper = np.clip(lower, self.low, self.high), np.clip(upper, self.low, self.high)
        if not self.whole:
            return lower, upper
        middle = np.round((lower + upper) / 2)
        first, last = np.ceil(lower), np.floor(upper)
        empty = first > last
        return np.where(empty, middle, first), np.where(empty, middle, last)

    def note(self, target: str) -> str:
        """Note on the transform, or "" for the original scale."""
        if self.power == 1:
            return ""
        return (
            f"The model was trained on the {NAMES[self.power]} {target!r}, which gave narrower "
            "intervals in cross-validation; all results are in the unit of the target."
        )
