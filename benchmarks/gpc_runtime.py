"""Computation time of proven probability ranges, by dimension and tolerance (Appendix E).

Images of the digits 3 and 8 with 14 x 14 pixels, of which the d with the shortest length-scales
vary within the radius and [0, 1]. The function is `RobustGPC.predict_proba_bounds` for one class,
which computes the minimum and the maximum probability; the paper's times are for the maximum only.
Parts:

dimensions : for d = 1 to 10 at tolerance .025, and `tolerances` : for d = 5 at .005 to .025;
    seconds per point are for one call with all points and, with ``--one-by-one``, also for one
    call per point.
published : the paper's algorithm (`benchmarks.published_gpc`) on the first points and
    in the same run. If it does not end within ``--limit`` seconds, ratios are lower bounds.
beyond : the largest d at which 90 % of the points are decided within ``--seconds`` each.

With ``--before COMMIT``, the package and the benchmark of an earlier commit first run the first two
parts too.
The paper reports, on a laptop of 2019, below 5 s for d = 1, almost 250 s beyond d = 7 at radius
.25, a few seconds for d = 10 at .125, and below 2 s for d = 5 at tolerance .01. Run::

    python -m benchmarks.gpc_runtime --one-by-one --out results
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.gpc import Data, figures, fit, load, shortest
from benchmarks.harness import finish, parser, set_threads
from benchmarks.published_gpc import published_bounds
from skuq import RobustGPC
from skuq.gpc import Bounds

PARTS = ("dimensions", "tolerances", "published", "beyond")
TOLERANCE, DIMENSION, ENOUGH = 0.025, 5, 0.9
TOLERANCES = (0.005, 0.01, 0.015, 0.02, 0.025)
COMPARED = ("dimensions", "tolerances")  # by an earlier commit too, with these arguments:
SHARED = (
    *("seed", "threads", "dataset", "n_train", "n_test", "max_iter", "radius"),
    *("dimensions", "tolerances", "limit"),
)


class Task(NamedTuple):
    """A model, the points, and the parameters of the bounds."""

    model: RobustGPC
    data: Data
    points: np.ndarray
    features: np.ndarray
    radius: float
    tol: float = TOLERANCE

    def settings(self) -> dict:
        """Keyword arguments of `predict_proba_bounds`."""
        return {
            "radius": self.radius,
            "features": self.features,
            "domain": self.data.domain,
            "class_": self.model.classes_[1],
            "tol": self.tol,
        }

    def name(self) -> str:
        """Data set, dimension, radius and tolerance."""
        d = len(self.features)
        return f"{self.data.name}_d{d}_r{self.radius:g}_eps{self.tol:g}"


def run(
    task: Task,
    rows: slice,
    bound: Callable[..., Bounds] = RobustGPC.predict_proba_bounds,
    **settings,
) -> dict[str, float]:
    """Bound some points in one call; return seconds, regions and the share converged."""
    start = time.perf_counter()
    bounds = bound(task.model, task.points[rows], **task.settings(), **settings)
    seconds = time.perf_counter() - start
    n = len(bounds.converged)
    return {
        "seconds_per_point": seconds / n,
        "regions": bounds.n_regions.mean(),
        "converged": bounds.converged.mean(),
    }


def singly(task: Task, failures: float = np.inf, **settings) -> list[dict[str, float]]:
    """Bound one point after the other, until more than `failures` points did not converge."""
    found: list[dict[str, float]] = []
    for row in range(len(task.points)):
        found.append(run(task, slice(row, row + 1), **settings))
        if sum(one["converged"] < 1 for one in found) > failures:
            break
    return found


def summary(seconds: list[float]) -> dict[str, float]:
    """Compute mean, median and maximum of the times for single points."""
    values = {"mean": np.mean(seconds), "median": np.median(seconds), "max": max(seconds)}
    return {f"seconds_single_{name}": value for name, value in values.items()}


def measure(task: Task, args: argparse.Namespace) -> list[dict]:
    """Measure all points in one call, and one after the other."""
    limit = args.limit * len(task.points)
    found = figures("skuq", task.name(), len(task.points), **run(task, slice(None), max_time=limit))
    if args.one_by_one:
        seconds = [one["seconds_per_point"] for one in singly(task, max_time=args.limit)]
        found += figures("skuq", task.name(), len(seconds), **summary(seconds))
    return found


def published(task: Task, args: argparse.Namespace) -> tuple[list[dict], bool]:
    """Compare the paper's algorithm with ours; also return whether it ended on any point."""
    task = task._replace(points=task.points[: args.n_published])
    slow = singly(task, bound=published_bounds, max_time=args.limit)
    fast = singly(task, max_time=args.limit)
    means = [
        {key: np.mean([one[key] for one in found]) for key in found[0]} for found in (slow, fast)
    ]
    ratio = means[0]["seconds_per_point"] / means[1]["seconds_per_point"]
    ended = means[0]["converged"] == 1
    means[0]["ratio" if ended else "ratio_at_least"] = ratio
    found = figures("published", task.name(), len(slow), **means[0])
    found += figures("skuq_beside_it", task.name(), len(fast), **means[1])
    return found, means[0]["converged"] > 0


def beyond(task: Task, args: argparse.Namespace) -> tuple[list[dict], bool]:
    """Measure whether enough points are decided within the time limit per point."""
    n = len(task.points)
    found = singly(task, failures=n - int(np.ceil(ENOUGH * n)), max_time=args.seconds)
    decided = np.mean([one["converged"] for one in found])
    ended = len(found) == n
    values = {
        "decided_in_time" if ended else "decided_before_giving_up": decided,
        **summary([one["seconds_per_point"] for one in found]),
        "regions": np.mean([one["regions"] for one in found]),
    }
    return figures("skuq_beyond", task.name(), len(found), **values), ended and decided >= ENOUGH


def tasks_of(base: Task, order: np.ndarray, args: argparse.Namespace) -> list[dict]:
    """Run all parts for one radius."""
    found = []
    width = len(order)
    if "dimensions" in args.parts:
        for d in sorted({min(d, width) for d in args.dimensions}):
            found += measure(base._replace(features=order[:d]), args)
    if "tolerances" in args.parts:
        for tol in args.tolerances:
            if tol == TOLERANCE and "dimensions" in args.parts and DIMENSION in args.dimensions:
                continue  # measured already
            found += measure(base._replace(features=order[:DIMENSION], tol=tol), args)
    for part, function, dimensions in (
        ("published", published, args.published_dimensions),
        ("beyond", beyond, args.beyond_dimensions),
    ):
        largest = 0
        for d in sorted({min(d, width) for d in dimensions}) if part in args.parts else ():
            lines, goes_on = function(base._replace(features=order[:d]), args)
            found += lines
            if not goes_on:
                break
            largest = d
        if part in args.parts and part == "beyond":
            name = f"{base.data.name}_r{base.radius:g}_eps{base.tol:g}"
            found += figures("skuq", name, len(base.points), largest_dimension=largest)
    return found


def before(args: argparse.Namespace) -> list[dict]:
    """Run the same measurements with an earlier commit, in a separate process."""
    command = ["git", "-C", str(Path(__file__).parent.parent), "archive", args.before]
    archive = subprocess.run([*command, "skuq", "benchmarks"], capture_output=True, check=True)
    words = ["--parts", *(part for part in args.parts if part in COMPARED)]
    for name in SHARED:
        value = getattr(args, name)
        values = value if isinstance(value, list | tuple) else [value]
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    words += ["--data-dir", str(args.data_dir.absolute())]
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout), encoding="utf-8") as file:
            file.extractall(folder, filter="data")
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.gpc_runtime", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder},
            stdout=subprocess.PIPE,
            check=True,
        )
    found = json.loads(done.stdout.splitlines()[-1])["records"]
    return [{**each, "method": "before"} for each in found]


def draw(path, found: list[dict], args: argparse.Namespace, dataset: str) -> None:
    """Plot Figure 7: seconds per point by dimension and by tolerance."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    value = {(f["method"], f["dataset"], f["metric"]): f["value"] for f in found}
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    sweeps = [
        (args.dimensions, "free pixels", f"d{{0}}_r{{1:g}}_eps{TOLERANCE}"),
        (args.tolerances, "tolerance", f"d{DIMENSION}_r{{1:g}}_eps{{0:g}}"),
    ]
    for axis, (grid, label, form) in zip(axes, sweeps, strict=True):
        for radius in args.radius:
            names = {at: f"{dataset}_{form.format(at, radius)}" for at in grid}
            line = [
                (at, value["skuq", name, "seconds_per_point"])
                for at, name in names.items()
                if ("skuq", name, "seconds_per_point") in value
            ]
            axis.plot(*zip(*line, strict=True), "o-", label=f"radius {radius:g}") if line else None
        axis.set(xlabel=label, ylabel="seconds per point", yscale="log")
        axis.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--dataset", choices=["mnist38", "spam"], default="mnist38")
    arguments.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments.add_argument("--n-train", type=int, default=1000)
    arguments.add_argument("--n-test", type=int, default=50)
    arguments.add_argument("--max-iter", type=int, default=20, help="evaluations of the evidence")
    arguments.add_argument("--isotropic", action="store_true", help="one length-scale for all")
    arguments.add_argument("--radius", type=float, nargs="+", default=[0.125, 0.25])
    arguments.add_argument("--dimensions", type=int, nargs="+", default=[*range(1, 11)])
    arguments.add_argument("--tolerances", type=float, nargs="+", default=TOLERANCES)
    arguments.add_argument("--one-by-one", action="store_true")
    arguments.add_argument("--limit", type=float, default=60.0, help="seconds per point")
    arguments.add_argument("--n-published", type=int, default=2)
    arguments.add_argument("--published-dimensions", type=int, nargs="+", default=[1, 2])
    arguments.add_argument("--seconds", type=float, default=10.0, help="per point, part beyond")
    arguments.add_argument(
        "--beyond-dimensions", type=int, nargs="+", default=[11, 12, 15, 20, 25, 30, 40, 60, 100]
    )
    arguments.add_argument("--before", metavar="COMMIT", help="measured by this commit as well")
    args = arguments.parse_args()
    set_threads(args)
    found = [] if args.before is None else before(args)
    data = load(args.dataset, args.data_dir, args.seed, args.n_train, args.n_test)
    start = time.perf_counter()
    model = fit(data, args.max_iter, isotropic=args.isotropic, seed=args.seed)
    seconds, accuracy = time.perf_counter() - start, model.score(data.X_test, data.y_test)
    found += figures("skuq", data.name, len(data.X_test), seconds_fit=seconds, accuracy=accuracy)
    order = shortest(model, data.X, data.X.shape[1])
    model.predict_proba_bounds(data.X_test[:1], 0.01, features=order[:1])  # fills caches
    for radius in args.radius:
        base = Task(model, data, data.X_test, order[:1], radius)
        found += tasks_of(base, order, args)
    finish("gpc_runtime", args, found)
    if args.out is not None:
        draw(args.out / "gpc_runtime.png", found, args, data.name)


if __name__ == "__main__":
    main()
