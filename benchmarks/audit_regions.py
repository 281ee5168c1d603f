"""Search for regions: false alarms on honest models, and power if the region is unknown.

UCI Adult (the official training file): a logistic regression and a network are trained on 8,000
rows and temperature-scaled on 2,000. An attack replaces the confidences of the rows in one region
by .56 to .58, as by Mirage. Reference sets are drawn from one half of the remaining rows. The other
half, predicted by the same honest model, is used to select tolerances (`choose_tolerance`). Three
audits are compared: the scan over bins only, the scan and the search with a tolerance of .05, and
both with the selected tolerances.
"""

import argparse
from collections import defaultdict

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks.data_files import load_table
from benchmarks.harness import finish, parser, record, set_threads
from benchmarks.mirage import temperature_scaled
from skuq import CalibrationAuditor
from skuq.calibration import choose_tolerance, region_mask

SIZES = (50, 100, 200, 400, 800, 1600, 3200)
REGIONS = {
    "divorced_alone": "marital_status == 'Divorced' and relationship == 'Not-in-family'",
    "professional_women": "occupation == 'Prof-specialty' and sex == 'Female'",
    "private_bachelors": "workclass == 'Private' and education == 'Bachelors'",
    "educated_husbands": "relationship == 'Husband' and education_num > 13",
    "married_professional": "marital_status == 'Married-civ-spouse' "
    "and occupation == 'Prof-specialty'",
}


def honest_models(X: pd.DataFrame, y: np.ndarray, seed: int) -> dict[str, object]:
    """Train honest models on the first 10,000 rows."""
    texts = [name for name in X if X[name].dtype.kind not in "iuf"]
    numbers = [name for name in X if name not in texts]
    encode = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    learners = {
        "logistic": LogisticRegression(max_iter=300),
        "network": MLPClassifier((32,), early_stopping=True, random_state=seed),
    }
    fit, calibrate = slice(0, 8000), slice(8000, 10_000)
    return {
        name: temperature_scaled(
            make_pipeline(
                make_column_transformer((StandardScaler(), numbers), (encode, texts)), learner
            ).fit(X[fit], y[fit]),
            X[calibrate],
            y[calibrate],
        )
        for name, learner in learners.items()
    }


def audits(
    X: pd.DataFrame, y: np.ndarray, proba: np.ndarray, tolerances: tuple[float, float]
) -> dict[str, bool]:
    """Return whether each audit fails."""
    tolerance, region_tolerance = tolerances
    settings = {
        "scan": {},
        "scan_and_search": {"search_regions": True},
        "scan_tolerance_chosen": {"tolerance": tolerance},
        "scan_and_search_tolerance_chosen": {
            "tolerance": tolerance,
            "search_regions": region_tolerance,
        },
    }
    return {
        name: not CalibrationAuditor.from_predictions(
            y, proba, X=X if "search_regions" in given else None, **given
        ).passed_
        for name, given in settings.items()
    }


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-draws", type=int, default=30, help="reference sets per model")
    args: argparse.Namespace = arguments.parse_args()
    set_threads(args)
    X, y = load_table("adult_train", args.data_dir)
    order = np.random.RandomState(args.seed).permutation(len(X))
    X, y = X.fillna(X.mode().iloc[0]).iloc[order].reset_index(drop=True), y[order].astype(int)
    found = defaultdict(list)
    models = honest_models(X, y, args.seed)
    base, reference = np.arange(10_000, 21_000), np.arange(21_000, len(X))
    for name, model in models.items():
        proba = model.predict_proba(X)
        for size in SIZES:
            study = choose_tolerance(
                y[base],
                proba[base],
                X=X.iloc[base],
                reference_size=size,
                n_repeats=60,
                random_state=args.seed,
            )
            chosen = study.tolerance, study.region_tolerance
            print(f"{name} n {size}: tolerances {chosen}", flush=True)
            for k in range(args.n_draws):
                rng = np.random.default_rng([args.seed, size, k])
                rows = rng.choice(reference, size, replace=False)
                attacked = REGIONS if k < args.n_draws / 3 else ()
                for region in (None, *attacked):
                    faked = proba[rows].copy()
                    if region is not None:
                        inside = region_mask(REGIONS[region], X.iloc[rows])
                        lowered = rng.uniform(0.56, 0.58, len(rows))
                        best = faked.argmax(axis=1)
                        faked[inside] = (1 - lowered[inside])[:, None]
                        faked[inside, best[inside]] = lowered[inside]
                    for rule, alarm in audits(X.iloc[rows], y[rows], faked, chosen).items():
                        found[rule, region or "honest", size].append(alarm)
    records = []
    for (rule, region, size), alarms in found.items():
        metric = "false_alarm_rate" if region == "honest" else "power"
        records.append(
            record(rule, f"{region}_n{size}", metric, float(np.mean(alarms)), len(alarms))
        )
    for rule in dict.fromkeys(rule for rule, *_ in found):
        for region in ("honest", *REGIONS):
            rates = "  ".join(f"{np.mean(found[rule, region, size]):4.2f}" for size in SIZES)
            print(f"{rule:29} {region:22} {rates}")
    for region, query in REGIONS.items():
        inside = region_mask(query, X)
        right = np.mean([(m.predict(X) == y)[inside].mean() for m in models.values()])
        print(f"{region}: share {inside.mean():.3f}, accuracy {right:.3f}")
        records.append(record("region", region, "share", inside.mean(), len(X)))
        records.append(record("region", region, "accuracy", float(right), int(inside.sum())))
    finish("audit_regions", args, records)


if __name__ == "__main__":
    main()
