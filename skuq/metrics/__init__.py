"""Metrics of uncertainty: calibration, regression, selective prediction, detection, and scorers.

Labels may be numbers, booleans or strings.
"""

from skuq.metrics._predictions import (
    CalibrationTable,
    brier_score,
    calibration_table,
    expected_calibration_error,
    interval_coverage,
    interval_score,
    negative_log_likelihood,
    pinball_loss,
)
from skuq.metrics._ranking import (
    Detection,
    RiskCoverage,
    area_under_risk_coverage,
    detection_metrics,
    misclassification_auroc,
    risk_coverage_curve,
)
from skuq.metrics._scorers import (
    certified_accuracy,
    interval_scorer,
    neg_expected_calibration_error_scorer,
    neg_log_likelihood_scorer,
    quantile_scorer,
    uncertainty_scorer,
)
from skuq.metrics._scorers import predicted_part as predicted_part

__all__ = [
    "CalibrationTable",
    "Detection",
    "RiskCoverage",
    "area_under_risk_coverage",
    "brier_score",
    "calibration_table",
    "certified_accuracy",
    "detection_metrics",
    "expected_calibration_error",
    "interval_coverage",
    "interval_score",
    "interval_scorer",
    "misclassification_auroc",
    "neg_expected_calibration_error_scorer",
    "neg_log_likelihood_scorer",
    "negative_log_likelihood",
    "pinball_loss",
    "quantile_scorer",
    "risk_coverage_curve",
    "uncertainty_scorer",
]
