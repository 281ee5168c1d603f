"""Unusual rows of tables and wrong predictions, for four learners and four data sets.

    python -m benchmarks.quam_tables --data-dir DIR --datasets adult_train --n-seeds 3

Unusual rows are distinguished from test rows, by AUROC of the epistemic part or of a baseline's
score: a number 12 times as large, contradictory rows, four unseen categories, every column from a
different row, and rows of a group of people or mails that was left out of training. ``quam-pool``
generates its pool from training rows; ``quam-pool-other`` omits the kind of pool that resembles the
unusual rows. ``quam-quadratic`` and ``quam-pointwise`` search for each row; the latter takes long,
and is measured if asked for. ``wrong predictions`` are detected by `total`, and by 1 minus the
largest probability ("confidence"). The CPU seconds of a method are for its search or fit and all
scores; the fit of the base learner, which all methods share, has a separate record.
"""

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.utils import resample

from benchmarks.data_files import load_npz, load_table
from benchmarks.harness import finish, parser, record, set_threads
from skuq._information import decompose_expected, entropy
from skuq.baselines import LaplaceClassifier
from skuq.imports import import_optional
from skuq.quam import PoolSearch, QUAMClassifier, RefitSearch, make_pool

ERRORS = "wrong predictions"
# For each kind of unusual rows, the kind of pool that resembles it.
RESEMBLES = {
    "times 12": ("out_of_range",),
    "contradictory": ("crossed", "shuffled"),
    "unseen": ("unseen",),
    "shuffled": ("crossed", "shuffled"),
    "left out": ("unseen",),
}
POOLS = ("crossed", "shuffled", "out_of_range", "unseen")


class DataSet(NamedTuple):
    """Specification of the unusual rows of a data set; None for kinds that it does not have."""

    number: str  # column that is multiplied
    contradiction: dict[str, Any] | None
    left_out: Callable[[pd.DataFrame], pd.Series]


DATASETS = {
    "adult_train": DataSet(
        "age",
        {"education": "Doctorate", "education_num": 1},
        lambda X: X["occupation"] == "Farming-fishing",
    ),
    "spambase": DataSet("capital_run_length_average", None, lambda X: X["word_freq_george"] > 0),
    "german_credit": DataSet(
        "age",
        {"age": 20, "employment": "A75", "residence_since": 4, "job": "A174"},
        lambda X: X["housing"] == "A153",
    ),
    "loan_credit": DataSet(
        "person_age",
        {"person_age": 21, "person_emp_exp": 40},
        lambda X: X["person_home_ownership"] == "OWN",
    ),
}
FOREST = {"min_samples_leaf": 1, "random_state": 0}
LEARNERS = {
    "hgb": lambda: trees(HistGradientBoostingClassifier(random_state=0)),
    "forest": lambda: trees(RandomForestClassifier(**FOREST)),
    "logistic": lambda: scaled(LogisticRegression(max_iter=1000)),
    "network": lambda: scaled(MLPClassifier(early_stopping=True, random_state=0)),
}
text = make_column_selector(dtype_exclude="number")


def trees(learner: Any, unknown: float = np.nan) -> Pipeline:
    """Build a pipeline for trees: categories as codes; missing and unseen values are supported."""
    codes = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=unknown, encoded_missing_value=unknown
    )
    columns = make_column_transformer((codes, text), remainder="passthrough")
    return make_pipeline(columns, learner)


def scaled(learner: Any) -> Pipeline:
    """Build a pipeline with one-hot categories and scaled numbers."""
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), text),
        remainder=make_pipeline(SimpleImputer(strategy="median"), StandardScaler()),
    )
    return make_pipeline(columns, learner)


class Task(NamedTuple):
    """Training rows, ordinary test rows, and unusual rows by kind."""

    X: pd.DataFrame
    y: np.ndarray
    X_test: pd.DataFrame
    y_test: np.ndarray
    unusual: dict[str, pd.DataFrame]


def load(name: str, args, seed: int) -> Task:
    """Split a data set, and generate unusual rows from rows that are not used otherwise."""
    if name == "spambase":
        arrays = load_npz(name, args.data_dir)
        X, y = pd.DataFrame(arrays["x"], columns=arrays["feature_names"].tolist()), arrays["y"]
    else:
        X, y = load_table(name, args.data_dir)
    random = np.random.default_rng(seed)
    order = random.permutation(len(X))
    X, y = X.iloc[order].reset_index(drop=True), y[order]
    out = DATASETS[name].left_out(X).to_numpy()
    left_out, X, y = X[out], X[~out].reset_index(drop=True), y[~out]
    n_train = min(args.n_train, 7 * len(X) // 10)
    test = slice(n_train, n_train + args.n_test)
    rest = X[n_train + args.n_test :]
    if len(rest) < args.n_unusual:
        rest = X[test]  # small data sets reuse ordinary test rows
    unusual = {
        kind: rows.reset_index(drop=True)
        for kind, rows in make_unusual(DATASETS[name], rest, args.n_unusual, random).items()
    }
    unusual["left out"] = left_out[: args.n_unusual].reset_index(drop=True)
    return Task(X[:n_train], y[:n_train], X[test].reset_index(drop=True), y[test], unusual)


def make_unusual(
    dataset: DataSet, rest: pd.DataFrame, n: int, random: np.random.Generator
) -> dict[str, pd.DataFrame]:
    """Generate unusual rows of each kind that the data set has."""
    rows = rest.sample(n, random_state=random)
    unusual = {"times 12": rows.assign(**{dataset.number: rows[dataset.number] * 12})}
    if dataset.contradiction is not None:
        unusual["contradictory"] = rows.assign(**dataset.contradiction)
    categories = np.flatnonzero([dtype.kind == "O" for dtype in rows.dtypes])
    if len(categories) >= 4:
        values = rows.to_numpy(dtype=object, copy=True)
        for row in values:
            row[random.choice(categories, size=4, replace=False)] = "never seen"
        unusual["unseen"] = pd.DataFrame(values, columns=rows.columns).astype(rows.dtypes)
    unusual["shuffled"] = pd.DataFrame(
        {name: rest[name].sample(n, random_state=random).to_numpy() for name in rest}
    )
    return unusual


Score = Callable[[pd.DataFrame], np.ndarray]


def entropy_of(model: Pipeline) -> Score:
    return lambda X: entropy(np.log(np.maximum(model.predict_proba(X), 1e-12)))


def outliers(detector: Any, task: Task) -> Score:
    """Fit an outlier detector, on one-hot categories for distances, otherwise on codes from -1."""
    by_distance = type(detector).__name__ in ("LocalOutlierFactor", "KNN")
    prepare = (scaled(None) if by_distance else trees(None, unknown=-1))[0].fit(task.X)
    detector.fit(prepare.transform(task.X))
    if hasattr(detector, "decision_scores_"):  # scores of PyOD are larger for outliers
        return lambda X: detector.decision_function(prepare.transform(X))
    return lambda X: -detector.score_samples(prepare.transform(X))


def bagged(model: Pipeline, task: Task, seed: int) -> Score:
    """Mutual information of ten learners, each fitted on a bootstrap sample."""
    X, random = model[:-1].transform(task.X), np.random.RandomState(seed)
    # Resample rows instead of weights: scikit-learn's networks fail on a batch of zero weights.
    draws = [resample(X, task.y, stratify=task.y, random_state=random) for _ in range(10)]
    ensemble = [clone(model[-1]).fit(*draw) for draw in draws]

    def score(X: pd.DataFrame) -> np.ndarray:
        inputs = model[:-1].transform(X)
        proba = np.stack([each.predict_proba(inputs) for each in ensemble], axis=1)
        equal = np.full(proba.shape[:2], 0.1)
        return decompose_expected(np.log(np.maximum(proba, 1e-12)), equal).epistemic

    return score


def laplace(model: Pipeline, task: Task, seed: int) -> Score:
    fitted = LaplaceClassifier(FrozenEstimator(model), setting="expected", random_state=seed)
    fitted.fit(task.X, task.y)
    return lambda X: fitted.predict_uncertainty(X).epistemic


def detectors(seed: int) -> dict[str, Any]:
    """Build outlier detectors, which need no base learner."""
    found = {
        "isolation forest": IsolationForest(random_state=seed),
        "local outlier factor": LocalOutlierFactor(novelty=True),
    }
    try:
        for name in ("ECOD", "COPOD", "KNN"):
            module = import_optional(f"pyod.models.{name.lower()}", "outliers")
            found[name.lower()] = getattr(module, name)()
    except ImportError as error:
        print(error, flush=True)
    return found


def quam(model: Pipeline, task: Task, seed: int, kinds: tuple[str, ...], args) -> QUAMClassifier:
    """Run a search on a pool of the given kinds."""
    pool = partial(make_pool, kinds=kinds, n_inputs=args.n_pool, random_state=seed)
    search = PoolSearch(pool=pool) if is_network(model) else RefitSearch(pool=pool)
    if args.pool_shares and isinstance(search, RefitSearch):
        search.shares = args.pool_shares
    found = QUAMClassifier(FrozenEstimator(model), search=search, random_state=seed)
    return found.fit(task.X, task.y)


def is_network(model: Pipeline) -> bool:
    return isinstance(model[-1], MLPClassifier)


def epistemic(found: QUAMClassifier) -> Score:
    return lambda X: found.predict_uncertainty(X).epistemic


def auroc(ordinary: np.ndarray, unusual: np.ndarray) -> float:
    label = np.repeat([0, 1], [len(ordinary), len(unusual)])
    return roc_auc_score(label, np.concatenate([ordinary, unusual]))


Figures = dict[tuple[str, str, str], float]  # (method, kind of rows, metric)


def score_all(
    method: str, fit: Callable[[], Score], task: Task, kinds: Sequence[str] = ()
) -> Figures:
    """Compute the AUROC for each kind of rows, and the CPU seconds of a fit and all scores."""
    start = time.process_time()
    score = fit()
    ordinary = score(task.X_test)
    figures = {
        (method, kind, "auroc"): auroc(ordinary, score(task.unusual[kind]))
        for kind in kinds or task.unusual
    }
    figures[method, "all rows", "cpu_seconds"] = time.process_time() - start
    return figures


def run(task: Task, learner: str, seed: int, args) -> Figures:
    """Measure all methods that need a base learner."""
    start, figures = time.process_time(), {}
    model = LEARNERS[learner]().fit(task.X, task.y)
    figures["learner", "all rows", "cpu_seconds"] = time.process_time() - start
    proba = model.predict_proba(task.X_test)
    wrong = model.classes_[proba.argmax(axis=1)] != task.y_test
    figures["learner", "all rows", "accuracy"] = 1 - wrong.mean()
    confidence = 1 - proba.max(axis=1)
    figures["confidence", ERRORS, "auroc"] = auroc(confidence[~wrong], confidence[wrong])
    has_text = bool(text(task.X))
    kinds = tuple(kind for kind in POOLS if kind != "unseen" or has_text)
    # Run one search for each pool that omits the kind resembling the unusual rows.
    pools: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for kind in task.unusual:
        pools[tuple(each for each in kinds if each not in RESEMBLES[kind])].append(kind)
    for pool, asked in pools.items():
        other = epistemic(quam(model, task, seed, pool, args))
        scored = score_all("quam-pool-other", lambda other=other: other, task, asked)
        figures |= {key: value for key, value in scored.items() if key[2] == "auroc"}
    start = time.process_time()
    found = quam(model, task, seed, kinds, args)
    search = time.process_time() - start
    figures |= score_all("quam-pool", lambda: epistemic(found), task)
    figures["quam-pool", "all rows", "cpu_seconds"] += search
    searched = {"quam-pool": found}
    for name in args.pointwise if learner in ("network", "logistic") else ():
        start = time.process_time()
        each = QUAMClassifier(FrozenEstimator(model), search=name, random_state=seed)
        searched[f"quam-{name}"] = each.fit(task.X, task.y)
        search = time.process_time() - start
        figures |= score_all(f"quam-{name}", partial(epistemic, each), task)
        figures[f"quam-{name}", "all rows", "cpu_seconds"] += search
    for name, each in searched.items():
        total = each.predict_uncertainty(task.X_test).total
        figures[name, ERRORS, "auroc"] = auroc(total[~wrong], total[wrong])
    if not args.no_peers:
        figures |= score_all("entropy", lambda: entropy_of(model), task)
        figures |= score_all("bagged", lambda: bagged(model, task, seed), task)
        if learner == "network":
            figures |= score_all("laplace", lambda: laplace(model, task, seed), task)
    return figures


def run_dataset(name: str, args) -> list[dict[str, Any]]:
    """Measure one data set, over all learners and seeds."""
    found: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for seed in range(args.seed, args.seed + args.n_seeds):
        task, of_detectors = load(name, args, seed), {}
        for method, detector in {} if args.no_peers else detectors(seed).items():
            of_detectors |= score_all(method, partial(outliers, detector, task), task)
        for learner in args.learners:
            for key, value in {**run(task, learner, seed, args), **of_detectors}.items():
                found[learner, *key].append(value)
    return [
        record(method, f"{name} {learner} {kind}", metric, np.mean(v), len(v), np.std(v))
        for (learner, method, kind, metric), v in found.items()
    ]


def mean_ranks(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compute the mean rank of each method over all kinds of rows, data sets and learners.

    The two pools are ranked separately; the ranks of baselines are those with "quam-pool".
    """
    cells: dict[str, dict[str, float]] = defaultdict(dict)
    for each in records:
        if each["metric"] == "auroc" and not each["dataset"].endswith(ERRORS):
            cells[each["dataset"]][each["method"]] = each["value"]
    ranks: dict[str, list[float]] = defaultdict(list)
    for ours, other in (("quam-pool", "quam-pool-other"), ("quam-pool-other", "quam-pool")):
        for cell in cells.values():
            methods = [method for method in cell if method != other]
            for method, rank in zip(
                methods, rankdata([-cell[method] for method in methods]), strict=True
            ):
                if method == ours or ours == "quam-pool":
                    ranks[method].append(rank)
    return [
        record(method, "all", "mean_rank", np.mean(values), len(values))
        for method, values in ranks.items()
    ]


def print_table(records: list[dict[str, Any]], where: str) -> None:
    """Print a table of methods by kinds of rows."""
    own = [each for each in records if each["dataset"].startswith(f"{where} ")]
    columns = list(dict.fromkeys((each["dataset"], each["metric"]) for each in own))
    heads = [f"{name.removeprefix(where + ' ')} {metric}" for name, metric in columns]
    heads = [head.removesuffix(" auroc").removeprefix("all rows ") for head in heads]
    print(f"\n{where:24}" + "".join(f"{head:>18}" for head in heads))
    for method in dict.fromkeys(each["method"] for each in own):
        values = {
            (each["dataset"], each["metric"]): each["value"]
            for each in own
            if each["method"] == method
        }
        cells = (f"{values[c]:18.3f}" if c in values else " " * 18 for c in columns)
        print(f"{method:24}" + "".join(cells), flush=True)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=DATASETS)
    arguments.add_argument("--learners", nargs="+", default=list(LEARNERS), choices=LEARNERS)
    arguments.add_argument("--n-seeds", type=int, default=1)
    arguments.add_argument("--n-train", type=int, default=5000)
    arguments.add_argument("--n-test", type=int, default=2000, help="ordinary rows")
    arguments.add_argument("--n-unusual", type=int, default=100, help="rows of each kind")
    arguments.add_argument("--n-pool", type=int, default=3000)
    arguments.add_argument("--pool-shares", nargs="+", type=float, help="default: QUAM's")
    arguments.add_argument("--pointwise", nargs="*", default=["quadratic"], help="searches by row")
    arguments.add_argument("--no-peers", action="store_true", help="QUAM and the learner only")
    args = arguments.parse_args()
    set_threads(args)
    warnings.filterwarnings("ignore", message="Found unknown categories")
    records = []
    for name in args.datasets:
        records += run_dataset(name, args)
        for learner in args.learners:
            print_table(records, f"{name} {learner}")
    ranked = mean_ranks(records)
    print("\nmean rank")
    for each in ranked:
        print(f"{each['method']:24}{each['value']:6.2f}  of {each['n']}")
    finish("quam_tables", args, records + ranked)


if __name__ == "__main__":
    main()
