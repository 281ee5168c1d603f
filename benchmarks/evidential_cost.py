"""Time to train the probe on a trained network, and methods from scratch (Table 3).

    python -m benchmarks.evidential_cost --dataset coauthor_cs arxiv_like --threads 2

``arxiv_like`` is a synthetic graph of the size of ogbn-arxiv: 170,000 nodes, 2.3 million directed
edges, 128 features, 40 classes, and 54 % labelled nodes. Networks from scratch are trained for at
most ``--max-epochs`` epochs, the probe for its default number. Peak memory is that of the process
while a method is fitted, including the graph and the trained network.
"""

import argparse
import math
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from benchmarks import evidential
from benchmarks.evidential_methods import comparison_methods
from benchmarks.harness import finish, parser, record, set_threads
from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier, as_node_graph

SIZES = {"arxiv_like": {"hidden_sizes": (256, 128), "batch_norm": True}}


def arxiv_like(seed: int) -> evidential.Task:
    """Generate a graph of the size of ogbn-arxiv, with 54 % training and 18 % validation nodes."""
    data = make_node_classes(
        170_000,
        n_classes=40,
        n_features=128,
        mean_degree=13.6,
        homophily=0.5,
        separation=0.12,
        random_state=seed,
    )
    order = np.random.default_rng(seed).permutation(170_000)
    train, validation, test = np.split(order, [91_000, 121_000])
    ood = np.zeros(len(test), dtype=bool)
    graph = as_node_graph(data.graph)
    return evidential.Task(graph, graph, data.labels, train, validation, test, ood)


def peak_memory(*, reset: bool = False) -> float:
    """Return the peak memory since the last reset in GiB; NaN on systems other than Linux."""
    if not Path("/proc/self/clear_refs").exists():
        return math.nan
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def timed(call: Any) -> tuple[Any, float]:
    """Return the result of a call, and its duration in seconds."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def measure(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure seconds of pre-training, of each fit, and of inference on the whole graph."""
    task = (
        arxiv_like(args.seed)
        if name == "arxiv_like"
        else evidential.read_task(name, args.data_dir, None, 0)
    )
    data = task.labelled()
    size = SIZES.get(name, {})
    settings = {**evidential.TRAINING, "max_epochs": args.max_epochs, "random_state": args.seed}
    found = []

    def add(method: str, metric: str, value: float) -> None:
        found.append(record(method, name, metric, value, 1))
        print(f"{name:<14}{method:<14}{metric:<20}{value:.3f}", flush=True)

    model = GraphClassifier(task.graph, **settings, **size)
    _, seconds = timed(lambda: model.fit(**data))
    add("pre-training", "seconds_fit", seconds)
    add("pre-training", "n_epochs", len(model.history_))
    add("pre-training", "accuracy", model.score(task.test, task.labels[task.test]))
    candidates = comparison_methods(task.graph, model, **settings)
    candidates["gpn"].set_params(estimator__graph=task.raw_graph)
    for method in args.methods:
        estimator = candidates[method]
        if method == "egnn":
            estimator.estimator.set_params(**size)
        peak_memory(reset=True)
        _, seconds = timed(lambda estimator=estimator: estimator.fit(**data))
        add(method, "seconds_fit", seconds)
        add(method, "peak_memory_gib", peak_memory())
        add(method, "n_epochs", len(estimator.history_))
        add(method, "seconds_per_epoch", seconds / len(estimator.history_))
    add("pre-training", "seconds_inference", _inference(model.network_, task.graph))
    add("epn-reg", "seconds_inference", _probe_inference(candidates["epn-reg"]))
    if args.dgl:
        network = deepcopy(model.network_).requires_grad_()
        add("pre-training", "seconds_step", _step(network, task.graph))
        add("dgl", "seconds_step", _step(_of_dgl(network, task.graph), task.graph))
    if args.pyg:
        add("pyg", "seconds_inference", _pyg_inference(model.network_, task.graph))
    return found


def _probe_inference(probe: Any) -> float:
    """Compute the evidence of all nodes with network, head and propagation; return seconds."""
    return min(timed(lambda: probe.with_graph(probe.graph_))[1] for _ in range(3))


def _inference(network: torch.nn.Module, graph: Any) -> float:
    with torch.no_grad():
        network(graph)
        return min(timed(lambda: network(graph))[1] for _ in range(5))


def _step(network: torch.nn.Module, graph: Any) -> float:
    """Run a forward and a backward pass over the graph; return seconds."""
    return min(timed(lambda: network(graph).square().sum().backward())[1] for _ in range(10))


def _of_dgl(network: torch.nn.Module, graph: Any) -> torch.nn.Module:
    """Build the same network with DGL's sums over neighbours."""
    import dgl

    target, source = (graph.adjacency + sparse.eye_array(graph.n_nodes)).nonzero()
    theirs = dgl.graph((source, target), idtype=torch.int32)
    copy = deepcopy(network).requires_grad_()
    for layer in copy.layers:
        width = layer.linear.out_features
        layer.average = dgl.nn.GraphConv(width, width, weight=False)
        layer.gather = lambda _, projected, average=layer.average: average(theirs, projected)
    copy.load_state_dict(network.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(copy(graph), network(graph))
    return copy


def _pyg_inference(network: torch.nn.Module, graph: Any) -> float:
    """Run the same convolutions in torch_geometric with cached normalisation; return seconds."""
    from torch_geometric.nn import GCNConv

    convolutions = []
    for layer in network.layers:
        weight = layer.linear.weight
        convolution = GCNConv(weight.shape[1], weight.shape[0], cached=True)
        with torch.no_grad():
            convolution.lin.weight.copy_(weight)
            convolution.bias.copy_(layer.average.bias)
        convolutions.append(convolution)
    x = graph.features.to_dense()
    edges = torch.tensor(np.array(graph.adjacency.nonzero()), dtype=torch.int64)

    def run() -> torch.Tensor:
        hidden = x
        for convolution, norm in zip(convolutions, network.norms, strict=False):
            hidden = norm(convolution(hidden, edges)).relu()
        return convolutions[-1](hidden, edges)

    with torch.no_grad():
        torch.testing.assert_close(run(), network(graph), rtol=1e-3, atol=1e-3)
        return min(timed(run)[1] for _ in range(5))


def main(args: argparse.Namespace) -> None:
    set_threads(args)
    records = [row for name in args.dataset for row in measure(name, args)]
    finish("evidential_cost", args, records)


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--dataset", nargs="+", default=["coauthor_cs", "arxiv_like"])
    methods = ["epn-reg", "egnn", "gpn"]
    arguments.add_argument("--methods", nargs="+", default=methods, choices=methods)
    arguments.add_argument("--max-epochs", type=int, default=200)
    arguments.add_argument(
        "--dgl", action="store_true", help="time a step of the same network in DGL too"
    )
    arguments.add_argument(
        "--pyg", action="store_true", help="time the same network in torch_geometric too"
    )
    main(arguments.parse_args())
