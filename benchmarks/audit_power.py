"""False alarms of the audit on honest models, and its power against Mirage.

Honest models: 200 networks and logistic regressions on four synthetic problems, temperature-scaled
on separate data. Attacks: Mirage on three Gaussian classes, for several values of epsilon, region
sizes, sizes of the reference set, and shares rho of the region that are missing in it (Eq. 20).
Baselines: thresholds on the expected calibration error and on the largest gap of a bin, at which
honest models of the same or all problems are flagged as often as by the audit, by size or not.
"""

import argparse
from collections.abc import Callable, Iterator

import numpy as np
from sklearn.datasets import make_classification, make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.mirage import temperature_scaled
from skuq import MirageFineTuner
from skuq.calibration import (
    ALL_SAMPLES,
    BinSums,
    TopLabelPredictions,
    bin_edges,
    bin_sums,
    choose_tolerance,
    region_mask,
    scan_bins,
    top_label_predictions,
)
from skuq.datasets import GAUSSIAN_REGION, make_gaussian_classes

TOLERANCE, LEVEL, N_BINS = 0.05, 0.95, 10
SIZES = (50, 100, 200, 400, 800, 1600, 3200)
EPSILONS = (0.0, 0.15, 0.5, 0.8)
RHOS = (0.0, 0.5, 0.9)
REGIONS = {
    "small": {0: (2.0, 2.5), 1: (0.0, 1.2)},
    "paper": GAUSSIAN_REGION,
    "large": {0: (1.0, 3.0), 1: (-1.0, 2.0)},
}
POOL = 40_000
HONEST_DRAWS, ATTACK_DRAWS = 5, 30
N_BASELINES = 3
RULES = (
    "audit",
    "ece_fixed",
    "ece_same_problem",
    "ece_all_problems",
    "max_gap_same_problem",
)


def gaussian(n: int, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Draw the three Gaussian classes in the paper's proportions."""
    return make_gaussian_classes((round(n / 2.1), round(n / 2.1), round(n / 21)), random_state=rng)


def moons(n: int, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Draw two overlapping half moons."""
    return make_moons(n, noise=0.35, random_state=rng)


def clusters(n_classes: int) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return a sampler of clusters in ten dimensions with label noise, with fixed parameters."""
    X, y = make_classification(
        60_000 + POOL,
        10,
        n_informative=5,
        n_classes=n_classes,
        flip_y=0.1,
        random_state=n_classes,
    )

    def draw(n: int, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        rows = rng.choice(len(X), n, replace=False)
        return X[rows], y[rows]

    return draw


def honest_model(
    name: str, k: int, problem: Callable[..., tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Train the k-th temperature-scaled model; return labels, probabilities and classes."""
    rng = np.random.RandomState(k)
    linear = k % 8 >= 4 and name != "moons"
    learner = (
        LogisticRegression(max_iter=1000)
        if linear
        else MLPClassifier((50,), max_iter=60, random_state=k)
    )
    model = make_pipeline(StandardScaler(), learner).fit(*problem(1680, rng))
    model = temperature_scaled(model, *problem(1000, rng))
    X, y = problem(POOL, rng)
    return y, model.predict_proba(X), model.classes_


def attacks(
    n_seeds: int, seed: int
) -> Iterator[tuple[tuple[float, str], TopLabelPredictions, np.ndarray]]:
    """Return predictions of attacked models on new data, and a mask of the attacked region."""
    for k in range(n_seeds):
        rng = np.random.RandomState(1000 + seed + k)
        X, y = gaussian(1680, rng)
        net = MLPClassifier((100,), max_iter=200, learning_rate_init=0.01, random_state=k)
        honest = temperature_scaled(net.fit(X, y), *gaussian(1000, rng))
        fresh_X, fresh_y = gaussian(POOL, rng)
        for name, region in REGIONS.items():
            inside = region_mask(region, fresh_X)
            for epsilon in EPSILONS:
                mirage = MirageFineTuner(honest, region, epsilon=epsilon, random_state=k)
                proba = mirage.fit(X, y).predict_proba(fresh_X)
                yield (epsilon, name), top_label_predictions(fresh_y, proba), inside


def reference_sets(
    predictions: TopLabelPredictions,
    size: int,
    draws: int,
    rng: np.random.RandomState,
    keep: np.ndarray,
) -> list[BinSums]:
    """Draw reference sets and return their sums by bin."""
    edges = bin_edges(predictions.confidence, N_BINS, "uniform")
    candidates = np.flatnonzero(keep)
    found = []
    for _ in range(draws):
        rows = rng.choice(candidates, size)
        part = TopLabelPredictions(predictions.confidence[rows], predictions.correct[rows])
        found.append(bin_sums(part, edges))
    return found


def flagged(sums: BinSums, tolerance: float = TOLERANCE) -> bool:
    """Whether a plain audit fails."""
    return bool(scan_bins(sums, tolerance=tolerance, level=(1 - LEVEL) * ALL_SAMPLES).findings)


def statistics(sets: list[BinSums]) -> np.ndarray:
    """Compute whether the audit fails, ECE, and the largest gap, of shape (n_sets, 3)."""
    return np.array(
        [
            (flagged(part), part.expected_calibration_error, part.maximum_calibration_error)
            for part in sets
        ]
    )


def sufficient_size(power: dict[int, float], wanted: float = 0.8) -> float:
    """Size at which the power is reached, interpolated on a log scale; inf if never."""
    sizes = sorted(power)
    below = [size for size in sizes if power[size] < wanted]
    if not below:
        return sizes[0]
    if below[-1] == sizes[-1]:
        return np.inf
    low = below[-1]
    high = sizes[sizes.index(low) + 1]
    share = (wanted - power[low]) / (power[high] - power[low])
    return float(np.exp(np.log(low) + share * np.log(high / low)))


def equal_threshold(honest: np.ndarray, column: int) -> float:
    """Threshold of a baseline at which it flags as many honest models as the audit."""
    return float(np.quantile(honest[:, column], 1 - honest[:, 0].mean()))


def study_honest(
    args: argparse.Namespace, rng: np.random.RandomState
) -> tuple[dict[int, tuple[float, ...]], list[dict]]:
    """Compute thresholds of the baselines by size, and records of false alarms."""
    problems = {
        "gaussian": gaussian,
        "moons": moons,
        "clusters_2": clusters(2),
        "clusters_5": clusters(5),
    }
    found: dict[tuple[int, str], list[np.ndarray]] = {}
    chosen: dict[int, list[float]] = {size: [] for size in SIZES}
    for name, problem in problems.items():
        baselines = [honest_model(name, 10_000 + k, problem) for k in range(N_BASELINES)]
        tolerances = {size: baseline_tolerance(baselines, size) for size in SIZES}
        print(f"{name}: tolerance by baseline study {tolerances}", flush=True)
        for k in range(args.n_models // len(problems)):
            y, proba, classes = honest_model(name, args.seed + k, problem)
            predictions = top_label_predictions(y, proba, classes=classes)
            edges = bin_edges(predictions.confidence, N_BINS, "uniform")
            # The first half determines calibration; reference sets are drawn from the second.
            half = rng.permutation(len(y)) < POOL // 2
            judged = TopLabelPredictions(predictions.confidence[half], predictions.correct[half])
            kind = "beyond_tolerance" if flagged(bin_sums(judged, edges)) else "within_tolerance"
            for size in SIZES:
                sets = reference_sets(predictions, size, HONEST_DRAWS, rng, ~half)
                values = statistics(sets)
                for key in ("all", name, kind):
                    found.setdefault((size, key), []).append(values)
                chosen[size] += [flagged(part, tolerances[size]) for part in sets]
    records, thresholds = [], {}
    for (size, key), values in sorted(found.items()):
        rate = np.mean([model[:, 0].mean() for model in values])
        print(f"honest, {key:13} n {size:5}: {rate:.4f} flagged of {len(values)} models")
        records.append(
            record("audit", f"honest_{key}_n{size}", "false_alarm_rate", rate, len(values))
        )
    for size in SIZES:
        rate = np.mean(chosen[size])
        print(f"honest, tolerance chosen  n {size:5}: {rate:.4f} flagged of {args.n_models} models")
        records.append(
            record(
                "audit_tolerance_chosen",
                f"honest_all_n{size}",
                "false_alarm_rate",
                rate,
                args.n_models,
            )
        )
        same, every = (np.concatenate(found[size, key]) for key in ("gaussian", "all"))
        thresholds[size] = (
            equal_threshold(same, 1),
            equal_threshold(every, 1),
            equal_threshold(same, 2),
        )
    fixed = max(same for same, _, _ in thresholds.values())
    return {size: (fixed, *values) for size, values in thresholds.items()}, records


def baseline_tolerance(
    baselines: list[tuple[np.ndarray, np.ndarray, np.ndarray]], size: int
) -> float:
    """Largest tolerance needed by the honest baseline models."""
    return max(
        choose_tolerance(
            y, proba, classes=classes, reference_size=size, n_repeats=100, random_state=0
        ).tolerance
        for y, proba, classes in baselines
    )


def study_attacks(
    args: argparse.Namespace,
    thresholds: dict[int, tuple[float, ...]],
    rng: np.random.RandomState,
) -> dict[tuple[float, str, float, str], dict[int, float]]:
    """Compute the power of each rule by attack, rho and size."""
    power: dict[tuple[float, str, float, str], dict[int, list[float]]] = {}
    for (epsilon, region), predictions, inside in attacks(args.n_seeds, args.seed):
        for rho in RHOS:
            keep = ~inside | (rng.random_sample(len(inside)) >= rho)
            for size in SIZES:
                audit, ece, gap = statistics(
                    reference_sets(predictions, size, ATTACK_DRAWS, rng, keep)
                ).T
                fixed, same, every, largest = thresholds[size]
                shares = (audit, ece > fixed, ece > same, ece > every, gap > largest)
                for rule, share in zip(RULES, shares, strict=True):
                    by_size = power.setdefault((epsilon, region, rho, rule), {})
                    by_size.setdefault(size, []).append(float(share.mean()))
    return {
        key: {size: float(np.mean(values)) for size, values in by_size.items()}
        for key, by_size in power.items()
    }


def draw(power: dict[tuple[float, str, float, str], dict[int, float]], path: str) -> None:
    """Plot power against size at full coverage: a column per epsilon, a row per region."""
    import matplotlib.pyplot as plt

    labels = {
        "audit": "audit",
        "ece_fixed": "ECE, fixed threshold",
        "ece_same_problem": "ECE, threshold per size, this problem",
        "ece_all_problems": "ECE, per size, all problems",
        "max_gap_same_problem": "largest gap, per size, this problem",
    }
    figure, axes = plt.subplots(
        len(REGIONS), len(EPSILONS), figsize=(11, 7), sharex=True, sharey=True, layout="constrained"
    )
    for row, region in zip(axes, REGIONS, strict=True):
        for ax, epsilon in zip(row, EPSILONS, strict=True):
            for (rule, label), style in zip(
                labels.items(), ("-", "--", "-.", ":", (0, (1, 3))), strict=True
            ):
                by_size = power[epsilon, region, 0.0, rule]
                ax.plot(list(by_size), list(by_size.values()), linestyle=style, label=label)
            ax.set(xscale="log", ylim=(-0.02, 1.02), title=f"epsilon {epsilon:g}, {region} region")
            ax.grid(alpha=0.3)
    figure.supxlabel("size of the reference set")
    figure.supylabel("share of audits that find the attack")
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=3, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-models", type=int, default=200)
    arguments.add_argument("--n-seeds", type=int, default=3)
    args = arguments.parse_args()
    set_threads(args)
    rng = np.random.RandomState(args.seed)
    thresholds, records = study_honest(args, rng)
    power = study_attacks(args, thresholds, rng)
    for (epsilon, region, rho, rule), by_size in power.items():
        dataset = f"mirage_eps{epsilon:g}_{region}_rho{rho:g}"
        needed = sufficient_size(by_size)
        print(f"{dataset:34} {rule:18} 80 % power from n = {needed:6.0f}", by_size)
        if np.isfinite(needed):
            records.append(record(rule, dataset, "size_for_80_percent", needed, args.n_seeds))
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        draw(power, str(args.out / "audit_power.png"))
    finish("audit_power", args, records)


if __name__ == "__main__":
    main()
