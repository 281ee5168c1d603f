"""Calibration audits: find confidence that the labels do not support. Torch is not required."""

from skuq.audit._calibration_auditor import CalibrationAuditor
from skuq.audit._recorded_files import AuditedFiles, audit_files
from skuq.audit._recorded_predictions import RecordedPredictions, recorded_predictions

__all__ = [
    "AuditedFiles",
    "CalibrationAuditor",
    "RecordedPredictions",
    "audit_files",
    "recorded_predictions",
]
