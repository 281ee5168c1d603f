"""Statistics of confidence: bins, sums, limits, scans and their power; conformal p-values."""

from skuq.calibration._conformal import conformal_p_values
from skuq.calibration._limits import BinAudit, audit_bins, clopper_pearson
from skuq.calibration._power import detectable_gap, required_samples
from skuq.calibration._region_search import Region, RegionSearch, search_regions
from skuq.calibration._result import AuditResult, audit_sums
from skuq.calibration._scan import Finding, Scan, planned_threshold, scan_bins
from skuq.calibration._sums import (
    BinSums,
    TopLabelPredictions,
    bin_edges,
    bin_sums,
    merged_sums,
    top_label_predictions,
)
from skuq.calibration._thresholds import AlphaStudy, choose_alpha, temperature_scaled

__all__ = [
    "AlphaStudy",
    "AuditResult",
    "BinAudit",
    "BinSums",
    "Finding",
    "Region",
    "RegionSearch",
    "Scan",
    "TopLabelPredictions",
    "audit_bins",
    "audit_sums",
    "bin_edges",
    "bin_sums",
    "choose_alpha",
    "clopper_pearson",
    "conformal_p_values",
    "detectable_gap",
    "merged_sums",
    "planned_threshold",
    "required_samples",
    "scan_bins",
    "search_regions",
    "temperature_scaled",
    "top_label_predictions",
]
