"""Calibration audits: find confidence that the labels do not support. Torch is not required."""

from skuq.audit._calibration_auditor import CalibrationAuditor
from skuq.audit._recorded_files import audit_files
from skuq.audit._recorded_predictions import recorded_predictions

__all__ = ["CalibrationAuditor", "audit_files", "recorded_predictions"]
