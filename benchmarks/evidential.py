"""Shared parts of the benchmarks of the evidential probe: graphs, left-out classes, methods."""

import argparse
import functools
import hashlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from joblib import Parallel, delayed
from scipy.stats import rankdata, t
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.preprocessing import normalize

from benchmarks.data_files import load_graph
from benchmarks.evidential_methods import comparison_methods
from benchmarks.harness import kept_run, record
from skuq import DeepEnsembleClassifier, MCDropoutClassifier
from skuq.evidential import (
    GraphClassifier,
    NodeGraph,
    as_node_graph,
    dirichlet_uncertainty,
    propagate,
)

FULL = ["coraml", "citeseer_full", "amazon_photo", "amazon_computers", "coauthor_cs"]
# Propagation schemes that are not in the paper, and GNNSafe with weight 0.2 of a node's own score,
# as in the paper. GNNSafe's authors ("gnnsafe") use 0.5.
ABLATIONS = ["energy-diffused", "energy-similar", "epn-alone", "epn-similar", "gnnsafe-0.2"]
METHODS = [
    "entropy",
    "max-score",
    "energy",
    "gnnsafe",
    "dropout",
    "ensemble",
    "gpn",
    "gkde",
    "egnn",
    "egnn-vacuity",
    "egnn-evidence",
    "egnn-both",
    "epn",
    "epn-ice",
    "epn-reg",
    "epn-free",
]
CELL = ("dataset", "method", "split", "init")  # columns that identify a row; all others are figures
TRAINING = {
    "learning_rate": 0.02,
    "max_epochs": 1000,
}  # for networks that are trained from scratch


class Task(NamedTuple):
    """A graph and its split; training and validation nodes exclude the left-out classes."""

    graph: Any
    raw_graph: Any  # with unscaled features
    labels: np.ndarray
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    ood: np.ndarray  # for each test node, whether its class was left out

    def labelled(self) -> dict[str, np.ndarray]:
        """Return the arguments of `fit`: training and validation nodes, and their labels."""
        return {
            "X": self.train,
            "y": self.labels[self.train],
            "X_val": self.validation,
            "y_val": self.labels[self.validation],
        }


class Scores(NamedTuple):
    """Predictions and uncertainty by a method for the test nodes."""

    method: str
    labels: np.ndarray
    proba: np.ndarray
    aleatoric: np.ndarray
    epistemic: np.ndarray
    seconds: float  # of the fit, excluding the shared pre-training


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that all graph benchmarks have."""
    parser.add_argument("--dataset", nargs="+", default=FULL)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS + ABLATIONS)
    parser.add_argument("--backbone", choices=["gcn", "gat"], default="gcn")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--inits", type=int, default=5, help="random starts per split")
    parser.add_argument("--members", type=int, default=10, help="networks of the ensemble")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")


@functools.cache
def _graph(name: str, data_dir: Any) -> tuple[Any, NodeGraph]:
    """Read a data set and its graph with scaled features, cached for all splits."""
    data = load_graph(name, data_dir)
    graph = as_node_graph((data.adjacency, normalize(data.features, norm="l1")))
    if graph.n_nodes > np.diff(data.features.indptr).astype(bool).sum() * 2:
        raise SystemExit(f"{name} has no features of most nodes; no network can be trained on it.")
    return data, graph


def read_task(name: str, data_dir: Any, setting: str | None, split: int) -> Task:
    """Read a graph and scale each node's features to a sum of 1, as for bags of words.

    The encoder of "gpn" uses unscaled features: it does not average over neighbours, and with such
    small features all latent points would be nearly equal.
    """
    data, graph = _graph(name, data_dir)
    if split >= len(data.splits):
        raise SystemExit(
            f"{name} has {len(data.splits)} splits; ask for at most --splits of these."
        )
    part = data.splits[split]
    ood = np.isin(data.labels, [] if setting is None else data.left_out[setting])
    test = np.flatnonzero(part == 2)
    return Task(
        graph,
        as_node_graph(data.graph),
        data.labels,
        np.flatnonzero((part == 0) & ~ood),
        np.flatnonzero((part == 1) & ~ood),
        test,
        ood[test],
    )


def scores_of(
    task: Task, methods: list[str], backbone: str, seed: int, members: int = 10
) -> list[Scores]:
    """Fit methods one after the other; methods on a pre-trained model share the same model."""
    data = task.labelled()
    labelled = data["X"], data["y"]
    settings = {"architecture": backbone, "random_state": seed, **TRAINING}
    model = GraphClassifier(task.graph, **settings).fit(**data)
    candidates = comparison_methods(task.graph, model, **settings)
    candidates["gnnsafe-0.2"] = clone(candidates["gnnsafe"]).set_params(keep=0.2)
    candidates["epn-alone"] = clone(candidates["epn-reg"]).set_params(propagation=None)
    candidates["gpn"].set_params(estimator__graph=task.raw_graph)
    score = {"setting": "max-score", "random_state": seed}
    candidates["dropout"] = MCDropoutClassifier(FrozenEstimator(model), n_samples=10, **score)
    candidates["ensemble"] = DeepEnsembleClassifier(clone(model), n_members=members, **score)
    found = []
    egnn: tuple[Any, float] | None = None
    for name in methods:
        estimator = candidates[name]
        start = time.perf_counter()
        if name.startswith("egnn"):  # the variants differ only in propagation
            if egnn is None:
                egnn = candidates["egnn"].fit(**data), time.perf_counter() - start
            trained, seconds = egnn
            alpha = propagate(task.graph.adjacency, trained.alpha_, estimator.propagation)
            alpha, classes = alpha[task.test], trained.classes_
            proba = alpha / alpha.sum(axis=1, keepdims=True)
            uncertainty = dirichlet_uncertainty(alpha)
        else:  # MC dropout uses a trained network, without early stopping
            estimator.fit(*labelled) if name == "dropout" else estimator.fit(**data)
            seconds = time.perf_counter() - start
            proba, classes = estimator.predict_proba(task.test), estimator.classes_
            uncertainty = estimator.predict_uncertainty(task.test)
        labels = classes[proba.argmax(axis=1)]
        ranks = [uncertainty.part_or_total(part) for part in ("aleatoric", "epistemic")]
        found.append(Scores(name, labels, proba, *ranks, seconds))
    return found


def run(
    args: argparse.Namespace, settings: Sequence[str | None], measure: Any
) -> list[dict[str, Any]]:
    """Measure every method on each data set, split and initialisation; return one dict for each.

    The outer loops are initialisations and splits, so that an interrupted run has results for all
    data sets.
    """
    work = [
        (name, setting, split, init)
        for init in range(args.inits)
        for split in range(args.splits)
        for name in args.dataset
        for setting in settings
    ]
    with Parallel(n_jobs=args.jobs, return_as="generator") as pool:
        rows = []
        for found in pool(delayed(_kept)(args, measure, *item) for item in work):
            rows += found
            print(_progress(found), flush=True)
    return rows


def _kept(
    args: argparse.Namespace, measure: Any, name: str, setting: str | None, split: int, init: int
) -> list[dict[str, Any]]:
    """Return the rows of one network, measured or read from ``--out``."""
    methods = hashlib.sha256(" ".join([args.backbone, *args.methods]).encode()).hexdigest()[:7]
    cell = (name, setting or "all-classes", split, init, args.seed, methods)
    return kept_run(functools.partial(_one, measure), *cell, args=args)["rows"]


def _one(
    measure: Any,
    name: str,
    setting: str,
    split: int,
    init: int,
    seed: int,
    methods: str,
    *,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Measure all methods on one network; `methods` only identifies the stored result."""
    torch.set_num_threads(args.threads)
    left_out = None if setting == "all-classes" else setting
    task = read_task(name, args.data_dir, left_out, split)
    found = scores_of(task, args.methods, args.backbone, seed + 1000 * split + init, args.members)
    return {
        "rows": [
            {
                "dataset": name if left_out is None else f"{name} {setting}",
                "method": scores.method,
                "split": split,
                "init": init,
                **measure(task, scores),
                "seconds_fit": scores.seconds,
            }
            for scores in found
        ]
    }


def _progress(found: list[dict[str, Any]]) -> str:
    first = next(key for key in found[0] if key not in CELL)
    figures = " ".join(f"{row['method']} {row[first]:.3f}" for row in found)
    where = "{dataset} split {split} start {init}".format(**found[0])
    return f"{where}: {first} {figures}"


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compute one record per data set, method and metric: mean and std over runs."""
    records = []
    metrics = [key for key in rows[0] if key not in CELL]
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        for method in dict.fromkeys(row["method"] for row in rows):
            own = [row for row in rows if row["dataset"] == dataset and row["method"] == method]
            for metric in metrics:
                values = np.array([row[metric] for row in own])
                records.append(
                    record(method, dataset, metric, values.mean(), len(values), values.std())
                )
    return records


def means(rows: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """Compute the mean over settings and initialisations, and its std over splits, by data set.

    The sample size in a record is the number of networks.
    """
    frame = _frame(rows)
    found = []
    for (dataset, method), own in frame.groupby(["dataset", "method"], sort=False):
        by_split = own.groupby("split")[metric].mean()
        spread = by_split.std(ddof=min(1, len(by_split) - 1))
        found.append(
            record(method, dataset, f"mean_{metric}", own[metric].mean(), len(own), spread)
        )
    return found


def differences(rows: list[dict[str, Any]], metric: str, against: str) -> list[dict[str, Any]]:
    """Compute paired differences from a method with 95 % intervals, by data set and over all.

    Both methods use the same network. Values are averaged over settings and initialisations within
    a split, and over data sets for the row "all". The t-interval is over splits.
    """
    frame = _frame(rows)
    cells = frame.pivot(index=["dataset", "setting", "split", "init"], columns="method")[metric]
    paired = cells.drop(columns=against).sub(cells[against], axis=0)
    found = []
    groups = {"all": paired, **dict(list(paired.groupby("dataset", sort=False)))}
    for dataset, own in groups.items():
        by_split = own.groupby(["dataset", "split"]).mean().groupby("split").mean()
        for method in by_split:
            values = by_split[method]
            name = f"{metric}_over_{against}"
            half = float(np.nan)
            if len(values) > 1:
                half = float(t.ppf(0.975, len(values) - 1) * values.std() / np.sqrt(len(values)))
            for end, shift in (("", 0.0), ("_95_low", -half), ("_95_high", half)):
                mean = float(values.mean()) + shift
                found.append(record(str(method), str(dataset), name + end, mean, len(own)))
    return found


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Convert rows to a table with separate columns for graph and setting."""
    frame = pd.DataFrame(rows)
    names = frame.dataset.str.split(n=1, expand=True)
    return frame.assign(dataset=names[0], setting=names.get(1, ""))


def ranks(records: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """Rank methods by a metric (1 is best, for the largest); mean by data set and over all."""
    tables: dict[str, dict[str, float]] = {}
    for row in records:
        if row["metric"] == metric:
            tables.setdefault(row["dataset"], {})[row["method"]] = row["value"]
    methods = list(next(iter(tables.values())))
    ranked = {
        name: rankdata([-table[method] for method in methods]) for name, table in tables.items()
    }
    groups = {"all": list(ranked)}
    for name in ranked:
        groups.setdefault(name.split()[0], []).append(name)
    return [
        record(
            method,
            group,
            f"rank_{metric}",
            np.mean([ranked[name][i] for name in names]),
            len(names),
        )
        for group, names in groups.items()
        for i, method in enumerate(methods)
    ]


def print_table(records: list[dict[str, Any]], metric: str, scale: float = 100.0) -> None:
    """Print a table of methods by data sets."""
    own = [row for row in records if row["metric"] == metric]
    datasets = list(dict.fromkeys(row["dataset"] for row in own))
    print(f"\n{metric:<14}" + "".join(f"{name[-16:]:>18}" for name in datasets))
    for method in dict.fromkeys(row["method"] for row in own):
        cells = [row for row in own if row["method"] == method]
        values = "".join(
            f"{scale * row['value']:>11.2f} ±{scale * row['std']:>5.2f}" for row in cells
        )
        print(f"{method:<14}{values}")
