"""Fig. 2 of the UADQN paper: falls off the windy cliff during training, and the final path.

QR-DQN is compared with UADQN: risk-neutral, and risk-averse with either estimate of aleatoric
uncertainty. All have the settings of the released code and midpoint quantile levels, and differ
only in the choice of actions. Finished runs are stored in ``--out`` and not repeated; empty the
folder after a change of code. A stored run also contains learning curves, with one figure for each
tenth of its steps, and the final estimates of the agent at the start cell.
"""

from collections.abc import Sequence

import numpy as np
from joblib import Parallel, delayed
from scipy.stats import t

from benchmarks.harness import AGENT_PACKAGES, finish, kept_run, parser, record, set_threads
from skuq.uadqn import (
    GRIDWORLD,
    QuantileDQN,
    TrainingHistory,
    UADQNAlgorithm,
    estimate_action,
    make_env,
)

COMMON = {
    "learning_rate": GRIDWORLD["learning_rate"],
    "gamma": GRIDWORLD["gamma"],
    **GRIDWORLD["algorithm_kwargs"],
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
RISK_ESTIMATES = "uadqn-variant-2", "uadqn-variant-1"  # compared in pairs by seed
LEDGE, GOAL = {6, 7, 8}, 9
SAFE_RETURN = 4  # along the upper row; the return along the ledge is 6 without a fall
UP, RIGHT = 0, 1
TENTHS = 10


def train(method: str, seed: int, steps: int, args) -> dict:
    """Train one agent; count its falls and determine its path without wind."""
    set_threads(args)
    algorithm, options = METHODS[method]
    agent = algorithm(
        "MlpPolicy", make_env("CliffWind-v0"), seed=seed, device="cpu", **COMMON, **options
    )
    history = TrainingHistory()
    agent.learn(steps, callback=history)
    frame = history.to_frame()
    path = walk(agent)
    safely = (frame.score == SAFE_RETURN) & (frame.falls == 0)
    run = {
        "falls": int(frame.falls.sum()),
        "falls_late": int(frame.falls[frame.step > steps / 2].sum()),
        "return_late": float(frame.score.tail(100).mean()),
        "safe": GOAL in path and not LEDGE.intersection(path),
        "path": path,
        "falls_curve": by_tenth(frame, frame.falls, steps),
        "safe_episodes_curve": by_tenth(frame, safely, steps),
        "start": beliefs_at_the_start(agent),
    }
    print(f"{method:16s} seed {seed}: {run}", flush=True)
    return run


def by_tenth(frame, counted, steps: int) -> list[int]:
    """Sum a column over the episodes that ended in each tenth of the steps."""
    tenth = (frame.step - 1) * TENTHS // steps
    return [int(counted[tenth == i].sum()) for i in range(TENTHS)]


def beliefs_at_the_start(agent) -> dict[str, dict[str, float]]:
    """Estimate mean and aleatoric standard deviation of the actions up and right."""
    start, _ = make_env("CliffWind-v0").reset()
    estimates = {
        name: estimate_action(agent, start, action)
        for name, action in (("up", UP), ("right", RIGHT))
    }
    return {
        name: {"mean": estimate.value, "deviation": estimate.aleatoric}
        for name, estimate in estimates.items()
    }


def walk(agent) -> list[int]:
    """Follow the agent's best actions without wind, and return the visited cells."""
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
    runs = {m: [run for run, (of, _) in zip(runs, tasks, strict=True) if of == m] for m in METHODS}
    records = []
    for method in args.methods:
        for metric in ("falls", "falls_late", "return_late", "safe"):
            records += figures(method, metric, [run[metric] for run in runs[method]])
    if set(RISK_ESTIMATES) <= set(args.methods):
        pairs = zip(*(runs[method] for method in RISK_ESTIMATES), strict=True)
        more = [own["falls"] - other["falls"] for own, other in pairs]
        records += figures(RISK_ESTIMATES[0], "falls_more_than_variant_1", more)
    finish("uadqn_cliff", args, records, AGENT_PACKAGES)


def figures(method: str, metric: str, values: Sequence[float]) -> list[dict]:
    """Build records of the mean over seeds and its 95 % interval."""
    mean, n = np.mean(values), len(values)
    spread = np.std(values, ddof=1) if n > 1 else np.nan
    half = t.ppf(0.975, n - 1) * spread / n**0.5
    ends = {metric: mean, f"{metric}_95_low": mean - half, f"{metric}_95_high": mean + half}
    return [record(method, "cliff_wind", name, value, n, spread) for name, value in ends.items()]


if __name__ == "__main__":
    main()
