"""The probe on a generated graph of millions of nodes with features on disk: memory and time.

    python -m benchmarks.evidential_large --nodes 2400000 --record evidential_large
    python -m benchmarks.evidential_large --tasks "DGL batches" "DGL sampled" "DGL one pass"

A network and a probe are trained on a small graph of the same kind, and evaluated on all nodes of
the large graph (`with_graph`): layer by layer with features on disk and, for comparison, in one
pass with features in memory. Then the probe is fitted on the large graph, with features on disk.
Tasks named after a library evaluate a user's network with two SAGE layers: in batches with features
on disk, with all or a few neighbours, and in one pass with features in memory. Each task runs in a
separate process. Peak memory is the process's own memory; pages of mapped files, which the system
can drop at any time, are counted separately.
"""

import argparse
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import nn

from benchmarks.harness import finish, kept_run, parser, peak_gib, record
from skuq import EvidentialProbe
from skuq.evidential import GraphClassifier, NodeBatches

GIB = 2**20  # in KiB, the unit of Linux
N_CLASSES = 5
N_TRAIN = 100  # labelled nodes per class
HOMOPHILY = 0.8
CHUNK = 100_000  # nodes whose features are drawn in one call


def write_graph(folder: Path, n_nodes: int, args: argparse.Namespace, seed: int) -> None:
    """Write a stochastic block model: edges as indices and indptr, features, and classes."""
    folder.mkdir()
    random = np.random.default_rng(seed)
    means = 0.3 * np.random.default_rng(args.seed).normal(size=(N_CLASSES, args.features))
    labels = random.integers(N_CLASSES, size=n_nodes)
    by_class = [np.flatnonzero(labels == c) for c in range(N_CLASSES)]
    source = random.integers(n_nodes, size=n_nodes * args.degree // 2)
    target = random.integers(n_nodes, size=len(source))
    within = random.uniform(size=len(source)) < HOMOPHILY
    for c, members in enumerate(by_class):
        own = within & (labels[source] == c)
        target[own] = random.choice(members, size=own.sum())
    ones = np.ones(len(source), np.int8)
    adjacency = sparse.csr_array((ones, (source, target)), shape=(n_nodes, n_nodes))
    adjacency = sparse.csr_array(adjacency + adjacency.T)
    adjacency.setdiag(0)
    adjacency.eliminate_zeros()
    np.save(folder / "indices.npy", adjacency.indices.astype(np.int32))
    np.save(folder / "indptr.npy", adjacency.indptr.astype(np.int32))
    np.save(folder / "labels.npy", labels)
    shape = (n_nodes, args.features)
    features = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, shape)
    for start in range(0, n_nodes, CHUNK):
        own = labels[start : start + CHUNK]
        features[start : start + CHUNK] = means[own] + random.normal(size=(len(own), shape[1]))


def read_graph(folder: Path, *, on_disk: bool) -> tuple[Any, np.ndarray]:
    """Read the graph (adjacency, features) and the classes."""
    labels = np.load(folder / "labels.npy")
    edges = np.load(folder / "indices.npy"), np.load(folder / "indptr.npy")
    ones = np.ones(len(edges[0]), np.int8)
    adjacency = sparse.csr_array((ones, *edges), shape=(len(labels), len(labels)))
    features = np.load(folder / "features.npy", mmap_mode="r" if on_disk else None)
    return (adjacency, features), labels


class Memory(threading.Thread):
    """Peak of own memory and of mapped file pages of the process, sampled every 20 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.own = self.files = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            words = Path("/proc/self/status").read_text(encoding="utf-8").split()
            self.own = max(self.own, int(words[words.index("RssAnon:") + 1]))
            self.files = max(self.files, int(words[words.index("RssFile:") + 1]))


class Sage(nn.Module):
    """A user's network in the convention of its library."""

    def __init__(self, library: str, n_features: int, n_hidden: int):
        super().__init__()
        self.library = library
        if library == "DGL":
            from dgl.nn import SAGEConv

            make = partial(SAGEConv, aggregator_type="mean")
        else:
            from torch_geometric.nn import SAGEConv as make
        self.first, self.last = make(n_features, n_hidden), make(n_hidden, N_CLASSES)

    def forward(self, *inputs: Any) -> torch.Tensor:
        if self.library == "DGL":
            graph, x = inputs
            return self.last(graph, self.first(graph, x).relu())
        x, edges = inputs
        return self.last(self.first(x, edges).relu(), edges)


def library_graph(library: str, adjacency: sparse.csr_array, features: np.ndarray) -> Any:
    """Build the graph of a library without copying the features."""
    target = np.repeat(np.arange(adjacency.shape[0], dtype=np.int32), np.diff(adjacency.indptr))
    ends = torch.from_numpy(adjacency.indices), torch.from_numpy(target)
    if library == "DGL":
        import dgl

        return dgl.graph(ends, num_nodes=len(features)), features
    from torch_geometric.data import Data

    on_disk = isinstance(features, np.memmap)
    return Data(
        x=features if on_disk else torch.from_numpy(features), edge_index=torch.stack(ends).long()
    )


def probe_of_library(library: str, graph: Any, labels: np.ndarray, args: Any) -> EvidentialProbe:
    """Train a user's network and its probe."""
    torch.manual_seed(args.seed)
    network = Sage(library, args.features, args.hidden)
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-4)
    train = training_nodes(labels)
    inputs = (
        (graph[0], torch.from_numpy(graph[1])) if library == "DGL" else (graph.x, graph.edge_index)
    )
    for _ in range(args.epochs):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(network(*inputs)[train], torch.from_numpy(labels[train]))
        loss.backward()
        optimiser.step()
    return EvidentialProbe(network, graph=graph, random_state=args.seed).fit(train, labels[train])


def measured(folder: Path, task: str, args: argparse.Namespace) -> dict[str, float]:
    """Measure CPU seconds, seconds and peak memory of a task; called in a fresh process."""
    torch.set_num_threads(args.threads)
    library = task.split()[0] if task.startswith(("DGL", "PyG")) else None
    small, labels = read_graph(folder / "small", on_disk=False)
    train = training_nodes(labels)
    if library:
        probe = probe_of_library(library, library_graph(library, *small), labels, args)
    else:
        network = GraphClassifier(small, max_epochs=args.epochs, random_state=args.seed)
        network.fit(train, labels[train])
        probe = EvidentialProbe(network, random_state=args.seed).fit(train, labels[train])
    memory = Memory()
    memory.start()
    cpu, start = os.times(), time.perf_counter()
    graph, labels = read_graph(folder / "large", on_disk="one pass" not in task)
    if library:
        graph = library_graph(library, *graph)
        if "one pass" not in task:
            neighbors = args.neighbors if "sampled" in task else None
            probe.set_params(batches=NodeBatches(args.batch, neighbors))
    if task == "fit":
        train = training_nodes(labels)
        probe = EvidentialProbe(
            network, graph=graph, max_epochs=args.epochs, random_state=args.seed
        ).fit(train, labels[train])
    else:
        probe = probe.with_graph(graph)
    some = np.arange(0, len(labels), 7)
    vacuity = probe.predict_uncertainty(some).epistemic
    seconds, after = time.perf_counter() - start, os.times()
    memory.done.set()
    memory.join()
    return {
        "cpu_seconds": after.user + after.system - cpu.user - cpu.system,
        "seconds": seconds,
        "peak_own_gib": memory.own / GIB,
        "peak_mapped_gib": memory.files / GIB,
        "peak_all_gib": peak_gib(),
        "accuracy": float((probe.predict(some) == labels[some]).mean()),
        "mean_vacuity": float(vacuity.mean()),
    }


def training_nodes(labels: np.ndarray) -> np.ndarray:
    """Return the first nodes of each class."""
    return np.concatenate([np.flatnonzero(labels == c)[:N_TRAIN] for c in range(N_CLASSES)])


def in_fresh_process(function: Any, *arguments: Any) -> Any:
    """Call a function in a separate process, so that its peak memory can be measured."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main(args: argparse.Namespace) -> None:
    records = []
    with TemporaryDirectory() as name:
        folder = Path(name)

        def run(task: str, args: argparse.Namespace) -> dict[str, float]:
            for part, n_nodes in enumerate((args.small, args.nodes)):
                path = folder / ("large" if part else "small")
                if not path.exists():
                    in_fresh_process(write_graph, path, n_nodes, args, args.seed + part)
            return in_fresh_process(measured, folder, task, args)

        for task in args.tasks:
            figures = kept_run(run, task, args=args)
            print(task, figures, flush=True)
            name = f"{args.nodes} nodes"
            records += [record(task, name, key, value, 1) for key, value in figures.items()]
    finish("evidential_large", args, records)  # the processes import the same modules


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--nodes", type=int, default=2_400_000)
    arguments.add_argument("--small", type=int, default=20_000, help="nodes of the small graph")
    arguments.add_argument("--degree", type=int, default=10, help="mean number of neighbours")
    arguments.add_argument("--features", type=int, default=64)
    arguments.add_argument("--epochs", type=int, default=50)
    arguments.add_argument("--hidden", type=int, default=32, help="width of a user's network")
    arguments.add_argument("--batch", type=int, default=2000, help="nodes in a batch")
    arguments.add_argument("--neighbors", type=int, default=5, help="of a node, where sampled")
    tasks = ["on disk", "one pass", "fit"]
    own = [f"{name} {way}" for name in ("DGL", "PyG") for way in ("batches", "sampled", "one pass")]
    arguments.add_argument("--tasks", nargs="+", default=tasks, choices=tasks + own)
    main(arguments.parse_args())
