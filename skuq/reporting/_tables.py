"""Report on the predictions for a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from skuq.base import FloatArray
from skuq.metrics import (
    area_under_risk_coverage,
    misclassification_auroc,
    negative_log_likelihood,
    risk_coverage_curve,
)
from skuq.plotting import RiskCoverageDisplay, UncertaintyHistogramDisplay
from skuq.reporting._audit import audit_data
from skuq.reporting._audit_phrases import counted, listed, percent
from skuq.reporting._report import Report
from skuq.tables import TableModel, table_notes

if TYPE_CHECKING:
    from skuq.audit import CalibrationAuditor

UNUSUAL = 0.05  # conformal p-value up to which a row is called unusual
SHOWN_ROWS = 15
SHOWN_CLASSES = 10
FEWEST_FOR_AUDIT = 100  # held-out rows


def table_report(
    model: TableModel, rows: pd.DataFrame, counts: pd.DataFrame, *, coverage: float = 0.9
) -> Report:
    """Report on the uncertainty of the predictions for a table.

    Parameters
    ----------
    model : TableModel
        The fitted model.
    rows : DataFrame
        What its `predict` returned; several parts may have been joined.
    counts : DataFrame
        What its `count` returned for the same table; counts of parts may have been added up.
    coverage : float, default=0.9
        That of the prediction sets or intervals in `rows`.

    Returns
    -------
    Report
        Ready to be written; needs matplotlib (extra ``plot``).
    """
    rows = rows.reset_index(drop=True)
    report = Report(
        f"How certain are the predictions of {model.target_}?",
        f"{_how_good(model)} {_how_unusual(rows, len(model.held_out_))}",
    )
    report.table("How good is the model?", _quality(model, coverage), _quality_caption(model))
    if model.classes_ is not None:
        report.table(
            "How good is it for each class?",
            _by_true_class(model, coverage),
            _class_caption(model, coverage),
        )
    report.table("Rows to look at first", _first_rows(model, rows), _first_caption(model))
    if model.classes_ is not None:
        _add_wrong_predictions(report, model)
    report.figure(
        "Epistemic uncertainty of held-out and predicted rows",
        UncertaintyHistogramDisplay(
            {
                "held-out rows": model.held_out_["epistemic"].to_numpy(),
                "predicted rows": rows["epistemic"].to_numpy(),
            },
            label="epistemic uncertainty",
        ),
        "Epistemic uncertainty comes from a lack of training data. Predicted rows further to the "
        "right than the held-out ones differ from the rows that the model was trained on.",
    )
    if model.classes_ is not None:
        report.table("Predictions", _by_class(rows), "Number and mean values by predicted class.")
    report.text("Treatment of the data", " ".join([*model.notes_, *table_notes(counts)]))
    return report


def _how_good(model: TableModel) -> str:
    held_out = model.held_out_
    where = counted(len(held_out), "held-out row")
    if model.classes_ is None:
        error = (held_out["label"] - held_out["prediction"]).abs()
        return (
            f"{_useless_mean(held_out)}On {where} the model is off by at most "
            f"{_number(error.median())} in half of the cases{_explained(held_out)}."
        )
    right = (held_out["label"] == held_out["prediction"]).mean()
    most = held_out["label"].value_counts(normalize=True).max()
    return (
        f"{_useless_guess(model)}The model is right for {percent(right)} of {where}; always "
        f"guessing the most frequent class would be right for {percent(most)}."
    )


def _useless_guess(model: TableModel) -> str:
    """A first sentence on a model that nobody should use."""
    loss, guessing = _log_losses(model)
    if loss < guessing or guessing == 0:  # of one class alone, guessing is always right
        return ""
    return (
        "The model is no better than guessing the classes by their frequency: do not use it "
        f"(log loss {loss:.3f}, and {guessing:.3f} by guessing). "
    )


def _log_losses(model: TableModel) -> tuple[float, float]:
    """Log loss on the held-out rows, and that of guessing by frequency."""
    label = model.held_out_["label"]
    share = label.value_counts(normalize=True)
    loss = negative_log_likelihood(label.to_numpy(), model.held_out_proba_, classes=model.classes_)
    return loss, float(-(share * np.log(share)).sum())


def _how_unusual(rows: pd.DataFrame, n_held: int) -> str:
    were = f"{counted(len(rows), 'row')} {'was' if len(rows) == 1 else 'were'} predicted."
    if 1 / (1 + n_held) > UNUSUAL:
        return (
            f"{were} Only {n_held} rows were held out to compare them with, too few to call a row "
            f"unusual: that takes {1 / UNUSUAL - 1:.0f}, from a training table of "
            f"{5 * (1 / UNUSUAL - 1):.0f} rows."
        )
    unusual = int((rows["conformal_p_value"] <= UNUSUAL).sum())
    return (
        f"{were} {unusual} of them ({percent(unusual / len(rows))}) "
        f"{'is' if unusual == 1 else 'are'} unusual: more so than "
        f"{1 - UNUSUAL:.0%} of the held-out rows. If the rows came from the distribution of the "
        f"training rows, about {UNUSUAL:.0%} would be."
    )


def _quality(model: TableModel, coverage: float) -> pd.DataFrame:
    held_out = model.held_out_
    covered, size = model.measured_coverage(coverage)
    quality = {"held-out rows": f"{len(held_out)}"}
    if model.classes_ is None:
        error = held_out["label"] - held_out["prediction"]
        spread = held_out["label"].std(ddof=0)
        quality |= {
            "root mean squared error": _number(np.sqrt((error**2).mean())),
            "that of always predicting the mean": _number(spread),
            f"intervals meant to hold {coverage:.0%} of targets hold": _measured(covered, percent),
            "median width of these intervals": _measured(size, _number),
        }
    else:
        right = held_out["label"] == held_out["prediction"]
        loss, guessing = _log_losses(model)
        quality |= {
            "right predictions": percent(right.mean()),
            "mean confidence": percent(held_out["confidence"].mean()),
            "log loss": f"{loss:.3f}",
            "log loss of guessing by frequency": f"{guessing:z.3f}",
            f"prediction sets meant to hold {coverage:.0%} of labels hold": _measured(
                covered, percent
            ),
            "mean number of classes in a set": _measured(size, "{:.2f}".format),
        }
    return pd.DataFrame({"on held-out rows": quality.keys(), "": quality.values()})


def _measured(value: float, shown: Callable[[float], str]) -> str:
    return "not measured: too few held-out rows" if np.isnan(value) else shown(value)


def _quality_caption(model: TableModel) -> str:
    caption = (
        "These rows did not train the model. Coverage is measured on halves of them that did not "
        "calibrate it."
    )
    if model.classes_ is None or len(model.held_out_) < FEWEST_FOR_AUDIT:
        return caption
    from skuq.audit import CalibrationAuditor

    audit = CalibrationAuditor.from_predictions(
        model.held_out_["label"].to_numpy(), model.held_out_proba_, classes=model.classes_
    )
    return f"{caption} Audit of the confidence: {_audit_sentence(audit)}"


def _audit_sentence(audit: CalibrationAuditor) -> str:
    data = audit_data(audit)
    if not audit.passed_ or audit.within_alpha_:
        return str(data["verdict"]["headline"])
    gaps = [row["detectable_gap"] for row in data["bins"] if row["count"]]
    known = [gap for gap in gaps if gap is not None]
    largest = f"of up to {100 * max(known):.0f} percentage points" if known else "of any size"
    return (
        "Passed: the differences between confidence and accuracy are within what chance explains; "
        f"with so few rows, differences {largest} in a range of confidence may not be found."
    )


def _by_true_class(model: TableModel, coverage: float) -> pd.DataFrame:
    measured = model.measured_by_class(coverage)
    if len(measured) > SHOWN_CLASSES:
        measured = measured.nsmallest(SHOWN_CLASSES, "coverage")
    return pd.DataFrame(
        {
            "held-out rows": measured["rows"],
            "right predictions": measured["accuracy"].map(percent),
            "sets hold it": measured["coverage"].map(lambda share: _measured(share, percent)),
        }
    )


def _class_caption(model: TableModel, coverage: float) -> str:
    n_classes = model.held_out_["label"].nunique()
    which = "."
    if n_classes > SHOWN_CLASSES:
        which = f": of {n_classes}, the {SHOWN_CLASSES} that prediction sets hold least often."
    return (
        f"Held-out rows by their true class{which} Sets are meant to hold {coverage:.0%} of all "
        "labels, not of those of each class: a rare class may be held less often than the others."
    )


def _first_rows(model: TableModel, rows: pd.DataFrame) -> pd.DataFrame:
    """The most unusual rows, with what a reader needs to decide."""
    order = rows.sort_values(
        ["conformal_p_value", "epistemic"], ascending=[True, False], kind="stable"
    ).index[:SHOWN_ROWS]
    first = rows.loc[order]
    shown = pd.DataFrame(index=order)
    regression = model.classes_ is None
    shown["prediction"] = first["prediction"].map(_number) if regression else first["prediction"]
    if not regression:
        shown["confidence"] = first["confidence"].map("{:.0%}".format)
    shown["reasons"] = first["reasons"]  # where a narrow screen still shows them
    shown["p"] = first["conformal_p_value"].map("{:.3f}".format)
    shown["epistemic"] = first["epistemic"].map("{:.3f}".format)
    name, values = ("row", order + 1) if model.id_ is None else (model.id_, first[model.id_])
    shown.insert(0, name, values, allow_duplicates=True)  # an id may be called p, too
    return shown.reset_index(drop=True)


def _first_caption(model: TableModel) -> str:
    return (
        "The most unusual rows first. The conformal p-value is the share of rows that are at least "
        "as unusual, among the held-out ones and the row itself; the prediction for an unusual row "
        "is an extrapolation. Reasons are "
        "columns with values that the model was not trained on, and those without whose values "
        "the epistemic uncertainty would be smaller."
        + (" Rows are counted from 1." if model.id_ is None else "")
    )


def _by_class(rows: pd.DataFrame) -> pd.DataFrame:
    grouped = rows.groupby("prediction")
    means = grouped[["confidence", "total", "epistemic"]].mean().map("{:.3f}".format)
    means.insert(0, "rows", grouped.size())
    return means


class _Score(NamedTuple):
    """A score that may find wrong predictions."""

    name: str
    values: FloatArray
    auroc: float
    area: float


def _add_wrong_predictions(report: Report, model: TableModel) -> None:
    """Add which score finds wrong predictions best, and its risk-coverage curve."""
    held_out = model.held_out_
    label, predicted = held_out["label"].to_numpy(), held_out["prediction"].to_numpy()
    wrong = label != predicted
    if not wrong.any() or wrong.all():
        which = "wrong" if wrong.any() else "right"
        report.text(
            "Which score finds wrong predictions?",
            f"All held-out rows were predicted {which}, so that nothing can be compared.",
        )
        return
    scores = [
        _Score(
            name,
            values,
            misclassification_auroc(label, predicted, values),
            area_under_risk_coverage(label, predicted, values),
        )
        for name, values in (
            ("low confidence", 1 - held_out["confidence"].to_numpy()),
            ("total uncertainty", held_out["total"].to_numpy()),
            ("epistemic uncertainty", held_out["epistemic"].to_numpy()),
        )
    ]
    best = max(scores, key=lambda score: score.auroc)
    n_wrong = int(wrong.sum())
    report.table(
        "Which score finds wrong predictions?",
        pd.DataFrame(
            {
                "score": [score.name for score in scores],
                "AUROC": [f"{score.auroc:.3f}" for score in scores],
                "area under the risk-coverage curve": [f"{score.area:.4f}" for score in scores],
            }
        ),
        f"Wrong predictions among the {counted(len(wrong), 'held-out row')}: {n_wrong}; "
        f"{_best(scores, n_wrong, len(wrong) - n_wrong)}. AUROC: the chance that a wrong "
        "prediction has a larger score than a right one; 0.5 is guessing. Small areas are good. "
        "Epistemic uncertainty is meant to find unusual rows, not wrong predictions.",
    )
    # Not drawn yet: the report closes the figures that it draws.
    curve = risk_coverage_curve(label, predicted, best.values)
    report.figure(
        "Answering only when sure",
        RiskCoverageDisplay(curve, best.area, name=best.name),
        f"Error rate among the held-out rows that are answered, if those of the largest "
        f"{best.name.removeprefix('low ')} are refused."
        if best.name != "low confidence"
        else "Error rate among the held-out rows that are answered, if those of the lowest "
        "confidence are refused.",
    )


def _best(scores: list[_Score], n_wrong: int, n_right: int) -> str:
    """Name the scores that find wrong predictions best, as far as they can be told apart."""
    best = max(scores, key=lambda score: score.auroc)
    error = _standard_error(best.auroc, n_wrong, n_right)
    names = [
        s.name
        for s in scores
        # Without their correlation, so that rather too many count as equal.
        if best.auroc - s.auroc <= np.hypot(error, _standard_error(s.auroc, n_wrong, n_right))
    ]
    if len(names) == 1:
        return f"{best.name} finds them best"
    return f"{listed(names)} find them about equally well (within a standard error)"


def _standard_error(auroc: float, n_wrong: int, n_right: int) -> float:
    """Standard error of an AUROC.

    References
    ----------
    Hanley, McNeil, "The Meaning and Use of the Area under a Receiver Operating Characteristic (ROC)
    Curve", Radiology 143, 1982.
    """
    square = auroc**2
    two_wrong = auroc / (2 - auroc) - square
    two_right = 2 * square / (1 + auroc) - square
    variance = auroc - square + (n_wrong - 1) * two_wrong + (n_right - 1) * two_right
    return float(np.sqrt(variance / (n_wrong * n_right)))


def _explained(held_out: pd.DataFrame) -> str:
    error, variance = _squared_errors(held_out)
    if error < variance:
        return f", and explains {percent(1 - error / variance)} of the variance"
    return ""


def _useless_mean(held_out: pd.DataFrame) -> str:
    """A first sentence on a regression that nobody should use."""
    error, variance = _squared_errors(held_out)
    # Of equal targets, as of a single row, nothing can be explained.
    if error < variance or held_out["label"].nunique() == 1:
        return ""
    return "The model is no better than always predicting the mean: do not use it. "


def _squared_errors(held_out: pd.DataFrame) -> tuple[float, float]:
    """Mean squared error, and that of predicting the mean."""
    error = ((held_out["label"] - held_out["prediction"]) ** 2).mean()
    return float(error), float(held_out["label"].var(ddof=0))


def _number(value: float) -> str:
    """A number as people write it: 4 digits, and no zeros for the sake of them."""
    return (
        f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}")
    )
