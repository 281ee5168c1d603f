"""Misclassification detection and selective prediction: the tasks of the QUAM paper's Table 2.

    python -m benchmarks.quam_selective --data-dir DIR --dataset mnist adult

The paper's table is for ImageNet. Here the data are MNIST's test images with the first LeNet of
each run of ``quam_lenet_mnist.npz`` as the base model (the other nine are the ensemble), and
encoded rows of Adult with the first of ten networks with a hidden layer and dropout, which differ
in their initial weights. The methods are those of ``quam_mnist`` in the paper's setting: the base
model predicts, and the models found are compared with it (Eq. 2). "confidence" is 1 minus its
largest probability. "auroc_PART" is the AUROC of detecting wrong predictions by a part of the
uncertainty. "accuracy_area_PART" is the area under the curve of accuracy against the share of
predictions that are made, the least uncertain first, which is 1 minus the area under the
risk-coverage curve. "ahead_PART" is an AUROC minus that of the confidence of the same model. ``n``
is the number of base models.
"""

import hashlib
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.data_files import load_npz
from benchmarks.harness import finish, kept_run, parser, record, set_threads
from benchmarks.lenets import images, load_images, networks, sequential
from benchmarks.quam_mnist import make
from benchmarks.quam_tables import load, scaled
from skuq.baselines import MCDropoutClassifier
from skuq.metrics import area_under_risk_coverage, misclassification_auroc

METHODS = (
    "quam-quadratic",
    "quam-pool",
    "entropy",
    "ensemble",
    "mc-dropout",
    "laplace",
    "sg-mcmc",
    "neighbours",
)
PARTS = ("total", "epistemic")
N_MEMBERS = 10
N_SEEDS = {"mnist": 3, "adult": 5}  # numbers of base models
Task = tuple[list, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def mnist(seed: int, args) -> Task:
    """Load the networks of a run, training images and test images."""
    data, arrays = load_images([], args.data_dir, 1, args.seed), load_npz("mnist", args.data_dir)
    nets = [sequential(net) for net in networks(load_npz("quam_lenet_mnist", args.data_dir), seed)]
    test = slice(args.n_test)
    return nets, data.X, data.y, images(arrays["x_test"][test]), arrays["y_test"][test]


def adult(seed: int, args) -> Task:
    """Train ten networks on 5,000 rows; return them with training and test rows."""
    task = load("adult_train", args, seed)
    encode = scaled(None)[0].fit(task.X)
    X, X_test = (encode.transform(rows).astype(np.float32) for rows in (task.X, task.X_test))
    y = task.y.astype(np.int64)
    nets = [
        MCDropoutClassifier(random_state=N_MEMBERS * seed + i).fit(X, y).model_.module
        for i in range(N_MEMBERS)
    ]
    return nets, X, y, X_test, task.y_test


LOADERS = {"mnist": mnist, "adult": adult}


def measure(dataset: str, seed: int, *_, args) -> dict:
    """Measure all methods around one base model."""
    nets, X, y, X_test, y_test = LOADERS[dataset](seed, args)
    rows: list[dict[str, Any]] = []
    proba = make("entropy", nets, seed).fit(X, y).predict_proba(X_test)
    predicted = proba.argmax(axis=1)
    scores = {("confidence", "total"): 1 - proba.max(axis=1)}
    for method in args.methods:
        model = make(method, nets, seed, "selected").fit(X, y)
        uncertainty = model.predict_uncertainty(X_test)
        for part in PARTS:
            values = getattr(uncertainty, part)
            if not np.isnan(values).any():  # the method estimates this part
                scores[method, part] = values
    baseline = misclassification_auroc(y_test, predicted, scores["confidence", "total"])
    for (method, part), values in scores.items():
        auroc = misclassification_auroc(y_test, predicted, values)
        figures = {
            "auroc": auroc,
            "accuracy_area": 1 - area_under_risk_coverage(y_test, predicted, values),
            "ahead": auroc - baseline,
        }
        print(dataset, seed, f"{method:14}{part:11}", figures, flush=True)
        rows += [
            {"method": method, "metric": f"{metric}_{part}", "value": value}
            for metric, value in figures.items()
        ]
    accuracy = float(np.mean(predicted == y_test))
    return {"rows": [*rows, {"method": "given", "metric": "accuracy", "value": accuracy}]}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--dataset", nargs="+", default=list(LOADERS), choices=LOADERS)
    arguments.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    arguments.add_argument("--n-seeds", type=int, help="given models; default: 3 and 5")
    arguments.add_argument("--n-train", type=int, default=5000, help="rows of Adult")
    arguments.add_argument("--n-test", type=int, default=10_000)
    args = arguments.parse_args()
    args.n_unusual = 0  # `quam_tables.load` makes such rows
    set_threads(args)
    asked = repr((args.methods, args.n_train, args.n_test, args.seed))
    name = hashlib.sha256(asked.encode()).hexdigest()[:7]
    records = []
    for dataset in args.dataset:
        runs = [
            pd.DataFrame(kept_run(measure, dataset, seed, name, args=args)["rows"])
            for seed in range(args.n_seeds or N_SEEDS[dataset])
        ]
        means = pd.concat(runs).groupby(["method", "metric"], sort=False)["value"]
        for (method, metric), values in means:
            std = values.std(ddof=0)
            records.append(record(method, dataset, metric, values.mean(), len(values), std))
    finish("quam_selective", args, records)


if __name__ == "__main__":
    main()
