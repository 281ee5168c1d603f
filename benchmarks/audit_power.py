"""False alarms of the audit on honest models, and its power against Mirage.

Honest models: 200 networks and logistic regressions on four synthetic problems, each
temperature-scaled on data of its own. Attacks: Mirage on three normal classes, for several
epsilon, sizes of the region, sizes of the reference set, and shares rho of the region that
the reference set lacks (Eq. 20). Rivals are a threshold on the expected calibration error and
one on the largest gap of a bin (Algorithm 1), both set for every size of the reference set so
that 5 % of the honest models of the same problem are flagged: at least the audit's own rate.
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
from skuq import MirageFineTuner
from skuq.audit import (
    audit_bins,
    bin_edges,
    bin_sums,
    record_predictions,
    region_mask,
    temperature_scaled,
)
from skuq.audit.sums import Predictions
from skuq.datasets import GAUSSIAN_REGION, make_gaussian_classes

ALPHA, LEVEL, N_BINS = 0.05, 0.95, 10
SIZES = (50, 100, 200, 400, 800, 1600, 3200)
EPSILONS = (0.0, 0.15, 0.5, 0.8)
RHOS = (0.0, 0.5, 0.9)
REGIONS = {
    "small": {0: (2.0, 2.5), 1: (0.0, 1.2)},
    "paper": GAUSSIAN_REGION,
    "large": {0: (1.0, 3.0), 1: (-1.0, 2.0)},
}
POOL = 40_000
DRAWS = 200
RULES = ("audit", "ece_threshold", "max_gap_threshold")


def gaussian(n: int, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Three normal classes in the proportions of the paper."""
    return make_gaussian_classes((round(n / 2.1), round(n / 2.1), round(n / 21)), random_state=rng)


def moons(n: int, rng: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
    """Two half moons that overlap."""
    return make_moons(n, noise=0.35, random_state=rng)


def clusters(n_classes: int) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Clusters in ten dimensions with wrong labels; always the same problem."""
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


def honest_models(n_models: int, seed: int) -> Iterator[tuple[str, Predictions]]:
    """Predictions of temperature-scaled models on data that are new to them."""
    problems = {
        "gaussian": gaussian,
        "moons": moons,
        "clusters_2": clusters(2),
        "clusters_5": clusters(5),
    }
    for k in range(n_models):
        name = list(problems)[k % len(problems)]
        rng = np.random.RandomState(seed + k)
        draw = problems[name]
        learner = (
            LogisticRegression(max_iter=1000)
            if k % 8 >= 4 and name != "moons"
            else MLPClassifier((50,), max_iter=60, random_state=k)
        )
        model = make_pipeline(StandardScaler(), learner).fit(*draw(1680, rng))
        model = temperature_scaled(model, *draw(1000, rng))
        X, y = draw(POOL, rng)
        yield name, record_predictions(y, model.predict_proba(X), classes=model.classes_)


def attacks(n_seeds: int, seed: int) -> Iterator[tuple[tuple[float, str], Predictions, np.ndarray]]:
    """Predictions of attacked models on fresh data, and which of these lie in the region."""
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
                yield (epsilon, name), record_predictions(fresh_y, proba), inside


def statistics(
    predictions: Predictions, size: int, rng: np.random.RandomState, keep: np.ndarray | None = None
) -> np.ndarray:
    """Statistic of each rule on reference sets of a size, shape (DRAWS, 3)."""
    edges = bin_edges(predictions.confidence, N_BINS, "uniform")
    candidates = np.arange(len(predictions.correct)) if keep is None else np.flatnonzero(keep)
    found = []
    for _ in range(DRAWS):
        rows = rng.choice(candidates, size)
        part = Predictions(predictions.confidence[rows], predictions.correct[rows])
        sums = bin_sums(part, edges)[0]
        smallest = audit_bins(sums, alpha=ALPHA, confidence_level=LEVEL).p_value.min()
        found.append(
            (1 - smallest, sums.expected_calibration_error, sums.maximum_calibration_error)
        )
    return np.array(found)


def sufficient_size(power: dict[int, float], wanted: float = 0.8) -> float:
    """Size from which on the power is reached, interpolated in the logarithm; inf if never."""
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


def study_honest(
    args: argparse.Namespace, rng: np.random.RandomState
) -> tuple[dict[int, np.ndarray], list[dict]]:
    """Thresholds of every rule per size, shape (3,), and records of false alarms."""
    found: dict[tuple[int, str], list[np.ndarray]] = {}
    for name, predictions in honest_models(args.n_models, args.seed):
        for size in SIZES:
            values = statistics(predictions, size, rng)
            found.setdefault((size, "all"), []).append(values)
            found.setdefault((size, name), []).append(values)
    thresholds, records = {}, []
    for size in SIZES:
        rivals = np.quantile(np.concatenate(found[size, "gaussian"]), LEVEL, axis=0)
        thresholds[size] = np.array([LEVEL, *rivals[1:]])
        for problem in sorted({name for _, name in found}):
            models = np.array([values[:, 0] > LEVEL for values in found[size, problem]])
            rate, first = models.mean(), models[:, 0].mean()
            dataset = f"honest_{problem}_n{size}"
            records.append(record("audit", dataset, "false_alarm_rate", rate, models.size))
            records.append(
                record("audit", dataset, "false_alarms_one_set_each", first, len(models))
            )
            print(f"honest {problem:10} n {size:5}: {rate:.4f}, one set per model {first:.4f}")
    return thresholds, records


def study_attacks(
    args: argparse.Namespace, thresholds: dict[int, np.ndarray], rng: np.random.RandomState
) -> dict[tuple[float, str, float, str], dict[int, float]]:
    """Power of each rule per attack, rho and size."""
    power: dict[tuple[float, str, float, str], dict[int, list[float]]] = {}
    for (epsilon, region), predictions, inside in attacks(args.n_seeds, args.seed):
        for rho in RHOS:
            keep = ~inside | (rng.random_sample(len(inside)) >= rho)
            for size in SIZES:
                flagged = statistics(predictions, size, rng, keep) > thresholds[size]
                for rule, share in zip(RULES, flagged.mean(axis=0), strict=True):
                    by_size = power.setdefault((epsilon, region, rho, rule), {})
                    by_size.setdefault(size, []).append(float(share))
    return {
        key: {size: float(np.mean(values)) for size, values in by_size.items()}
        for key, by_size in power.items()
    }


def draw(power: dict[tuple[float, str, float, str], dict[int, float]], path: str) -> None:
    """Power against size: a column per epsilon, a row per region, full coverage."""
    import matplotlib.pyplot as plt

    styles = {"audit": "-", "ece_threshold": "--", "max_gap_threshold": ":"}
    labels = ("audit", "threshold on ECE", "threshold on largest gap (Alg. 1)")
    figure, axes = plt.subplots(
        len(REGIONS), len(EPSILONS), figsize=(11, 7), sharex=True, sharey=True, layout="constrained"
    )
    for row, region in zip(axes, REGIONS, strict=True):
        for ax, epsilon in zip(row, EPSILONS, strict=True):
            for (rule, style), label in zip(styles.items(), labels, strict=True):
                by_size = power[epsilon, region, 0.0, rule]
                ax.plot(list(by_size), list(by_size.values()), style, label=label)
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
        for size, share in by_size.items():
            records.append(record(rule, f"{dataset}_n{size}", "power", share, DRAWS * args.n_seeds))
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
