"""Report on the predictions for a table."""

from __future__ import annotations

import numpy as np
import pandas as pd

from skuq.metrics import (
    area_under_risk_coverage,
    expected_calibration_error,
    misclassification_auroc,
    risk_coverage_curve,
)
from skuq.plotting import RiskCoverageDisplay, UncertaintyHistogramDisplay
from skuq.reporting._report import Report
from skuq.tables import TableResult

UNUSUAL = 0.05  # conformal p-value up to which a row is called unusual
SHOWN_ROWS = 10


def table_report(result: TableResult, table: pd.DataFrame, target: str) -> Report:
    """Report on the uncertainty of the predictions for a table.

    Parameters
    ----------
    result : TableResult
        Result of `quantify_table`.
    table : DataFrame of shape (n_rows, n_columns)
        The table that was predicted.
    target : str
        Name of the predicted column.

    Returns
    -------
    Report
        Ready to be written; needs matplotlib (extra ``plot``).
    """
    rows, held_out = result.rows, result.held_out
    report = Report(f"How certain are the predictions of {target}?", _summary(result))
    report.table(
        "The most unusual rows",
        _most_unusual(result, table),
        "The conformal p-value is the share of held-out training rows that are at least as "
        "uncertain. The prediction for an unusual row is an extrapolation.",
    )
    report.figure(
        "Epistemic uncertainty of held-out and predicted rows",
        UncertaintyHistogramDisplay(
            {
                "held-out training rows": held_out["epistemic"].to_numpy(),
                "predicted rows": rows["epistemic"].to_numpy(),
            },
            label="epistemic uncertainty",
        ),
        "Epistemic uncertainty comes from a lack of training data. Predicted rows further to the "
        "right than the held-out ones differ from the rows that the model was trained on.",
    )
    _add_quality(report, result)
    report.table("Predictions", _by_class(rows), "Mean values by predicted class.")
    report.text("Treatment of the data", " ".join(result.notes))
    return report


def _summary(result: TableResult) -> str:
    rows, n_held = result.rows, len(result.held_out)
    counted = "1 row was predicted." if len(rows) == 1 else f"{len(rows)} rows were predicted."
    if 1 / (1 + n_held) > UNUSUAL:
        return (
            f"{counted} Only {n_held} training rows were held out to compare them with, too few "
            f"to call a row unusual: that takes {1 / UNUSUAL - 1:.0f}, from a training table of "
            f"{5 * (1 / UNUSUAL - 1):.0f} rows."
        )
    unusual = int((rows["conformal_p_value"] <= UNUSUAL).sum())
    return (
        f"{counted} {unusual} of them ({unusual / len(rows):.1%}) are unusual: more uncertain than "
        f"{1 - UNUSUAL:.0%} of the training rows that were held out. If the rows came from the "
        f"distribution of the training rows, about {UNUSUAL:.0%} would be."
    )


def _most_unusual(result: TableResult, table: pd.DataFrame) -> pd.DataFrame:
    columns = ["prediction", "confidence", "epistemic", "conformal_p_value"]
    features = list(result.pipeline.feature_names_in_)
    first = result.rows["epistemic"].sort_values(ascending=False, kind="stable").index[:SHOWN_ROWS]
    shown = pd.concat([result.rows[columns], table[features].reset_index(drop=True)], axis=1)
    return shown.loc[first].rename_axis("row (from 0)")


def _by_class(rows: pd.DataFrame) -> pd.DataFrame:
    grouped = rows.groupby("prediction")
    means = grouped[["confidence", "total", "aleatoric", "epistemic", "conformal_p_value"]].mean()
    means.insert(0, "rows", grouped.size())
    return means


def _add_quality(report: Report, result: TableResult) -> None:
    """Add the quality of predictions and uncertainty on the held-out rows."""
    held_out = result.held_out
    label, predicted = held_out["label"].to_numpy(), held_out["prediction"].to_numpy()
    wrong = label != predicted
    total = held_out["total"].to_numpy()
    area = area_under_risk_coverage(label, predicted, total)
    quality = {
        "held-out rows": len(held_out),
        "accuracy": 1 - wrong.mean(),
        "area under risk-coverage curve": area,
        "AUROC of finding wrong predictions": (
            misclassification_auroc(label, predicted, total)
            if 0 < wrong.sum() < len(wrong)
            else np.nan
        ),
        "expected calibration error": expected_calibration_error(
            label, result.held_out_proba, classes=result.pipeline.classes_
        ),
    }
    report.table(
        "Quality on held-out training rows",
        pd.DataFrame({"measure": quality.keys(), "value": quality.values()}),
        "These rows did not train the model. A dash: all predictions were right, or all wrong.",
    )
    # Not drawn yet: the report closes the figures that it draws.
    curve = risk_coverage_curve(label, predicted, total)
    report.figure(
        "Answering only when sure",
        RiskCoverageDisplay(curve, area, name="total uncertainty"),
        "Error rate among the held-out rows that are answered, if the most uncertain ones are "
        "refused.",
    )
