"""QUAM on the head of an ImageNet network: 1,280 features, 1,000 classes, the top N searched.

Features and weights are random, with the shapes of an EfficientNet. Each N runs in a separate
process, whose peak memory is reported, as is the peak memory of the fit alone. A search is timed
over a few steps, which all cost the same, and extrapolated to `--steps`. Passes are counted as in
Figure 4 of the paper, where a backward pass counts as two forward passes. Relative to a forward
pass of the whole network (0.39 billion multiplications and additions for EfficientNet-B0), a pass
of the head is 1/305. The speed of the search and of a plain matrix product of the same shapes is
also reported.
"""

import multiprocessing
import time

import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from torch import nn

from benchmarks.harness import finish, parser, peak_gib, record, set_threads
from skuq import QUAMClassifier
from skuq.quam import PointwiseSearch

N_FEATURES, N_CLASSES = 1280, 1000
HEAD_MACS, NETWORK_MACS = N_FEATURES * N_CLASSES, 0.39e9


def measure(n_targets: int, args) -> dict[str, float]:
    """Measure one N; called in a fresh process."""
    set_threads(args)
    random = np.random.default_rng(args.seed)
    features = random.exponential(size=(args.n_train, N_FEATURES)).astype(np.float32)
    torch.manual_seed(args.seed)
    head = nn.Linear(N_FEATURES, N_CLASSES)
    with torch.no_grad():
        y = head(torch.tensor(features)).argmax(1).numpy()
    model = QUAMClassifier(
        FrozenEstimator(head),
        search=PointwiseSearch(
            n_steps=args.measured_steps,
            train_batch_size=args.train_batch_size,
            batch_size=args.batch_size,
        ),
        setting="selected",
        n_targets=n_targets,
        random_state=args.seed,
    ).fit(features, y)
    fitted = peak_gib()
    x = random.exponential(size=(args.n, N_FEATURES)).astype(np.float32)
    start = time.process_time()
    model.predict_uncertainty(x)
    # The models of the last step are only evaluated, which costs a third of a step.
    per_step = (time.process_time() - start) / args.n / (args.measured_steps + 1 / 3)
    passes = 3 * n_targets * args.train_batch_size
    return {
        "cpu_seconds_per_point": per_step * args.steps,
        "peak_gib": peak_gib(),
        "peak_gib_before_search": fitted,
        "head_passes_per_point": passes * args.steps,
        "network_passes_per_point": passes * args.steps * HEAD_MACS / NETWORK_MACS,
        "gflop_per_second": passes * 2 * HEAD_MACS / per_step / 1e9,
    }


def matmul_speed(rows: int) -> float:
    """Measure GFLOP/s of the head's matrix product for ten models."""
    a, b = torch.randn(rows, N_FEATURES), torch.randn(N_FEATURES, 10 * N_CLASSES)
    a @ b
    start = time.process_time()
    for _ in range(5):
        a @ b
    return 5 * 2 * rows * b.numel() / (time.process_time() - start) / 1e9


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-targets", nargs="+", type=int, default=[10, 100, 1000])
    arguments.add_argument("--n", type=int, default=1, help="test points")
    arguments.add_argument("--n-train", type=int, default=4096)
    arguments.add_argument("--steps", type=int, default=100)
    arguments.add_argument("--measured-steps", type=int, default=2)
    arguments.add_argument("--train-batch-size", type=int, default=256)
    arguments.add_argument("--batch-size", type=int, default=1)
    args = arguments.parse_args()
    set_threads(args)
    speed = matmul_speed(args.train_batch_size)
    records = [record("matmul", "random_head", "gflop_per_second", speed, 1)]
    print(f"matmul {speed:.1f} GFLOP/s", flush=True)
    for n_targets in args.n_targets:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            figures = pool.apply(measure, (n_targets, args))
        for metric, value in figures.items():
            print(f"top {n_targets:5} {metric:26}{value:.2f}", flush=True)
            records.append(record(f"top-{n_targets}", "random_head", metric, value, args.n))
    finish("quam_large_head", args, records)


if __name__ == "__main__":
    main()
