"""Cost and accuracy of searches on MNIST, for each image and for a pool of ten thousand.

The paper's search (194 steps, each with 512 images for 10 models, all weights) takes over a minute
of one core for each image, so it is measured on few images. Searches with fewer steps and layers
are measured on more images, and the search on a pool on all images: both the fit, which includes
the search, and predictions for further images with the models found. The speed of the searches is
also printed in GFLOP/s, with that of a `torch.matmul` of the shapes of the largest layer.
"""

import time

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator

from benchmarks.data_files import load_npz
from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.lenets import Images, in_linear_layers, load_images, networks, sequential
from skuq import QUAMClassifier
from skuq.metrics import detection_metrics
from skuq.quam import PointwiseSearch

QUICK = {
    "n_steps": 100,
    "learning_rate_decay": 1.0,
    "prior_precision": 0.0,
    "train_batch_size": 128,
}
# The schedule of the authors' scripts. Their step of 5e-3 is a tenth of the root mean square of the
# linear layers' weights, and steps here are relative to the root mean square.
EXACT = {
    "parameters": "all",
    "n_steps": 194,
    "c0": 6.0,
    "eta": 1.9,
    "update_every": 14,
    "learning_rate": 0.1,
    "learning_rate_decay": 1.9,
    "prior_precision": 0.0,
    "train_batch_size": 512,
    "batch_size": 1,
}
EXACT_TEMPERATURE = 1e-3
MODES = {
    "quam-exact": EXACT,
    "quam": {"parameters": in_linear_layers, **QUICK},
    "quam-last": {"parameters": "last", **QUICK},
}
# Multiplications and additions of one image through the LeNet: convolutions on 24 x 24 and
# 8 x 8 positions, linear layers. A backward pass takes twice as many.
FLOP = {"quam-exact": 2 * (576 * 6 * 25 + 64 * 16 * 150 + 256 * 120 + 120 * 84 + 84 * 10)}
FLOP["quam"] = 2 * (256 * 120 + 120 * 84 + 84 * 10)
FLOP["quam-last"] = 2 * 84 * 10


def epistemic(model: QUAMClassifier, X: np.ndarray) -> tuple[np.ndarray, float]:
    """Compute epistemic uncertainty, and CPU seconds per image."""
    start = time.process_time()
    uncertainty = model.predict_uncertainty(X).epistemic
    return uncertainty, (time.process_time() - start) / len(X)


def pointwise(mode: str, given: FrozenEstimator, data: Images, args) -> list[dict]:
    """Measure a separate search for each image."""
    exact = mode == "quam-exact"
    model = QUAMClassifier(
        given,
        search=PointwiseSearch(**MODES[mode]),
        setting="selected",
        temperature=EXACT_TEMPERATURE if exact else "auto",
        random_state=args.seed,
    ).fit(data.X, data.y)
    n = args.n_exact if exact else args.n
    found = {name: epistemic(model, X[:n]) for name, X in data.test.items()}
    seconds = np.mean([each for _, each in found.values()])
    rows = MODES[mode]["train_batch_size"]
    steps = EXACT["n_steps"] if exact else 100
    speed = 3 * FLOP[mode] * 10 * rows * steps / seconds / 1e9
    records = [
        record(mode, "mnist", "cpu_seconds_per_point", seconds, n * len(found)),
        record(mode, "mnist", "gflop_per_second", speed, n * len(found)),
    ]
    for name in args.ood if not exact else ():
        auroc = detection_metrics(found["mnist"][0], found[name][0]).auroc
        records.append(record(mode, name, "auroc", auroc, 2 * n))
    return records


def pool(given: FrozenEstimator, data: Images, args) -> list[dict]:
    """Measure one search for half of the test images, and predictions for the other half."""
    halves = [np.concatenate([X[half::2] for X in data.test.values()]) for half in (0, 1)]
    start = time.process_time()
    model = QUAMClassifier(given, search="pool", random_state=args.seed)
    model.fit(data.X, data.y, X_pool=halves[0])
    fit = (time.process_time() - start) / len(halves[0])
    costs = {
        "cpu_seconds_per_point": fit + epistemic(model, halves[0])[1],
        "cpu_seconds_per_further_point": epistemic(model, halves[1])[1],
    }
    return [record("quam-pool", "mnist", *each, len(halves[0])) for each in costs.items()]


def matmul_speed(rows: int) -> float:
    """Measure GFLOP/s of the matrix product of the first linear layer, for ten models."""
    a, b = torch.randn(10, rows, 256), torch.randn(10, 256, 120)
    torch.bmm(a, b)
    start, repeats = time.process_time(), 100
    for _ in range(repeats):
        torch.bmm(a, b)
    return repeats * 2 * a.numel() * 120 / (time.process_time() - start) / 1e9


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--ood", nargs="+", default=["fashion_mnist"])
    arguments.add_argument("--n", type=int, default=40, help="images of each data set")
    arguments.add_argument("--n-exact", type=int, default=2, help="those of the paper's search")
    arguments.add_argument("--run", type=int, default=0, help="which given model")
    args = arguments.parse_args()
    set_threads(args)
    data = load_images(args.ood, args.data_dir, None, args.seed)
    nets = networks(load_npz("quam_lenet_mnist", args.data_dir), args.run)
    given = FrozenEstimator(sequential(nets[0]))
    speed = matmul_speed(QUICK["train_batch_size"])
    records = [record("matmul", "mnist", "gflop_per_second", speed, 1), *pool(given, data, args)]
    for mode in MODES:
        records += pointwise(mode, given, data, args)
    for each in records:
        print(f"{each['method']:11} {each['dataset']:16} {each['metric']:30} {each['value']:.4f}")
    finish("quam_cost", args, records)


if __name__ == "__main__":
    main()
