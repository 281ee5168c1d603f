"""Stated and true coverage of `TableModel`, and false alarm rates, in awkward situations.

    python -m benchmarks.honest_coverage --data-dir DIR [--out DIR]

With --out, a run that was stopped goes on where it was.

"plain" trains without options, "told" states groups, time or weights. Recorded are means over
seeds: stated and true coverage (of new rows, or with groups the mean over new groups), half the
width of the stated 95 % limits, the shares of models with the truth within them, with a warning,
and with either, and of new rows with a p-value of at most 0.05. Audits of an honest model with
dependent, weighted or copied samples follow.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes

from benchmarks.data_files import load_npz, load_table
from benchmarks.harness import finish, kept_run, parser, record, set_threads
from skuq import CalibrationAuditor, OODDetector
from skuq.tables import TableModel, coverage_notes, quality_warnings, table_notes, unusual_note

COVERAGE, ALARM, N_NEW = 0.9, 0.05, 2000
WARNINGS = ("not measured on later", "may not hold")  # in notes on the new rows
FILES = ("adult_train", "german_credit", "diabetes", "breast_cancer")
Random = np.random.Generator
Situation = tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]  # known rows, new rows, what to tell


def rows_of_customers(random: Random, n: int, most: int, classes: bool = False) -> pd.DataFrame:
    """Seven rows, or up to `most`, of each customer, who has a level of its own."""
    who = np.repeat(np.arange(n), random.integers(1, most + 1, n) if most else np.full(n, 7))
    level, a, b = random.normal(0, 3, n), random.normal(size=n), random.normal(size=n)
    year = np.arange(len(who)) - np.searchsorted(who, who)
    y = (level + a)[who] + 0.1 * year + 0.3 * random.normal(size=len(who))
    y = np.where(y > 1, "high", "low") if classes else y
    return pd.DataFrame({"who": who, "year": year, "a": a[who], "b": b[who], "y": y})


def panel(random: Random, data_dir: Any, most: int = 0, classes: bool = False) -> Situation:
    known, new = (rows_of_customers(random, n, most, classes) for n in (150, 300))
    return known, new.assign(who=new["who"] + 1000), {"groups": "who"}


def months(random: Random, data_dir: Any) -> Situation:
    """Days with a level that wanders and grows; new rows are those of the following months."""
    day, x = np.arange(1100), random.normal(size=1100)
    level = 0.004 * day + np.cumsum(random.normal(0, 0.05, len(day)))
    frame = pd.DataFrame({"date": pd.Timestamp("2023-01-01") + pd.to_timedelta(day, "D"), "x": x})
    frame["y"] = 2 * x + level + 0.3 * random.normal(size=len(day))
    return frame[:900], frame[900:], {"time": "date"}


def weights(random: Random, data_dir: Any) -> Situation:
    """A survey that asks one in ten of a group whose answers vary more."""
    n = 3000 + N_NEW
    noisy, x = random.random(n) < 0.5, random.normal(size=n)
    y = x + np.where(noisy, 3.0, 0.3) * random.normal(size=n)
    frame = pd.DataFrame({"x": x, "y": y, "w": np.where(noisy, 10.0, 1.0)})
    asked = random.random(n) < 1 / frame["w"]
    return frame[:3000][asked[:3000]], frame[3000:], {"sample_weight": "w"}


def rare(random: Random, data_dir: Any) -> Situation:
    """One fraud in a thousand."""
    frame = pd.DataFrame(random.normal(size=(4000 + N_NEW, 3)), columns=[*"abc"])
    odds = 1.5 * frame["a"] + random.logistic(size=len(frame))
    frame["y"] = np.where(odds > np.quantile(odds, 0.999), "fraud", "fine")
    return frame[:4000], frame[4000:], {}


def zero_heavy(random: Random, data_dir: Any) -> Situation:
    """Nine of ten quantities are zero."""
    frame = pd.DataFrame(random.normal(size=(1500 + N_NEW, 2)), columns=[*"ab"])
    some = random.random(len(frame)) < 0.1
    frame["y"] = np.where(some, random.gamma(2, 5, len(frame)) * np.exp(frame["a"] / 2), 0).round()
    return frame[:1500], frame[1500:], {}


def of_file(random: Random, data_dir: Any, name: str, groups: Any = None) -> Situation:
    """Random halves of the rows, or of the groups of rows that agree in some columns."""
    if name in ("diabetes", "breast_cancer"):
        load = load_diabetes if name == "diabetes" else load_breast_cancer
        X, y = load(return_X_y=True, as_frame=True)
    elif groups is None:
        X, y = load_table(name, data_dir)
    else:
        arrays = load_npz("regression_tables", data_dir)
        X, y = pd.DataFrame(arrays[f"x_{name}"]).add_prefix("x"), arrays[f"y_{name}"]
    frame = X.assign(y=np.asarray(y).astype(float if groups or name == "diabetes" else str))
    unit = np.arange(len(frame))
    if groups:
        unit = X.iloc[:, groups].round().groupby(list(X.columns[groups])).ngroup().to_numpy()
    order = random.permutation(np.unique(unit))
    is_known, seed = np.isin(unit, order[: len(order) // 2]), int(random.integers(2**31))
    parts = [frame[own].sample(frac=1, random_state=seed)[:1500] for own in (is_known, ~is_known)]
    if groups:
        parts = [part.assign(group=unit[part.index]) for part in parts]
    return *parts, {"groups": "group"} if groups else {}


SITUATIONS: dict[str, Callable[[Random, Any], Situation]] = {
    "panel": panel,
    "unequal_panel": partial(panel, most=13),
    "panel_of_classes": partial(panel, classes=True),
    "months": months,
    "weights": weights,
    "rare": rare,
    "zero_heavy": zero_heavy,
    "concrete_by_mix": partial(of_file, name="concrete", groups=slice(0, 7)),
    "airfoil_by_profile": partial(of_file, name="airfoil", groups=slice(1, None)),
    "housing_by_area": partial(of_file, name="ca_housing", groups=slice(6, None)),
    **{name: partial(of_file, name=name) for name in FILES},
}
UNTOLD = ("rare", "zero_heavy", *FILES)  # situations without options


def measured(name: str, method: str, seed: int, *, args: Any) -> dict[str, float]:
    """Statements of a model on one draw of a situation, and the truth."""
    known, new, told = SITUATIONS[name](np.random.default_rng(seed), args.data_dir)
    if method == "plain":
        told = {"drop": ["group"]} if "group" in known else {}
    model = TableModel(args.model).fit(known, "y", **told)
    rows, y = model.predict(new, n_explained=0), new["y"]
    if model.classes_ is None:
        covered = (rows["lower"] <= y) & (y <= rows["upper"])
    else:
        sets = zip(y, rows["prediction_set"], strict=True)
        covered = pd.Series([label in found.split("; ") for label, found in sets], y.index)
    if "groups" in told:
        covered = covered.groupby(new[told["groups"]]).mean()
    alarm = (rows["conformal_p_value"] <= ALARM).to_numpy()
    of_new = [*table_notes(model.count(new)), unusual_note(alarm.sum(), len(alarm), model)]
    said = [*model.warnings_, *quality_warnings(model, COVERAGE)]
    said += [note for note in of_new if any(words in note for words in WARNINGS)]
    if np.isnan(model.measured_coverage(COVERAGE)[0]):
        said += coverage_notes(model, COVERAGE)
    stated, (low, high) = model.measured_coverage(COVERAGE)[0], model.coverage_limits(COVERAGE)
    true, within = covered.mean(), low <= covered.mean() <= high
    found = {
        "stated_coverage": stated,
        "true_coverage": true,
        "half_width": (high - low) / 2,
        "within": within,
        "within_or_warned": within or bool(said),
        "false_alarm_rate": alarm.mean(),
        "warned": bool(said),
    }
    return {metric: float(value) for metric, value in found.items()}


def audited(random: Random) -> dict[str, bool]:
    """Whether audits of an honest model fail."""
    who = np.repeat(np.arange(80), 8)
    confidence = (0.55 + 0.4 * random.random(80))[who]
    P = np.column_stack([confidence, 1 - confidence])
    together = np.where(random.random(80)[who] < confidence, 0, 1)
    y = np.where(random.random(len(who)) < confidence, 0, 1)
    weight = random.gamma(2, 2500, len(who)).round()
    cases: dict[str, tuple] = {
        "dependent_plain": (together, P, {}),
        "dependent_told": (together, P, {"groups": who}),
        "whole_survey_weights": (y, P, {"sample_weight": weight}),
        "copied_five_times": (np.tile(y, 5), np.tile(P, (5, 1)), {}),
    }
    audit = partial(CalibrationAuditor.from_predictions, tolerance=0)
    return {name: not audit(*case[:2], **case[2]).passed_ for name, case in cases.items()}


def detected(method: str, seed: int) -> dict[str, float]:
    """False alarm rate of `OODDetector` for new customers."""
    known, new, _ = panel(np.random.default_rng(seed), None)
    detector, names = OODDetector(random_state=0), ["a", "b", "year"]
    detector.fit(known[names], groups=known["who"] if method == "told" else None)
    return {"false_alarm_rate": (detector.p_values(new[names]) <= ALARM).mean()}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--n-seeds", type=int, default=6)
    arguments.add_argument("--n-audits", type=int, default=100)
    arguments.add_argument("--model", default="logistic")
    args = arguments.parse_args()
    set_threads(args)
    warnings.simplefilter("ignore")
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for seed in range(args.seed, args.seed + args.n_seeds):
        for name in SITUATIONS:
            for method in ("plain", "told"):
                if method == "plain" or name not in UNTOLD:
                    run = kept_run(measured, name, method, seed, args=args)
                    found.setdefault((method, name), []).append(run)
        for method in ("plain", "told"):
            found.setdefault((method, "ood_detector"), []).append(detected(method, seed))
    for seed in range(args.n_audits):
        for case, failed in audited(np.random.default_rng(seed)).items():
            found.setdefault((case, "audit"), []).append({"false_alarm_rate": float(failed)})
    records = []
    for (method, name), runs in found.items():
        frame = pd.DataFrame(runs)
        print(method, name, frame.mean().round(3).to_dict(), flush=True)
        records.extend(
            record(method, name, str(metric), values.mean(), len(values), values.std())
            for metric, values in frame.items()
        )
    finish("honest_coverage", args, records)


if __name__ == "__main__":
    main()
