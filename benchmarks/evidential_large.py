"""The probe on a generated graph of millions of nodes with features on disk: memory and time.

    python -m benchmarks.evidential_large --nodes 2400000 --record evidential_large

A network and a probe are trained on a small graph of the same kind. On the large one the probe then
answers for all nodes (`with_graph`), layer by layer with features on disk, and in one pass with
features in memory for comparison; and it is fitted anew on the large graph, with features on disk.
Each runs in a process of its own. Peak memory is what the process itself holds; pages of mapped
files, which the system can drop at any time, are counted apart.
"""

import argparse
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from scipy import sparse

from benchmarks.harness import finish, parser, peak_gib, record
from skuq import EvidentialProbe
from skuq.evidential import GraphClassifier

GIB = 2**20  # in the unit of Linux, which is KiB
N_CLASSES = 5
N_TRAIN = 100  # labelled nodes per class
HOMOPHILY = 0.8
CHUNK = 100_000  # nodes whose features are drawn at once


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
    """Adjacency matrix and features, and the classes."""
    labels = np.load(folder / "labels.npy")
    edges = np.load(folder / "indices.npy"), np.load(folder / "indptr.npy")
    ones = np.ones(len(edges[0]), np.int8)
    adjacency = sparse.csr_array((ones, *edges), shape=(len(labels), len(labels)))
    features = np.load(folder / "features.npy", mmap_mode="r" if on_disk else None)
    return (adjacency, features), labels


class Memory(threading.Thread):
    """Peaks of memory, watched every 20 ms: the process's own, and pages of mapped files."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.own = self.files = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.02):
            words = Path("/proc/self/status").read_text().split()
            self.own = max(self.own, int(words[words.index("RssAnon:") + 1]))
            self.files = max(self.files, int(words[words.index("RssFile:") + 1]))


def measured(folder: Path, task: str, args: argparse.Namespace) -> dict[str, float]:
    """CPU seconds, seconds and peaks of memory of a task; called in a fresh process."""
    torch.set_num_threads(args.threads)
    small, labels = read_graph(folder / "small", on_disk=False)
    train = training_nodes(labels)
    network = GraphClassifier(small, max_epochs=args.epochs, random_state=args.seed)
    network.fit(train, labels[train])
    probe = EvidentialProbe(network, random_state=args.seed).fit(train, labels[train])
    memory = Memory()
    memory.start()
    cpu, start = os.times(), time.perf_counter()
    graph, labels = read_graph(folder / "large", on_disk=task != "one pass")
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
        "accuracy": (probe.predict(some) == labels[some]).mean(),
        "mean_vacuity": vacuity.mean(),
    }


def training_nodes(labels: np.ndarray) -> np.ndarray:
    """The first nodes of each class."""
    return np.concatenate([np.flatnonzero(labels == c)[:N_TRAIN] for c in range(N_CLASSES)])


def in_fresh_process(function: Any, *arguments: Any) -> Any:
    """Call a function in a process of its own, whose peak of memory is its own too."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def main(args: argparse.Namespace) -> None:
    records = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        for part, n_nodes in enumerate((args.small, args.nodes)):
            path = folder / ("large" if part else "small")
            in_fresh_process(write_graph, path, n_nodes, args, args.seed + part)
        for task in args.tasks:
            figures = in_fresh_process(measured, folder, task, args)
            print(task, figures, flush=True)
            name = f"{args.nodes} nodes"
            records += [record(task, name, key, value, 1) for key, value in figures.items()]
    finish("evidential_large", args, records)  # the processes load what this one has loaded


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--nodes", type=int, default=2_400_000)
    arguments.add_argument("--small", type=int, default=20_000, help="nodes of the small graph")
    arguments.add_argument("--degree", type=int, default=10, help="mean number of neighbours")
    arguments.add_argument("--features", type=int, default=64)
    arguments.add_argument("--epochs", type=int, default=50)
    tasks = ["on disk", "one pass", "fit"]
    arguments.add_argument("--tasks", nargs="+", default=tasks, choices=tasks)
    main(arguments.parse_args())
