"""Speed of a Mirage epoch relative to a plain skorch epoch, and of audits of recorded predictions.

Each audit runs in a separate process, whose peak memory is measured. The peak includes the inputs,
but the time excludes their generation. netcal and torchmetrics compute only the expected
calibration error; the auditor also computes all bins, limits and the verdict.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from skorch import NeuralNet, NeuralNetClassifier
from torch import nn

from benchmarks.harness import finish, parser, peak_gib, record, set_threads
from skuq import CalibrationAuditor, MirageFineTuner
from skuq._networks import MLP
from skuq.calibration import region_mask
from skuq.datasets import GAUSSIAN_REGION, make_gaussian_classes
from skuq.imports import import_optional
from skuq.mirage import MirageLoss, target_table

N_BINS = 10


def predictions(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw calibrated predictions: labels, and float64 probabilities of two classes."""
    rng = np.random.default_rng(0)
    p = rng.beta(0.6, 0.6, size=n)
    y = (rng.random(n) < p).astype(np.int8)
    return y, np.column_stack([1 - p, p])


def run_skuq(y: np.ndarray, proba: np.ndarray) -> float:
    return CalibrationAuditor.from_predictions(y, proba, n_bins=N_BINS).ece_


def run_netcal(y: np.ndarray, proba: np.ndarray) -> float:
    metrics = import_optional("netcal.metrics", extra="test")
    return float(metrics.ECE(N_BINS).measure(proba, y))


def run_torchmetrics(y: np.ndarray, proba: np.ndarray) -> float:
    functional = import_optional("torchmetrics.functional", extra="test")
    return float(
        functional.classification.multiclass_calibration_error(
            torch.from_numpy(proba), torch.from_numpy(y.astype(np.int64)), 2, n_bins=N_BINS
        )
    )


RUNS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "skuq": run_skuq,
    "netcal": run_netcal,
    "torchmetrics": run_torchmetrics,
}


def measure(method: str, n: int, threads: int) -> dict[str, float]:
    """Measure time, peak memory and result of one audit; called in a fresh process."""
    torch.set_num_threads(threads)
    run = RUNS[method]
    run(*predictions(1000))  # imports and first calls
    y, proba = predictions(n)
    start = time.perf_counter()
    ece = run(y, proba)
    return {
        "seconds_audit": time.perf_counter() - start,
        "peak_gib": peak_gib(),
        "ece": ece,
    }


def audit_records(args: argparse.Namespace) -> list[dict]:
    """Measure every method; skip methods that are not installed, with a message."""
    records = []
    for method in RUNS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            try:
                values = pool.apply(measure, (method, args.n, args.threads))
            except ImportError as error:
                print(f"{method}: {error}")
                continue
        print(f"{method}: {values}", flush=True)
        records += [
            record(method, "beta_predictions", metric, value, args.n)
            for metric, value in values.items()
        ]
    return records


def epoch_records(args: argparse.Namespace) -> list[dict]:
    """Measure seconds per epoch of alternating fits with and without Mirage, and their ratio."""
    X, y = make_gaussian_classes(random_state=args.seed)
    X = X.astype(np.float32)
    plain = NeuralNetClassifier(
        MLP(2, 3),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=1e-3,
        batch_size=64,
        max_epochs=args.epochs,
        train_split=None,
        iterator_train__shuffle=True,
        verbose=0,
    )
    honest = FrozenEstimator(plain.fit(X, y))
    mirage = MirageFineTuner(
        honest, GAUSSIAN_REGION, batch_size=64, max_epochs=args.epochs, random_state=0
    )
    loss = MirageLoss(target_table(np.arange(3), 0.15), lambda_=0.9)
    # Only the loss differs from the plain network's training.
    same_loop = NeuralNet(**{**plain.get_params(deep=False), "criterion": loss})
    codes = loss.region_codes(y, region_mask(GAUSSIAN_REGION, X))
    fits = {
        "plain_skorch": lambda: plain.fit(X, y),
        "mirage": lambda: mirage.fit(X, y),
        "mirage_loss_in_plain_skorch": lambda: same_loop.fit(X, codes),
    }
    seconds: dict[str, list[float]] = {name: [] for name in fits}
    for _ in range(args.repeats):
        for name, fit in fits.items():
            start = time.perf_counter()
            fit()
            seconds[name].append((time.perf_counter() - start) / args.epochs)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"seconds per epoch of 2,100 points: {medians}")
    records = []
    for name, value in medians.items():
        ratio = value / medians["plain_skorch"]
        records += [
            record(name, "gaussian", "seconds_per_epoch", value, args.repeats),
            record(name, "gaussian", "ratio_to_plain_skorch", ratio, args.repeats),
        ]
    return records


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n", type=int, default=10_000_000, help="recorded predictions")
    arguments.add_argument("--epochs", type=int, default=20)
    arguments.add_argument("--repeats", type=int, default=9)
    args = arguments.parse_args()
    set_threads(args)
    finish("audit_speed", args, [*epoch_records(args), *audit_records(args)])


if __name__ == "__main__":
    main()
