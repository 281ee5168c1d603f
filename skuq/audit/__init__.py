"""Faked uncertainty and the audit that finds it."""

from skuq.audit.auditor import CalibrationAuditor
from skuq.audit.intervals import (
    BinAudit,
    audit_bins,
    clopper_pearson,
    detectable_gap,
    required_samples,
)
from skuq.audit.sums import BinSums, Predictions, bin_edges, bin_sums, record_predictions

__all__ = [
    "BinAudit",
    "BinSums",
    "CalibrationAuditor",
    "Predictions",
    "audit_bins",
    "bin_edges",
    "bin_sums",
    "clopper_pearson",
    "detectable_gap",
    "record_predictions",
    "required_samples",
]
