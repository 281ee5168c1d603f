"""Fig. 2 of the UADQN paper: falls off the windy cliff while learning, and the path learnt.

QR-DQN, and UADQN risk-neutral and risk-averse by either estimate of aleatoric uncertainty, all
with the settings of the released code and quantiles at midpoint levels. They differ in the choice
of actions alone. Finished runs are kept in ``--out`` and not repeated: empty it after a change of
code.
"""

import numpy as np
from joblib import Parallel, delayed
from scipy.stats import t

from benchmarks.harness import AGENT_PACKAGES, finish, kept_run, parser, record, set_threads
from skuq.uadqn import GRIDWORLD, QuantileDQN, TrainingHistory, UADQNAlgorithm, make_env

COMMON = {
    name: value
    for name, value in GRIDWORLD.items()
    if name not in ("epistemic_factor", "aleatoric_factor")
}
BETA = {"epistemic_factor": GRIDWORLD["epistemic_factor"]}
METHODS = {
    "qrdqn": (QuantileDQN, {"exploration_fraction": 0.2, "exploration_final_eps": 0.05}),
    "uadqn-neutral": (UADQNAlgorithm, {**BETA, "aleatoric_factor": 0.0}),
    "uadqn-variant-1": (
        UADQNAlgorithm,
        {**BETA, "aleatoric_factor": 0.5, "aleatoric": "variance"},
    ),
    "uadqn-variant-2": (UADQNAlgorithm, {**BETA, "aleatoric_factor": 0.5}),
}
LEDGE, GOAL = {6, 7, 8}, 9


def train(method: str, seed: int, steps: int, args) -> dict:
    """Train one agent; count its falls and walk its path without wind."""
    set_threads(args)
    algorithm, options = METHODS[method]
    agent = algorithm(
        "MlpPolicy", make_env("CliffWind-v0"), seed=seed, device="cpu", **COMMON, **options
    )
    history = TrainingHistory()
    agent.learn(steps, callback=history)
    frame = history.to_frame()
    path = walk(agent)
    run = {
        "falls": int(frame.falls.sum()),
        "falls_late": int(frame.falls[frame.step > steps / 2].sum()),
        "return_late": float(frame.score.tail(100).mean()),
        "safe": GOAL in path and not LEDGE.intersection(path),
        "path": path,
    }
    print(f"{method:16s} seed {seed}: {run}", flush=True)
    return run


def walk(agent) -> list[int]:
    """Cells that the agent's best actions lead through when there is no wind."""
    env = make_env("CliffWind-v0", wind=0.0)
    observation, _ = env.reset()
    path, ended = [], False
    while not ended:
        action, _ = agent.predict(observation, deterministic=True)
        observation, _, terminated, truncated, _ = env.step(int(action))
        path.append(int(observation.argmax()))
        ended = terminated or truncated
    return path


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=10_000)
    arguments.add_argument("--seeds", type=int, default=30)
    arguments.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    arguments.add_argument("--jobs", type=int, default=1, help="agents trained side by side")
    args = arguments.parse_args()
    tasks = [(m, args.seed + seed) for seed in range(args.seeds) for m in args.methods]
    runs = Parallel(n_jobs=args.jobs, batch_size=1, pre_dispatch="n_jobs")(
        delayed(kept_run)(train, method, seed, args.steps, args=args) for method, seed in tasks
    )
    records = []
    for method in args.methods:
        own = [run for run, (m, _) in zip(runs, tasks, strict=True) if m == method]
        n = len(own)
        for metric in ("falls", "falls_late", "return_late", "safe"):
            values = np.array([run[metric] for run in own], float)
            spread = values.std(ddof=1) if n > 1 else 0.0
            name = "safe_share" if metric == "safe" else metric
            records.append(record(method, "cliff_wind", name, values.mean(), n, spread))
            if metric == "falls" and n > 1:
                half = t.ppf(0.975, n - 1) * spread / n**0.5
                low, high = values.mean() - half, values.mean() + half
                records.append(record(method, "cliff_wind", "falls_95_low", low, n))
                records.append(record(method, "cliff_wind", "falls_95_high", high, n))
    finish("uadqn_cliff", args, records, AGENT_PACKAGES)


if __name__ == "__main__":
    main()
