"""Detection of OOD images around the QUAM paper's own LeNets (Table 1, setting (b)).

    python -m benchmarks.quam_mnist --ood fashion_mnist omniglot_latin --n 500

For each run of ``quam_lenet_mnist.npz`` the first network is the given model, and all ten are
the deep ensemble. Scores are the epistemic part of Eq. 2; the reference's is its entropy, "energy"
that of its logits, "neighbours" and "mahalanobis" are distances from the training images in the
features that enter its first linear and its last layer.
"quam" moves the linear layers, on features of the convolutions computed once; "quam-last" the
last layer; "quam-exact" is the paper's search with its authors' schedule, over a minute of one
core per image, and runs only if asked for.
"""

import time

import numpy as np
from sklearn.frozen import FrozenEstimator

from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.lenets import Images, in_linear_layers, load_images, networks, sequential
from skuq import QUAMClassifier
from skuq.baselines import (
    DeepEnsembleClassifier,
    FeatureDistanceClassifier,
    LaplaceClassifier,
    MCDropoutClassifier,
    ReferenceClassifier,
)
from skuq.datasets import load_npz
from skuq.evidential import LogitUncertainty
from skuq.metrics import detection_metrics

QUICK = {"train_batch_size": 128}
# The schedule of the authors' scripts. Their step of 5e-3 is a tenth of the linear layers' root
# mean square, which is what steps are relative to.
EXACT = {
    "n_steps": 194,
    "c0": 6.0,
    "eta": 1.9,
    "update_every": 14,
    "learning_rate": 0.1,
    "learning_rate_decay": 1.9,
    "train_batch_size": 512,
    "temperature": 1e-3,
    "batch_size": 1,
}
METHODS = (
    "quam",
    "quam-last",
    "reference",
    "energy",
    "mahalanobis",
    "neighbours",
    "mc-dropout",
    "ensemble",
    "laplace",
)


def make(method: str, nets: list, seed: int, n_jobs: int):
    """One method around the first network."""
    given = FrozenEstimator(sequential(nets[0]))
    fixed = {"random_state": seed}
    if method == "quam":
        moved = {"parameters": in_linear_layers, "n_jobs": n_jobs}
        return QUAMClassifier(given, **moved, **QUICK, **fixed)
    if method == "quam-last":
        return QUAMClassifier(given, parameters="last", n_jobs=n_jobs, **QUICK, **fixed)
    if method == "quam-exact":
        return QUAMClassifier(given, n_jobs=n_jobs, **EXACT, **fixed)
    if method == "ensemble":
        return DeepEnsembleClassifier(members=[FrozenEstimator(net) for net in nets])
    baselines = {
        "reference": lambda: ReferenceClassifier(given),
        "energy": lambda: LogitUncertainty(given, score="energy"),
        "mahalanobis": lambda: FeatureDistanceClassifier(
            given, distance="mahalanobis", layer="last"
        ),
        "neighbours": lambda: FeatureDistanceClassifier(given),
        "mc-dropout": lambda: MCDropoutClassifier(given, **fixed),
        "laplace": lambda: LaplaceClassifier(given, **fixed),
    }
    return baselines[method]()


def score(model, X: np.ndarray) -> np.ndarray:
    """What the images are ranked by."""
    uncertainty = model.predict_uncertainty(X)
    return uncertainty.total if isinstance(model, ReferenceClassifier) else uncertainty.epistemic


def measure(method: str, nets: list, data: Images, args) -> dict[tuple[str, str], float]:
    """Figures of one method for one run of networks, by data set and metric."""
    model = make(method, nets, args.seed, args.n_jobs).fit(data.X, data.y)
    start = time.perf_counter()
    scores = {name: score(model, X) for name, X in data.test.items()}
    seconds = time.perf_counter() - start
    found = {("mnist", "seconds_per_point"): seconds / sum(map(len, scores.values()))}
    for name in args.ood:
        for metric, value in detection_metrics(scores["mnist"], scores[name])._asdict().items():
            found[name, metric] = value
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--ood", nargs="+", default=["fashion_mnist", "omniglot_latin"])
    arguments.add_argument("--n", type=int, default=500, help="images of each data set")
    arguments.add_argument("--n-runs", type=int, default=3, help="given models")
    arguments.add_argument("--n-jobs", type=int, default=1)
    arguments.add_argument(
        "--methods", nargs="+", default=METHODS, choices=[*METHODS, "quam-exact"]
    )
    args = arguments.parse_args()
    set_threads(args)
    data = load_images(args.ood, args.data_dir, args.n, args.seed)
    weights = load_npz("quam_lenet_mnist", args.data_dir)
    found: dict[tuple[str, str, str], list[float]] = {}
    for run in range(args.n_runs):
        nets = networks(weights, run)
        for method in args.methods:
            figures = measure(method, nets, data, args)
            for (dataset, metric), value in figures.items():
                found.setdefault((method, dataset, metric), []).append(value)
            shown = {name: round(figures[name, "auroc"], 4) for name in args.ood}
            print(f"run {run} {method:12}{shown}", flush=True)
    records = [
        record(method, dataset, metric, np.mean(values), args.n, np.std(values))
        for (method, dataset, metric), values in found.items()
    ]
    finish("quam_mnist", args, records)


if __name__ == "__main__":
    main()
