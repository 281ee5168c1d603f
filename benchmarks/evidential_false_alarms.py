"""False alarm rate of out-of-distribution decisions on nodes, and the requested rate.

    python -m benchmarks.evidential_false_alarms --splits 3 --record evidential_false_alarms

A probe is trained on graphs with left-out classes. Known nodes that were used neither for training
nor for early stopping are split at random, many times, into calibration nodes and new nodes.
Thresholds: a vacuity of 0.5; a quantile of the vacuity of training nodes, and of early-stopping
nodes; conformal p-values, and conformal p-values by class.

Generated graphs are stochastic block models in which one class is closer to the common mean than
the other classes. Their new nodes have the same distribution ("same"), contain five times as many
nodes of this class ("shares"), or have features shifted towards the common mean ("features"). In
the last two cases, new nodes and calibration nodes are not exchangeable.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks import evidential
from benchmarks.harness import finish, parser, record, set_threads
from skuq import EvidentialProbe
from skuq.calibration import conformal_p_values
from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier, as_node_graph

DRIFTS = ("same", "shares", "features")
WEAK = 0  # class of generated graphs that is closer to the common mean
N_STOP = 500  # maximum number of early-stopping nodes
ALL = "all"


class Nodes(NamedTuple):
    """A graph, and the purpose of its nodes; nodes of left-out classes are only in `ood`."""

    graph: Any
    labels: np.ndarray
    train: np.ndarray
    stop: np.ndarray
    pool: np.ndarray  # known nodes for calibration and test
    ood: np.ndarray
    drifted: np.ndarray  # for each node, whether its features have drifted


def real(args: argparse.Namespace, name: str, split: int) -> Nodes:
    """Read a graph in its setting OS-1."""
    task = evidential.read_task(name, args.data_dir, "OS-1", split)
    known = np.isin(task.labels, task.labels[task.train])
    return _nodes(task.graph, task.labels, task.train, known, args.seed + split)


def generated(args: argparse.Namespace, drift: str, seed: int) -> Nodes:
    """Generate a stochastic block model whose last class is left out."""
    random = np.random.default_rng(args.seed + seed)
    n_nodes = args.nodes
    data = make_node_classes(n_nodes, n_classes=5, separation=0.7, random_state=args.seed + seed)
    features = data.features.copy()
    own = data.labels == WEAK
    features[own] -= 0.7 * features[own].mean(axis=0)
    drifted = np.zeros(n_nodes, bool)
    train = np.flatnonzero((data.splits[0] == 0) & (data.labels < 4))
    if drift == "features":
        drifted = random.uniform(size=n_nodes) < 0.3
        drifted[train] = False
        features[drifted] *= 0.3
    graph = as_node_graph((data.adjacency, features))
    return _nodes(graph, data.labels, train, data.labels < 4, args.seed + seed, drifted)


def _nodes(
    graph: Any,
    labels: np.ndarray,
    train: np.ndarray,
    known: np.ndarray,
    seed: int,
    drifted: np.ndarray | None = None,
) -> Nodes:
    if drifted is None:
        drifted = np.zeros(len(labels), bool)
    others = np.setdiff1d(np.flatnonzero(known), train)
    others = np.random.default_rng(seed).permutation(others)
    usable = others[~drifted[others]]
    stop = usable[: min(N_STOP, len(usable) // 3)]
    pool = np.setdiff1d(others, stop)
    return Nodes(graph, labels, train, stop, pool, np.flatnonzero(~known), drifted)


def draw(
    nodes: Nodes, drift: str, n_calibrate: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw calibration nodes and new nodes."""
    if drift == "features":
        away = nodes.drifted[nodes.pool]
        return random.permutation(nodes.pool[~away])[:n_calibrate], nodes.pool[away]
    calibrate, new = np.split(random.permutation(nodes.pool), [n_calibrate])
    if drift == "shares":
        weight = np.where(nodes.labels[new] == WEAK, 5.0, 1.0)
        new = random.choice(new, size=len(new) // 4, replace=False, p=weight / weight.sum())
    return calibrate, new


def flags(
    vacuity: np.ndarray, nodes: Nodes, calibrate: np.ndarray, rate: float
) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Build the decision rules, as functions of nodes."""
    held, labels = vacuity[calibrate], nodes.labels[calibrate]

    def above(limit: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda some: vacuity[some] > limit

    return {
        "half": above(0.5),
        "training": above(np.quantile(vacuity[nodes.train], 1 - rate)),
        "stopping": above(np.quantile(vacuity[nodes.stop], 1 - rate)),
        "conformal": lambda some: conformal_p_values(vacuity[some], held) <= rate,
        "conformal-class": lambda some: (
            conformal_p_values(vacuity[some], held, y_held_out=labels) <= rate
        ),
    }


def vacuity_of(nodes: Nodes, training: dict[str, Any], seed: int) -> np.ndarray:
    """Train a network and its probe with early stopping; return the vacuity of all nodes."""
    data = {
        "X": nodes.train,
        "y": nodes.labels[nodes.train],
        "X_val": nodes.stop,
        "y_val": nodes.labels[nodes.stop],
    }
    network = GraphClassifier(nodes.graph, random_state=seed, **training).fit(**data)
    probe = EvidentialProbe(network, random_state=seed).fit(**data)
    return probe.predict_uncertainty(np.arange(len(nodes.labels))).epistemic


def measure(name: str, drift: str, runs: list[Nodes], args: argparse.Namespace) -> list[dict]:
    """Measure rates of flagged nodes for one kind of graph, over trained networks and splits."""
    shares: dict[tuple[str, str], list[float]] = {}
    areas = []
    for number, nodes in enumerate(runs):
        vacuity = vacuity_of(nodes, evidential.TRAINING, args.seed + number)
        ood = np.isin(np.arange(len(vacuity)), nodes.ood)
        scored = np.concatenate([nodes.pool, nodes.ood])
        classes = np.unique(nodes.labels[nodes.train])
        areas.append(roc_auc_score(ood[scored], vacuity[scored]))
        random = np.random.default_rng(args.seed + number)
        for _ in range(args.draws):
            calibrate, new = draw(nodes, drift, args.calibration, random)
            for method, flagged in flags(vacuity, nodes, calibrate, args.rate).items():
                shares.setdefault((method, "false_alarms"), []).append(flagged(new).mean())
                shares.setdefault((method, "found"), []).append(flagged(nodes.ood).mean())
                by_class = [flagged(new[nodes.labels[new] == c]).mean() for c in classes]
                shares.setdefault((method, "worst_class"), []).append(max(by_class))
    print(
        f"{name}: "
        + " ".join(
            f"{method} {np.mean(values):.3f}"
            for (method, metric), values in shares.items()
            if metric == "false_alarms"
        ),
        flush=True,
    )
    rows = [
        record(method, name, metric, np.mean(values), len(values), np.std(values))
        for (method, metric), values in shares.items()
    ]
    return [*rows, record(ALL, name, "auroc", np.mean(areas), len(areas), np.std(areas))]


def main(args: argparse.Namespace) -> None:
    set_threads(args)
    records = []
    for name in args.dataset:
        runs = [real(args, name, split) for split in range(args.splits)]
        records += measure(name, "same", runs, args)
    for drift in DRIFTS:
        runs = [generated(args, drift, seed) for seed in range(args.splits)]
        records += measure(f"generated {drift}", drift, runs, args)
    finish("evidential_false_alarms", args, records)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--dataset", nargs="*", default=evidential.FULL)
    arguments.add_argument("--splits", type=int, default=3, help="trained networks of each graph")
    arguments.add_argument("--draws", type=int, default=200, help="divisions of its nodes")
    arguments.add_argument("--calibration", type=int, default=500, help="calibration nodes")
    arguments.add_argument("--rate", type=float, default=0.05, help="rate that is asked for")
    arguments.add_argument("--nodes", type=int, default=4000, help="of each generated graph")
    main(arguments.parse_args())
