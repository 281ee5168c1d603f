"""Proven ranges of regression against predictions of scikit-learn at samples and dense grids.

Bounds on mean and standard deviation over random regions are computed for random models (kernels,
noise, exact and with inducing points). Each range is compared with predictions at points of the
region: uniform points, corners, the border, and with up to two free features a dense grid. A single
prediction outside its range would refute the proofs. Predictions are by scikit-learn for exact
models, and computed from scikit-learn's kernels for models with inducing points. Run::

    python -m benchmarks.gpr_soundness --record gpr_soundness
"""

import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import WhiteKernel

from benchmarks.gpc_soundness import NORMS, grid, random_kernel, random_region, sample
from benchmarks.harness import finish, parser, record, set_threads
from skuq import RobustGPRegressor

ROUNDING = 1e-9  # rounding error of the predictions, relative to the largest target
PER_REGION = 3000


@dataclass
class Totals:
    """Counts and extremes for one kind of model and norm."""

    points: int = 0
    violations: int = 0
    overshoot: float = -np.inf  # relative to the largest target
    ranges: int = 0
    converged: int = 0


def random_model(rng, d, sparse):
    """Fit a regression of a random wave; also return an independent prediction function."""
    n = int(rng.integers(8, 40))
    X = rng.normal(size=(n, d)) * rng.uniform(0.5, 2.0)
    y = rng.normal() * 10 + rng.exponential(5) * np.sin(2 * X @ rng.normal(size=d))
    noise = 10 ** rng.uniform(-5, 0)
    kernel = random_kernel(rng, d) + WhiteKernel(noise)
    settings = {"normalize_y": bool(rng.random() < 0.5), "optimizer": None}
    inducing = max(3, n // 2) if sparse else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = RobustGPRegressor(
            kernel, n_inducing=inducing, device="cpu", random_state=0, **settings
        ).fit(X, y)
        if not sparse:
            exact = GaussianProcessRegressor(kernel, **settings).fit(X, y)
            return model, X, y, lambda Z: exact.predict(Z, return_std=True)
    shift, scale = (y.mean(), y.std()) if settings["normalize_y"] else (0.0, 1.0)
    posterior = model.posterior_

    def predict(Z):
        cross = posterior.kernel(Z, posterior.inputs)
        explained = np.einsum("ij,ij->i", cross @ posterior.reduction()[0], cross)
        variance = np.maximum(posterior.kernel.diag(Z) - explained, 0)
        mean = cross @ posterior.weights[0]
        return shift + scale * mean, scale * np.sqrt(variance + noise)

    return model, X, y, predict


def examine(rng, sparse, norm, totals):
    """Compare the ranges of one random model over a few regions with values at points."""
    d = int(rng.integers(1, 6))
    model, X, y, predict = random_model(rng, d, sparse)
    Z = X[:3] + rng.normal(size=(3, d)) / 4
    request, (lower, upper, radii) = random_region(rng, norm, Z, d)
    tol = float(rng.choice([0.01, 0.1]) * np.abs(y).max())
    limit = int(rng.choice([1, 10, 1000], p=[0.1, 0.2, 0.7]))
    found = model.predict_bounds(Z, **request, tol=tol, max_regions=limit, max_time=5.0)
    size = np.abs(y).max()
    for i in range(3):
        radius = None if radii is None else radii[i]
        region = (Z[i], lower[i], upper[i], radius, norm)
        parts = [sample(rng, *region, PER_REGION), Z[i : i + 1]]
        parts += [part[i : i + 1] for each in found[:2] for part in (each.argmin, each.argmax)]
        dense = grid(*region) if (upper[i] > lower[i]).sum() <= 2 else None
        points = np.concatenate(parts if dense is None else [*parts, dense])
        over = np.max(
            [
                np.maximum(bounds.lower[i] - values, values - bounds.upper[i])
                for bounds, values in zip((found.mean, found.std), predict(points), strict=True)
            ],
            axis=0,
        )
        totals.points += len(points)
        totals.violations += int((over > ROUNDING * size).sum())
        totals.overshoot = max(totals.overshoot, float(over.max() / size))
        totals.ranges += 1
        totals.converged += bool(found.mean.converged[i] and found.std.converged[i])


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-points", type=int, default=1_000_000, help="sampled in total")
    args = arguments.parse_args()
    set_threads(args)
    cases = [(sparse, norm) for sparse in (False, True) for norm in NORMS]
    totals = {case: Totals() for case in cases}
    seed = 0
    while sum(total.points for total in totals.values()) < args.n_points:
        for sparse, norm in cases:
            examine(np.random.default_rng([args.seed, seed]), sparse, norm, totals[sparse, norm])
            seed += 1
    records = []
    for (sparse, norm), total in totals.items():
        name = f"{'inducing points' if sparse else 'exact'}, {norm}"
        print(
            f"{name}: {total.points} points in {total.ranges} regions, {total.violations} "
            f"violations, overshoot {total.overshoot:.1e}, {total.converged} converged"
        )
        for metric in ("points", "violations", "overshoot", "ranges", "converged"):
            value = getattr(total, metric)
            records.append(record("RobustGPRegressor", name, metric, value, total.points))
    finish("gpr_soundness", args, records)


if __name__ == "__main__":
    main()
