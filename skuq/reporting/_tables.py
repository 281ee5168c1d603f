"""The report on a table."""

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
from skuq.tables._quantify import TableResult

RARE = 0.05  # familiarity up to which a row is called unfamiliar
SHOWN_ROWS = 10


def table_report(result: TableResult, table: pd.DataFrame, target: str) -> Report:
    """Tell what is known about the uncertainty of a table's rows.

    Parameters
    ----------
    result : TableResult
        What `quantify_table` returned.
    table : DataFrame of shape (n_rows, n_columns)
        The table that was predicted.
    target : str
        Name of the predicted column.

    Returns
    -------
    Report
        Ready to be written; needs matplotlib (extra ``plot``).
    """
    rows, held_out = result.rows, result.familiar
    report = Report(f"How certain are the predictions of {target}?", _summary(result))
    report.table(
        "The least familiar rows",
        _least_familiar(result, table),
        "Familiarity is the share of held-out training rows that are at least as uncertain. A "
        "prediction for an unfamiliar row is a guess outside of what the model has learnt.",
    )
    report.figure(
        "Epistemic uncertainty, known rows against these",
        UncertaintyHistogramDisplay(
            {
                "held-out training rows": held_out["epistemic"].to_numpy(),
                "predicted rows": rows["epistemic"].to_numpy(),
            },
            label="epistemic uncertainty",
        ),
        "Epistemic uncertainty is what the model has not learnt. Where the predicted rows lie "
        "further right than the held-out ones, they differ from what the model was trained on.",
    )
    _add_quality(report, result)
    report.table("Predictions", _by_class(rows), "Mean values by predicted class.")
    report.text("What was done to the data", " ".join(result.notes))
    return report


def _summary(result: TableResult) -> str:
    rows, n_held = result.rows, len(result.familiar)
    counted = "1 row was predicted." if len(rows) == 1 else f"{len(rows)} rows were predicted."
    if 1 / (1 + n_held) > RARE:
        return (
            f"{counted} Only {n_held} training rows were held out to compare them with, too few "
            f"to call a row unfamiliar: that takes {1 / RARE - 1:.0f}, of a training table of "
            f"{5 * (1 / RARE - 1):.0f} rows."
        )
    unfamiliar = int((rows["familiarity"] <= RARE).sum())
    return (
        f"{counted} {unfamiliar} of them ({unfamiliar / len(rows):.1%}) are unfamiliar: more "
        f"uncertain than {1 - RARE:.0%} of the training rows that were held out. Were the rows "
        f"like the training rows, about {RARE:.0%} would be."
    )


def _least_familiar(result: TableResult, table: pd.DataFrame) -> pd.DataFrame:
    columns = ["prediction", "confidence", "epistemic", "familiarity"]
    features = list(result.pipeline.feature_names_in_)
    first = result.rows["epistemic"].sort_values(ascending=False, kind="stable").index[:SHOWN_ROWS]
    shown = pd.concat([result.rows[columns], table[features].reset_index(drop=True)], axis=1)
    return shown.loc[first].rename_axis("row (from 0)")


def _by_class(rows: pd.DataFrame) -> pd.DataFrame:
    grouped = rows.groupby("prediction")
    means = grouped[["confidence", "total", "aleatoric", "epistemic", "familiarity"]].mean()
    means.insert(0, "rows", grouped.size())
    return means


def _add_quality(report: Report, result: TableResult) -> None:
    """How good prediction and uncertainty are, where the truth is known."""
    held_out = result.familiar
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
            label, result.familiar_proba, classes=result.pipeline.classes_
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
