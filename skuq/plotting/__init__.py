"""Pictures of uncertainty, in scikit-learn's Display convention.

Each Display has ``from_estimator`` and ``from_predictions``, which compute and draw,
and ``plot``, which draws again. matplotlib (extra ``plot``) is imported only to draw;
no global setting of it is changed.
"""

from skuq.plotting._audit import CalibrationAuditDisplay
from skuq.plotting._certified_range import CertifiedRangeDisplay
from skuq.plotting._density import ConfidenceDensityDisplay
from skuq.plotting._feature_effects import FeatureEffectsDisplay
from skuq.plotting._histogram import UncertaintyHistogramDisplay
from skuq.plotting._reliability import ReliabilityDisplay
from skuq.plotting._risk_coverage import RiskCoverageDisplay
from skuq.plotting._training import AgentTrainingDisplay
from skuq.plotting._uncertainty_map import UncertaintyMapDisplay

__all__ = [
    "AgentTrainingDisplay",
    "CalibrationAuditDisplay",
    "CertifiedRangeDisplay",
    "ConfidenceDensityDisplay",
    "FeatureEffectsDisplay",
    "ReliabilityDisplay",
    "RiskCoverageDisplay",
    "UncertaintyHistogramDisplay",
    "UncertaintyMapDisplay",
]
