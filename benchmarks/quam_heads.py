"""QUAM around linear models with many classes: cost of `fit`, and OOD detection.

There are two settings. The first is logistic regression on sentence embeddings (CLINC150: 15,000
rows, 384 features, 150 intents), with the AUROC of out-of-scope sentences, for the search in
closed form and the search on a pool, compared with the entropy of the base model. The second is the
head of an ImageNet network, `nn.Linear(1280, 1000)`, on random features, with searches for five
classes. Each setting runs in a separate process, whose peak memory is reported.
"""

import multiprocessing
import time

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from torch import nn

from benchmarks.data_files import load_npz
from benchmarks.harness import finish, parser, peak_gib, record, set_threads
from skuq import QUAMClassifier
from skuq._information import entropy
from skuq.metrics import detection_metrics


def costs(model: QUAMClassifier, X: np.ndarray, y: np.ndarray, new: np.ndarray) -> tuple:
    """Measure a fit and predictions for new rows; also return their epistemic part."""
    start = time.process_time()
    model.fit(X, y)
    fitted = time.process_time()
    epistemic = model.predict_uncertainty(new).epistemic
    predicted = time.process_time()
    figures = {
        "cpu_seconds_fit": fitted - start,
        "cpu_seconds_per_row": (predicted - fitted) / len(new),
        "peak_gib": peak_gib(),
    }
    return figures, epistemic


def clinc150(args) -> list[dict]:
    """Measure a logistic regression on embeddings."""
    set_threads(args)
    data = load_npz("clinc150_minilm", args.data_dir)
    X, known, unknown = (
        np.asarray(data[name], np.float32) for name in ("x_train", "x_test", "x_oos_test")
    )
    start = time.process_time()
    given = LogisticRegression(max_iter=1000).fit(X, data["y_train"])
    refit = time.process_time() - start
    records = []
    for method, search in (("quam-quadratic", "quadratic"), ("quam-pool", "pool")):
        model = QUAMClassifier(FrozenEstimator(given), search=search, random_state=args.seed)
        figures, epistemic = costs(model, X, data["y_train"], np.concatenate([known, unknown]))
        figures["cpu_seconds_of_a_refit"] = refit
        figures["auroc"] = detection_metrics(epistemic[: len(known)], epistemic[len(known) :]).auroc
        records += [record(method, "clinc150", *each, len(X)) for each in figures.items()]
    of_given = [entropy(np.log(given.predict_proba(each))) for each in (known, unknown)]
    return [
        *records,
        record("entropy", "clinc150", "auroc", detection_metrics(*of_given).auroc, len(X)),
    ]


def random_head(args) -> list[dict]:
    """Measure a large head on random features."""
    set_threads(args)
    random = np.random.default_rng(args.seed)
    X = random.exponential(size=(args.n_train, 1280)).astype(np.float32)
    torch.manual_seed(args.seed)
    head = nn.Linear(1280, 1000)
    with torch.no_grad():
        head.weight *= 10  # larger weights, so that predictions are confident
        y = head(torch.tensor(X)).argmax(1).numpy()
    records = []
    for search in ("quadratic", "pool"):
        model = QUAMClassifier(
            head, search=search, n_targets=args.n_targets, random_state=args.seed
        )
        figures, _ = costs(model, X, y, X[:100])
        records += [
            record(f"quam-{search}", "random_head", *each, len(X)) for each in figures.items()
        ]
    return records


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-train", type=int, default=4000, help="rows of the random head")
    arguments.add_argument("--n-targets", type=int, default=5, help="classes of the random head")
    args = arguments.parse_args()
    set_threads(args)
    records = []
    for setting in (clinc150, random_head):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            records += pool.apply(setting, (args,))
    for each in records:
        print(f"{each['method']:8} {each['dataset']:12} {each['metric']:24} {each['value']:.4f}")
    finish("quam_heads", args, records)


if __name__ == "__main__":
    main()
