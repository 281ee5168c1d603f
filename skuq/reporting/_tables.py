"""Report on the predictions for a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from skuq import plotting, tables
from skuq.explanations import SEPARATOR
from skuq.labels import counted
from skuq.metrics import area_under_risk_coverage, misclassification_auroc, risk_coverage_curve
from skuq.reporting._audit import audit_data, sentences
from skuq.reporting._report import Report, cells, picture
from skuq.tables import TableModel
from skuq.validation import as_pandas

SHOWN_ROWS, SHOWN_CLASSES, SHOWN_GROUPS = 50, 10, 10  # maximum lengths of tables in a report
REVIEWS = ("not scored", "unusual", "out of range", "unseen", "undecided")
FEWEST_OF_GROUP, FEWEST_FOR_AUDIT = 20, 100  # held-out rows needed to show a group, and to audit
SHARE = "{:.1%}".format


def table_report(
    model: TableModel, rows: pd.DataFrame, counts: pd.DataFrame, *, coverage: float = 0.9
) -> Report:
    """Create a report on predictions for a table and their uncertainty; needs matplotlib.

    Parameters
    ----------
    model : TableModel
        The fitted model.
    rows, counts : DataFrame or pyarrow Table
        Results of ``model.predict`` and ``model.count``. If these were called for parts of a table:
        the concatenated results, and the sum of the counts.
    coverage : float, default=0.9
        Coverage of the prediction sets or intervals in `rows`.
    """
    rows = as_pandas(rows).reset_index(drop=True)
    scored = rows[rows["prediction"].notna()]
    n_unread = len(rows) - len(scored)
    warned = [*model.warnings_, *tables.quality_warnings(model, coverage)]
    if n_unread:
        warned.append(
            f"{counted(n_unread, 'row')} {'was' if n_unread == 1 else 'were'} not scored because "
            "of an unreadable cell, which is named in the reasons."
        )
    parts = rows["review"].str.split(SEPARATOR).explode()
    reviews = {mark: parts[parts.str.startswith(mark)].index.nunique() for mark in REVIEWS}
    reviewed = scored[scored["review"] != ""]  # sorted below: rows that are only undecided go last
    undecided = reviewed["review"] == "undecided"
    keys = -reviewed["epistemic"], reviewed["conformal_p_value"], undecided
    reviewed = reviewed.iloc[np.lexsort(keys)]
    figures: dict[str, Any] = {
        **dict.fromkeys(("by_true_class", "scores", "intervals", "by_group", "largest_total")),
        "coverage": f"{coverage:.0%}",
        "quality": cells(_quality(model, coverage)),
        "audited": _audited(model),
        "all_alike": "",
        "warned": warned,
        "useless": bool(tables.guessing_note(model)),
        "unusual": tables.unusual_note(reviews["unusual"], len(scored), model),
        "reviews": reviews,
        "n_rows": len(rows),
        "n_to_review": int((rows["review"] != "").sum()),
        "first_rows": cells(_first_rows(model, reviewed)) if len(reviewed) else None,
        "n_reviewed": len(reviewed),
        "are_counted": model.id_ is None,
        "is_linear": model.name_ == "logistic",
        "histogram": picture(_histogram(model, scored)),
        "measured_rows": model.measured_rows_,
        "notes": [
            *model.notes_[len(model.warnings_) :],
            *tables.table_notes(counts, measured_later="time" in model.held_out_),
        ],
    }
    if model.classes_ is not None:
        figures["by_true_class"] = cells(_by_true_class(model, coverage))
        figures["n_classes"] = model.held_out_["label"].nunique()
        figures["largest_total"] = f"{np.log(len(model.classes_)):.2f}"
        figures |= _wrong_predictions(model)
    else:
        figures |= _intervals(model, coverage)
    return _TableReport(
        f"How certain are the predictions of {model.target_}?",
        " ".join([_how_good(model), *tables.coverage_notes(model, coverage)]),
        figures,
    )


class _TableReport(Report):
    def __init__(self, title: str, summary: str, figures: dict[str, Any]) -> None:
        super().__init__(title, summary)
        self._figures = figures

    def html(self) -> str:
        return self._rendered("table.html", **self._figures)


def _how_good(model: TableModel) -> str:
    held_out = model.held_out_
    where = counted(len(held_out), "held-out row")
    where += f" ({model.measured_rows_})" if model.measured_rows_ else ""
    useless = f"{note} " if (note := tables.guessing_note(model)) else ""
    if model.classes_ is None:
        distance = model.held_out_mean((held_out["label"] - held_out["prediction"]).abs())
        error, variance = model.measured_loss()
        explained = ""
        if error < variance:
            explained = f", and the model explains {1 - error / variance:.1%} of the variance"
        return f"{useless}On {where} the mean absolute error is {_number(distance)}{explained}."
    right = model.held_out_mean(held_out["label"] == held_out["prediction"])
    frequent = held_out["label"].value_counts().index
    most = max(model.held_out_mean(held_out["label"] == label) for label in frequent)
    return (
        f"{useless}The model is right for {right:.1%} of {where}; always "
        f"guessing the most frequent class would be right for {most:.1%}."
    )


def _quality(model: TableModel, coverage: float) -> pd.DataFrame:
    held_out = model.held_out_
    meant, (covered, size) = f"{coverage:.0%}", model.measured_coverage(coverage)
    quality = {"held-out rows": f"{len(held_out)}"}
    if model.classes_ is None:
        error = held_out["label"] - held_out["prediction"]
        spread = np.sqrt(model.measured_loss()[1])
        quality |= {
            "root mean squared error": _number(np.sqrt(model.held_out_mean(error**2))),
            "root mean squared error of always predicting the mean": _number(spread),
            f"coverage of intervals (nominal {meant})": _measured(covered, SHARE),
            "median width of these intervals": _measured(size, _number),
        }
    else:
        right = held_out["label"] == held_out["prediction"]
        loss, guessing = model.measured_loss()
        quality |= {
            "right predictions": f"{model.held_out_mean(right):.1%}",
            "mean confidence": f"{model.held_out_mean(held_out['confidence']):.1%}",
            "log loss": f"{loss:.3f}",
            "log loss of always predicting the class frequencies": f"{guessing:z.3f}",
            f"coverage of prediction sets (nominal {meant})": _measured(covered, SHARE),
            "mean number of classes in a set": _measured(size, "{:.2f}".format),
        }
    return pd.DataFrame({"on held-out rows": quality.keys(), "": quality.values()})


def _measured(value: float, shown: Callable[[float], str]) -> str:
    return "not measured: too few held-out rows" if np.isnan(value) else shown(value)


def _audited(model: TableModel) -> str:
    """Audit the held-out rows and return the verdict; "" if there are too few for an audit."""
    if model.classes_ is None or model.n_effective_ < FEWEST_FOR_AUDIT:
        return ""
    from skuq.audit import CalibrationAuditor

    held = model.held_out_
    label, predicted = (held[name].to_numpy() for name in ("label", "prediction"))
    given = {"classes": model.classes_, "predicted": predicted}
    if "counts" in held:
        name = "groups" if "group" in held else "sample_weight"
        given[name] = held["group" if "group" in held else "counts"]
    audit = CalibrationAuditor.from_predictions(label, model.held_out_proba_, **given)
    return " ".join(sentences(audit_data(audit))["verdict"])


def _by_true_class(model: TableModel, coverage: float) -> pd.DataFrame:
    measured, few = model.measured_by_class(coverage), model.unmeasured_classes()
    measured = measured.drop(index=few.index, errors="ignore")
    if len(measured) > SHOWN_CLASSES:
        measured = measured.nsmallest(SHOWN_CLASSES, "coverage")
    shown = pd.DataFrame(
        {
            "held-out rows": measured["rows"],
            "right predictions": measured["accuracy"].map(SHARE),
            "coverage": measured["coverage"].map(lambda share: _measured(share, SHARE)),
        }
    )
    unknown = dict.fromkeys(shown.columns[1:], "cannot be measured")
    rows = few.rename_axis("class").to_frame("held-out rows").assign(**unknown)
    return pd.concat([shown, rows.head(SHOWN_CLASSES)])


def _intervals(model: TableModel, coverage: float) -> dict[str, Any]:
    known = ~np.isnan(model.measured_intervals(coverage).lower)  # with `time`, only the later half
    if not known.any():
        return {}
    lower, upper = (ends[known] for ends in model.measured_intervals(coverage))
    truth, predicted = (model.held_out_[name].to_numpy()[known] for name in ("label", "prediction"))
    intervals = plotting.IntervalsByWidthDisplay(
        truth, lower, upper, coverage=coverage, unit=model.target_
    )
    by_size = plotting.CoverageBySizeDisplay(
        truth, lower, upper, predicted, coverage=coverage, label=f"predicted {model.target_}"
    )
    groups = _by_group(model, coverage)
    return {
        "intervals": picture(intervals),
        "by_size": picture(by_size),
        "by_group": cells(groups) if len(groups) else None,
    }


def _by_group(model: TableModel, coverage: float) -> pd.DataFrame:
    parts = []
    for column in model.held_out_groups_:
        measured = model.measured_coverage(coverage, by=column)
        parts.append(measured.set_axis([f"{column} = {value}" for value in measured.index]))
    if not parts:
        return pd.DataFrame()
    together = pd.concat(parts)
    least = together[together["rows"] >= FEWEST_OF_GROUP].nsmallest(SHOWN_GROUPS, "coverage")
    return pd.DataFrame(
        {
            "held-out rows": least["rows"],
            "coverage": least["coverage"].map(SHARE),
            "median width": least["size"].map(_number),
        }
    )


def _first_rows(model: TableModel, reviewed: pd.DataFrame) -> pd.DataFrame:
    first = reviewed.head(SHOWN_ROWS)
    shown = pd.DataFrame(index=first.index)
    regression = model.classes_ is None
    if not regression:
        shown["prediction"] = first["prediction"]
        shown["confidence"] = first["confidence"].map("{:.0%}".format)
        shown["total"] = first["total"].map("{:.2f}".format)
    else:
        shown["prediction"] = first["prediction"].map(_number)
        ends = zip(first["lower"], first["upper"], strict=True)
        shown["interval"] = [f"{_number(low)} to {_number(high)}" for low, high in ends]
        shown["interval"] = shown["interval"].str.replace(" ", "\N{NO-BREAK SPACE}")
    # Put the review first, because narrow screens show only the first columns.
    shown.insert(0, "review", first["review"])
    shown["reasons"] = first["reasons"]
    shown["p"] = first["conformal_p_value"].map("{:.3f}".format)
    if regression:
        shown["std"] = first["std"].map(_number)
    else:
        shown["epistemic"] = first["epistemic"].map("{:.3f}".format)
    name, values = ("row", first.index + 1) if model.id_ is None else (model.id_, first[model.id_])
    shown.insert(0, name, values, allow_duplicates=True)  # the id column may be named "p"
    return shown.reset_index(drop=True)


def _histogram(model: TableModel, rows: pd.DataFrame) -> plotting.UncertaintyHistogramDisplay:
    values = {
        "held-out rows": model.held_out_["epistemic"].to_numpy(),
        "predicted rows": rows["epistemic"].to_numpy(),
    }
    label = "epistemic uncertainty"
    if model.classes_ is None:
        values = {name: np.sqrt(np.maximum(each, 0)) for name, each in values.items()}
        label = f"disagreement of models (as {model.target_})"
    return plotting.UncertaintyHistogramDisplay(values, label=label)


def _wrong_predictions(model: TableModel) -> dict[str, Any]:
    held_out = model.held_out_
    label, predicted = held_out["label"].to_numpy(), held_out["prediction"].to_numpy()
    wrong = label != predicted
    if not wrong.any() or wrong.all():
        return {"all_alike": "wrong" if wrong.any() else "right"}
    scores = {
        "low confidence": 1 - held_out["confidence"].to_numpy(),
        "total uncertainty": held_out["total"].to_numpy(),
        "epistemic uncertainty": held_out["epistemic"].to_numpy(),
    }
    measures = (misclassification_auroc, area_under_risk_coverage)
    auroc, area = ({n: f(label, predicted, s) for n, s in scores.items()} for f in measures)
    best = max(auroc, key=auroc.__getitem__)
    table = pd.DataFrame(
        {
            "score": scores.keys(),
            "AUROC": [f"{each:.3f}" for each in auroc.values()],
            "mean error rate": [f"{each:.4f}" for each in area.values()],
        }
    )
    curve = risk_coverage_curve(label, predicted, scores[best])
    return {
        "scores": cells(table),
        "held_out": counted(len(wrong), "held-out row"),
        "n_wrong": int(wrong.sum()),
        "curve": picture(plotting.RiskCoverageDisplay(curve, area[best], name=best)),
        "refused": "lowest confidence" if best == "low confidence" else f"largest {best}",
    }


def _number(value: float) -> str:
    """Format a number with 4 significant digits, or as a whole number if it is large."""
    digits = ".4g" if abs(value) < 1e4 else ",.0f"
    return f"{value:{digits}}".replace(",", "\N{NO-BREAK SPACE}")
