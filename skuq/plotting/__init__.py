"""Plots of uncertainty, following scikit-learn's Display convention.

Each Display has ``from_estimator`` and ``from_predictions``, which compute and draw, and ``plot``,
which draws the same values again. Their parameter ``ax`` is the axes (default: of a new figure);
the attributes ``ax_`` and ``figure_`` are the axes and the figure of the last plot. The parameters
of a Display are attributes, too. matplotlib (extra ``plot``) is imported only for drawing; its
global settings remain unchanged.
"""

from skuq.plotting._calibration import (
    CalibrationAuditDisplay,
    ConfidenceDensityDisplay,
    ReliabilityDisplay,
)
from skuq.plotting._certified_range import CertifiedRangeDisplay
from skuq.plotting._intervals import CoverageBySizeDisplay, IntervalsByWidthDisplay, PITDisplay
from skuq.plotting._scores import OODDisplay, RiskCoverageDisplay, UncertaintyHistogramDisplay
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
