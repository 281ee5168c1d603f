"""Environment steps a second while training on MinAtar: batch of 32, one update per step.

UADQN, and QR-DQN as it shares networks and loss with it, beside sb3-contrib's own QR-DQN and
stable-baselines3's own DQN, all with the same network (16 filters, 128 units, 50 quantiles) and
Adam; the peers take torch's default form of Adam, as their users do, UADQN the fused one. The
methods take turns in short rounds, so that other load on the machine meets all of them; the
figure is the median round, by the clock. The authors' code made 103 (UADQN) and 309 (QR-DQN)
steps per second of CPU time on one thread of a machine with two cores, on breakout;
``steps_per_cpu_second`` compares with that.
"""

import time

import numpy as np
import sb3_contrib
import stable_baselines3
import torch

from benchmarks.harness import AGENT_PACKAGES, finish, parser, record, set_threads
from skuq.uadqn import QuantileDQN, UADQNAlgorithm, make_env
from skuq.uadqn._policies import GridCNN

NETWORK = {
    "features_extractor_class": GridCNN,
    "net_arch": [128],
    "optimizer_class": torch.optim.Adam,
    "optimizer_kwargs": {"eps": 1e-8},
}
COMMON = {
    "learning_rate": 1e-4,
    "buffer_size": 100_000,
    "batch_size": 32,
    "gamma": 0.99,
    "train_freq": 1,
    "target_update_interval": 1_000,
}
# (algorithm, policy, options)
METHODS = {
    "uadqn": (UADQNAlgorithm, "GridPolicy", {}),
    "qrdqn-skuq": (QuantileDQN, "GridPolicy", {}),
    "qrdqn": (
        sb3_contrib.QRDQN,
        "MlpPolicy",
        {**COMMON, "policy_kwargs": {**NETWORK, "n_quantiles": 50}},
    ),
    "dqn": (stable_baselines3.DQN, "MlpPolicy", {**COMMON, "policy_kwargs": NETWORK}),
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.set_defaults(threads=2)
    arguments.add_argument("--steps", type=int, default=10_000, help="timed steps of each method")
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--game", default="Breakout")
    arguments.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    args = arguments.parse_args()
    set_threads(args)
    agents = {}
    for name in args.methods:
        algorithm, policy, options = METHODS[name]
        env = make_env(f"MinAtar/{args.game}-v0")
        agents[name] = algorithm(policy, env, learning_starts=200, seed=args.seed, **options)
        agents[name].learn(500)  # past the first update, caches and thread pools are warm
    rates = {name: ([], []) for name in agents}
    steps = max(args.steps // args.rounds, 1)
    for _ in range(args.rounds):
        for name, agent in agents.items():
            start, cpu = time.perf_counter(), time.process_time()
            agent.learn(steps, reset_num_timesteps=False)
            rates[name][0].append(steps / (time.perf_counter() - start))
            rates[name][1].append(steps / (time.process_time() - cpu))
    dataset = f"minatar_{args.game.lower()}"
    records = []
    for name, measured in rates.items():
        metrics = ("steps_per_second", "steps_per_cpu_second")
        for metric, values in zip(metrics, measured, strict=True):
            rate, spread = np.median(values), np.std(values, ddof=min(1, len(values) - 1))
            records.append(record(name, dataset, metric, rate, args.steps, spread))
        print(f"{name:12s} {np.median(measured[0]):.0f} steps/s")
    if {"uadqn", "qrdqn"} <= set(rates):
        names = ("times_faster_than_qrdqn", "times_faster_than_qrdqn_by_cpu_time")
        for name, own, peers in zip(names, rates["uadqn"], rates["qrdqn"], strict=True):
            ratios = np.divide(own, peers)
            ratio, spread = np.median(ratios), np.std(ratios, ddof=min(1, len(ratios) - 1))
            records.append(record("uadqn", dataset, name, ratio, args.steps, spread))
            print(f"{name}: {ratio:.2f} +- {spread:.2f}")
    finish("uadqn_speed", args, records, AGENT_PACKAGES)


if __name__ == "__main__":
    main()
