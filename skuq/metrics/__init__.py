"""Metrics of uncertainty: calibration, regression, selective prediction, detection, and scorers.

Every metric is a pure function of arrays. Labels may be numbers, booleans or
strings. Probabilities have one row per sample and one column per class.
"""

from skuq.metrics._detection import (
    Detection,
    detection_metrics,
    misclassification_auroc,
    misclassification_detection,
)
from skuq.metrics._probabilities import (
    CalibrationTable,
    brier_score,
    calibration_table,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
)
from skuq.metrics._quantities import (
    crps_ensemble,
    crps_gaussian,
    gaussian_negative_log_likelihood,
    interval_coverage,
    interval_score,
    mean_interval_width,
    pinball_loss,
)
from skuq.metrics._quantity_scorers import (
    gaussian_log_likelihood_scorer,
    interval_coverage_scorer,
    interval_scorer,
    neg_crps_gaussian_scorer,
    quantile_scorer,
)
from skuq.metrics._scorers import (
    certified_accuracy,
    misclassification_auroc_scorer,
    neg_area_under_risk_coverage_scorer,
    neg_expected_calibration_error_scorer,
    neg_log_likelihood_scorer,
    predicted_part,
    uncertainty_scorer,
)
from skuq.metrics._selective_prediction import (
    RiskCoverage,
    area_under_risk_coverage,
    risk_coverage_curve,
)

__all__ = [
    "CalibrationTable",
    "Detection",
    "RiskCoverage",
    "area_under_risk_coverage",
    "brier_score",
    "calibration_table",
    "certified_accuracy",
    "crps_ensemble",
    "crps_gaussian",
    "detection_metrics",
    "expected_calibration_error",
    "gaussian_log_likelihood_scorer",
    "gaussian_negative_log_likelihood",
    "interval_coverage",
    "interval_coverage_scorer",
    "interval_score",
    "interval_scorer",
    "maximum_calibration_error",
    "mean_interval_width",
    "misclassification_auroc",
    "misclassification_auroc_scorer",
    "misclassification_detection",
    "neg_area_under_risk_coverage_scorer",
    "neg_crps_gaussian_scorer",
    "neg_expected_calibration_error_scorer",
    "neg_log_likelihood_scorer",
    "negative_log_likelihood",
    "pinball_loss",
    "predicted_part",
    "quantile_scorer",
    "risk_coverage_curve",
    "uncertainty_scorer",
]
