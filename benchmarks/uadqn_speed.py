"""Environment steps a second while training on MinAtar: batch of 32, one update per step.

UADQN, and QR-DQN as it shares networks and loss with it, beside sb3-contrib's own QR-DQN and
stable-baselines3's own DQN, all with the same network (16 filters, 128 units, 50 quantiles) and
Adam; the peers take torch's default form of Adam, as their users do, UADQN the fused one. The
methods take turns in short rounds, each for the same number of steps, and figures are medians of
rounds. The ratio to sb3-contrib's QR-DQN is the median of each round's own ratio. By CPU time,
other load on the machine costs all methods what it takes from their caches, but no waiting; by
the clock, it costs waiting too. The authors' code made 103 (UADQN) and 309 (QR-DQN) steps per
second of CPU time on one thread of a machine with two cores, on breakout.
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


PEER = "qrdqn"
CLOCKS = {"second": time.perf_counter, "cpu_second": time.process_time}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=4_000, help="timed steps of each method")
    arguments.add_argument("--rounds", type=int, default=40)
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
    steps = max(args.steps // args.rounds, 1)
    rounds = [{name: timed(agents[name], steps) for name in agents} for _ in range(args.rounds)]
    dataset, records = f"minatar_{args.game.lower()}", []
    for clock in CLOCKS:
        rates = {name: np.array([each[name][clock] for each in rounds]) for name in agents}
        figures = {("steps_per_" + clock, name): rate for name, rate in rates.items()}
        if PEER in rates:
            ratios = {name: rate / rates[PEER] for name, rate in rates.items()}
            figures |= {(f"times_{PEER}_by_{clock}", name): ratios[name] for name in ratios}
        for (metric, name), values in figures.items():
            spread = values.std(ddof=min(1, len(values) - 1))
            records.append(record(name, dataset, metric, np.median(values), args.steps, spread))
            print(f"{metric:30s} {name:12s} {np.median(values):8.2f} +- {spread:.2f}")
    finish("uadqn_speed", args, records, AGENT_PACKAGES)


def timed(agent, steps: int) -> dict[str, float]:
    """Steps that an agent learns from in a second by each clock."""
    start = {clock: now() for clock, now in CLOCKS.items()}
    agent.learn(steps, reset_num_timesteps=False)
    return {clock: steps / (now() - start[clock]) for clock, now in CLOCKS.items()}


if __name__ == "__main__":
    main()
