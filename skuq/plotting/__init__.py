"""Plots of uncertainty, following scikit-learn's Display convention.

Each Display has ``from_estimator`` and ``from_predictions``, which compute and draw, and ``plot``,
which draws the same values again. matplotlib (extra ``plot``) is imported only for drawing; its
global settings remain unchanged.
"""

from skuq.plotting._calibration import (
    CalibrationAuditDisplay,
    ConfidenceDensityDisplay,
    ReliabilityDisplay,
)
from skuq.plotting._certified_range import CertifiedRangeDisplay
from skuq.plotting._intervals import CoverageBySizeDisplay, IntervalsByWidthDisplay
from skuq.plotting._ood import OODDisplay
from skuq.plotting._pit import PITDisplay
from skuq.plotting._risk_and_histogram import RiskCoverageDisplay, UncertaintyHistogramDisplay
from skuq.plotting._uncertainty_map import UncertaintyMapDisplay

__all__ = [
    "CalibrationAuditDisplay",
    "CertifiedRangeDisplay",
    "ConfidenceDensityDisplay",
    "CoverageBySizeDisplay",
    "IntervalsByWidthDisplay",
    "OODDisplay",
    "PITDisplay",
    "ReliabilityDisplay",
    "RiskCoverageDisplay",
    "UncertaintyHistogramDisplay",
    "UncertaintyMapDisplay",
]
