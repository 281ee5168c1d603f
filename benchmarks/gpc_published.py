"""Published bounds for three classes (Propositions 3 and 4) compared with ours, on the same model.

The data are Iris with its two petal measurements, standardised; the softmax model has 20 training
rows and a fixed kernel. For boxes of several radii around test points, the proven ranges of the
predicted class by both methods are compared with the range over a grid of points. The published
bounds have a fixed number of boxes for each extreme, and 64 intervals for each class in the
partition of latent space; ours have the tolerance .01. The width of the published bounds at radius
0 is due to the partition alone. Times are CPU seconds. The result for each radius is stored in
``--out`` when it is finished. Run::

    python -m benchmarks.gpc_published --record gpc_published
"""

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_iris
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from benchmarks.gpc import figures
from benchmarks.harness import finish, kept_run, parser, set_threads
from benchmarks.published_gpc import published_bounds
from skuq import RobustGPC
from skuq.gpc import Bounds


def fitted(args: argparse.Namespace) -> tuple[RobustGPC, NDArray]:
    """Fit the model; return it with held-out points."""
    X, y = load_iris(return_X_y=True)
    X = X[:, 2:]
    rows = np.random.default_rng(args.seed).permutation(len(X))
    train, test = rows[: args.n_train], rows[args.n_train :]
    X = (X - X[train].mean(axis=0)) / X[train].std(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kernel = ConstantKernel(4.0) * RBF(1.0)
        gpc = RobustGPC(kernel, optimizer=None, random_state=args.seed, device="cpu")
        gpc.fit(X[train], y[train])
    print(f"accuracy {gpc.score(X[test], y[test]):.3f}", flush=True)
    return gpc, X[test][: args.n_points]


def attained(gpc: RobustGPC, point: NDArray, radius: float, column: int) -> tuple[float, float]:
    """Compute the minimum and maximum probability of a class over a grid in the box."""
    steps = np.linspace(-radius, radius, 41)
    grid = point + np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 2)
    proba = gpc.predict_proba(grid)[:, column]
    return float(proba.min()), float(proba.max())


def compared(
    gpc: RobustGPC, points: NDArray, radius: float, args: argparse.Namespace
) -> dict[str, list[dict]]:
    """Measure widths, seconds and violations of both methods at one radius."""
    methods: dict[str, Callable[..., Bounds]] = {
        "published": partial(published_bounds, gpc, max_regions=args.max_regions),
        "skuq": gpc.predict_proba_bounds,
    }
    found = {method: [] for method in methods}
    columns = gpc.predict_proba(points).argmax(axis=1)
    for point, column in zip(points, columns, strict=True):
        low, high = attained(gpc, point, radius, column)
        for method, bound in methods.items():
            start = time.process_time()
            bounds = bound(point[None], radius, class_=gpc.classes_[column], tol=0.01)
            seconds = time.process_time() - start
            lower, upper = bounds.lower.item(), bounds.upper.item()
            outside = lower > low + 1e-5 or upper < high - 1e-5
            found[method].append((upper - lower, high - low, seconds, outside, bounds.converged[0]))
    rows = []
    for method, values in found.items():
        width, true, seconds, outside, converged = np.array(values, dtype=float).T
        rows += figures(
            method,
            f"iris_r{radius:g}",
            len(points),
            width=width.mean(),
            width_attained=true.mean(),
            excess=(width - true).mean(),
            seconds_per_point=seconds.mean(),
            violations=outside.sum(),
            converged=converged.mean(),
        )
    return {"rows": rows}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--radius", type=float, nargs="+", default=[0.0, 0.05, 0.1, 0.2])
    arguments.add_argument("--n-train", type=int, default=20)
    arguments.add_argument("--n-points", type=int, default=5)
    arguments.add_argument("--max-regions", type=int, default=5, help="of the published, each end")
    args = arguments.parse_args()
    set_threads(args)
    gpc, points = fitted(args)
    found: list[dict] = []
    for radius in args.radius:
        cell = (args.seed, args.n_train, args.n_points, args.max_regions)
        run = partial(_one, gpc, points)
        found += kept_run(run, f"{radius:g}", *cell, args=args)["rows"]
    finish("gpc_published", args, found)


def _one(
    gpc: RobustGPC, points: NDArray, radius: str, *cell: Any, args: argparse.Namespace
) -> dict:
    return compared(gpc, points, float(radius), args)


if __name__ == "__main__":
    main()
