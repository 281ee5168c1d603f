"""Statistics of confidence: sums per bin, limits, scans with their power, conformal p-values."""

from skuq.calibration._bin_audit import AuditResult, BinAudit, audit_sums
from skuq.calibration._bin_sums import (
    BinSums,
    Strategy,
    TopLabelPredictions,
    bin_edges,
    bin_sums,
    merged_sums,
    top_label_predictions,
)
from skuq.calibration._conditions import Conditions, conditions_of, region_mask
from skuq.calibration._conformal_p_values import conformal_limit, conformal_p_values
from skuq.calibration._region_search import Region, RegionSearch, search_regions
from skuq.calibration._scan import (
    Direction,
    Finding,
    Scan,
    clopper_pearson,
    detectable_gap,
    largest_evidence,
    planned_threshold,
    required_samples,
    scan_bins,
)
from skuq.calibration._thresholds import AlphaStudy, choose_alpha, temperature_scaled

__all__ = [
    "AlphaStudy",
    "AuditResult",
    "BinAudit",
    "BinSums",
    "Conditions",
    "Direction",
    "Finding",
    "Region",
    "RegionSearch",
    "Scan",
    "Strategy",
    "TopLabelPredictions",
    "audit_sums",
    "bin_edges",
    "bin_sums",
    "choose_alpha",
    "clopper_pearson",
    "conditions_of",
    "conformal_limit",
    "conformal_p_values",
    "detectable_gap",
    "largest_evidence",
    "merged_sums",
    "planned_threshold",
    "region_mask",
    "required_samples",
    "scan_bins",
    "search_regions",
    "temperature_scaled",
    "top_label_predictions",
]
