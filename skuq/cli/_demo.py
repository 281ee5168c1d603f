"""Demonstration on images that need no download: digits, and out-of-distribution inputs."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.frozen import FrozenEstimator

from skuq._information import entropy
from skuq._table_files import write_table
from skuq.base import FloatArray, Uncertainty
from skuq.datasets import SIDE, DigitsWithOOD, load_digits_with_ood
from skuq.imports import import_optional
from skuq.metrics import detection_metrics
from skuq.ood import OODDetector
from skuq.plotting import OODDisplay, UncertaintyHistogramDisplay
from skuq.quam import PoolSearch, QUAMClassifier, make_pool
from skuq.reporting import Report

_HELD_OUT = 300  # number of training digits that are held out to calibrate the detector


class DigitsDemoResult(NamedTuple):
    data: DigitsWithOOD
    classifier: QUAMClassifier
    detector: OODDetector  # uses the uncertainty of the classifier
    uncertainty: dict[str, Uncertainty]  # of "test" digits and each kind of OOD input, in nats
    detection: pd.DataFrame  # AUROC of each kind of OOD input against test digits
    accuracy: float  # on the test digits


def run_digits_demo(
    *,
    n_test: int = 100,
    n_ood: int = 25,  # number of OOD inputs of each kind; there are four kinds
    n_jobs: int | None = -1,
    random_state: int = 0,
    verbose: int = 0,
) -> DigitsDemoResult:
    """Train on digits, then quantify the uncertainty of digits and of other inputs."""
    data = load_digits_with_ood(n_test=n_test, n_ood=n_ood, random_state=random_state)
    options: dict[str, Any] = {"random_state": random_state, "n_jobs": n_jobs, "verbose": verbose}
    classifier = QUAMClassifier(search=PoolSearch(pool=altered_digits), **options)
    X, y, X_held_out = data.X_train[_HELD_OUT:], data.y_train[_HELD_OUT:], data.X_train[:_HELD_OUT]
    classifier.fit(X, y)
    groups = {"test": data.X_test, **data.ood}
    # One call for all groups shows one progress bar and starts the processes only once.
    together = classifier.predict_uncertainty(np.concatenate([*groups.values()]))
    ends = np.cumsum([len(X) for X in groups.values()])[:-1]
    rows = np.split(np.arange(len(together)), ends)
    uncertainty = {name: together[part] for name, part in zip(groups, rows, strict=True)}
    accuracy = float(classifier.score(data.X_test, data.y_test))
    classifier.set_params(verbose=0)  # the remaining calls are fast
    detector = OODDetector(FrozenEstimator(classifier), random_state=random_state)
    detector.fit(X, y, X_held_out=X_held_out)
    detection = _digits_detection(classifier, detector, groups, uncertainty)
    return DigitsDemoResult(data, classifier, detector, uncertainty, detection, accuracy)


def altered_digits(X: FloatArray) -> FloatArray:
    """Return digits altered in other ways than the OOD inputs to detect, (n_pool, n_pixels)."""
    kinds = ["warped", "halves", "overlaid", "erased", "patches"]
    images = X.reshape(-1, 1, SIDE, SIDE)
    return make_pool(images, kinds=kinds, random_state=0).reshape(-1, SIDE**2)


def _digits_detection(
    classifier: QUAMClassifier,
    detector: OODDetector,
    groups: dict[str, FloatArray],
    uncertainty: dict[str, Uncertainty],
) -> pd.DataFrame:
    scores = {  # by group and method; larger scores mean more unusual inputs
        name: pd.DataFrame(
            {
                "QUAM": uncertainty[name].epistemic,
                "entropy": entropy(np.log(classifier.predict_proba(X))),
                "distance": detector.single_scores(X)["neighbors"].to_numpy(),
                "detector": -detector.score_samples(X),
            }
        )
        for name, X in groups.items()
    }
    known = scores.pop("test")
    scores["all OOD"] = pd.concat([*scores.values()])
    rows = {
        name: {method: detection_metrics(known[method], of[method]).auroc for method in known}
        for name, of in scores.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("OOD inputs")


def write_digits_demo(result: DigitsDemoResult, folder: Path) -> tuple[Path, Path]:
    """Write the report (HTML) and the uncertainty of every input (CSV) into an existing folder."""
    frames = []
    for name, X in {"test": result.data.X_test, **result.data.ood}.items():
        proba = result.classifier.predict_proba(X)
        label = result.data.y_test if name == "test" else [pd.NA] * len(X)
        columns = {
            "group": name,
            "label": pd.Series(label, dtype="Int64"),
            "prediction": result.classifier.classes_[proba.argmax(axis=1)],
            "confidence": proba.max(axis=1),
        }
        frames.append(pd.DataFrame(columns).join(result.uncertainty[name].to_frame()))
    table = folder / "uncertainty.csv"
    write_table(table, [pd.concat(frames, ignore_index=True)])
    return _digits_report(result).write(folder / "report.html"), table


def _digits_report(result: DigitsDemoResult) -> Report:
    data, uncertainty = result.data, result.uncertainty
    overall = result.detection.loc["all OOD"]
    flagged = (result.detector.predict(data.X_test) == -1).mean()
    report = Report(
        "Out-of-distribution inputs of a digit classifier",
        f"A small network recognises {result.accuracy:.1%} of {len(data.X_test)} test digits. "
        "It also predicts a digit for inputs that are not digits. QUAM's epistemic uncertainty "
        f"detects these inputs with AUROC {overall['QUAM']:.3f}; the entropy of the network's "
        f"own probabilities reaches {overall['entropy']:.3f}. A detector that combines them with "
        f"the distance to training digits reaches {overall['detector']:.3f}, and flags "
        f"{flagged:.1%} of the test digits, at a nominal false alarm rate of 5%.",
    )
    report.table(
        "Detection of out-of-distribution inputs",
        result.detection,
        "AUROC: the probability that a random out-of-distribution (OOD) input has a larger score "
        "than a random digit. 1 is perfect, 0.5 is guessing; below 0.5 digits have larger scores. "
        "QUAM: epistemic uncertainty. Entropy: entropy of the model's own probabilities. Distance: "
        "mean distance to the ten nearest training inputs. Detector: OODDetector, which combines "
        "several of these scores and further ones.",
    )
    groups = {"test digits": data.X_test, **data.ood}
    p_values = {name: result.detector.p_values(X) for name, X in groups.items()}
    # Pass displays instead of figures: the report draws them and closes their figures.
    report.figure(
        "What the detector flags",
        OODDisplay(p_values, false_alarm_rate=result.detector.false_alarm_rate),
        "Conformal p-value of each input: the share of held-out inputs that are at least as "
        "unusual. Inputs to the right of the line are flagged; at most 5% of in-distribution "
        "inputs are expected there.",
    )
    report.figure(
        "Epistemic uncertainty of each group",
        UncertaintyHistogramDisplay(
            {name: u.epistemic for name, u in uncertainty.items()},
            label="epistemic uncertainty",
            unit="nats",
        ),
        "For each input, the disagreement of models that explain the training digits equally well "
        "(mutual information of the class and the model, Eq. 1 of the QUAM paper).",
    )
    _add_images(report, result)
    report.text(
        "How this was made",
        "Data: the handwritten digits and the two photographs that come with scikit-learn. "
        "A network with one hidden layer of 100 units was trained on "
        f"{len(data.X_train) - _HELD_OUT} digits; {_HELD_OUT} more were held out for the detector. "
        "Out-of-distribution inputs are test digits rotated by 90 degrees, test digits with "
        "inverted colours, uniform noise, and patches of the photographs. QUAMClassifier searched "
        "with its default settings, on a pool of altered training digits without these kinds: "
        "warped, overlaid, partly erased, combined from halves or from patches.",
    )
    return report


def _add_images(report: Report, result: DigitsDemoResult) -> None:
    data, epistemic = result.data, {k: u.epistemic for k, u in result.uncertainty.items()}
    order = np.argsort(epistemic["test"])
    rows = {"least uncertain digits": order[:8], "most uncertain digits": order[::-1][:8]}
    pictures = {name: (data.X_test[own], epistemic["test"][own]) for name, own in rows.items()}
    pictures |= {name: (X[:8], epistemic[name][:8]) for name, X in data.ood.items()}
    pyplot = import_optional("matplotlib.pyplot", extra="plot")
    figure, axes = pyplot.subplots(len(pictures), 8, figsize=(8, 1.35 * len(pictures)))
    for row, (name, (images, values)) in zip(axes, pictures.items(), strict=True):
        answers = result.classifier.predict(images)
        row[0].set_title(name, loc="left", fontsize=10)
        for ax, image, answer, value in zip(row, images, answers, values, strict=False):
            ax.imshow(image.reshape(SIDE, SIDE), cmap="gray_r", vmin=0, vmax=1)
            ax.set_xlabel(f"“{answer}”  {value:.2g}", fontsize=9)
        for ax in row:
            ax.set(xticks=[], yticks=[])
    figure.tight_layout()
    report.figure(
        "Inputs and predictions",
        figure,
        "Below each image: the prediction, and the epistemic uncertainty in nats.",
    )
    pyplot.close(figure)
