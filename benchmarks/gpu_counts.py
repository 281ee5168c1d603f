"""Counts of kernels, uploads and synchronisations in GPU loops, without a GPU.

    python -m benchmarks.gpu_counts

The emulated device in `tests/pretend_device` needs g++. Counts do not depend on the machine. The
counts for one iteration of a loop are the difference between a longer and a shorter run.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import torch
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale
from torch import nn

from benchmarks.harness import finish, parser, record
from skuq import EvidentialProbe, LaplaceClassifier, MirageFineTuner, QUAMClassifier, RobustGPC
from skuq.quam import PointwiseSearch, PoolSearch
from skuq.uadqn import UADQNAlgorithm
from tests import pretend_device

WHAT = {"kernel": "kernels", "up": "uploads", "down": "downloads", "sync": "synchronisations"}


def counted(call: Callable[[], object]) -> tuple[Counter[str], object]:
    """Count events during a call; also return its result."""
    with pretend_device.watch(lines_of=()) as report:
        returned = call()
    found = Counter({name: report.count[event] for event, name in WHAT.items()})
    found["bytes_uploaded"] = report.bytes["up"]
    return found, returned


def data() -> tuple[np.ndarray, np.ndarray, nn.Module]:
    """Draw 600 rows of ten classes, and build a network for them."""
    random = np.random.default_rng(0)
    X = random.normal(size=(600, 64)).astype(np.float32)
    y = (X @ random.normal(size=(64, 10))).argmax(axis=1)
    torch.manual_seed(0)
    sizes = ((64, 128), (128, 64))
    hidden = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())]
    return X, y, nn.Sequential(*hidden, nn.Linear(64, 10)).eval()


def per_turn(run: Callable[[int], object], short: int, long: int, turns: int = 1) -> Counter[str]:
    """Count events per iteration, from runs of `long` and `short` rounds of `turns` iterations."""
    first, second = counted(lambda: run(short))[0], counted(lambda: run(long))[0]
    return Counter({k: (second[k] - first[k]) / ((long - short) * turns) for k in second})


def quam() -> Iterator[tuple[str, Counter[str]]]:
    """Count events in QUAM's searches, and in predictions with the networks found."""
    X, y, network = data()

    def fit(search: object) -> QUAMClassifier:
        return QUAMClassifier(network, search=search, device="cuda", random_state=0).fit(X, y)

    yield (
        "QUAM, search on a pool: a step",
        per_turn(lambda n: fit(PoolSearch(n_steps=n)), 20, 40),
    )
    found = fit(PoolSearch(n_steps=20))
    for case in ("first call", "later call"):
        counts, _ = counted(lambda: found.predict_uncertainty(X[:1]))
        yield f"QUAM, prediction of a row: {case}", counts
    counts, _ = counted(lambda: found.predict_uncertainty(X))
    yield "QUAM, prediction of 600 rows", counts

    def points(n: int) -> object:
        return fit(PointwiseSearch(n_steps=n)).predict_uncertainty(X[:8])

    yield "QUAM, search for each point: a step of 8 points", per_turn(points, 10, 20)
    pointwise = fit(PointwiseSearch(n_steps=10))
    pointwise.predict_uncertainty(X[:8])
    counts = per_turn(lambda n: pointwise.predict_uncertainty(X[: 8 * n]), 1, 8)
    yield "QUAM, search for each point: 8 points more, of 10 steps", counts
    closed = fit("quadratic")
    closed.predict_uncertainty(X[:8])
    for n in (8, 600):
        counts, _ = counted(lambda n=n: closed.predict_uncertainty(X[:n]))
        yield f"QUAM, closed form, prediction of {n} rows", counts


def others() -> Iterator[tuple[str, Counter[str]]]:
    """Count events of other estimators around networks."""
    X, y, network = data()

    def probe(n: int) -> EvidentialProbe:
        return EvidentialProbe(network, max_epochs=n, device="cuda", random_state=0).fit(X, y)

    yield "EvidentialProbe, an epoch", per_turn(probe, 10, 20)

    def attack(n: int) -> object:
        inside = X[:, 0] > 0
        tuner = MirageFineTuner(network, epsilon=0.5, max_epochs=n, device="cuda", random_state=0)
        return tuner.fit(X, y, region_mask=inside)

    yield "MirageFineTuner, a batch of 64", per_turn(attack, 2, 4, turns=10)
    counts, laplace = counted(
        lambda: LaplaceClassifier(network, device="cuda", random_state=0).fit(X, y)
    )
    yield "LaplaceClassifier, fit", counts
    laplace.predict_uncertainty(X)
    yield (
        "LaplaceClassifier, prediction of 600 rows, later call",
        counted(lambda: laplace.predict_uncertainty(X))[0],
    )


def guarantees() -> Iterator[tuple[str, Counter[str]]]:
    """Count events of the bounds of a Gaussian process."""
    X, y = load_iris(return_X_y=True)
    X, y = scale(X)[:100, :2], y[:100]
    gpc = RobustGPC(max_iter=3, device="cuda", random_state=0).fit(X, y)
    counts, _ = counted(lambda: gpc.predict_proba_bounds(X[::20], radius=0.1))
    yield "RobustGPC, bounds of five points", counts


def agents() -> Iterator[tuple[str, Counter[str]]]:
    """Count events in the training of an agent."""
    agent = UADQNAlgorithm("MlpPolicy", "CartPole-v1", learning_starts=32, seed=0, device="cuda")
    agent.learn(100)
    counts, _ = counted(lambda: agent.train(100, 32))
    yield "UADQN, an update", Counter({name: n / 100 for name, n in counts.items()})
    counts, _ = counted(lambda: agent.learn(200, reset_num_timesteps=False))
    yield "UADQN, a step with an update", Counter({name: n / 200 for name, n in counts.items()})


PARTS = {"quam": quam, "others": others, "guarantees": guarantees, "agents": agents}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--parts", nargs="*", choices=PARTS, default=[*PARTS])
    args = arguments.parse_args()
    pretend_device.install("cuda")
    columns = [*WHAT.values(), "bytes_uploaded"]
    print(f"{'':52}" + "".join(f"{name:>18}" for name in columns))
    records = []
    for part in args.parts:
        for loop, counts in PARTS[part]():
            print(f"{loop:55}" + "".join(f"{counts[name]:18,.1f}" for name in columns), flush=True)
            records += [record(loop, "counts", name, counts[name], n=1) for name in columns]
    finish("gpu_counts", args, records)


if __name__ == "__main__":
    main()
