"""Spread of models that fit a noisy sine, by several methods, compared with HMC.

Fig. C.4 of the QUAM paper with numbers: the standard deviation of the models' means along x is
compared with that of Hamiltonian Monte Carlo by rank correlation and by mean absolute error, over
the whole plot and within the range of the data. All methods have the same posterior. Its prior N(0,
1/10), under which functions have the amplitude of the sine, is the weight decay of the reference
models. QUAM searches for each point, or once on a pool: the points themselves ("quam-pool-grid"),
or inputs generated from the training data ("quam-pool"). Data and HMC are the same for all seeds.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from torch import Tensor, nn

from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.hmc import Chains, Posterior, closeness, effective_samples, r_hat
from skuq import QUAMRegressor
from skuq._networks import seeded
from skuq.imports import import_optional
from skuq.quam import PointwiseSearch, PoolSearch, QuadraticSearch

N_TRAIN, NOISE, PRECISION = 32, 0.1**0.5, 10.0
LAYERS = (1, 200, 200, 200, 1)
WINDOW, RANGE = (-6.0, 6.0), (-np.pi, np.pi)
N_MEMBERS, N_MASKS, DROPOUT = 10, 100, 0.2
# The weight of the penalty increases from N_TRAIN, at which the objective is the likelihood itself,
# to ten times this value. Unlike on two moons, the search uses only the likelihood: at the mode of
# this prior most weights are 0 and hard to move, unlike in the models of HMC.
N_STEPS = 100
QUAM = PointwiseSearch(c0=N_TRAIN, eta=10 ** (1 / N_STEPS), n_steps=N_STEPS, prior_precision=0.0)
ABLATIONS: dict[str, dict] = {
    "divergence": {"attack": "divergence"},
    "with_prior": {"search__prior_precision": PRECISION},
    "200_steps": {"search__n_steps": 2 * N_STEPS, "search__eta": 10 ** (0.5 / N_STEPS)},
    "default_schedule": {"search__c0": 20.0, "search__eta": 1.05},
    "constant_c": {"search__c0": 3 * N_TRAIN, "search__eta": 1.0},
}
TITLES = {
    "hmc": "HMC (ground truth)",
    "quam": "QUAM",
    "quam-pool": "QUAM, pool",
    "deep_ensemble_no_decay": "Ensemble, no decay",
    "mc_dropout": "MC dropout",
    "laplace": "Laplace",
}
# Standard deviation of the models' means, and the central curve: their average, or the base model
# for QUAM.
Curve = tuple[np.ndarray, np.ndarray]


def curve_of(outputs: np.ndarray) -> Curve:
    """Curve of equally weighted models (..., n_points)."""
    models = outputs.reshape(-1, outputs.shape[-1]).astype(np.float64)
    return models.mean(axis=0), models.std(axis=0)


def quam(
    posterior: Posterior, net: nn.Module, grid: Tensor, search: Any, changed: dict | None = None
) -> Curve:
    """Curve of QUAM: the base model, and the spread of the models found around their average."""
    assert posterior.noise is not None
    variance = posterior.noise**2
    regressor = QUAMRegressor(
        FrozenEstimator(net), search=clone(search), noise=variance, random_state=0
    ).set_params(**(changed or {}))
    regressor.fit(posterior.X.numpy(), posterior.y.numpy())
    points = grid.numpy()
    return regressor.predict(points), regressor.predict_model_std(points)


def laplace(posterior: Posterior, net: nn.Sequential, grid: Tensor) -> Curve:
    """Curve of the exact posterior of the last layer."""

    def features(X: Tensor) -> Tensor:
        return nn.functional.pad(net[:-1](X), (0, 1), value=1.0).double()

    seen, there = features(posterior.X), features(grid)
    precision = seen.T @ seen / posterior.noise**2
    precision += posterior.precision * torch.eye(len(precision), dtype=torch.float64)
    variance = (there * torch.linalg.solve(precision, there.T).T).sum(dim=1)
    return net(grid)[:, 0].numpy(), variance.sqrt().numpy()


def mc_dropout(posterior: Posterior, grid: Tensor, seed: int) -> Curve:
    """Curve of dropout after the hidden layers, with the same mask for the whole grid."""
    net = posterior.mode(seed, dropout=DROPOUT)
    with torch.no_grad(), seeded(seed):
        outputs = [masked(net, grid) for _ in range(N_MASKS)]
    return curve_of(torch.stack(outputs).numpy())


def masked(net: nn.Sequential, X: Tensor) -> Tensor:
    for layer in net:
        if isinstance(layer, nn.Dropout):
            kept = (torch.rand(X.shape[1]) >= layer.p).float()
            X = X * kept / (1 - layer.p)
        else:
            X = layer(X)
    return X[:, 0]


def curves(posterior: Posterior, grid: Tensor, seed: int) -> Iterator[tuple[str, Curve, float]]:
    """Yield the curve of each method around one reference model, and seconds excluding it."""
    net = posterior.mode(seed)
    seeds = range(1000 + N_MEMBERS * seed, 1000 + N_MEMBERS * (seed + 1) - 1)

    def ensemble(precision: float) -> Curve:
        trained = replace(posterior, precision=precision)
        members = [net, *(trained.mode(each) for each in seeds)]
        return curve_of(np.stack([member(grid)[:, 0].numpy() for member in members]))

    methods = {
        "quam": lambda: quam(posterior, net, grid, QUAM),
        "quam-pool-grid": lambda: quam(
            posterior, net, grid, PoolSearch(pool=lambda X: grid.numpy())
        ),
        "quam-pool": lambda: quam(posterior, net, grid, PoolSearch()),
        "quam-quadratic": lambda: quam(posterior, net, grid, QuadraticSearch()),
        "quam-pointwise": lambda: quam(posterior, net, grid, PointwiseSearch()),
        "deep_ensemble": lambda: ensemble(PRECISION),
        "deep_ensemble_no_decay": lambda: ensemble(0.0),
        "mc_dropout": lambda: mc_dropout(posterior, grid, seed),
        "laplace": lambda: laplace(posterior, net, grid),
    }
    for name, method in methods.items():
        start = time.perf_counter()
        yield name, method(), time.perf_counter() - start
    for name, changed in ABLATIONS.items() if seed == 0 else ():
        start = time.perf_counter()
        yield (
            f"quam_{name}",
            quam(posterior, net, grid, QUAM, changed),
            time.perf_counter() - start,
        )


def compare(posterior: Posterior, grid: Tensor, models: np.ndarray, args) -> Iterator[dict]:
    """Compare all methods and seeds with HMC, and plot the first seed."""
    truth, x = curve_of(models), grid[:, 0].numpy()
    inside = (x >= RANGE[0]) & (x <= RANGE[1])
    table: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    table["hmc", "sine", "mean_std"].append(truth[1].mean())
    for seed in range(args.seed, args.seed + args.n_seeds):
        drawn = {"hmc": truth}
        for name, curve, seconds in curves(posterior, grid, seed):
            drawn[name] = curve
            for dataset, where in (("sine", slice(None)), ("sine_within_data", inside)):
                values = closeness(curve[1][where], truth[1][where])
                values["mean_std"] = curve[1][where].mean()
                for metric, value in values.items():
                    table[name, dataset, metric].append(value)
                text = ", ".join(f"{metric} {value:.3f}" for metric, value in values.items())
                print(f"seed {seed} {name:29}{dataset:18}{text}", flush=True)
            table[name, "sine", "seconds_per_point"].append(seconds / len(grid))
        if args.out is not None and seed == args.seed:
            draw(drawn, x, posterior, args.out / "quam_sine.png")
    for (name, dataset, metric), values in table.items():
        spread = np.std(values, ddof=min(1, len(values) - 1))
        yield record(name, dataset, metric, np.mean(values), len(values), spread)


def draw(found: dict[str, Curve], x: np.ndarray, posterior: Posterior, path: Path) -> None:
    """Plot mean and one to three standard deviations of each method's models, as in Fig. C.4."""
    plt = import_optional("matplotlib.pyplot", extra="plot")
    size = (2.6 * len(TITLES), 2.7)
    fig, axes = plt.subplots(1, len(TITLES), figsize=size, layout="constrained", sharey=True)
    for ax, (name, title) in zip(axes, TITLES.items(), strict=True):
        mean, spread = found[name]
        for n in (3, 2, 1):
            band = (mean - n * spread, mean + n * spread)
            ax.fill_between(x, *band, color="#0072b2", alpha=0.25, linewidth=0)
        ax.plot(x, np.sin(x), ":", color="black", linewidth=1)
        ax.plot(x, mean, color="#d55e00", linewidth=1.5)
        ax.scatter(posterior.X[:, 0], posterior.y, s=6, color="black", zorder=3)
        ax.set(title=title, xlabel="x", ylim=(-6, 6), xlim=WINDOW)
    axes[0].set(ylabel="y")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=130)
    plt.close(fig)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-seeds", type=int, default=3)
    arguments.add_argument("--grid", type=int, default=61, help="points on the x axis")
    arguments.add_argument("--n-samples", type=int, default=50, help="models of each HMC chain")
    arguments.add_argument("--n-jobs", type=int, default=2, help="processes for HMC")
    args = arguments.parse_args()
    set_threads(args)
    rng = np.random.default_rng(0)
    x = rng.uniform(*RANGE, N_TRAIN)
    y = np.sin(x) + rng.normal(0, NOISE, N_TRAIN)
    posterior = Posterior(
        torch.tensor(x[:, None]).float(), torch.tensor(y).float(), LAYERS, PRECISION, NOISE
    )
    grid = torch.linspace(*WINDOW, args.grid)[:, None]
    chains = Chains(n_samples=args.n_samples, n_warmup=40, n_jobs=args.n_jobs)
    models = chains.run(posterior, grid, 0, args.out)[..., 0]
    found, n = r_hat(models), models.shape[0] * models.shape[1]
    half, other = (curve_of(part)[1] for part in np.split(models, 2))
    figures = {
        "r_hat_median": np.median(found),
        "r_hat_99th_percentile": np.quantile(found, 0.99),
        "effective_samples_median": np.median(effective_samples(models)),
        **{f"chain_agreement_{metric}": v for metric, v in closeness(half, other).items()},
    }
    records = [record("hmc", "sine", metric, value, n) for metric, value in figures.items()]
    print("hmc " + ", ".join(f"{metric} {value:.3f}" for metric, value in figures.items()))
    records += compare(posterior, grid, models, args)
    finish("quam_sine", args, records, ("pyro-ppl",))


if __name__ == "__main__":
    main()
