"""RobustGPRegressor on tables: time and tightness of bounds, compared with simpler methods.

A regression with one length-scale per feature is fitted to 500 standardised rows of the tables
concrete and airfoil, and with inducing points to 20,000 rows of ca_housing. Ranges of the mean and
of the standard deviation over boxes around 50 test rows are computed by

- "proven": `predict_bounds`, with a tolerance of a hundredth of the target's standard deviation;
- "first box": the same without splitting boxes, also proven;
- "intervals": interval arithmetic on each kernel value, only for the mean, also proven;
- "sampled": the extremes over several thousand random points and corners, not proven.

Widths are in standard deviations of the target. Run::

    python -m benchmarks.gpr_bounds --record gpr_bounds
"""

import time

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from benchmarks.harness import finish, parser, peak_gib, record, set_threads
from skuq import RobustGPRegressor

N_TRAIN, N_TEST, N_SAMPLES = 500, 50, 4000
TABLES = {"concrete": None, "airfoil": None, "ca_housing": 200}  # numbers of inducing points


def intervals(model: RobustGPRegressor, X: NDArray, radius: float) -> tuple[NDArray, NDArray]:
    """Bound the mean in boxes from separate ranges of the kernel value at each training point."""
    constant, rbf = model.posterior_.kernel.k1, model.posterior_.kernel.k2
    weights, ends = model.posterior_.weights[0], []
    for x in X:
        distance = np.abs(x - model.posterior_.inputs)
        near, far = np.maximum(distance - radius, 0), distance + radius
        most, least = (
            constant.constant_value * np.exp(-((d / rbf.length_scale) ** 2).sum(1) / 2)
            for d in (near, far)
        )
        down = np.where(weights > 0, least, most) @ weights
        up = np.where(weights > 0, most, least) @ weights
        ends.append((down, up))
    lower, upper = np.array(ends).T
    return lower, upper


def sampled(model: RobustGPRegressor, X: NDArray, radius: float, seed: int) -> list[NDArray]:
    """Compute minimum and maximum of mean and std over sampled points of each box."""
    rng, found = np.random.default_rng(seed), []
    for x in X:
        points = rng.uniform(-radius, radius, (N_SAMPLES, len(x)))
        corners = N_SAMPLES // 2
        points[:corners] = radius * np.sign(points[:corners])
        mean, std = model.predict(x + points, return_std=True)
        found.append((mean.min(), mean.max(), std.min(), std.max()))
    return list(np.array(found).T)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--radii", type=float, nargs="+", default=[0.02, 0.1])
    arguments.add_argument("--limit", type=float, default=120.0, help="seconds of each call")
    args = arguments.parse_args()
    set_threads(args)
    records = []
    with np.load(args.data_dir / "regression_tables.npz", allow_pickle=False) as file:
        tables = {name: (file[f"x_{name}"], file[f"y_{name}"]) for name in TABLES}
    for name, (X, y) in tables.items():
        X, y = X.astype(float), y.astype(float)
        order = np.random.default_rng(args.seed).permutation(len(X))
        train = order[: 20_000 if TABLES[name] else N_TRAIN]
        test = order[len(train) :][:N_TEST]
        X = (X - X[train].mean(0)) / X[train].std(0)
        unit, d = y[train].std(), X.shape[1]
        kernel = ConstantKernel(1.0) * RBF(np.full(d, 2.0), (1e-1, 1e3)) + WhiteKernel(0.1)
        start = time.perf_counter()
        model = RobustGPRegressor(
            kernel, n_inducing=TABLES[name], max_iter=30, device="cpu", random_state=args.seed
        ).fit(X[train], y[train])
        seconds = time.perf_counter() - start
        Z = X[test]
        facts = {
            "seconds_fit": seconds,
            "peak_gib": peak_gib(),
            "rmse": np.sqrt(np.mean((model.predict(Z) - y[test]) ** 2)) / unit,
        }
        records += [record("fit", name, key, value, len(train)) for key, value in facts.items()]
        print(name, facts, model.kernel_, flush=True)
        model.predict_bounds(Z[:1], 1e-4)  # fills caches
        for radius in args.radii:
            dataset = f"{name}, {radius:g}"
            widths, converged, times = {}, {}, {}
            for method, limit in (("proven", 10_000), ("first box", 1)):
                start = time.perf_counter()
                found = model.predict_bounds(Z, radius, max_regions=limit, max_time=args.limit)
                times[method] = time.perf_counter() - start
                widths[method] = [each.upper - each.lower for each in found[:2]]
                converged[method] = (found.mean.converged & found.std.converged).mean()
            start = time.perf_counter()
            ends = sampled(model, Z, radius, args.seed)
            times["sampled"] = time.perf_counter() - start
            widths["sampled"] = [ends[1] - ends[0], ends[3] - ends[2]]
            start = time.perf_counter()
            lower, upper = intervals(model, Z, radius)
            times["intervals"] = time.perf_counter() - start
            widths["intervals"] = [unit * (upper - lower)]
            for method, width in widths.items():
                figures = {"ms": 1e3 * times[method] / len(Z)}
                if method in converged:
                    figures["converged"] = converged[method]
                records += [record(method, dataset, k, v, len(Z)) for k, v in figures.items()]
                for kind, values in zip(("mean", "std"), width, strict=False):
                    records.append(
                        record(
                            method,
                            dataset,
                            f"width_{kind}",
                            values.mean() / unit,
                            len(Z),
                            values.std() / unit,
                        )
                    )
            print(dataset, {k: [w.mean() / unit for w in v] for k, v in widths.items()}, times)
    finish("gpr_bounds", args, records)


if __name__ == "__main__":
    main()
