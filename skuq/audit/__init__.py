"""Artificial uncertainty (Mirage), and the calibration audit that finds it."""

from skuq.audit._calibration_auditor import CalibrationAuditor
from skuq.audit._constructive_mirage import ShiftedNetwork, constructive_mirage
from skuq.audit._mirage_fine_tuner import MirageFineTuner
from skuq.audit._mirage_loss import (
    GaussianMirageLoss,
    MirageLoss,
    confidence_overlap,
    region_codes,
    target_table,
)
from skuq.audit._mirage_regressor import MirageRegressor
from skuq.audit._recorded import RecordedPredictions, recorded_predictions
from skuq.audit._recorded_files import AuditedFiles, audit_files
from skuq.audit._regions import region_mask

__all__ = [
    "AuditedFiles",
    "CalibrationAuditor",
    "GaussianMirageLoss",
    "MirageFineTuner",
    "MirageLoss",
    "MirageRegressor",
    "RecordedPredictions",
    "ShiftedNetwork",
    "audit_files",
    "confidence_overlap",
    "constructive_mirage",
    "recorded_predictions",
    "region_codes",
    "region_mask",
    "target_table",
]
