"""Effect of features, training and graph of the network on the detection of left-out classes.

    python -m benchmarks.evidential_network --dataset coauthor_cs --splits 2

Each variant changes one setting of the other benchmarks (``base``): unscaled features, or binary
features, instead of rows that sum to 1; a weight decay five times as strong; or the removal of
left-out nodes and their edges from the graph during the training of the network (``without``), so
that they are new in the test. The probe is fitted on the whole graph.
"""

import argparse
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import normalize

from benchmarks import evidential
from benchmarks.data_files import load_graph
from benchmarks.evidential_methods import LogitUncertainty
from benchmarks.harness import finish, parser, record, set_threads
from skuq import EvidentialProbe
from skuq.evidential import GraphClassifier, as_node_graph

VARIANTS = ["base", "stored", "binary", "decay", "without"]


def matrices(variant: str, name: str, args: argparse.Namespace) -> tuple[Any, Any]:
    """Read the adjacency matrix and the features of a variant."""
    data = load_graph(name, args.data_dir)
    if variant == "stored":
        return data.graph
    if variant == "binary":
        return data.adjacency, (data.features != 0).astype(np.float32)
    return data.adjacency, normalize(data.features, norm="l1")


def trained(
    variant: str, adjacency: Any, features: Any, task: evidential.Task, seed: int
) -> GraphClassifier:
    """Train the network of a variant, on a smaller graph if left-out nodes are removed."""
    decay = {"weight_decay": 5e-4} if variant == "decay" else {}
    train, validation = task.train, task.validation
    if variant == "without":
        known = np.flatnonzero(np.isin(task.labels, task.labels[task.train]))
        adjacency, features = adjacency[known][:, known], features[known]
        train, validation = np.searchsorted(known, train), np.searchsorted(known, validation)
    model = GraphClassifier(
        (adjacency, features), random_state=seed, **evidential.TRAINING, **decay
    )
    return model.fit(
        train,
        task.labels[task.train],
        X_val=validation,
        y_val=task.labels[task.validation],
    )


def measure(
    variant: str, name: str, split: int, args: argparse.Namespace
) -> dict[tuple[str, str], float]:
    """Compute the AUROC of the left-out classes for each method."""
    task = evidential.read_task(name, args.data_dir, args.setting, split)
    adjacency, features = matrices(variant, name, args)
    model = trained(variant, adjacency, features, task, args.seed + 1000 * split)
    network, graph = model.network_, as_node_graph((adjacency, features))
    data = task.labelled()
    methods = {
        "entropy": LogitUncertainty(network, graph=graph, method="entropy"),
        "energy": LogitUncertainty(network, graph=graph, method="energy"),
        "epn-reg": EvidentialProbe(network, graph=graph, random_state=args.seed),
    }
    found = {}
    for method, estimator in methods.items():
        estimator.fit(**data)
        score = -estimator.score_samples(task.test)
        found[method] = roc_auc_score(task.ood, score)
    known = task.test[~task.ood]
    found["accuracy"] = estimator.score(known, task.labels[known])
    found["epochs"] = len(model.history_)
    print(name, split, variant, {key: round(x, 4) for key, x in found.items()}, flush=True)
    return found


def main(args: argparse.Namespace) -> None:
    set_threads(args)
    records = []
    for name in args.dataset:
        for variant in args.variants:
            runs = [measure(variant, name, split, args) for split in range(args.splits)]
            for method in runs[0]:
                values = [run[method] for run in runs]
                metric = method if method in ("accuracy", "epochs") else f"auroc_{method}"
                records.append(
                    record(
                        variant,
                        f"{name} {args.setting}",
                        metric,
                        np.mean(values),
                        len(values),
                        np.std(values),
                    )
                )
    finish("evidential_network", args, records)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--dataset", nargs="+", default=["coauthor_cs"])
    arguments.add_argument("--variants", nargs="+", default=VARIANTS, choices=VARIANTS)
    arguments.add_argument("--setting", default="OS-1")
    arguments.add_argument("--splits", type=int, default=2)
    main(arguments.parse_args())
