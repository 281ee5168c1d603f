"""Quantile regression on tables: pinball loss, coverage and width, compared with baselines.

The data sets are included in scikit-learn: diabetes (442 rows, 10 features)
and the alcohol of wines (178 rows, 12 features). Predictions are for held-out rows
(repeated 5-fold cross-validation). The anchored networks and all baselines have
default settings. Gradient boosting is scikit-learn's, with one model for each level. Conformalised
quantile regression is MAPIE's on top of it, with a third of the training rows for calibration; it
predicts only the interval. Loss and width are in standard deviations of the target.
"""

import time
import warnings
from collections import defaultdict

import numpy as np
from mapie.regression import ConformalizedQuantileRegressor
from sklearn.datasets import load_diabetes, load_wine
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.model_selection import KFold, train_test_split

from benchmarks.harness import finish, parser, record, set_threads
from skuq import AnchoredQuantileRegressor
from skuq.metrics import pinball_loss

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


def anchored(X: np.ndarray, y: np.ndarray, X_new: np.ndarray, seed: int) -> np.ndarray:
    return AnchoredQuantileRegressor(random_state=seed).fit(X, y).predict_quantiles(X_new, LEVELS)


def boosting(X: np.ndarray, y: np.ndarray, X_new: np.ndarray, seed: int) -> np.ndarray:
    models = (
        GradientBoostingRegressor(loss="quantile", alpha=level, random_state=seed).fit(X, y)
        for level in LEVELS
    )
    return np.sort(np.column_stack([model.predict(X_new) for model in models]), axis=1)


def conformalised(X: np.ndarray, y: np.ndarray, X_new: np.ndarray, seed: int) -> np.ndarray:
    """Predict the interval; quantiles inside of it are NaN."""
    X, X_conformity, y, y_conformity = train_test_split(X, y, test_size=1 / 3, random_state=seed)
    model = ConformalizedQuantileRegressor(
        GradientBoostingRegressor(loss="quantile", random_state=seed), confidence_level=0.9
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about crossing quantiles
        interval = model.fit(X, y).conformalize(X_conformity, y_conformity).predict_interval(X_new)
    quantiles = np.full((len(X_new), len(LEVELS)), np.nan)
    quantiles[:, [0, -1]] = interval[1][:, :, 0]
    return quantiles


METHODS = {"anchored": anchored, "boosting": boosting, "conformalised": conformalised}


def datasets() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    wine = load_wine().data
    return {"diabetes": load_diabetes(return_X_y=True), "wine_alcohol": (wine[:, 1:], wine[:, 0])}


def figures(y: np.ndarray, quantiles: np.ndarray) -> dict[str, float]:
    low, high = quantiles[:, 0], quantiles[:, -1]
    values = {
        "coverage_90": ((low <= y) & (y <= high)).mean(),
        "width_90": (high - low).mean() / y.std(),
    }
    if np.isfinite(quantiles).all():
        values["pinball_loss"] = pinball_loss(y, quantiles, LEVELS) / y.std()
        inner = quantiles[:, 1], quantiles[:, -2]
        values["coverage_50"] = ((inner[0] <= y) & (y <= inner[1])).mean()
    return values


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--repetitions", type=int, default=2)
    args = arguments.parse_args()
    set_threads(args)
    records = []
    for dataset, (X, y) in datasets().items():
        table = defaultdict(lambda: defaultdict(list))
        for seed in range(args.seed, args.seed + args.repetitions):
            folds = list(KFold(5, shuffle=True, random_state=seed).split(X))
            for method, predict in METHODS.items():
                quantiles, start = np.empty((len(y), len(LEVELS))), time.perf_counter()
                for train, test in folds:
                    quantiles[test] = predict(X[train], y[train], X[test], seed)
                seconds = (time.perf_counter() - start) / len(folds)
                for metric, value in (figures(y, quantiles) | {"seconds_fit": seconds}).items():
                    table[method][metric].append(value)
        for method, metrics in table.items():
            for metric, values in metrics.items():
                spread = np.std(values, ddof=min(1, len(values) - 1))
                records.append(record(method, dataset, metric, np.mean(values), len(y), spread))
                print(f"{dataset:14}{method:16}{metric:14}{np.mean(values):.4f} +- {spread:.4f}")
    finish("uadqn_tables", args, records, ("MAPIE",))


if __name__ == "__main__":
    main()
