"""Calibration audits: find confidence that the labels do not support. Torch is not required."""

from skuq.audit._calibration_auditor import CalibrationAuditor
from skuq.audit._recorded import audit_files, recorded_predictions

__all__ = ["CalibrationAuditor", "audit_files", "recorded_predictions"]
