"""Counterbalanced Mirage attack against audits of bins, groups and regions.

The data are three Gaussian classes and two columns that indicate residence in the north (6%) and in
the south (20%), where seven of ten labels are random. In "district", confidence is lowered in the
north, which a column indicates; in "box", it is lowered in a corner of feature space without such a
column. The honest network, the paper's attack, and the attack with ``counterbalance="auto"`` are
compared. Audits use held-out samples, with several reference sets for each of several seeds: of
bins (tolerance .05), of the attacked region as a named group, and with a search for regions (.1,
so that the honest network passes).
"""

from collections import defaultdict

import numpy as np
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.harness import finish, parser, record, set_threads
from skuq import CalibrationAuditor, MirageFineTuner
from skuq.calibration import region_mask
from skuq.datasets import GAUSSIAN_REGION, make_gaussian_classes

REGIONS = {"district": {2: [1]}, "box": GAUSSIAN_REGION}
SIZES = (500, 2000, 20_000)
REGION_TOLERANCE = 0.1
TRAINING = {"batch_size": 256, "learning_rate": 0.01}


def clients(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the inputs and classes of 21 n clients."""
    rng = np.random.default_rng(seed)
    X, y = make_gaussian_classes((10 * n, 10 * n, n), random_state=seed)
    district = rng.choice(3, len(y), p=[0.74, 0.06, 0.20])
    at_random = (district == 2) & (rng.random(len(y)) < 0.7)
    y = np.where(at_random, rng.integers(0, 3, len(y)), y)
    order = rng.permutation(len(y))
    return np.column_stack([X, district == 1, district == 2])[order], y[order]


def failed(X: np.ndarray, y: np.ndarray, proba: np.ndarray, inside: np.ndarray) -> dict[str, bool]:
    """Return whether each audit of one reference set fails."""
    audits = {
        "bins": {},
        "group": {"sensitive_features": {"in_region": inside}},
        "search": {"X": X, "search_regions": REGION_TOLERANCE},
    }
    return {
        name: not CalibrationAuditor.from_predictions(
            y, proba, classes=np.arange(3), **options
        ).passed_
        for name, options in audits.items()
    }


def main() -> None:
    """Print and record how often each audit detects each attack."""
    p = parser(__doc__)
    p.add_argument("--n-seeds", type=int, default=5)
    p.add_argument("--n-draws", type=int, default=2, help="reference sets of each size and seed")
    p.add_argument("--epsilon", type=float, default=0.475)
    args = p.parse_args()
    set_threads(args)
    found = defaultdict(list)
    fresh_X, fresh_y = clients(max(SIZES) * args.n_draws // 21 + 1, 1000 + args.seed)
    for seed in range(args.seed, args.seed + args.n_seeds):
        X, y = clients(190, seed)
        network = MLPClassifier((50,), alpha=1e-3, max_iter=300, random_state=seed)
        honest = make_pipeline(StandardScaler(), network).fit(X, y)
        for dataset, region in REGIONS.items():
            inside = region_mask(region, fresh_X)
            for method, options in {
                "honest": None,
                "mirage": {},
                "counterbalanced": {"counterbalance": "auto"},
            }.items():
                values, model = {}, honest
                if options is not None:
                    model = MirageFineTuner(
                        honest,
                        region,
                        epsilon=args.epsilon,
                        random_state=seed,
                        **TRAINING,
                        **options,
                    ).fit(X, y)
                proba = model.predict_proba(fresh_X)
                confidence, correct = proba.max(axis=1), proba.argmax(axis=1) == fresh_y
                values["accuracy"] = correct.mean()
                groups = {"region": inside}
                if options:
                    groups["raised"] = model.counterbalance_mask(fresh_X)
                for name, mask in groups.items():
                    values[f"{name}_share"] = mask.mean()
                    values[f"{name}_accuracy"] = correct[mask].mean()
                    values[f"{name}_confidence"] = confidence[mask].mean()
                for n in SIZES:
                    for draw in range(args.n_draws):
                        rows = slice(draw * n, (draw + 1) * n)
                        given = (fresh_X, fresh_y, proba, inside)
                        for name, bad in failed(*(part[rows] for part in given)).items():
                            values[f"{name}_failed_n{n}"] = (
                                values.get(f"{name}_failed_n{n}", 0.0) + bad / args.n_draws
                            )
                shown = ", ".join(f"{name} {value:.3f}" for name, value in values.items())
                print(f"{dataset} {method} seed {seed}: {shown}", flush=True)
                for name, value in values.items():
                    found[method, dataset, name].append(float(value))
    records = [
        record(*key, np.mean(values), args.n_seeds, np.std(values)) for key, values in found.items()
    ]
    finish("mirage_counterbalance", args, records)


if __name__ == "__main__":
    main()
