"""Width and coverage of prediction intervals for numeric targets.

    python -m benchmarks.quantities --n-seeds 10 --out DIR

Tables of CLEAR (Azizi, Bodik, Heiss, Yu 2025), split by each seed into 60 % training, 20 %
calibration and 20 % test rows, as by its authors; the requested coverage is 95 %. ``--tables``
selects a different file in the same format. All methods have the same rows:

- "table": `skuq.tables.TableModel` with defaults; the calibration rows are its `held_out`;
- "quam": `skuq.QUAMRegressor` around boosted trees, on both parts;
- "split": split conformal intervals around boosted trees (MAPIE);
- "cqr": conformalised quantile regression with boosted trees (MAPIE);
- "quantile-forest" and "ngboost", on both parts, if the packages are installed;
- "ensemble": five networks that predict mean and variance, on both parts, up to 8,500 rows;
- "gp": a Gaussian process of scikit-learn, on both parts, up to 1,500 rows.

"interval_score", "coverage" and "width" are for 95 %. For 90 %: "coverage_90",
"coverage_90_top_tenth" (rows with the largest predictions of the method), "coverage_90_least_tenth"
(the tenth of the predictions with the lowest coverage) and "coverage_90_widest_tenth". "crps"
exists for methods that predict quantiles or a normal distribution. "rmse_left" is the root mean
squared error on the half of the rows with the lowest uncertainty, relative to that on all rows. CPU
seconds are for fit and predictions.

For "all" tables: "of_cqr" is the interval score relative to that of "cqr", a geometric mean over
tables and seeds, and "of_cqr_worst" its mean on the worst table. "of_published" is the mean over
seeds relative to the best result that CLEAR's authors published for CLEAR, a geometric mean over
tables. "mean_rank" is by interval score.
"""

import json
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from mapie.regression import ConformalizedQuantileRegressor, SplitConformalRegressor
from scipy.special import ndtri
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.data_files import load_npz
from benchmarks.harness import finish, kept_run, parser, record, set_threads
from skuq import QUAMRegressor
from skuq.metrics import interval_score, pinball_loss
from skuq.models import fit_model
from skuq.tables import TableModel

COVERAGES = (0.95, 0.9)
LEVELS = np.arange(1, 40) / 40
MOST_ROWS = {"gp": 1500, "ensemble": 8500}  # limits for slow methods
N_MEMBERS = 5
PUBLISHED = "regression_tables_published.json"


class Part(NamedTuple):
    """Inputs and targets of some rows of a table."""

    X: np.ndarray
    y: np.ndarray


class Predicted(NamedTuple):
    """Predictions of a method for the test rows."""

    mean: np.ndarray
    intervals: dict[float, tuple[np.ndarray, np.ndarray]]  # by coverage
    doubt: np.ndarray  # uncertainty by which rows are left out
    quantiles: np.ndarray | None = None  # at `LEVELS`


Method = Callable[[Part, Part, np.ndarray, int], Predicted]


def both(train: Part, calibrate: Part) -> Part:
    return Part(*map(np.concatenate, zip(train, calibrate, strict=True)))


def widths(intervals: dict[float, tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    lower, upper = intervals[COVERAGES[0]]
    return upper - lower


def from_quantiles(mean: np.ndarray, predict: Callable[[np.ndarray], np.ndarray]) -> Predicted:
    """Build predictions of a method with uncalibrated quantiles (n_rows, n_levels)."""
    tails = {c: predict(np.array([(1 - c) / 2, (1 + c) / 2])).T for c in COVERAGES}
    intervals = {c: (lower, upper) for c, (lower, upper) in tails.items()}
    return Predicted(mean, intervals, widths(intervals), predict(LEVELS))


def gaussian(mean: np.ndarray, std: np.ndarray) -> Predicted:
    return from_quantiles(mean, lambda levels: mean[:, None] + std[:, None] * ndtri(levels))


def boosting(**params: Any) -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(random_state=0, **params)


def table(train: Part, calibrate: Part, X: np.ndarray, seed: int) -> Predicted:
    names = [f"x{k}" for k in range(X.shape[1])]
    rows = [pd.DataFrame(part.X, columns=names).assign(y=part.y) for part in (train, calibrate)]
    model = TableModel(task="regression", random_state=seed).fit(rows[0], "y", held_out=rows[1])
    new, found = pd.DataFrame(X, columns=names), {}
    for coverage in COVERAGES:
        found[coverage] = model.predict(new, coverage=coverage, n_explained=0)
    first = found[COVERAGES[0]]
    intervals = {c: (f["lower"].to_numpy(), f["upper"].to_numpy()) for c, f in found.items()}
    quantiles = model.predict_quantiles(new, LEVELS)
    return Predicted(first["prediction"].to_numpy(), intervals, first["std"].to_numpy(), quantiles)


def quam(train: Part, calibrate: Part, X: np.ndarray, seed: int) -> Predicted:
    model = QUAMRegressor(boosting(), random_state=seed).fit(*both(train, calibrate))
    std = model.predict_model_std(X)
    intervals = {c: tuple(model.predict_interval(X, c)) for c in COVERAGES}
    quantiles = model.predict_quantiles(X, LEVELS, model_std=std)
    return Predicted(model.predict(X), intervals, widths(intervals), quantiles)


def split(train: Part, calibrate: Part, X: np.ndarray, seed: int) -> Predicted:
    model = boosting().fit(*train)
    conformal = SplitConformalRegressor(model, confidence_level=COVERAGES, prefit=True)
    mean, ends = conformal.conformalize(*calibrate).predict_interval(X)
    intervals = {c: (ends[:, 0, k], ends[:, 1, k]) for k, c in enumerate(COVERAGES)}
    return Predicted(mean, intervals, widths(intervals))


def cqr(train: Part, calibrate: Part, X: np.ndarray, seed: int) -> Predicted:
    intervals = {}
    for coverage in COVERAGES:
        levels = ((1 - coverage) / 2, (1 + coverage) / 2, 0.5)
        models = [boosting(loss="quantile", quantile=level).fit(*train) for level in levels]
        conformal = ConformalizedQuantileRegressor(models, confidence_level=coverage, prefit=True)
        _, ends = conformal.conformalize(*calibrate).predict_interval(X)
        intervals[coverage] = ends[:, 0, 0], ends[:, 1, 0]
    return Predicted(boosting().fit(*train).predict(X), intervals, widths(intervals))


def quantile_forest(train: Part, calibrate: Part, X: np.ndarray, seed: int) -> Predicted:
    from quantile_forest import RandomForestQuantileRegressor

    forest = RandomForestQuantileRegressor(min_samples_leaf=5, random_state=seed)
    forest.fit(*both(train, calibrate))
    mean = forest.predict(X, quantiles="mean")
    return from_quantiles(mean, lambda levels: forest.predict(X, quantiles=list(levels)))


def ngboost(train: Part, calibrate: Part, X: np.ndarray, seed: int) -> Predicted:
    from ngboost import NGBRegressor

    model = NGBRegressor(random_state=seed, verbose=False).fit(*both(train, calibrate))
    found = model.pred_dist(X).params
    return gaussian(found["loc"], found["scale"])


def ensemble(train: Part, calibrate: Part, X: np.ndarray, seed: int) -> Predicted:
    """Deep ensemble (Lakshminarayanan et al., NeurIPS 2017), with a normal approximation."""
    known = both(train, calibrate)
    scaler = StandardScaler().fit(known.X)
    means, variances = [], []
    for member in range(N_MEMBERS):
        model = fit_model(
            None,
            scaler.transform(known.X),
            known.y,
            regression=True,
            n_outputs=2,
            seed=N_MEMBERS * seed + member,
            device="cpu",
        )
        mean, log_variance = model.outputs(model.inputs(scaler.transform(X))).numpy().T
        means.append(mean)
        variances.append(np.exp(log_variance))
    return gaussian(
        np.mean(means, axis=0), np.sqrt(np.mean(variances, axis=0) + np.var(means, axis=0))
    )


def gp(train: Part, calibrate: Part, X: np.ndarray, seed: int) -> Predicted:
    kernel = 1.0 * RBF(np.ones(X.shape[1])) + WhiteKernel(0.1)
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed)
    mean, std = (
        make_pipeline(StandardScaler(), process)
        .fit(*both(train, calibrate))
        .predict(X, return_std=True)
    )
    return gaussian(mean, std)


METHODS: dict[str, Method] = {
    "table": table,
    "quam": quam,
    "split": split,
    "cqr": cqr,
    "quantile-forest": quantile_forest,
    "ngboost": ngboost,
    "ensemble": ensemble,
    "gp": gp,
}
NEEDS = {"quantile-forest": "quantile_forest", "ngboost": "ngboost"}


def can_run(method: str, n_rows: int) -> bool:
    """Whether the package of a method is installed, and the table is small enough."""
    here = method not in NEEDS or find_spec(NEEDS[method]) is not None
    return here and n_rows <= MOST_ROWS.get(method, n_rows)


def by_tenth(inside: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Compute the coverage in each tenth of the rows, sorted by `order`."""
    return np.array([part.mean() for part in np.array_split(inside[np.argsort(order)], 10)])


def measured(method: str, name: str, seed: int, *, args: Any) -> dict[str, float]:
    """Measure one method on one split of a table."""
    arrays = load_npz(args.tables, args.data_dir)
    X, y = arrays[f"x_{name}"], arrays[f"y_{name}"].astype(np.float64)
    order = np.random.default_rng(seed).permutation(len(y))[: args.max_rows]
    ends = [6 * len(order) // 10, 8 * len(order) // 10]
    train, calibrate, test = (Part(X[rows], y[rows]) for rows in np.split(order, ends))
    began = time.process_time()
    found = METHODS[method](train, calibrate, test.X, seed)
    seconds = time.process_time() - began
    (lower, upper), (low, high) = (found.intervals[c] for c in COVERAGES)
    inside = (low <= test.y) & (test.y <= high)
    tenths = by_tenth(inside, found.mean)
    squared = (found.mean - test.y) ** 2
    sure = np.argsort(found.doubt, kind="stable")[: len(test.y) // 2]
    figures = {
        "interval_score": interval_score(test.y, lower, upper, coverage=COVERAGES[0]),
        "coverage": np.mean((lower <= test.y) & (test.y <= upper)),
        "width": np.mean(upper - lower),
        "coverage_90": inside.mean(),
        "coverage_90_top_tenth": tenths[-1],
        "coverage_90_least_tenth": tenths.min(),
        "coverage_90_widest_tenth": by_tenth(inside, high - low)[-1],
        "spread_of_widths": np.std(upper - lower) / np.mean(upper - lower),
        "rmse": np.sqrt(squared.mean()),
        "rmse_left": np.sqrt(squared[sure].mean() / squared.mean()),
        "seconds_cpu": seconds,
    }
    if found.quantiles is not None:
        # The continuous ranked probability score is the integral of twice the pinball loss.
        figures["crps"] = 2 * pinball_loss(test.y, found.quantiles, LEVELS)
    print(
        f"{name} {seed} {method}: interval score {figures['interval_score']:.4g}, coverage "
        f"{figures['coverage']:.3f}, 90 %: {inside.mean():.3f}, top tenth {tenths[-1]:.3f}, "
        f"RMSE {figures['rmse']:.4g}, {seconds:.0f} s",
        flush=True,
    )
    return {metric: float(value) for metric, value in figures.items()}


def published(args: Any) -> dict[tuple[str, str], float]:
    """Read the best interval scores published by CLEAR's authors, by method and table."""
    path = args.data_dir / PUBLISHED
    if not path.exists():
        return {}
    best = {}
    for name, variants in json.loads(path.read_text(encoding="utf-8")).items():
        for method in ("clear", "pcs", "cqr"):
            scores = [variant[method]["intervalscoreloss"] for variant in variants.values()]
            if np.isfinite(scores).all():
                best[method, name] = min(scores)
    return best


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--tables", default="regression_tables", help="name of the .npz file")
    names = ["airfoil", "concrete", "insurance", "sulfur", "powerplant", "kin8nm", "ca_housing"]
    arguments.add_argument("--dataset", nargs="+", default=names)
    arguments.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments.add_argument("--n-seeds", type=int, default=3)
    arguments.add_argument("--max-rows", type=int, default=None)
    args = arguments.parse_args()
    set_threads(args)
    n_rows = {n: len(load_npz(args.tables, args.data_dir)[f"y_{n}"]) for n in args.dataset}
    seeds = range(args.seed, args.seed + args.n_seeds)
    scores: dict[tuple[str, str], np.ndarray] = {}
    records = []
    for seed in seeds:
        for name in args.dataset:
            for method in args.methods:
                if can_run(method, n_rows[name]):
                    kept_run(measured, method, name, seed, args=args)
    for name in args.dataset:
        for method in args.methods:
            if not can_run(method, n_rows[name]):
                continue
            runs = pd.DataFrame([kept_run(measured, method, name, s, args=args) for s in seeds])
            scores[method, name] = runs["interval_score"].to_numpy()
            for metric in runs:
                values = runs[metric]
                spread = values.std(ddof=0)
                records.append(record(method, name, metric, values.mean(), len(values), spread))
    records += summary(scores, args)
    finish("quantities", args, records)


def summary(scores: dict[tuple[str, str], np.ndarray], args: Any) -> list[dict]:
    """Summarise interval scores over all tables: ratios to other methods, and ranks."""
    known_scores = published(args)
    best = {name: score for (method, name), score in known_scores.items() if method == "clear"}
    records = [
        record(f"{method}-published", name, "interval_score", score, 10)
        for (method, name), score in known_scores.items()
        if name in args.dataset
    ]
    for method in args.methods:
        names = [name for name in args.dataset if (method, name) in scores]
        ratios = {
            name: scores[method, name] / scores["cqr", name]
            for name in names
            if ("cqr", name) in scores
        }
        if ratios:
            mean = np.exp(np.mean([np.log(ratio).mean() for ratio in ratios.values()]))
            worst = max(np.exp(np.log(ratio).mean()) for ratio in ratios.values())
            records.append(record(method, "all", "of_cqr", mean, len(ratios)))
            records.append(record(method, "all", "of_cqr_worst", worst, len(ratios)))
        known = [scores[method, name].mean() / best[name] for name in names if name in best]
        if known:
            mean = np.exp(np.log(known).mean())
            records.append(record(method, "all", "of_published", mean, len(known)))
        ranks = [
            1
            + sum((scores[other, name] < scores[method, name]) for other, n in scores if n == name)
            for name in names
        ]
        if ranks:
            records.append(record(method, "all", "mean_rank", np.mean(ranks), len(names)))
    for each in records:
        if each["dataset"] == "all":
            print(f"{each['method']} {each['metric']}: {each['value']:.3f}")
    return records


if __name__ == "__main__":
    main()
