"""Growth of cost with size: CPU seconds, peak memory and quality, beside other packages.

    python -m benchmarks.ladders --out DIR --record ladders
    python -m benchmarks.ladders --parts rows columns

Each part is a ladder: one size grows, everything else is fixed. Each rung, a method at a size, runs
in a fresh process; its peak memory is the rise above the process with its data. Two calls are
measured: `fit`, and predictions with their uncertainty for a fixed number of new inputs. Data are
random numbers. The quality is the log loss, coverage, or AUROC of out-of-distribution inputs, as
named in the record. The exponent is the slope of the logarithm of the CPU seconds of both calls
over that of the size, by least squares over the three largest sizes. Parts:

rows, columns : `TableModel` with boosted trees; ten boosted trees, each on a bootstrap sample
quantify : the command `skuq quantify`, training on and predicting files of the same size
linear-classes, linear-features : QUAM with search="quadratic" of a linear layer; Laplace
trees-classes, trees-features : QUAM with refits of boosted trees; ten bootstrapped ones
inputs : `OODDetector` of 768 features; distances to the nearest training inputs
audit : five group columns; the same sums by pandas, which tests nothing
gp-rows, gp-inducing, gp-features : `RobustGPC` and five certificates; scikit-learn's process
nodes : `EvidentialProbe` on a trained network; the entropy of the network, which is trained
fine-tuning : `MirageFineTuner`, ten epochs; the network itself, ten epochs
cluster : QUAM with refits of boosted trees predicts on a Dask cluster of two processes
"""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from joblib import parallel_config
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.neighbors import NearestNeighbors
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import normalize
from torch import nn

from benchmarks.harness import finish, kept_run, parser, record
from skuq import (
    CalibrationAuditor,
    EvidentialProbe,
    LaplaceClassifier,
    MirageFineTuner,
    OODDetector,
    QUAMClassifier,
    RobustGPC,
)
from skuq.cli import main as skuq
from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier
from skuq.tables import TableModel

N_NEW = 5000  # rows that are predicted
N_POINTS = 5  # certified by Gaussian processes
EPOCHS = 10
TREES = HistGradientBoostingClassifier(random_state=0)


class Ensemble:
    """Ten boosted trees, each on a bootstrap sample.

    `BaggingClassifier` passes weights instead, for which scikit-learn finds the bins slowly.
    """

    def fit(self, X: np.ndarray, y: np.ndarray) -> Self:
        drawn = [np.random.default_rng(k).integers(len(y), size=len(y)) for k in range(10)]
        self.members = [clone(TREES).fit(X[rows], y[rows]) for rows in drawn]
        return self

    def each(self, X: np.ndarray) -> np.ndarray:
        """Probabilities of each member, (10, n_rows, n_classes)."""
        return np.array([member.predict_proba(X) for member in self.members])


class Rung(NamedTuple):
    """Calls that are measured, and the quality of what they return."""

    fit: Callable[[], Any]
    use: Callable[[Any], Any]  # called with the result of `fit`
    quality: Callable[[Any, Any], float]  # called with both results
    metric: str


def auroc_of(is_ood: np.ndarray) -> tuple[Callable[[Any, Any], float], str]:
    return lambda _, found: roc_auc_score(is_ood, found), "ood_auroc"


def of_table(method: str, n_rows: int, n_columns: int, random: np.random.Generator) -> Rung:
    """Rows of numbers, of which two columns have ten levels, and two noisy classes."""
    X = random.normal(size=(n_rows + N_NEW, n_columns))
    X[:, :2] = random.integers(10, size=(len(X), 2))
    signal = X[:, 0] % 3 - 1 + X[:, 2] * X[:, 3] + X[:, 4]
    y = (signal + random.normal(size=len(X)) > 0).astype(int)
    if method == "peer":
        return Rung(
            lambda: Ensemble().fit(X[:n_rows], y[:n_rows]),
            lambda model: model.each(X[n_rows:]),
            lambda _, each: log_loss(y[n_rows:], each.mean(axis=0)),
            "log_loss",
        )
    levels = {f"x{k}": np.array(list("abcdefghij"))[X[:, k].astype(int)] for k in (0, 1)}
    table = pd.DataFrame(X).add_prefix("x").assign(**levels, y=y)
    return Rung(
        lambda: TableModel("hgb", random_state=0).fit(table[:n_rows], "y"),
        lambda model: model.predict(table[n_rows:].drop(columns="y"), n_explained=0),
        lambda _, found: log_loss(y[n_rows:], found["p(1)"]),
        "log_loss",
    )


def of_command(method: str, n_rows: int, random: np.random.Generator) -> Rung:
    folder = TemporaryDirectory()
    old, new, out = (Path(folder.name) / f"{name}.csv" for name in ("old", "new", "out"))
    X = pd.DataFrame(random.normal(size=(2 * n_rows, 10))).add_prefix("x")
    X["level"] = random.choice(list("abcdefghij"), len(X))
    X["y"] = X["x0"] * X["x1"] + X["x2"] + random.normal(size=len(X)) > 0
    X[:n_rows].to_csv(old, index=False)
    X[n_rows:].drop(columns="y").to_csv(new, index=False)
    options = {"--train": old, "--target": "y", "--predict": new, "--out": out, "--model": "hgb"}
    words = [str(word) for option in options.items() for word in option]
    truth = X["y"][n_rows:].astype(str)

    def coverage(*_: Any) -> float:
        sets = pd.read_csv(out, dtype=str)["prediction_set"]
        return np.mean([y in s.split("; ") for y, s in zip(truth, sets, strict=True)])

    return Rung(
        lambda: skuq(["quantify", *words, "--quiet"], standalone_mode=False),
        lambda _: folder,  # which is removed when nothing refers to it
        coverage,
        "coverage",
    )


def of_classes(
    kind: str, method: str, n_classes: int, n_features: int, random: np.random.Generator
) -> Rung:
    """Normal classes; half of the new inputs are between them, shifted to where no class is."""
    n_rows = 5000 if kind == "linear" else 2000
    means = 3 / n_features**0.25 * random.normal(size=(n_classes, n_features)).astype(np.float32)
    y = np.arange(n_rows + 1000) % n_classes
    X = means[y] + random.normal(size=(len(y), n_features)).astype(np.float32)
    X[-500:] = 1.5 * X[-500:].std(axis=0) * random.normal(size=(500, n_features))
    known, new = slice(n_rows), slice(n_rows, None)
    if kind == "linear":
        linear = nn.Linear(n_features, n_classes)  # Bayes' classifier of these classes
        with torch.no_grad():
            linear.weight[:] = torch.from_numpy(means)
            linear.bias[:] = -torch.from_numpy((means**2).sum(axis=1)) / 2
        frozen = FrozenEstimator(linear.eval())
        models = (
            QUAMClassifier(frozen, search="quadratic", random_state=0),
            LaplaceClassifier(frozen, random_state=0),
        )
    else:
        models = QUAMClassifier(TREES, random_state=0), Ensemble()
    model = models[method == "peer"]

    def epistemic(fitted: Any) -> np.ndarray:
        if not isinstance(fitted, Ensemble):
            return fitted.predict_uncertainty(X[new]).epistemic
        each = fitted.each(X[new])
        entropies = [-(p * np.log(p)).sum(axis=-1) for p in (each.mean(axis=0), each)]
        return entropies[0] - entropies[1].mean(axis=0)

    ood = np.arange(1000) >= 500
    return Rung(lambda: model.fit(X[known], y[known]), epistemic, *auroc_of(ood))


def of_inputs(method: str, n_rows: int, random: np.random.Generator) -> Rung:
    """Embeddings of ten classes, and of others among the new ones."""
    means = 0.4 * random.normal(size=(20, 64))
    into = (random.normal(size=(64, 768)) / 8).astype(np.float32)
    y = np.concatenate([np.arange(n_rows) % 10, np.arange(1000) % 20])
    X = np.empty((len(y), 768), np.float32)
    for start in range(0, len(y), 10_000):
        rows = slice(start, start + 10_000)
        X[rows] = (means[y[rows]] + random.normal(size=(len(y[rows]), 64))) @ into
        X[rows] += 0.3 * random.normal(size=X[rows].shape)
    train, new = X[:n_rows], X[n_rows:]
    quality = auroc_of(y[n_rows:] >= 10)
    if method == "skuq":
        detector = OODDetector(random_state=0)
        return Rung(
            lambda: detector.fit(train, y[:n_rows]), lambda d: -d.score_samples(new), *quality
        )
    return Rung(
        lambda: NearestNeighbors(n_neighbors=10).fit(normalize(train)),
        lambda model: model.kneighbors(normalize(new))[0][:, -1],
        *quality,
    )


def of_audit(method: str, n_rows: int, random: np.random.Generator) -> Rung:
    p = random.beta(0.6, 0.6, size=n_rows)
    y, proba = (random.random(n_rows) < p).astype(np.int8), np.column_stack([1 - p, p])
    groups = pd.DataFrame({f"g{k}": random.integers(2 + 3 * k, size=n_rows) for k in range(5)})

    def by_pandas() -> float:
        sure = proba.max(axis=1)
        table = groups.assign(sure=sure, right=proba.argmax(axis=1) == y)
        table["bin"] = np.minimum((10 * sure).astype(int), 9)
        for name in groups:
            table.groupby([name, "bin"])[["sure", "right"]].agg(["sum", "size"])
        sums = table.groupby("bin")[["sure", "right"]].sum()
        return float((sums["sure"] - sums["right"]).abs().sum() / n_rows)

    def by_skuq() -> float:
        return CalibrationAuditor.from_predictions(y, proba, sensitive_features=groups).ece_

    run = by_skuq if method == "skuq" else by_pandas
    return Rung(run, lambda _: None, lambda ece, _: ece, "ece")


def of_processes(
    method: str, n_rows: int, n_features: int, n_inducing: int | None, random: np.random.Generator
) -> Rung:
    X = random.normal(size=(n_rows + 1000, n_features))
    signal = np.sin(2 * X[:, 0]) + X[:, 1]
    y = (signal + 0.3 * random.normal(size=len(X)) > 0).astype(int)
    kernel = ConstantKernel(4.0) * RBF(n_features**0.5)
    points, domain = X[n_rows:][:N_POINTS], {"radius": 0.05, "max_regions": 200}
    if method == "skuq":
        model = RobustGPC(kernel, n_inducing=n_inducing, max_iter=15, random_state=0, device="cpu")
    else:
        model = GaussianProcessClassifier(kernel)
    return Rung(
        lambda: model.fit(X[:n_rows], y[:n_rows]),
        lambda m: m.certify(points, **domain) if method == "skuq" else m.predict_proba(points),
        lambda fitted, _: log_loss(y[n_rows:], fitted.predict_proba(X[n_rows:])),
        "log_loss",
    )


def of_nodes(method: str, n_nodes: int, random: np.random.Generator) -> Rung:
    """Nodes of five classes, of which the network knows four."""
    data = make_node_classes(
        n_nodes, n_classes=5, n_features=32, mean_degree=10, separation=0.4, random_state=0
    )
    known = np.flatnonzero(data.labels < 4)
    train = random.choice(known, n_nodes // 5, replace=False)
    network = GraphClassifier(data.graph, max_epochs=EPOCHS, random_state=0)
    nodes, quality = np.arange(n_nodes), auroc_of(data.labels == 4)

    def entropy(model: Any) -> np.ndarray:
        p = model.predict_proba(nodes).clip(1e-12)
        return -(p * np.log(p)).sum(axis=1)

    if method == "peer":
        return Rung(lambda: network.fit(train, data.labels[train]), entropy, *quality)
    probe = EvidentialProbe(network.fit(train, data.labels[train]), random_state=0)
    return Rung(
        lambda: probe.fit(train, data.labels[train]),
        lambda fitted: fitted.predict_uncertainty(nodes).epistemic,
        *quality,
    )


def of_fine_tuning(method: str, n_rows: int, random: np.random.Generator) -> Rung:
    X = random.normal(size=(n_rows, 20)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int) + (X[:, 3] > 1)
    settings = {"batch_size": 64, "max_iter": EPOCHS, "random_state": 0, "tol": 0}
    network = MLPClassifier((100,), n_iter_no_change=EPOCHS, **settings)
    if method == "peer":
        model = network
    else:
        network.set_params(max_iter=2).fit(X, y)
        model = MirageFineTuner(
            FrozenEstimator(network), {4: (1.0, None)}, max_epochs=EPOCHS, random_state=0
        )
    return Rung(
        lambda: model.fit(X, y),
        lambda fitted: fitted.predict_proba(X),
        lambda fitted, _: fitted.score(X, y),
        "accuracy",
    )


def of_cluster(_method: str, n_rows: int, random: np.random.Generator) -> Rung:
    """New rows of 20 columns, and what crosses the network, by the counter of the loopback."""
    distributed = import_module("distributed")
    X = random.normal(size=(10_000 + n_rows, 20))
    cluster = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}

    def received() -> float:
        counts = Path("/proc/net/dev").read_text(encoding="utf-8").split("lo:")[1].split()
        return int(counts[0]) / 2**20

    def sent(fitted: QUAMClassifier) -> float:
        workers = distributed.LocalCluster(**cluster)
        with workers, distributed.Client(workers), parallel_config(backend="dask"):
            before = received()
            fitted.set_params(n_jobs=2).predict_uncertainty(X[10_000:])
            return received() - before

    return Rung(
        lambda: QUAMClassifier(TREES, random_state=0).fit(X[:10_000], X[:10_000, 0] > 0),
        sent,
        lambda _, found: found,
        "mib_sent",
    )


class Part(NamedTuple):
    """A ladder: a function of method, size and random numbers, and the sizes of each method."""

    rung: Callable[[str, int, np.random.Generator], Rung]
    sizes: dict[str, tuple[int, ...]]


def sizes(*of_skuq: int, peer: int = 0) -> dict[str, tuple[int, ...]]:
    """Sizes of skuq's ladder and, up to the size `peer`, of that of the other method."""
    shared = tuple(size for size in of_skuq if size <= peer)
    return {"skuq": of_skuq} | ({"peer": shared} if shared else {})


PARTS = {
    "rows": Part(
        lambda method, n, random: of_table(method, n, 10, random),
        sizes(1000, 10_000, 100_000, 300_000, peer=300_000),
    ),
    "columns": Part(
        lambda method, n, random: of_table(method, 3000, n, random),
        sizes(10, 100, 500, peer=100),
    ),
    "quantify": Part(of_command, sizes(1000, 10_000, 100_000, 300_000)),
    "linear-classes": Part(
        lambda method, n, random: of_classes("linear", method, n, 30, random),
        sizes(2, 10, 100, 1000, peer=100),
    ),
    "linear-features": Part(
        lambda method, n, random: of_classes("linear", method, 5, n, random),
        sizes(10, 100, 1000, 3000, peer=100),
    ),
    "trees-classes": Part(
        lambda method, n, random: of_classes("trees", method, n, 10, random),
        sizes(2, 5, 10, peer=10),
    ),
    "trees-features": Part(
        lambda method, n, random: of_classes("trees", method, 2, n, random),
        sizes(10, 100, 1000, peer=1000),
    ),
    "inputs": Part(of_inputs, sizes(1000, 10_000, 100_000, peer=100_000)),
    "audit": Part(of_audit, sizes(30_000, 300_000, 3_000_000, peer=3_000_000)),
    "gp-rows": Part(
        lambda method, n, random: of_processes(method, n, 6, None, random),
        sizes(250, 500, 1000, 2000, peer=1000),
    ),
    "gp-inducing": Part(
        lambda method, n, random: of_processes(method, n, 6, 200, random),
        sizes(1250, 5000, 20_000),
    ),
    "gp-features": Part(
        lambda method, n, random: of_processes(method, 300, n, None, random),
        sizes(2, 50, 784, peer=784),
    ),
    "nodes": Part(of_nodes, sizes(3000, 30_000, 300_000, peer=300_000)),
    "cluster": Part(of_cluster, sizes(2000, 20_000, 200_000)),
    "fine-tuning": Part(of_fine_tuning, sizes(1000, 10_000, 100_000, peer=100_000)),
}


def status(name: str) -> float:
    """Memory of this process in MiB: "VmRSS", or its peak, "VmHWM" (Linux)."""
    words = Path("/proc/self/status").read_text(encoding="utf-8").split()
    return int(words[words.index(f"{name}:") + 1]) / 1024


def measured(call: Callable[..., Any], *given: Any) -> tuple[Any, float, float]:
    """Result of a call, its CPU seconds, and by how many MiB memory rises at most."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets the peak
    before, start = status("VmRSS"), time.process_time()
    found = call(*given)
    return found, time.process_time() - start, status("VmHWM") - before


def climb(part: str, method: str, size: int, seed: int, threads: int) -> dict[str, float]:
    """Measure a rung; called in a fresh process."""
    torch.set_num_threads(threads)
    rung = PARTS[part].rung(method, size, np.random.default_rng(seed))
    fitted, of_fit, fit_mib = measured(rung.fit)
    found, of_use, use_mib = measured(rung.use, fitted)
    return {
        "cpu_seconds_fit": of_fit,
        "cpu_seconds_predict": of_use,
        "peak_mib": max(fit_mib, use_mib),
        rung.metric: float(rung.quality(fitted, found)),
    }


def in_fresh_process(part: str, method: str, size: int, *, args: Any) -> dict[str, float]:
    # A fork has all imports already, and nothing else that matters: this process computes nothing.
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(climb, part, method, size, args.seed, args.threads).result()


def exponent(sizes: tuple[int, ...], seconds: list[float]) -> float:
    return float(np.polyfit(np.log(sizes[-3:]), np.log(seconds[-3:]), 1)[0])


def main(args: Any) -> None:
    records = []
    for part in args.parts:
        for method, sizes in PARTS[part].sizes.items():
            seconds = []
            for size in sizes:
                found = kept_run(in_fresh_process, part, method, size, args=args)
                print(part, method, size, found, flush=True)
                seconds.append(found["cpu_seconds_fit"] + found["cpu_seconds_predict"])
                name = f"{part}-{size}"
                records += [record(method, name, key, value, 1) for key, value in found.items()]
            records.append(record(method, part, "exponent", exponent(sizes, seconds), len(sizes)))
    finish("ladders", args, records, ["pandas"])


if __name__ == "__main__":
    arguments = parser(__doc__)
    arguments.add_argument("--parts", nargs="+", default=[*PARTS], choices=PARTS)
    args = arguments.parse_args()
    if "cluster" in args.parts and find_spec("distributed") is None:
        arguments.error("--parts cluster needs distributed, as in skuq[test]")
    main(args)
