"""Environment steps a second while training on MinAtar: batch of 32, one update per step.

UADQN, and QR-DQN as it shares networks and loss with it, beside sb3-contrib's own QR-DQN and
stable-baselines3's own DQN, all with the same network (16 filters, 128 units, 50 quantiles). The
methods take turns in short rounds, so that other load on the machine meets all of them; the
figure is the median round. Records of the authors' code are those measured on a machine of this
kind, 12,000 steps on breakout.
"""

import time

import numpy as np
import sb3_contrib
import stable_baselines3

from benchmarks.harness import finish, parser, record, set_threads
from skuq.uadqn import QuantileDQN, UADQNAlgorithm, make_env
from skuq.uadqn.policies import GridCNN

AUTHORS = {"uadqn-authors": 103.0, "qrdqn-authors": 309.0}
NETWORK = {
    "features_extractor_class": GridCNN,
    "net_arch": [128],
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
    "uadqn": (UADQNAlgorithm, "CnnPolicy", {}),
    "qrdqn-skuq": (QuantileDQN, "CnnPolicy", {}),
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
    rates = {name: [] for name in agents}
    for _ in range(args.rounds):
        for name, agent in agents.items():
            steps = max(args.steps // args.rounds, 1)
            start = time.perf_counter()
            agent.learn(steps, reset_num_timesteps=False)
            rates[name].append(steps / (time.perf_counter() - start))
    dataset = f"minatar_{args.game.lower()}"
    records = []
    for name, values in rates.items():
        rate, spread = np.median(values), np.std(values)
        records.append(record(name, dataset, "steps_per_second", rate, args.steps, spread))
        print(f"{name:12s} {rate:.0f} steps/s")
    for name, rate in AUTHORS.items():
        records.append(record(name, dataset, "steps_per_second", rate, 12_000))
    for peer in ("qrdqn", "uadqn-authors"):
        known = {r["method"]: r["value"] for r in records}
        if "uadqn" in known and peer in known:
            ratio = known["uadqn"] / known[peer]
            records.append(record("uadqn", dataset, f"times_faster_than_{peer}", ratio, args.steps))
    finish("uadqn_speed", args, records)


if __name__ == "__main__":
    main()
