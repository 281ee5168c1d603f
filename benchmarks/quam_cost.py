"""What the search costs on MNIST, mode by mode, and what the cheaper modes give away.

    python -m benchmarks.quam_cost --n 40 --out DIR

The paper's search (194 steps, each with 512 images for 10 models, all weights) runs image by
image, takes over a minute of one core for each, and is kept in ``--out``: a run that was
stopped goes on from there. Every other mode sees the same images. Also printed: how much of the
machine the search uses, in GFLOP/s beside a `torch.matmul` of the shapes of its largest layer.
"""

import time
from functools import partial

import numpy as np
import torch
from joblib import Parallel, delayed
from scipy.stats import spearmanr
from sklearn.frozen import FrozenEstimator

from benchmarks.harness import finish, kept_run, parser, record, set_threads
from benchmarks.lenets import in_linear_layers, load_images, networks, sequential
from skuq import QUAMClassifier
from skuq.datasets import load_npz
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


def make(mode: str, nets: list, seed: int) -> QUAMClassifier:
    """QUAM around the first network, searching each image on its own."""
    given = FrozenEstimator(sequential(nets[0]))
    fixed = {"search": "pointwise", "setting": "selected", "random_state": seed}
    return QUAMClassifier(given, **MODES[mode], **fixed)


def explain(mode: str, dataset: str, index: int, args) -> dict:
    """Epistemic uncertainty of one image, and its CPU seconds."""
    set_threads(args)
    data, nets = problem(args)
    model = make(mode, nets, args.seed).fit(data.X, data.y)
    return timed(model, data.test[dataset][index : index + 1])


def timed(model, X: np.ndarray) -> dict:
    start = time.process_time()
    epistemic = model.predict_uncertainty(X).epistemic
    return {"epistemic": epistemic.tolist(), "seconds": time.process_time() - start}


def problem(args):
    """Data and networks; read again in each process rather than sent to it."""
    data = load_images(args.ood, args.data_dir, args.n, args.seed)
    return data, networks(load_npz("quam_lenet_mnist", args.data_dir), args.run)


def search_all(mode: str, args) -> dict[str, dict]:
    """Epistemic uncertainty by data set, and CPU seconds per image."""
    data, nets = problem(args)
    if mode != "quam-exact":
        model = make(mode, nets, args.seed).fit(data.X, data.y)
        return {name: timed(model, X) for name, X in data.test.items()}
    job = delayed(partial(kept_run, explain, args=args))
    found = {}
    for name, X in data.test.items():
        runs = Parallel(args.n_jobs)(job(mode, name, index) for index in range(len(X)))
        found[name] = {
            "epistemic": [each["epistemic"][0] for each in runs],
            "seconds": sum(each["seconds"] for each in runs),
        }
    return found


def records_of(mode: str, found: dict, exact: dict | None, args) -> list[dict]:
    """Figures of one mode."""
    counts = {name: len(part["epistemic"]) for name, part in found.items()}
    n = sum(counts.values())
    seconds = sum(part["seconds"] for part in found.values()) / n
    rows = QUICK["train_batch_size"] if mode != "quam-exact" else EXACT["train_batch_size"]
    steps = EXACT["n_steps"] if mode == "quam-exact" else 100
    speed = 3 * FLOP[mode] * 10 * rows * steps / seconds / 1e9
    records = [
        record(mode, "mnist", "cpu_seconds_per_point", seconds, n),
        record(mode, "mnist", "gflop_per_second", speed, n),
    ]
    for name in args.ood:
        auroc = detection_metrics(found["mnist"]["epistemic"], found[name]["epistemic"]).auroc
        records.append(record(mode, name, "auroc", auroc, counts[name]))
    if exact is not None:
        both = [
            np.concatenate([part["epistemic"] for part in each.values()]) for each in (found, exact)
        ]
        records.append(record(mode, "mnist", "spearman_with_exact", spearmanr(*both)[0], n))
    for each in records:
        print(f"{mode:11} {each['dataset']:16} {each['metric']:24} {each['value']:.4f}", flush=True)
    return records


def matmul_speed(rows: int) -> float:
    """GFLOP/s of the plain product of the first linear layer, for ten models."""
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
    arguments.add_argument("--run", type=int, default=0, help="which given model")
    arguments.add_argument("--modes", nargs="+", default=MODES, choices=MODES)
    arguments.add_argument("--n-jobs", type=int, default=1, help="processes of the exact search")
    args = arguments.parse_args()
    set_threads(args)
    speed = matmul_speed(QUICK["train_batch_size"])
    records = [record("matmul", "mnist", "gflop_per_second", speed, 1)]
    print(f"torch.bmm {speed:.1f} GFLOP/s", flush=True)
    exact = None
    for mode in args.modes:
        found = search_all(mode, args)
        records += records_of(mode, found, exact, args)
        exact = found if mode == "quam-exact" else exact
    finish("quam_cost", args, records)


if __name__ == "__main__":
    main()
