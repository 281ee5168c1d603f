"""Time on the CPU divided by time on a GPU of the same machine, by estimator and network size.

    python -m benchmarks.gpu_speed --threads 8

Networks have two hidden layers of the same width, 64 inputs and ten outputs. CPU and GPU take turns
in each round, after one round whose times are discarded; times are medians over the rounds.
"""

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

import numpy as np
import torch
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale
from torch import nn

from benchmarks.harness import finish, parser, record, set_threads
from skuq import EvidentialProbe, LaplaceClassifier, MirageFineTuner, QUAMClassifier, RobustGPC
from skuq.datasets import make_node_classes
from skuq.evidential import GraphClassifier, as_node_graph
from skuq.quam import PoolSearch
from skuq.uadqn import UADQNAlgorithm

Case = tuple[str, Callable[[str], object]]  # a name, and what is timed on a device
N_ROWS, N_INPUTS, N_CLASSES = 500, 64, 10


def network_of(width: int) -> nn.Module:
    """Build a network with two hidden layers."""
    torch.manual_seed(0)
    hidden = [nn.Linear(N_INPUTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(width, N_CLASSES)).eval()


def around_networks(width: int) -> Iterator[Case]:
    """Fits and predictions around a network of this width."""
    random = np.random.default_rng(0)
    X = random.normal(size=(N_ROWS, N_INPUTS)).astype(np.float32)
    y = (X @ random.normal(size=(N_INPUTS, N_CLASSES))).argmax(axis=1)
    network = network_of(width)

    def quam(device: str) -> QUAMClassifier:
        search = PoolSearch(n_steps=10)
        return QUAMClassifier(network, search=search, device=device, random_state=0).fit(X, y)

    def probe(device: str) -> object:
        return EvidentialProbe(network, max_epochs=20, device=device, random_state=0).fit(X, y)

    def attack(device: str) -> object:
        tuner = MirageFineTuner(network, epsilon=0.5, max_epochs=2, device=device, random_state=0)
        return tuner.fit(X, y, region_mask=X[:, 0] > 0)

    def laplace(device: str) -> object:
        return LaplaceClassifier(network, device=device, random_state=0).fit(X, y)

    yield "QUAM, fit with 10 steps", quam
    fitted: dict[str, QUAMClassifier] = {}

    def predict(device: str) -> object:
        if device not in fitted:
            fitted[device] = quam(device)
        return fitted[device].predict_uncertainty(X)

    yield f"QUAM, predictions of {N_ROWS:,} rows", predict
    yield "EvidentialProbe, fit with 20 epochs", probe
    yield "MirageFineTuner, fit with 2 epochs", attack
    yield "LaplaceClassifier, fit", laplace


def others() -> Iterator[Case]:
    """A graph, an agent, and bounds of a Gaussian process."""
    data = make_node_classes(20_000, n_classes=10, n_features=128, random_state=0)
    graph, nodes = as_node_graph(data.graph), np.arange(2_000)

    def on_graph(device: str) -> object:
        model = GraphClassifier(graph, max_epochs=20, device=device, random_state=0)
        return model.fit(nodes, data.labels[nodes])

    yield "GraphClassifier, 20 epochs, 20,000 nodes", on_graph

    def agent(device: str) -> object:
        made = UADQNAlgorithm("MlpPolicy", "CartPole-v1", learning_starts=32, seed=0, device=device)
        return made.learn(300)

    yield "UADQN, 300 steps of CartPole", agent
    X, y = load_iris(return_X_y=True)
    X, y = scale(X)[:100], y[:100]

    def bounds(device: str) -> object:
        gpc = RobustGPC(max_iter=3, device=device, random_state=0).fit(X, y)
        return gpc.predict_proba_bounds(X[::5], radius=0.1)

    yield "RobustGPC, fit, and bounds of 20 points", bounds


def seconds(run: Callable[[str], object], device: str) -> float:
    """Measure the wall-clock time of a call, including the work that the GPU still has to do."""
    start = perf_counter()
    run(device)
    if device != "cpu":
        torch.cuda.synchronize()
    return perf_counter() - start


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--device", default="cuda")
    arguments.add_argument("--widths", type=int, nargs="*", default=[32, 64, 128, 256, 512])
    arguments.add_argument("--rounds", type=int, default=3)
    args = arguments.parse_args()
    set_threads(args)
    sizes = {f"width {width}": around_networks(width) for width in args.widths}
    records = []
    for size, cases in {**sizes, "-": others()}.items():
        for name, run in cases:
            rounds = [
                [seconds(run, d) for d in ("cpu", args.device)] for _ in range(args.rounds + 1)
            ]
            cpu, gpu = map(median, zip(*rounds[1:], strict=True))
            for metric, value in (("cpu", cpu), ("gpu", gpu), ("speed-up", cpu / gpu)):
                records.append(record(name, size, metric, value, args.rounds))
            print(f"{size:12}{name:45}{cpu:9.3f} s{gpu:9.3f} s{cpu / gpu:7.2f}", flush=True)
    finish("gpu_speed", args, records)


if __name__ == "__main__":
    main()
