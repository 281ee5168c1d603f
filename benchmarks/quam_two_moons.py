"""Epistemic uncertainty on two moons by several methods, compared with Hamiltonian Monte Carlo.

Quantitative version of Figures 3 and C.3 of the QUAM paper: each method's map of the plane is
compared with that of HMC by rank correlation and by mean absolute error, in both settings. All
methods have the same posterior: its prior N(0, 1) is the weight decay of the reference models,
which are its modes. QUAM searches for each point, or once on a pool: the points themselves
("quam-pool-grid"), or inputs generated from the training data ("quam-pool"). Data and HMC are the
same for all seeds, which determine the models and the draws of the methods. `--ablations` varies
the settings of the search for each point, on every third point of the grid.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_moons
from sklearn.frozen import FrozenEstimator

from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.hmc import Chains, Posterior, closeness, effective_samples, r_hat
from skuq import QUAMClassifier
from skuq._information import decompose_expected, decompose_selected
from skuq.baselines import (
    DeepEnsembleClassifier,
    LaplaceClassifier,
    MCDropoutClassifier,
    ReferenceClassifier,
    SGMCMCClassifier,
)
from skuq.imports import import_optional
from skuq.quam import PointwiseSearch, PoolSearch

N_TRAIN, NOISE, PRECISION = 200, 0.1, 1.0
LAYERS = (2, 100, 100, 2)
WINDOW = (-2.5, 3.5), (-2.0, 2.5)
SETTINGS = {"expected": "Eq. 1", "selected": "Eq. 2"}
N_MEMBERS = 10
# Search and weights follow the posterior: likelihood and prior. The penalty's weight goes from
# its default c0 = 20 to 200 = N_TRAIN, where the search's objective is the posterior of the
# training set and one more point, which has the targeted class.
QUAM = {"prior_precision": PRECISION, "n_steps": 100, "eta": 10 ** (1 / 100)}
POOL = {"prior_precision": PRECISION}
SEARCH_PARAMETERS = PointwiseSearch().get_params()
ABLATIONS: dict[str, dict[str, Any]] = {
    "defaults_with_prior": {"eta": 1.05},
    "likelihood_only": {"prior_precision": 0.0},
    "defaults_likelihood_only": {"prior_precision": 0.0, "eta": 1.05},
    "constant_c20": {"eta": 1.0},
    "constant_c200": {"c0": 200.0, "eta": 1.0},
    "c0_5": {"c0": 5.0, "eta": 40 ** (1 / 100)},
    "50_steps": {"n_steps": 50, "eta": 10 ** (1 / 50)},
    "200_steps": {"n_steps": 200, "eta": 10 ** (1 / 200)},
    "learning_rate_0.03": {"learning_rate": 0.03},
    "learning_rate_0.3": {"learning_rate": 0.3},
    "temperature_x3": {"temperature": 3 / N_TRAIN},
    "best_models_only": {"mixture": "dirac"},
    "untargeted": {"targeted": False},
}
# Constant steps; the paper's cyclical ones; and four times as many, larger steps.
CHAINS = {
    "sg_mcmc": {},
    "sg_mcmc_cyclical": {"n_cycles": 10},
    "sg_mcmc_long": {"steps_per_sample": 200, "learning_rate": 0.1},
}
TITLES = {
    "hmc": "HMC (ground truth)",
    "quam": "QUAM",
    "quam-pool": "QUAM, pool",
    "deep_ensemble_no_decay": "Ensemble, no decay",
    "mc_dropout": "MC dropout",
    "laplace": "Laplace",
    "sg_mcmc": "SG-MCMC",
    "sg_mcmc_long": "SG-MCMC, long",
}


def methods(
    posterior: Posterior, grid: np.ndarray, seed: int, args
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Build functions that create each method around one reference model."""
    net = posterior.mode(seed)
    given, fixed = FrozenEstimator(net), {"random_state": seed}
    pointwise, on_pool = PointwiseSearch(**QUAM), PoolSearch(**POOL)
    on_grid = PoolSearch(pool=lambda X: grid, **POOL)
    yield "quam", lambda: QUAMClassifier(given, search=pointwise, n_jobs=args.n_jobs, **fixed)
    yield "quam-pool-grid", lambda: QUAMClassifier(given, search=on_grid, **fixed)
    yield "quam-pool", lambda: QUAMClassifier(given, search=on_pool, **fixed)
    yield "quam-quadratic", lambda: QUAMClassifier(given, search="quadratic", **fixed)
    yield "quam-default", lambda: QUAMClassifier(given, n_jobs=args.n_jobs, **fixed)
    yield "reference", lambda: ReferenceClassifier(given)
    seeds = range(1000 + N_MEMBERS * seed, 1000 + N_MEMBERS * (seed + 1) - 1)
    for name, precision in (("deep_ensemble", PRECISION), ("deep_ensemble_no_decay", 0.0)):
        trained = replace(posterior, precision=precision)
        yield (
            name,
            lambda trained=trained: DeepEnsembleClassifier(
                members=[given, *(FrozenEstimator(trained.mode(each)) for each in seeds)]
            ),
        )
    with_dropout = posterior.mode(seed, dropout=0.2)
    yield "mc_dropout", lambda: MCDropoutClassifier(FrozenEstimator(with_dropout), **fixed)
    yield "laplace", lambda: LaplaceClassifier(given, prior_precision=PRECISION, **fixed)
    for name, params in CHAINS.items():
        chains = {"prior_precision": PRECISION, **params, **fixed}
        yield name, lambda chains=chains: SGMCMCClassifier(given, **chains)


def maps_of(make: Callable[[], Any], posterior: Posterior, grid: np.ndarray) -> dict:
    """Compute maps in both settings, and seconds per point without training the reference."""
    start = time.perf_counter()
    model = make().fit(posterior.X.numpy(), posterior.y.numpy())
    seconds = time.perf_counter() - start
    found = {}
    for setting in SETTINGS:
        start = time.perf_counter()
        if isinstance(model, ReferenceClassifier):  # it has no epistemic part
            found[setting] = model.predict_uncertainty(grid).total
        else:
            found[setting] = model.set_params(setting=setting).predict_uncertainty(grid).epistemic
        last = time.perf_counter() - start
    return {**found, "seconds_per_point": (seconds + last) / len(grid)}


def truth_of(logits: np.ndarray, log_reference: torch.Tensor) -> dict[str, np.ndarray]:
    """Compute maps by HMC from equally weighted models (..., n_points, n_classes)."""
    log_proba = torch.as_tensor(logits).flatten(0, -3).double().log_softmax(-1).transpose(0, 1)
    weights = torch.full((log_proba.shape[1],), 1 / log_proba.shape[1], dtype=torch.float64)
    return {
        "expected": decompose_expected(log_proba, weights).epistemic.numpy(),
        "selected": decompose_selected(log_reference, log_proba, weights).epistemic.numpy(),
    }


def convergence(logits: np.ndarray, log_reference: torch.Tensor) -> Iterator[dict]:
    """Measure convergence: R-hat of the class margin, and agreement of maps by half the chains."""
    margin, n = logits[..., 1] - logits[..., 0], logits.shape[0] * logits.shape[1]
    found = r_hat(margin)
    yield record("hmc", "two_moons", "r_hat_median", np.median(found), n)
    yield record("hmc", "two_moons", "r_hat_99th_percentile", np.quantile(found, 0.99), n)
    effective = np.median(effective_samples(margin))
    yield record("hmc", "two_moons", "effective_samples_median", effective, n)
    half = len(logits) // 2
    if half:
        one, other = (truth_of(part, log_reference) for part in (logits[:half], logits[half:]))
        for setting in SETTINGS:
            for metric, value in closeness(one[setting], other[setting]).items():
                name = f"chain_agreement_{metric}"
                yield record("hmc", f"two_moons_{setting}", name, value, n)


def log_reference_of(posterior: Posterior, grid: torch.Tensor, seed: int) -> torch.Tensor:
    return posterior.mode(seed)(grid).double().log_softmax(-1)


def compare(posterior: Posterior, grid: np.ndarray, logits: np.ndarray, args) -> Iterator[dict]:
    """Compare all methods and seeds with HMC, and plot the first seed."""
    table: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for seed in range(args.seed, args.seed + args.n_seeds):
        log_reference = log_reference_of(posterior, torch.as_tensor(grid), seed)
        truth = truth_of(logits, log_reference)
        drawn = {"hmc": truth}
        for setting in SETTINGS:
            table["hmc", setting, "mean_epistemic"].append(truth[setting].mean())
        for name, make in methods(posterior, grid, seed, args):
            drawn[name] = found = maps_of(make, posterior, grid)
            for setting in SETTINGS:
                values = closeness(found[setting], truth[setting])
                values["mean_epistemic"] = found[setting].mean()
                for metric, value in values.items():
                    table[name, setting, metric].append(value)
                text = ", ".join(f"{metric} {value:.3f}" for metric, value in values.items())
                print(f"seed {seed} {name:23}{setting:10}{text}", flush=True)
            table[name, "", "seconds_per_point"].append(found["seconds_per_point"])
        if args.out is not None and seed == args.seed:
            for setting in SETTINGS:
                path = args.out / f"quam_two_moons_{setting}.png"
                draw(drawn, setting, posterior, log_reference[:, 1].exp(), path)
    for (name, setting, metric), values in table.items():
        dataset = f"two_moons_{setting}" if setting else "two_moons"
        spread = np.std(values, ddof=min(1, len(values) - 1))
        yield record(name, dataset, metric, np.mean(values), len(values), spread)


def ablate(posterior: Posterior, grid: np.ndarray, logits: np.ndarray, args) -> Iterator[dict]:
    """Measure the search of QUAM with other settings, for one reference model."""
    given = FrozenEstimator(posterior.mode(args.seed))
    truth = truth_of(logits, log_reference_of(posterior, torch.as_tensor(grid), args.seed))
    for name, changed in {"quam": {}, **ABLATIONS}.items():
        params: dict[str, Any] = {"random_state": args.seed, "n_jobs": args.n_jobs, **changed}
        of_search = {name: params.pop(name) for name in changed if name in SEARCH_PARAMETERS}
        params["search"] = PointwiseSearch(**{**QUAM, **of_search})
        found = maps_of(lambda params=params: QUAMClassifier(given, **params), posterior, grid)
        for setting in SETTINGS:
            values = closeness(found[setting], truth[setting])
            text = ", ".join(f"{metric} {value:.3f}" for metric, value in values.items())
            print(f"{name:26}{setting:10}{text}", flush=True)
            for metric, value in values.items():
                yield record(name, f"two_moons_coarse_{setting}", metric, value, 1)


def draw(
    maps: dict[str, dict], setting: str, posterior: Posterior, p: torch.Tensor, path: Path
) -> None:
    """Plot a row of maps on one scale, with the data and the reference's decision boundary."""
    plt = import_optional("matplotlib.pyplot", extra="plot")
    norms = import_optional("matplotlib.colors", extra="plot")
    size = round(len(maps["hmc"][setting]) ** 0.5)
    top = float(np.quantile(maps["hmc"][setting], 0.995))
    # Eq. 2 has no upper bound, and the maps differ by orders of magnitude.
    scale = (
        {"vmin": 0, "vmax": top} if setting == "expected" else {"norm": norms.LogNorm(1e-3, top)}
    )
    fig, axes = plt.subplots(1, len(TITLES), figsize=(2.3 * len(TITLES), 2.5), layout="constrained")
    for ax, (name, title) in zip(axes, TITLES.items(), strict=True):
        image = ax.imshow(
            np.maximum(maps[name][setting], 1e-9).reshape(size, size),
            origin="lower",
            extent=(*WINDOW[0], *WINDOW[1]),
            aspect="auto",
            cmap="viridis",
            **scale,
        )
        ax.contour(p.reshape(size, size), [0.5], extent=(*WINDOW[0], *WINDOW[1]), colors="black")
        for code, colour in ((0, "#ff8c69"), (1, "white")):
            points = posterior.X[posterior.y == code]
            ax.scatter(*points.T, s=4, color=colour, edgecolors="black", linewidths=0.2)
        ax.set(title=title, xticks=[], yticks=[])
    fig.colorbar(image, ax=axes, label=f"epistemic, {SETTINGS[setting]} (nats)", pad=0.01)
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path, dpi=130)
    plt.close(fig)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-seeds", type=int, default=3)
    arguments.add_argument("--grid", type=int, default=30, help="points per axis")
    arguments.add_argument("--n-samples", type=int, default=200, help="models of each HMC chain")
    arguments.add_argument("--n-jobs", type=int, default=2, help="processes for HMC and QUAM")
    arguments.add_argument("--ablations", action="store_true")
    args = arguments.parse_args()
    set_threads(args)
    X, y = make_moons(N_TRAIN, noise=NOISE, random_state=0)
    posterior = Posterior(torch.tensor(X).float(), torch.as_tensor(y), LAYERS, PRECISION)
    axes = np.meshgrid(*(np.linspace(*limits, args.grid, dtype=np.float32) for limits in WINDOW))
    grid = np.stack(axes, axis=-1)
    flat = grid.reshape(-1, 2)
    chains = Chains(n_samples=args.n_samples, n_jobs=args.n_jobs)
    logits = chains.run(posterior, torch.as_tensor(flat), 0, args.out)
    records = [*convergence(logits, log_reference_of(posterior, torch.as_tensor(flat), args.seed))]
    for each in records:
        print(f"hmc {each['dataset']:20}{each['metric']:28}{each['value']:.3f}", flush=True)
    records += compare(posterior, flat, logits, args)
    if args.ablations:
        coarse = np.zeros(grid.shape[:2], bool)
        coarse[1::3, 1::3] = True
        chosen = coarse.ravel()
        records += ablate(posterior, flat[chosen], logits[:, :, chosen], args)
    finish("quam_two_moons", args, records, ("pyro-ppl", "posteriors"))


if __name__ == "__main__":
    main()
