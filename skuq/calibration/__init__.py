"""Statistics of reported confidence: bins, sums, limits, scans and their power."""

from skuq.calibration._judgement import Judgement, judge
from skuq.calibration._limits import BinAudit, audit_bins, clopper_pearson
from skuq.calibration._power import detectable_gap, required_samples
from skuq.calibration._scan import Finding, Scan, planned_threshold, scan_bins
from skuq.calibration._sums import BinSums, Predictions, bin_edges, bin_sums, record_predictions
from skuq.calibration._thresholds import AlphaStudy, choose_alpha, temperature_scaled

__all__ = [
    "AlphaStudy",
    "BinAudit",
    "BinSums",
    "Finding",
    "Judgement",
    "Predictions",
    "Scan",
    "audit_bins",
    "bin_edges",
    "bin_sums",
    "choose_alpha",
    "clopper_pearson",
    "detectable_gap",
    "judge",
    "planned_threshold",
    "record_predictions",
    "required_samples",
    "scan_bins",
    "temperature_scaled",
]
