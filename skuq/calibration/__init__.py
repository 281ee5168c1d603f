"""Statistics for audits of confidence: sums per bin, tests for deviations, conformal p-values."""

from skuq.calibration._bin_audit import AuditResult as AuditResult
from skuq.calibration._bin_audit import BinAudit, choose_tolerance
from skuq.calibration._bin_audit import audit_sums as audit_sums
from skuq.calibration._bin_sums import BinSums, merged_sums
from skuq.calibration._bin_sums import Strategy as Strategy
from skuq.calibration._bin_sums import TopLabelPredictions as TopLabelPredictions
from skuq.calibration._bin_sums import bin_edges as bin_edges
from skuq.calibration._bin_sums import bin_sums as bin_sums
from skuq.calibration._bin_sums import group_sums as group_sums
from skuq.calibration._bin_sums import n_repeated as n_repeated
from skuq.calibration._bin_sums import top_label_predictions as top_label_predictions
from skuq.calibration._conditions import Conditions as Conditions
from skuq.calibration._conditions import checked_conditions as checked_conditions
from skuq.calibration._conditions import conditions_of as conditions_of
from skuq.calibration._conditions import region_mask
from skuq.calibration._conformal_p_values import conformal_limit as conformal_limit
from skuq.calibration._conformal_p_values import conformal_p_values
from skuq.calibration._conformal_p_values import count_at_least as count_at_least
from skuq.calibration._conformal_p_values import first_at_least as first_at_least
from skuq.calibration._region_search import Region
from skuq.calibration._region_search import RegionSearch as RegionSearch
from skuq.calibration._region_search import search_regions as search_regions
from skuq.calibration._region_search import search_seed as search_seed
from skuq.calibration._scan import ALL_SAMPLES as ALL_SAMPLES
from skuq.calibration._scan import Direction as Direction
from skuq.calibration._scan import Scan as Scan
from skuq.calibration._scan import clopper_pearson as clopper_pearson
from skuq.calibration._scan import detectable_gap as detectable_gap
from skuq.calibration._scan import detectable_shift as detectable_shift
from skuq.calibration._scan import largest_evidence as largest_evidence
from skuq.calibration._scan import planned_threshold as planned_threshold
from skuq.calibration._scan import required_samples
from skuq.calibration._scan import scan_bins as scan_bins

__all__ = [
    "BinAudit",
    "BinSums",
    "Region",
    "choose_tolerance",
    "conformal_p_values",
    "merged_sums",
    "region_mask",
    "required_samples",
]
