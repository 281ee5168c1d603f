"""Detection of nodes of a left-out class, from graphs whose edges join like nodes to unlike ones.

    python -m benchmarks.evidential_heterophily --record evidential_heterophily

Contextual stochastic block models: nodes of six classes with normal features. The homophily is the
expected share of edges within a class; all others join a node to one of a random other class, so
that edges tell nothing about classes at 1/6. The nodes of the last class are OOD. "features" is a
network of the features alone, "epn-alone" the probe without propagation. The standard deviation of
a record is that over the seeds, which draw graph and network.
"""

import argparse
import time

import numpy as np
from joblib import Parallel, delayed
from scipy import sparse
from sklearn.metrics import roc_auc_score
from sklearn.neural_network import MLPClassifier

from benchmarks import evidential
from benchmarks.harness import finish, parser, record, set_threads
from skuq.evidential import as_node_graph

N_CLASSES, N_FEATURES, N_LABELLED, N_VALIDATION = 6, 16, 20, 150
METHODS = [
    "features",
    "entropy",
    "max-score",
    "energy",
    "gnnsafe",
    "energy-diffused",
    "energy-similar",
    "epn-alone",
    "epn-reg",
    "epn-similar",
    "epn-free",
]


def block_model(homophily: float, args: argparse.Namespace, seed: int) -> evidential.Task:
    """Draw a graph, and split its nodes; left-out nodes are in the test only."""
    random = np.random.default_rng(seed)
    labels = random.integers(N_CLASSES, size=args.nodes)
    means = args.separation * random.normal(size=(N_CLASSES, N_FEATURES))
    features = (means[labels] + random.normal(size=(args.nodes, N_FEATURES))).astype(np.float32)
    source = random.integers(args.nodes, size=round(args.nodes * args.degree / 2))
    other = (labels[source] + random.integers(1, N_CLASSES, len(source))) % N_CLASSES
    class_of_target = np.where(random.random(len(source)) < homophily, labels[source], other)
    nodes = [np.flatnonzero(labels == label) for label in range(N_CLASSES)]
    target = np.array([random.choice(nodes[label]) for label in class_of_target])
    ends = np.array([source, target])[:, source != target]
    ends = np.unique(np.concatenate([ends, ends[::-1]], axis=1), axis=1)
    shape = args.nodes, args.nodes
    adjacency = sparse.csr_array((np.ones(ends.shape[1], np.float32), tuple(ends)), shape=shape)
    graph = as_node_graph((adjacency, features))
    order = random.permutation(args.nodes)
    known = order[labels[order] < N_CLASSES - 1]
    train = np.concatenate([known[labels[known] == k][:N_LABELLED] for k in range(N_CLASSES - 1)])
    rest = known[~np.isin(known, train)]
    validation = rest[:N_VALIDATION]
    test = np.setdiff1d(order, np.concatenate([train, validation]))
    ood = labels[test] == N_CLASSES - 1
    return evidential.Task(graph, graph, labels, train, validation, test, ood)


def measure(
    homophily: float, start: int, args: argparse.Namespace
) -> list[tuple[float, str, float, float]]:
    """AUROC of each method, and the accuracy of its predictions of known nodes, on one graph."""
    set_threads(args)
    seed = args.seed + start
    task = block_model(homophily, args, seed)
    known = task.labels[task.test][~task.ood]
    by_graph = [name for name in args.methods if name != "features"]
    found = evidential.scores_of(task, by_graph, "gcn", seed)
    found += [of_features(task, seed)] if "features" in args.methods else []
    return [
        (
            homophily,
            scores.method,
            roc_auc_score(task.ood, scores.epistemic),
            float((scores.labels[~task.ood] == known).mean()),
        )
        for scores in found
    ]


def of_features(task: evidential.Task, seed: int) -> evidential.Scores:
    """Energy of a network that reads each node's own features only."""
    start, features = time.perf_counter(), task.graph.features.to_dense().numpy()
    model = MLPClassifier((64,), alpha=1.0, max_iter=1000, random_state=seed)
    model.fit(features[task.train], task.labels[task.train])
    log_proba = model.predict_log_proba(features[task.test])
    energy = log_proba.mean(axis=1)  # minus log-sum-exp of centred logits
    labels = model.classes_[log_proba.argmax(axis=1)]
    seconds = time.perf_counter() - start
    return evidential.Scores("features", labels, np.exp(log_proba), energy, energy, seconds)


def main(args: argparse.Namespace) -> None:
    work = [(h, start) for start in range(args.seeds) for h in args.homophily]
    rows = []
    with Parallel(n_jobs=args.jobs, return_as="generator") as pool:
        for found in pool(delayed(measure)(*each, args) for each in work):
            rows += found
            print(found[0][0], {name: round(value, 3) for _, name, value, _ in found}, flush=True)
    records = []
    for homophily in args.homophily:
        for method in args.methods:
            own = np.array([row[2:] for row in rows if row[:2] == (homophily, method)])
            for metric, values in zip(("auroc", "accuracy"), own.T, strict=True):
                name = f"{homophily:g}"
                records.append(record(method, name, metric, values.mean(), len(own), values.std()))
    evidential.print_table(records, "auroc")
    finish("evidential_heterophily", args, records)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument(
        "--homophily", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.5, 0.7, 0.9]
    )
    arguments.add_argument("--nodes", type=int, default=1000)
    arguments.add_argument("--degree", type=float, default=6.0)
    arguments.add_argument("--separation", type=float, default=0.6)
    arguments.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    arguments.add_argument("--seeds", type=int, default=5)
    arguments.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    main(arguments.parse_args())
