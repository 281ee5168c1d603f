"""The main job on data that needs no download: digits, and inputs that are not digits."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from skuq.base import FloatArray, Uncertainty
from skuq.datasets import SIDE, DigitsWithOOD, load_digits_with_ood
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
from skuq.quam import QUAMClassifier, make_pool
from skuq.reporting import Report


class DemoResult(NamedTuple):
    """Results of the demonstration.

    Attributes
    ----------
    data : DigitsWithOOD
        Its data.
    classifier : QUAMClassifier
        The trained classifier.
    uncertainty : dict of str to Uncertainty
        Uncertainty of the ``test`` digits and of each kind of out-of-distribution input, in nats.
    detection : DataFrame
        AUROC of telling each kind of out-of-distribution input from test digits, by QUAM's
        epistemic uncertainty and by the entropy of the model itself.
    accuracy : float
        Share of test digits that are recognised.
    """

    data: DigitsWithOOD
    classifier: QUAMClassifier
    uncertainty: dict[str, Uncertainty]
    detection: pd.DataFrame
    accuracy: float


def run_demo(
    *,
    n_test: int = 100,
    n_ood: int = 25,
    n_jobs: int | None = -1,
    random_state: int = 0,
    verbose: int = 0,
) -> DemoResult:
    """Train on digits, then quantify the uncertainty of digits and of out-of-distribution inputs.

    Parameters
    ----------
    n_test, n_ood : int, default=100 and 25
        Number of test digits, and of out-of-distribution inputs of each of four kinds.
    n_jobs : int or None, default=-1
        Processes.
    random_state : int, default=0
        Seed of data and training.
    verbose : int, default=0
        Whether to show progress bars.

    Returns
    -------
    DemoResult
    """
    data = load_digits_with_ood(n_test=n_test, n_ood=n_ood, random_state=random_state)
    classifier = QUAMClassifier(
        pool=altered_digits, random_state=random_state, n_jobs=n_jobs, verbose=verbose
    )
    classifier.fit(data.X_train, data.y_train)
    groups = {"test": data.X_test, **data.ood}
    # One call for all groups: one progress bar, and processes are started once.
    together = classifier.predict_uncertainty(np.concatenate([*groups.values()]))
    ends = np.cumsum([len(X) for X in groups.values()])[:-1]
    parts = zip(*(np.split(values, ends) for values in together), strict=True)
    uncertainty = {name: Uncertainty(*part) for name, part in zip(groups, parts, strict=True)}
    accuracy = float(classifier.score(data.X_test, data.y_test))
    detection = _detection(classifier, groups, uncertainty)
    return DemoResult(data, classifier, uncertainty, detection, accuracy)


def altered_digits(X: FloatArray) -> FloatArray:
    """Make a pool of images from digits, without any kind of input that the demo shows.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_pixels)
        Digits.

    Returns
    -------
    ndarray of shape (n_pool, n_pixels)
        Warped digits, halves of two, two overlaid, partly erased ones and patches in another order.
    """
    kinds = ["warped", "halves", "overlaid", "erased", "patches"]
    images = X.reshape(-1, 1, SIDE, SIDE)
    made: FloatArray = make_pool(images, kinds=kinds, random_state=0).reshape(-1, SIDE**2)
    return made


def _detection(
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


def write_demo(result: DemoResult, folder: Path) -> tuple[Path, Path]:
    """Write the report (HTML) and the uncertainty of every input (CSV) into a folder.

    Parameters
    ----------
    result : DemoResult
        What `run_demo` returned.
    folder : Path
        Existing folder.

    Returns
    -------
    report, table : Path
        The two files.
    """
    table = folder / "uncertainty.csv"
    _rows(result).to_csv(table, index=False)
    return _report(result).write(folder / "report.html"), table


def _rows(result: DemoResult) -> pd.DataFrame:
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


def _report(result: DemoResult) -> Report:
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


def _add_images(report: Report, result: DemoResult) -> None:
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


def _add_quality(report: Report, result: DemoResult) -> None:
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
