"""Training steps per second, with batches of 32 and one update per step.

UADQN and `QuantileDQN`, which has the same networks and loss, are compared with sb3-contrib's
QR-DQN and stable-baselines3's DQN, all with the same network, 50 quantiles and Adam. The baselines
use autograd and torch's default implementation of Adam, as by default, and ours neither. For a
MinAtar game the network is the paper's (16 filters, 128 units); for CartPole it has two hidden
layers of 100. The methods alternate in short rounds, each with the same number of steps, and
figures are medians over rounds. The ratio to sb3-contrib's QR-DQN is the median of the ratios of
all rounds. The authors' code reached 103 (UADQN) and 309 (QR-DQN) steps per CPU second on Breakout,
on one thread of a machine with two cores.
"""

import time
from functools import partial

import numpy as np
import sb3_contrib
import stable_baselines3
import torch

from benchmarks.harness import AGENT_PACKAGES, finish, parser, record, set_threads
from skuq.uadqn import GridCNN, QuantileDQN, UADQNAlgorithm, make_env

ADAM = {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": 1e-8}}
# Dataset: (environment, our policy, the same network for the baselines)
PROBLEMS = {
    "minatar_breakout": (
        "MinAtar/Breakout-v0",
        "GridPolicy",
        {"features_extractor_class": GridCNN, "net_arch": [128]},
    ),
    "cartpole": ("CartPole-v1", "MlpPolicy", {"net_arch": [100, 100]}),
}
COMMON = {
    "learning_rate": 1e-4,
    "buffer_size": 100_000,
    "batch_size": 32,
    "gamma": 0.99,
    "train_freq": 1,
    "target_update_interval": 1_000,
}
OURS = {"uadqn": UADQNAlgorithm, "qrdqn-skuq": partial(QuantileDQN, exploration_fraction=0.5)}
PEERS = {
    "qrdqn": (sb3_contrib.QRDQN, {"n_quantiles": 50}),
    "dqn": (stable_baselines3.DQN, {}),
}


PEER = "qrdqn"
CLOCKS = {"second": time.perf_counter, "cpu_second": time.process_time}


def make_agent(method: str, dataset: str, seed: int):
    """Create an agent, and train it until caches and thread pools are warm."""
    name, policy, network = PROBLEMS[dataset]
    if method in OURS:
        agent = OURS[method](policy, make_env(name), learning_starts=200, seed=seed)
    else:
        algorithm, own = PEERS[method]
        options = {**COMMON, "policy_kwargs": {**network, **ADAM, **own}}
        agent = algorithm("MlpPolicy", make_env(name), learning_starts=200, seed=seed, **options)
    return agent.learn(500)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=4_000, help="timed steps of each method")
    arguments.add_argument("--rounds", type=int, default=40)
    arguments.add_argument("--dataset", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    arguments.add_argument("--methods", nargs="+", choices=[*OURS, *PEERS], default=[*OURS, *PEERS])
    args = arguments.parse_args()
    set_threads(args)
    found = [each for dataset in args.dataset for each in compared(dataset, args)]
    finish("uadqn_speed", args, found, AGENT_PACKAGES)


def compared(dataset: str, args) -> list[dict]:
    """Measure steps per second of all methods, and their ratios, by CPU and wall-clock time."""
    agents = {name: make_agent(name, dataset, args.seed) for name in args.methods}
    steps = max(args.steps // args.rounds, 1)
    rounds = [{name: timed(agents[name], steps) for name in agents} for _ in range(args.rounds)]
    records = []
    for clock in CLOCKS:
        rates = {name: np.array([each[name][clock] for each in rounds]) for name in agents}
        figures = {("steps_per_" + clock, name): rate for name, rate in rates.items()}
        if PEER in rates:
            ratios = {name: rate / rates[PEER] for name, rate in rates.items()}
            figures |= {(f"times_{PEER}_by_{clock}", name): ratios[name] for name in ratios}
        for (metric, name), values in figures.items():
            spread = values.std(ddof=min(1, len(values) - 1))
            records.append(record(name, dataset, metric, np.median(values), args.steps, spread))
            print(f"{dataset:17s} {metric:26s} {name:11s} {np.median(values):8.2f} +- {spread:.2f}")
    return records


def timed(agent, steps: int) -> dict[str, float]:
    """Measure training steps per second, by CPU and wall-clock time."""
    start = {clock: now() for clock, now in CLOCKS.items()}
    agent.learn(steps, reset_num_timesteps=False)
    return {clock: steps / (now() - start[clock]) for clock, now in CLOCKS.items()}


if __name__ == "__main__":
    main()
