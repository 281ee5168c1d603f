"""Statistics of confidence: bins, sums, limits, scans and their power; conformal p-values."""

from skuq.calibration._conditions import Conditions, conditions_of
from skuq.calibration._conformal import conformal_p_values, n_at_least, shares
from skuq.calibration._groups import (
    MAX_GROUPS,
    Grouping,
    column_of,
    distinct,
    groups_of_columns,
    named_groups,
)
from skuq.calibration._limits import BinAudit, audit_bins, clopper_pearson
from skuq.calibration._power import detectable_gap, required_samples
from skuq.calibration._region_search import Region, RegionSearch, search_regions
from skuq.calibration._result import AuditResult, add_up, audit_sums
from skuq.calibration._scan import Finding, Scan, planned_threshold, scan_bins
from skuq.calibration._sums import (
    SCALE,
    BinSums,
    Strategy,
    TopLabelPredictions,
    bin_edges,
    bin_of,
    bin_sums,
    in_units,
    merged_sums,
    sum_rounding,
    top_label_predictions,
)
from skuq.calibration._thresholds import AlphaStudy, choose_alpha, temperature_scaled

__all__ = [
    "MAX_GROUPS",
    "SCALE",
    "AlphaStudy",
    "AuditResult",
    "BinAudit",
    "BinSums",
    "Conditions",
    "Finding",
    "Grouping",
    "Region",
    "RegionSearch",
    "Scan",
    "Strategy",
    "TopLabelPredictions",
    "add_up",
    "audit_bins",
    "audit_sums",
    "bin_edges",
    "bin_of",
    "bin_sums",
    "choose_alpha",
    "clopper_pearson",
    "column_of",
    "conditions_of",
    "conformal_p_values",
    "detectable_gap",
    "distinct",
    "groups_of_columns",
    "in_units",
    "merged_sums",
    "n_at_least",
    "named_groups",
    "planned_threshold",
    "required_samples",
    "scan_bins",
    "search_regions",
    "shares",
    "sum_rounding",
    "temperature_scaled",
    "top_label_predictions",
]
