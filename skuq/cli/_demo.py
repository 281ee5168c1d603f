"""The main jobs on data that need no download: digits and inputs that are none; rows of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from skuq.base import BoolArray, FloatArray, IntArray, Uncertainty
from skuq.datasets import SIDE, DigitsWithOOD, load_digits_with_ood, make_loans
from skuq.extras import import_optional
from skuq.information import entropy
from skuq.metrics import (
    area_under_risk_coverage,
    calibration_table,
    detection_metrics,
    expected_calibration_error,
    risk_coverage_curve,
)
from skuq.plotting import (
    ReliabilityDisplay,
    RiskCoverageDisplay,
    UncertaintyHistogramDisplay,
)
from skuq.quam import Explanation, PoolSearch, QUAMClassifier, make_pool
from skuq.reporting import Report


class DigitsDemoResult(NamedTuple):
    """Results of the demonstration on digits."""

    data: DigitsWithOOD
    classifier: QUAMClassifier
    uncertainty: dict[str, Uncertainty]  # of the "test" digits and of each other kind, in nats
    # AUROC of telling each kind of out-of-distribution input from test digits.
    detection: pd.DataFrame
    accuracy: float  # share of test digits that are recognised


def run_digits_demo(
    *,
    n_test: int = 100,
    n_ood: int = 25,  # inputs of each of four kinds
    n_jobs: int | None = -1,
    random_state: int = 0,
    verbose: int = 0,
) -> DigitsDemoResult:
    """Train on digits, then quantify the uncertainty of digits and of other inputs."""
    data = load_digits_with_ood(n_test=n_test, n_ood=n_ood, random_state=random_state)
    classifier = QUAMClassifier(
        search=PoolSearch(pool=altered_digits),
        random_state=random_state,
        n_jobs=n_jobs,
        verbose=verbose,
    )
    classifier.fit(data.X_train, data.y_train)
    groups = {"test": data.X_test, **data.ood}
    # One call for all groups: one progress bar, and processes are started once.
    together = classifier.predict_uncertainty(np.concatenate([*groups.values()]))
    ends = np.cumsum([len(X) for X in groups.values()])[:-1]
    parts = zip(*(np.split(values, ends) for values in together), strict=True)
    uncertainty = {name: Uncertainty(*part) for name, part in zip(groups, parts, strict=True)}
    accuracy = float(classifier.score(data.X_test, data.y_test))
    detection = _digits_detection(classifier, groups, uncertainty)
    return DigitsDemoResult(data, classifier, uncertainty, detection, accuracy)


def altered_digits(X: FloatArray) -> FloatArray:
    """A pool made of digits, (n_pool, n_pixels), without any kind of input that is shown."""
    kinds = ["warped", "halves", "overlaid", "erased", "patches"]
    images = X.reshape(-1, 1, SIDE, SIDE)
    made: FloatArray = make_pool(images, kinds=kinds, random_state=0).reshape(-1, SIDE**2)
    return made


def _digits_detection(
    classifier: QUAMClassifier,
    groups: dict[str, FloatArray],
    uncertainty: dict[str, Uncertainty],
) -> pd.DataFrame:
    """AUROC by kind of out-of-distribution input and over all of them."""
    kinds = [name for name in groups if name != "test"]
    scores = {
        "QUAM": {name: u.epistemic for name, u in uncertainty.items()},
        "entropy": {
            name: entropy(np.log(classifier.predict_proba(X))) for name, X in groups.items()
        },
    }
    for of_group in scores.values():
        of_group["all OOD"] = np.concatenate([of_group[name] for name in kinds])
    rows = {
        name: {
            method: detection_metrics(of_group["test"], of_group[name]).auroc
            for method, of_group in scores.items()
        }
        for name in [*kinds, "all OOD"]
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("OOD inputs")


def write_digits_demo(result: DigitsDemoResult, folder: Path) -> tuple[Path, Path]:
    """Write the report (HTML) and the uncertainty of every input (CSV) into an existing folder."""
    table = folder / "uncertainty.csv"
    _rows(result).to_csv(table, index=False)
    return _digits_report(result).write(folder / "report.html"), table


def _rows(result: DigitsDemoResult) -> pd.DataFrame:
    frames = []
    for name, X in {"test": result.data.X_test, **result.data.ood}.items():
        proba = result.classifier.predict_proba(X)
        frame = result.uncertainty[name].to_frame()
        frame.insert(0, "group", name)
        label = result.data.y_test if name == "test" else [pd.NA] * len(X)
        frame.insert(1, "label", pd.Series(label, dtype="Int64"))
        frame.insert(2, "prediction", result.classifier.classes_[proba.argmax(axis=1)])
        frame.insert(3, "confidence", proba.max(axis=1))
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _digits_report(result: DigitsDemoResult) -> Report:
    data, uncertainty = result.data, result.uncertainty
    overall = result.detection.loc["all OOD"]
    report = Report(
        "Out-of-distribution inputs of a digit classifier",
        f"A small network recognises {result.accuracy:.1%} of {len(data.X_test)} test digits. "
        "Shown inputs that are not digits, it answers all the same. QUAM's epistemic uncertainty "
        f"tells them from digits with AUROC {overall['QUAM']:.3f}; the entropy of the network's "
        f"own probabilities reaches {overall['entropy']:.3f}.",
    )
    report.table(
        "Telling out-of-distribution inputs from digits",
        result.detection,
        "AUROC: the chance that of an out-of-distribution (OOD) input and a digit the OOD input is "
        "the more uncertain. 1 is perfect, 0.5 is guessing; below 0.5 the digits are the more "
        "uncertain.",
    )
    report.figure(
        "Epistemic uncertainty of each group",
        UncertaintyHistogramDisplay(
            {name: u.epistemic for name, u in uncertainty.items()},
            label="epistemic uncertainty",
            unit="nats",
        ),
        "For each input: how much models that explain the training digits equally well disagree "
        "(mutual information of the class and the model, Eq. 1 of the QUAM paper).",
    )
    _add_images(report, result)
    _add_quality(report, result)
    return report


def _add_images(report: Report, result: DigitsDemoResult) -> None:
    data, epistemic = result.data, {k: u.epistemic for k, u in result.uncertainty.items()}
    order = np.argsort(epistemic["test"])
    rows = {"least uncertain digits": order[:8], "most uncertain digits": order[::-1][:8]}
    pictures = {
        name: (data.X_test[rows_], epistemic["test"][rows_]) for name, rows_ in rows.items()
    }
    pictures |= {name: (X[:8], epistemic[name][:8]) for name, X in data.ood.items()}
    pyplot = import_optional("matplotlib.pyplot", extra="plot")
    figure = _image_grid(pictures, result.classifier)
    report.figure(
        "Inputs and answers",
        figure,
        "Below each image: the network's answer, and the epistemic uncertainty in nats.",
    )
    pyplot.close(figure)


def _image_grid(
    pictures: dict[str, tuple[FloatArray, FloatArray]], classifier: QUAMClassifier
) -> Any:
    pyplot = import_optional("matplotlib.pyplot", extra="plot")
    figure, axes = pyplot.subplots(len(pictures), 8, figsize=(8, 1.35 * len(pictures)))
    for row, (name, (images, values)) in zip(axes, pictures.items(), strict=True):
        answers = classifier.predict(images)
        row[0].set_title(name, loc="left", fontsize=10)
        for ax, image, answer, value in zip(row, images, answers, values, strict=False):
            ax.imshow(image.reshape(SIDE, SIDE), cmap="gray_r", vmin=0, vmax=1)
            ax.set_xlabel(f"“{answer}”  {value:.2g}", fontsize=9)
        for ax in row:
            ax.set(xticks=[], yticks=[])
    figure.tight_layout()
    return figure


def _add_quality(report: Report, result: DigitsDemoResult) -> None:
    data, u = result.data, result.uncertainty["test"]
    proba = result.classifier.predict_proba(data.X_test)
    predicted = result.classifier.classes_[proba.argmax(axis=1)]
    classes = result.classifier.classes_
    curve = risk_coverage_curve(data.y_test, predicted, u.total)
    area = area_under_risk_coverage(data.y_test, predicted, u.total)
    table = calibration_table(data.y_test, proba, classes=classes)
    error = expected_calibration_error(data.y_test, proba, classes=classes)
    # Displays that are not drawn yet: the report closes the figures that it draws.
    report.figure(
        "Answering only when sure",
        RiskCoverageDisplay(curve, area, name="total uncertainty"),
        "Error rate among the test digits that are answered, if the most uncertain ones are "
        f"refused (area {area:.4f}).",
    )
    report.figure(
        "Does confidence mean what it says?",
        ReliabilityDisplay(table, error),
        "Accuracy of the answers given with each confidence; expected calibration error "
        f"{error:.3f}.",
    )
    report.text(
        "How this was made",
        "Data: the handwritten digits and the two photographs that come with scikit-learn. "
        f"{len(data.X_train)} digits trained a network with one hidden layer of 100 units. "
        "Out-of-distribution inputs are test digits turned by 90 degrees, test digits with ink "
        "and paper exchanged, uniform noise, and patches of the photographs. The search ran with "
        "the default settings of QUAMClassifier, on a pool of altered training digits: warped, "
        "overlaid, partly erased, put together from halves or in pieces. None of the "
        "out-of-distribution kinds is among them.",
    )


# --- rows of a table -----------------------------------------------------------------------------


class TableDemoResult(NamedTuple):
    """Results of the demonstration on a table."""

    classifier: QUAMClassifier
    rows: dict[str, pd.DataFrame]  # "test" and each kind of unusual rows
    uncertainty: dict[str, Uncertainty]  # in nats
    detection: pd.DataFrame  # AUROC of telling each kind of unusual rows from test rows
    accuracy: float
    explained: pd.DataFrame  # a contradictory row, (1, n_columns)
    explanation: Explanation


def _left_out(X: pd.DataFrame) -> BoolArray:
    """A group of which the training data have no row."""
    group: BoolArray = ((X["age"] > 60) & (X["home"] == "shared")).to_numpy()
    return group


def _unusual(X: pd.DataFrame, group: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows of each kind, made from ordinary ones."""
    # In pandas, a value that is none of the categories is a missing one.
    unseen = pd.Series(index=X.index, dtype=X["job"].dtype)
    contradictory = X.assign(age=X["age"].clip(upper=25)).assign(**{"years in job": 35.0})
    return {
        "income in cents": X.assign(income=X["income"] * 100),
        "unseen job": X.assign(job=unseen),
        "longer in job than alive": contradictory,
        "group left out": group,
    }


def run_table_demo(
    *, n_train: int = 3000, n_test: int = 500, random_state: int = 0, n_jobs: int | None = None
) -> TableDemoResult:
    """Train boosted trees on loans, then quantify the uncertainty of usual and unusual rows."""
    random = np.random.default_rng(random_state)
    X, y = make_loans(n_train, random_state=random)
    X, y = X[~_left_out(X)], y[~_left_out(X)]
    X_test, y_test = make_loans(n_test, random_state=random)
    group = _left_out(X_test)
    X_test, y_test, X_group = X_test[~group], y_test[~group], X_test[group]
    trees = HistGradientBoostingClassifier(max_iter=50, random_state=random_state)
    classifier = QUAMClassifier(trees, n_jobs=n_jobs, random_state=random_state).fit(X, y)
    rows = {"test": X_test, **_unusual(X_test[:100].reset_index(drop=True), X_group)}
    uncertainty = {name: classifier.predict_uncertainty(each) for name, each in rows.items()}
    explained = rows["longer in job than alive"].iloc[[_most_uncertain(uncertainty)]]
    return TableDemoResult(
        classifier,
        rows,
        uncertainty,
        _table_detection(classifier, X, rows, uncertainty, random_state),
        float(classifier.score(X_test, y_test)),
        explained,
        classifier.explain(explained),
    )


def _most_uncertain(uncertainty: dict[str, Uncertainty]) -> int:
    return int(uncertainty["longer in job than alive"].epistemic.argmax())


def _table_detection(
    classifier: QUAMClassifier,
    X: pd.DataFrame,
    rows: dict[str, pd.DataFrame],
    uncertainty: dict[str, Uncertainty],
    random_state: int,
) -> pd.DataFrame:
    """AUROC by kind of unusual row."""
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = make_column_selector(dtype_include="category")
    forest = make_pipeline(
        make_column_transformer((one_hot, columns), remainder="passthrough"),
        IsolationForest(random_state=random_state),
    ).fit(X)
    scores = {
        name: {
            "QUAM": uncertainty[name].epistemic,
            "entropy": entropy(np.log(classifier.predict_proba(each))),
            "isolation forest": -forest.score_samples(each),
        }
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
    pd.concat(frames, ignore_index=True).to_csv(table, index=False)
    return _table_report(result).write(folder / "table_report.html"), table


def _table_report(result: TableDemoResult) -> Report:
    n_test = len(result.rows["test"])
    report = Report(
        "Unusual rows of a table",
        f"Boosted trees predict {result.accuracy:.1%} of {n_test} loans correctly. They answer "
        "for rows that nobody trained them for, too. QUAM refits them with a few altered rows "
        "whose class is made up: where such trees explain the training data as well and answer "
        "otherwise, the data do not support the answer.",
    )
    report.table(
        "Telling unusual rows from ordinary ones",
        result.detection,
        "AUROC: the chance that of an unusual and an ordinary row the unusual one is the more "
        "uncertain. 1 is perfect, 0.5 is guessing. The pool of altered rows was made from the "
        "training rows alone; among them are numbers out of range and unseen categories, but no "
        "rows of the last two kinds on purpose.",
    )
    report.figure(
        "Epistemic uncertainty of each group",
        UncertaintyHistogramDisplay(
            {name: u.epistemic for name, u in result.uncertainty.items()},
            label="epistemic uncertainty",
            unit="nats",
        ),
        "Mutual information of the class and the model (Eq. 1 of the QUAM paper), over the given "
        "trees and the refitted ones.",
    )
    _add_explanation(report, result)
    report.text(
        "How this was made",
        "The loans are generated: numbers and categories that depend on each other. The training "
        "rows hold nobody over 60 who shares a home. The search ran with the default settings of "
        "QUAMClassifier around a HistGradientBoostingClassifier.",
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
    ax.set_xlabel("loss of epistemic uncertainty with a typical value, in nats")
    figure.tight_layout()
    first, second = explanation.most_unusual(2)[0]
    report.figure(
        "Why is this row unusual?",
        figure,
        f"Each column in turn takes the values of ordinary rows. {first.capitalize()} and {second} "
        f"carry most of the row's {explanation.epistemic[0]:.2f} nats; each of them is within "
        "the range of the training data.",
    )
    pyplot.close(figure)
