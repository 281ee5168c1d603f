"""Demonstration on a table: detection of rows that differ from the training rows."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from skuq._table_files import write_table
from skuq.base import BoolArray, FloatArray, IntArray, Uncertainty
from skuq.cli._demo import (
    METHODS,
    P_VALUES,
    fitted_detector,
    flagged,
    p_values_display,
    scores_of,
)
from skuq.datasets import make_loans
from skuq.explanations import Explanation
from skuq.extras import import_optional
from skuq.metrics import detection_metrics
from skuq.ood import OODDetector
from skuq.plotting import UncertaintyHistogramDisplay
from skuq.quam import QUAMClassifier
from skuq.reporting import Report


class TableDemoResult(NamedTuple):
    """Results of the demonstration on a table."""

    classifier: QUAMClassifier
    detector: OODDetector  # around the classifier
    rows: dict[str, pd.DataFrame]  # "test" and each kind of unusual rows
    uncertainty: dict[str, Uncertainty]  # in nats
    detection: pd.DataFrame  # AUROC of each kind of unusual rows against test rows
    accuracy: float
    explained: pd.DataFrame  # a contradictory row, (1, n_columns)
    explanation: Explanation


def _left_out(X: pd.DataFrame) -> BoolArray:
    """Mask of a group that is absent from the training data."""
    group: BoolArray = ((X["age"] > 60) & (X["home"] == "shared")).to_numpy()
    return group


def _unusual(X: pd.DataFrame, group: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Unusual rows of each kind, derived from ordinary rows."""
    # pandas represents a value outside the categories as missing.
    unseen = pd.Series(index=X.index, dtype=X["job"].dtype)
    contradictory = X.assign(age=X["age"].clip(upper=25)).assign(**{"years in job": 35.0})
    return {
        "income in cents": X.assign(income=X["income"] * 100),
        "unseen job": X.assign(job=unseen),
        "longer in job than alive": contradictory,
        "group left out": group,
    }


def run_table_demo(
    *,
    n_train: int = 3000,
    n_held_out: int = 500,  # rows for the calibration of the detector
    n_test: int = 500,
    random_state: int = 0,
    n_jobs: int | None = None,
) -> TableDemoResult:
    """Train boosted trees on loans, then quantify the uncertainty of ordinary and unusual rows."""
    random = np.random.default_rng(random_state)
    X, y = make_loans(n_train, random_state=random)
    X, y = X[~_left_out(X)], y[~_left_out(X)]
    X_held_out = make_loans(n_held_out, random_state=random)[0]
    X_held_out = X_held_out[~_left_out(X_held_out)]
    X_test, y_test = make_loans(n_test, random_state=random)
    group = _left_out(X_test)
    X_test, y_test, X_group = X_test[~group], y_test[~group], X_test[group]
    trees = HistGradientBoostingClassifier(max_iter=50, random_state=random_state)
    classifier = QUAMClassifier(trees, n_jobs=n_jobs, random_state=random_state).fit(X, y)
    detector = fitted_detector(classifier, X, y, X_held_out, random_state)
    rows = {"test": X_test, **_unusual(X_test[:100].reset_index(drop=True), X_group)}
    uncertainty = {name: classifier.predict_uncertainty(each) for name, each in rows.items()}
    explained = rows["longer in job than alive"].iloc[[_most_uncertain(uncertainty)]]
    return TableDemoResult(
        classifier,
        detector,
        rows,
        uncertainty,
        _table_detection(classifier, detector, X, rows, uncertainty, random_state),
        float(classifier.score(X_test, y_test)),
        explained,
        classifier.explain(explained),
    )


def _most_uncertain(uncertainty: dict[str, Uncertainty]) -> int:
    return int(uncertainty["longer in job than alive"].epistemic.argmax())


def _table_detection(
    classifier: QUAMClassifier,
    detector: OODDetector,
    X: pd.DataFrame,
    rows: dict[str, pd.DataFrame],
    uncertainty: dict[str, Uncertainty],
    random_state: int,
) -> pd.DataFrame:
    """AUROC of each method by kind of unusual row."""
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = make_column_selector(dtype_include="category")
    forest = make_pipeline(
        make_column_transformer((one_hot, columns), remainder="passthrough"),
        IsolationForest(random_state=random_state),
    ).fit(X)
    scores = {
        name: scores_of(classifier, detector, each, uncertainty[name])
        | {"isolation forest": -forest.score_samples(each)}
        for name, each in rows.items()
    }
    table = {
        name: {
            method: detection_metrics(scores["test"][method], values).auroc
            for method, values in of_kind.items()
        }
        for name, of_kind in scores.items()
        if name != "test"
    }
    return pd.DataFrame.from_dict(table, orient="index").rename_axis("unusual rows")


def write_table_demo(result: TableDemoResult, folder: Path) -> tuple[Path, Path]:
    """Write the report (HTML) and the uncertainty of every row (CSV) into an existing folder."""
    table = folder / "table_uncertainty.csv"
    frames = []
    for name, X in result.rows.items():
        u = result.uncertainty[name].to_frame().set_index(X.index)
        frames.append(pd.concat([X, u], axis=1).assign(group=name))
    write_table(table, [pd.concat(frames, ignore_index=True)])
    return _table_report(result).write(folder / "table_report.html"), table


def _table_report(result: TableDemoResult) -> Report:
    n_test = len(result.rows["test"])
    report = Report(
        "Unusual rows of a table",
        f"Boosted trees predict {result.accuracy:.1%} of {n_test} loans correctly. They also "
        "predict a class for rows unlike the training rows. QUAM refits them with a few altered "
        "rows under a different class: if the refitted trees explain the training data equally "
        "well but predict a different class, the data do not support the prediction. A detector "
        "combines this uncertainty with distances and values out of range; it flags "
        f"{flagged(result.detector, result.rows['test'])} of the ordinary rows, at a nominal false "
        "alarm rate of 5%.",
    )
    report.table(
        "Detection of unusual rows",
        result.detection,
        "AUROC: the probability that a random unusual row has a larger score than a random "
        f"ordinary one. {METHODS} 1 is perfect, 0.5 is guessing. The pool of altered rows was made "
        "from the training rows alone. It includes numbers out of range and unseen categories, but "
        "no rows that were made to resemble the last two kinds.",
    )
    unusual = {name: rows for name, rows in result.rows.items() if name != "test"}
    report.figure(
        "What the detector flags",
        p_values_display(result.detector, result.rows["test"], unusual, "test"),
        P_VALUES,
    )
    report.figure(
        "Epistemic uncertainty of each group",
        UncertaintyHistogramDisplay(
            {name: u.epistemic for name, u in result.uncertainty.items()},
            label="epistemic uncertainty",
            unit="nats",
        ),
        "Mutual information of the class and the model (Eq. 1 of the QUAM paper), over the "
        "original and the refitted trees.",
    )
    _add_explanation(report, result)
    report.text(
        "How this was made",
        "The loans are synthetic: numbers and categories that depend on each other. Neither the "
        "training rows nor the rows held out for the detector include a person over 60 who shares "
        "a home. The search ran with the default settings of QUAMClassifier around a "
        "HistGradientBoostingClassifier.",
    )
    return report


def _add_explanation(report: Report, result: TableDemoResult) -> None:
    pyplot = import_optional("matplotlib.pyplot", extra="plot")
    explanation = result.explanation
    order: IntArray = np.argsort(explanation.contribution[0])
    contribution: FloatArray = explanation.contribution[0][order]
    figure, ax = pyplot.subplots(figsize=(7, 3))
    values = [result.explained.iloc[0, k] for k in order]
    names = explanation.columns[order]
    ax.barh([f"{n} = {v}" for n, v in zip(names, values, strict=True)], contribution)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_xlabel("reduction of epistemic uncertainty by typical values, in nats")
    figure.tight_layout()
    unusual = explanation.most_unusual(2)[0]
    total = f"the row's {explanation.epistemic[0]:.2f} nats"
    found = f"No column stands out in {total}"
    if unusual:
        carry = "carries" if len(unusual) == 1 else "carry"
        found = f"{' and '.join(unusual).capitalize()} {carry} most of {total}"
    report.figure(
        "Why is this row unusual?",
        figure,
        f"The value of each column in turn is replaced by values of ordinary rows. {found}; each "
        "value is within the range of the training data.",
    )
    pyplot.close(figure)
