"""The scale that a quantity is learnt on, and the values that it can have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.stats import skew

from skuq.base import FloatArray
from skuq.stored import stored

SKEWED = 1.0  # skewness from which on other scales are tried
SMALLEST_GAIN = 0.01  # of the interval score, for which another scale is taken
# A smallest or largest value that this share of the rows have, and so many, is a limit.
PILED_UP, FEWEST_PILED_UP = 0.01, 5
NAMES = {1.0: "as it is", 0.5: "its square root", 0.0: "its logarithm"}


@stored("tables.target-scale")
@dataclass(frozen=True)
class TargetScale:
    """A power of a target, and its limits.

    Attributes
    ----------
    power : float
        1, 0.5, or 0 for the logarithm.
    low, high : float
        Smallest and largest value that can be, or infinite.
    whole : bool
        Whether all values are whole numbers.
    smallest, largest : float
        Range of the training rows.
    """

    power: float
    low: float
    high: float
    whole: bool
    smallest: float
    largest: float

    @classmethod
    def of(cls, y: FloatArray) -> Self:
        """The limits of a target, as it is."""
        smallest, largest = float(y.min()), float(y.max())
        enough = max(PILED_UP * len(y), FEWEST_PILED_UP)
        low = smallest if (y == smallest).sum() >= enough else -np.inf
        high = largest if (y == largest).sum() >= enough else np.inf
        whole = bool((y == np.round(y)).all())
        low = max(low, 0.0) if smallest >= 0 else low
        return cls(1.0, low, high, whole, smallest, largest)

    def others(self, y: FloatArray) -> list[TargetScale]:
        """Other scales that a skewed target without negative values may be learnt on."""
        if self.smallest < 0 or skew(y) < SKEWED:
            return []
        powers = [0.5] if self.smallest == 0 else [0.5, 0.0]
        return [replace(self, power=power) for power in powers]

    def transformed(self, y: FloatArray) -> FloatArray:
        """Targets on this scale."""
        if self.power == 1:
            return y
        transformed: FloatArray = np.log(y) if self.power == 0 else y**self.power
        return transformed

    def inverse(self, z: FloatArray) -> FloatArray:
        """Values of this scale in units of the target, within its limits."""
        if self.power != 1:
            # Beyond what was seen by more than its width, a power says nothing any more.
            ends = self.transformed(np.array([self.smallest, self.largest]))
            z = np.clip(z, ends[0] - np.ptp(ends), ends[1] + np.ptp(ends))
            z = np.exp(z) if self.power == 0 else np.maximum(z, 0) ** (1 / self.power)
        bounded: FloatArray = np.clip(z, self.low, self.high)
        return bounded

    def slope(self, y: FloatArray) -> FloatArray:
        """Change of a target, in its unit, per unit of this scale."""
        if self.power == 1:
            return np.ones_like(y)
        slope: FloatArray = y if self.power == 0 else 2 * np.sqrt(np.maximum(y, 0))
        return slope

    def possible(self, lower: FloatArray, upper: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Intervals without what cannot be; they hold the same possible values."""
        lower, upper = np.clip(lower, self.low, self.high), np.clip(upper, self.low, self.high)
        if not self.whole:
            return lower, upper
        middle = np.round((lower + upper) / 2)
        first, last = np.ceil(lower), np.floor(upper)
        empty = first > last
        return np.where(empty, middle, first), np.where(empty, middle, last)

    def note(self, target: str) -> str:
        """What was done, in a sentence; empty if nothing was."""
        if self.power == 1:
            return ""
        return (
            f"Of {target!r}, {NAMES[self.power]} was learnt, which gave the narrower intervals in "
            "cross-validation; all figures are in the unit of the target."
        )
