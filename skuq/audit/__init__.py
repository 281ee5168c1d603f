"""Faked uncertainty, and the audit that finds it."""

from skuq.audit.auditor import CalibrationAuditor
from skuq.audit.constructive import ShiftedNetwork, constructive_mirage
from skuq.audit.fine_tuner import MirageFineTuner
from skuq.audit.intervals import BinAudit, audit_bins, clopper_pearson
from skuq.audit.judgement import Judgement, judge
from skuq.audit.mirage import (
    GaussianMirageLoss,
    MirageLoss,
    confidence_overlap,
    region_codes,
    target_table,
)
from skuq.audit.power import detectable_gap, required_samples
from skuq.audit.regions import region_mask
from skuq.audit.regressor import MirageRegressor
from skuq.audit.scan import Finding, Scan, planned_threshold, scan_bins
from skuq.audit.sums import BinSums, Predictions, bin_edges, bin_sums, record_predictions
from skuq.audit.thresholds import AlphaStudy, choose_alpha, temperature_scaled

__all__ = [
    "AlphaStudy",
    "BinAudit",
    "BinSums",
    "CalibrationAuditor",
    "Finding",
    "GaussianMirageLoss",
    "Judgement",
    "MirageFineTuner",
    "MirageLoss",
    "MirageRegressor",
    "Predictions",
    "Scan",
    "ShiftedNetwork",
    "audit_bins",
    "bin_edges",
    "bin_sums",
    "choose_alpha",
    "clopper_pearson",
    "confidence_overlap",
    "constructive_mirage",
    "detectable_gap",
    "judge",
    "planned_threshold",
    "record_predictions",
    "region_codes",
    "region_mask",
    "required_samples",
    "scan_bins",
    "target_table",
    "temperature_scaled",
]
