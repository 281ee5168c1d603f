"""Two uncertainties on the paper's toy data (Fig. 1), and two networks against many (App. C.1).

Fig. 1: 200 points in two clusters, y = cos(2 pi x) + noise. The noise is constant, as in the paper,
or grows from left to right, so that its correlation with the estimate can be computed. A run with
2000 points shows the effect of the sample size. `known_mean` is a reference and not a method: a
moving average of squared residuals about the true mean, which shows how well the sample determines
the noise. App. C.1: variances from two networks compared with those from 50, for three widths.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator

from benchmarks.harness import finish, parser, record, set_threads
from skuq import AnchoredQuantileRegressor
from skuq.imports import import_optional
from skuq.uadqn import aleatoric_variance, epistemic_variance

METHODS = {
    "default": {},
    # Networks, number of steps and anchors are those of the released notebook; scaling, random
    # biases and the learning rate schedule are the estimator's. 10,000 steps of 64 samples are
    # 2,500 epochs. A weight of 1e-4 of the anchors, with a loss averaged over 50 quantiles, is
    # equivalent to noise_scale .495 with a summed loss and prior scale .495.
    "like_authors": {
        "hidden_sizes": (200, 200),
        "activation": "tanh",
        "prior_gain": 7.0,
        "noise_scale": 0.495,
        "learning_rate": 2e-4,
        "batch_size": 64,
        "max_epochs": 2500,
    },
}
CLUSTERS = (-1.0, 1 / 4), (0.5, 1 / 6)  # centre and standard deviation
PICTURE = np.linspace(-2.5, 1.5, 161)
# Points within two standard deviations of a centre, and points as far away as in the paper's
# figure.
DATA = np.concatenate([np.linspace(m - 2 * s, m + 2 * s, 50) for m, s in CLUSTERS])
AWAY = np.concatenate([np.linspace(-2.5, -2.0, 25), np.linspace(1.1, 1.5, 25)])
WIDTHS = 10, 50, 100
N_PAIRS, N_REFERENCE = 10, 50


def mean(x: np.ndarray) -> np.ndarray:
    return np.cos(2 * np.pi * x)


def noise(x: np.ndarray, kind: str) -> np.ndarray:
    """Standard deviation of the noise: the paper's 1/3, or .05 on the left to .5 on the right."""
    if kind == "constant":
        return np.full_like(x, 1 / 3)
    return np.interp(x, [-1.5, 0.85], [0.05, 0.5])


def sample(kind: str, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw inputs and targets of the toy data."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.normal(centre, sd, n // 2) for centre, sd in CLUSTERS])
    return x, mean(x) + noise(x, kind) * rng.normal(size=n)


class KnownMean(BaseEstimator):
    """Local noise from residuals about the true mean, which is unknown to methods."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> "KnownMean":
        self.x, self.squares = X[:, 0], (y - mean(X[:, 0])) ** 2
        return self

    def aleatoric(self, x: np.ndarray) -> np.ndarray:
        nearness = np.exp(-0.5 * ((x[:, None] - self.x) / 0.2) ** 2)
        return nearness @ self.squares / nearness.sum(1)


def figures(model: AnchoredQuantileRegressor, kind: str) -> dict[str, float]:
    """Compute the figures of one fit."""
    at_data = model.predict_uncertainty(DATA[:, None])
    data, away = (
        np.sqrt(model.predict_uncertainty(x[:, None]).epistemic).mean() for x in (DATA, AWAY)
    )
    return {
        "epistemic_std_at_data": data,
        "epistemic_std_away": away,
        "epistemic_ratio_away_to_data": away / data,
        **noise_figures(at_data.aleatoric, kind),
        "absolute_error_mean": np.abs(model.predict(DATA[:, None]) - mean(DATA)).mean(),
    }


def noise_figures(aleatoric: np.ndarray, kind: str) -> dict[str, float]:
    """Compare a standard deviation with that of the true noise, inside the data range."""
    estimated, true = np.sqrt(aleatoric), noise(DATA, kind)
    values = {"absolute_error_aleatoric_std": np.abs(estimated - true).mean()}
    if kind != "constant":
        values["aleatoric_correlation"] = np.corrcoef(estimated, true)[0, 1]
    return values


def two_uncertainties(args) -> Iterator[dict]:
    """Measure Fig. 1 with several seeds."""
    seeds = range(args.seed, args.seed + args.n_seeds)
    for kind, n in (("constant", 200), ("growing", 200), ("growing", 2000)):
        table = defaultdict(lambda: defaultdict(list))
        for seed in seeds:
            x, y = sample(kind, n, seed)
            for name in args.methods:
                params = METHODS[name]
                if name != "default" and n > 200:
                    continue  # too slow for the larger sample
                start = time.perf_counter()
                model = AnchoredQuantileRegressor(**params, random_state=seed).fit(x[:, None], y)
                values = {**figures(model, kind), "seconds_fit": time.perf_counter() - start}
                for metric, value in values.items():
                    table[name][metric].append(value)
                if args.out is not None and seed == args.seed and n == 200:
                    draw(model, x, y, kind, args.out / f"uadqn_toy_{kind}_{name}.png")
            known = KnownMean().fit(x[:, None], y).aleatoric(DATA)
            for metric, value in noise_figures(known, kind).items():
                table["known_mean"][metric].append(value)
        yield from records(table, f"fig1_{kind}_n{n}", args.n_seeds)


def networks_against_many(args) -> Iterator[dict]:
    """Measure App. C.1: relative errors of variances by two networks, over the figure's range."""
    x, y = sample("constant", 200, args.seed)
    for width in args.widths:
        model = AnchoredQuantileRegressor(
            n_members=2 * N_PAIRS + N_REFERENCE,
            hidden_sizes=(width, width),
            random_state=args.seed,
        ).fit(x[:, None], y)
        # Standardised units do not matter for relative errors. Groups of networks are disjoint.
        outputs = networks_outputs(model, PICTURE)
        reference = outputs[2 * N_PAIRS :]
        groups = {
            "two_networks": np.split(outputs[: 2 * N_PAIRS], N_PAIRS),
            "ten_networks": np.split(outputs[: 2 * N_PAIRS], 2 * N_PAIRS // 10),
        }
        table = defaultdict(lambda: defaultdict(list))
        for method, members in groups.items():
            for group in members:
                for part, variance in VARIANCES.items():
                    error = np.abs(variance(group) - variance(reference)).mean()
                    relative = error / np.abs(variance(reference)).mean()
                    table[method][f"relative_error_{part}"].append(relative)
        for part, variance in VARIANCES.items():
            table["fifty_networks"][f"mean_{part}_variance"].append(variance(reference).mean())
        table["fifty_networks"]["correlation_between_quantiles"].append(correlation(reference))
        yield from records(table, f"width{width}", None)


VARIANCES = {"epistemic": epistemic_variance, "aleatoric": aleatoric_variance}


def networks_outputs(model: AnchoredQuantileRegressor, x: np.ndarray) -> np.ndarray:
    """Predict quantiles by each network, (n_members, n_samples, n_quantiles), in units of y."""
    return model._quantiles(x[:, None])


def correlation(outputs: np.ndarray) -> float:
    """Mean correlation, over networks, of two quantiles of a prediction (0 in Prop. 2.3)."""
    deviation = outputs - outputs.mean(axis=0)
    deviation /= np.sqrt((deviation**2).mean(axis=0))
    n = deviation.shape[-1]
    of_sum = (deviation.sum(axis=-1) ** 2).mean(axis=0)
    return float(((of_sum - n) / (n * (n - 1))).mean())


def records(table: dict, dataset: str, n: int | None) -> Iterator[dict]:
    """Print mean and std over repetitions, and yield them as records."""
    for method, metrics in table.items():
        for metric, values in metrics.items():
            one = record(
                method,
                dataset,
                metric,
                np.mean(values),
                n or len(values),
                np.std(values, ddof=min(1, len(values) - 1)),
            )
            print(f"{dataset:20}{method:16}{metric:32}{one['value']:.3f} +- {one['std']:.3f}")
            yield one


def draw(
    model: AnchoredQuantileRegressor, x: np.ndarray, y: np.ndarray, kind: str, path: Path
) -> None:
    """Plot a figure like Fig. 1, with the two standard deviations below."""
    plt = import_optional("matplotlib.pyplot", extra="plot")
    u = model.predict_uncertainty(PICTURE[:, None])
    predicted, aleatoric, epistemic = (
        model.predict(PICTURE[:, None]),
        np.sqrt(u.aleatoric),
        np.sqrt(u.epistemic),
    )
    fig, (top, bottom) = plt.subplots(2, sharex=True, figsize=(7, 6), layout="constrained")
    top.scatter(x, y, s=10, color="0.5", label="data")
    top.plot(PICTURE, predicted, color="black", label="mean")
    band = {"alpha": 0.3, "linewidth": 0}
    for sd, colour, label in (
        (np.sqrt(u.total), "#d55e00", "total"),
        (aleatoric, "#0072b2", "aleatoric"),
    ):
        top.fill_between(
            PICTURE, predicted - sd, predicted + sd, color=colour, label=f"+- {label}", **band
        )
    top.set(ylabel="y", ylim=(-3.5, 3.5))
    bottom.plot(PICTURE, epistemic, "--", color="#d55e00", label="epistemic")
    bottom.plot(PICTURE, aleatoric, color="#0072b2", label="aleatoric")
    bottom.plot(PICTURE, noise(PICTURE, kind), ":", color="black", label="true noise")
    bottom.set(xlabel="x", ylabel="standard deviation")
    for ax in (top, bottom):
        ax.legend(loc="upper left", fontsize="small", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=100)
    plt.close(fig)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-seeds", type=int, default=5)
    arguments.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    arguments.add_argument("--widths", nargs="*", type=int, default=list(WIDTHS))
    args = arguments.parse_args()
    set_threads(args)
    finish("uadqn_toy", args, [*two_uncertainties(args), *networks_against_many(args)])


if __name__ == "__main__":
    main()
