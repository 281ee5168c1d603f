"""Accidents and return on a windy grid above lava: UADQN, and QR-DQN with CVaR.

Start and goal are the ends of the bottom row; the cells between them are lava, which ends an
episode. Above the lava, wind blows the agent one cell down with probability .05 at each step. The
goal is worth 20, lava costs 2, and the discount factor is .85. The shortest path has the highest
return and the most accidents; each row further up costs two steps and reduces accidents. UADQN and
QR-DQN are trained risk-neutrally, with the same networks and settings, and then evaluated with
several risk settings in the same test episodes:

- QR-DQN: by the mean of all quantiles, or of the lowest ones (CVaR),
- UADQN: by the mean minus lambda aleatoric standard deviations, and its value network by CVaR.

For reference, dynamic programming computes the optimal policies: no policy with as few accidents
has a higher return. Finished runs are stored in ``--out`` and not repeated; empty the folder after
a change of code. The plot is also written to ``--out``.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import gymnasium as gym
import matplotlib
import numpy as np
from joblib import Parallel, delayed
from scipy.stats import t
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.harness import AGENT_PACKAGES, finish, kept_run, parser, record, set_threads
from benchmarks.uadqn_cliff import BETA, COMMON
from skuq.uadqn import QuantileDQN, TrainingHistory, UADQNAlgorithm, play_episodes

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgba

DATASET = "windy_lava"
HEIGHT, WIDTH = 4, 6
WIND, DISCOUNT, TIME_LIMIT = 0.05, 0.85, 40
GOAL_REWARD, LAVA_REWARD = 20.0, -2.0
START, GOAL = (HEIGHT - 1, 0), (HEIGHT - 1, WIDTH - 1)
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left
N_ENVS = 8
ALGORITHMS = {
    # With a shorter exploration, QR-DQN does not find the goal with some seeds.
    "qrdqn": (QuantileDQN, {"exploration_fraction": 0.8, "exploration_final_eps": 0.05}),
    "uadqn": (UADQNAlgorithm, {**BETA, "aleatoric_factor": 0.0}),
}
LAMBDAS, LEVELS = (0.0, 0.5, 1.0, 2.0), (0.5, 0.25, 0.1)
# Cost of an accident in addition to its return, by which the best setting of each agent is selected
# for a paired comparison by seed. Both agents have equally many settings.
PRICE = 10.0
PENALTIES = (0, 1, 3, 5, 10, 30, 100, 300, 1000)  # costs of an accident, for the optimal policies
FAMILIES = {  # curves of the plot: methods; colour, marker, offset of annotations, label
    "qrdqn": (
        ["qrdqn_mean", *(f"qrdqn_cvar_{level}" for level in LEVELS)],
        ("#D55E00", "o", (4, 5), "QR-DQN, CVaR"),
    ),
    "cvar": (
        [f"uadqn_cvar_{level}" for level in LEVELS],
        ("#808080", "^", (5, -10), "UADQN's value network, CVaR"),
    ),
    "uadqn": (
        [f"uadqn_lambda_{factor}" for factor in LAMBDAS],
        ("#2458a6", "s", (-16, 6), "UADQN, $\\lambda$"),
    ),
}


def outcomes(cell: tuple[int, int], action: int) -> list[tuple[float, tuple[int, int]]]:
    """List the next cells of an action with their probabilities, without and with wind."""
    row, column = np.add(cell, MOVES[action])
    row, column = int(np.clip(row, 0, HEIGHT - 1)), int(np.clip(column, 0, WIDTH - 1))
    if ended((row, column)) or not 0 < column < WIDTH - 1:
        return [(1.0, (row, column))]
    return [(1 - WIND, (row, column)), (WIND, (row + 1, column))]


def ended(cell: tuple[int, int]) -> bool:
    return cell[0] == HEIGHT - 1 and cell[1] > 0


def burnt(cell: tuple[int, int]) -> bool:
    return ended(cell) and cell != GOAL


def reward(cell: tuple[int, int]) -> float:
    return GOAL_REWARD if cell == GOAL else LAVA_REWARD if burnt(cell) else 0.0


class WindyLava(gym.Env):
    """Grid world above lava, with one-hot observations; ``info["fell"]`` is True for accidents."""

    def __init__(self) -> None:
        self.action_space = gym.spaces.Discrete(len(MOVES))
        self.observation_space = gym.spaces.Box(0.0, 1.0, (HEIGHT * WIDTH,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.cell = START
        return one_hot(self.cell), {"fell": False}

    def step(self, action):
        *_, (probability, cell) = possible = outcomes(self.cell, int(action))
        gust = self.np_random.random() < probability
        self.cell = cell if gust else possible[0][1]
        fell = burnt(self.cell)
        return one_hot(self.cell), reward(self.cell), ended(self.cell), False, {"fell": fell}


def one_hot(cell: tuple[int, int]) -> np.ndarray:
    observation = np.zeros(HEIGHT * WIDTH, np.float32)
    observation[cell[0] * WIDTH + cell[1]] = 1
    return observation


def make() -> gym.Env:
    return gym.wrappers.TimeLimit(WindyLava(), TIME_LIMIT)


def best_policy(penalty: float) -> tuple[float, float]:
    """Compute accidents and return of the optimal policy for a given penalty on accidents."""
    cells = [(row, column) for row in range(HEIGHT) for column in range(WIDTH)]
    # Values of each cell under the policy: return, discounted and undiscounted accidents.
    ahead = {cell: np.zeros(3) for cell in cells}
    discounts = np.array([DISCOUNT, DISCOUNT, 1.0])
    for _ in range(300):  # value iteration
        for cell in cells:
            if not ended(cell):
                ways = [
                    sum(
                        p * (np.array([reward(to), burnt(to), burnt(to)]) + discounts * ahead[to])
                        for p, to in outcomes(cell, action)
                    )
                    for action in range(len(MOVES))
                ]
                ahead[cell] = max(ways, key=lambda way: way[0] - penalty * way[1])
    return float(ahead[START][2]), float(ahead[START][0])


def train_and_test(name: str, seed: int, args) -> dict:
    """Train one agent, and evaluate it on the same episodes with each of its risk settings."""
    set_threads(args)
    algorithm, options = ALGORITHMS[name]
    settings = COMMON | options | {"gamma": DISCOUNT, "target_update_interval": N_ENVS * 100}
    agent = algorithm("MlpPolicy", make_vec_env(make, N_ENVS), seed=seed, device="cpu", **settings)
    history = TrainingHistory()
    agent.learn(args.steps, callback=history)
    run = {"training_accidents": int(history.to_frame().falls.sum())}
    for rule, act in rules(name, agent).items():
        played = play_episodes(make, act, range(10_000, 10_000 + args.episodes))
        run[rule] = {
            "accidents": float(np.mean([episode.falls for episode in played])),
            "return": float(np.mean([e.score * DISCOUNT ** (e.steps - 1) for e in played])),
            "timeouts": float(np.mean([episode.steps == TIME_LIMIT for episode in played])),
        }
    print(f"{name} seed {seed}: {run}", flush=True)
    return run


def rules(name: str, agent: QuantileDQN) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Build the rules by which a trained agent can choose actions."""

    def by_cvar(level: float):
        def act(observations: np.ndarray) -> np.ndarray:
            lowest = np.sort(agent.predict_quantiles(observations)[0], -1)
            return lowest[..., : round(level * lowest.shape[-1])].mean(-1).argmax(-1)

        return act

    def by_lambda(factor: float):
        def act(observations: np.ndarray) -> np.ndarray:
            agent.aleatoric_factor = factor
            return agent.predict(observations, deterministic=True)[0]

        return act

    chosen = {f"{name}_cvar_{level}": by_cvar(level) for level in LEVELS}
    if name == "qrdqn":
        return {"qrdqn_mean": by_cvar(1.0), **chosen}
    return {f"uadqn_lambda_{factor}": by_lambda(factor) for factor in LAMBDAS} | chosen


def worth(result: dict[str, float]) -> float:
    """Compute the return minus the cost of accidents."""
    return result["return"] - PRICE * result["accidents"]


def figures(method: str, metric: str, values: Sequence[float]) -> list[dict]:
    """Build records of the mean over seeds and its 95 % interval."""
    mean, spread, n = np.mean(values), np.std(values, ddof=1), len(values)
    half = t.ppf(0.975, n - 1) * spread / n**0.5
    ends = {metric: mean, f"{metric}_95_low": mean - half, f"{metric}_95_high": mean + half}
    return [record(method, DATASET, name, value, n, spread) for name, value in ends.items()]


def draw(path: Path, records: list[dict]) -> None:
    """Plot return against accidents: means with intervals, and the optimal policies."""
    value = {(r["method"], r["metric"]): r["value"] for r in records}
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    best = [(value[f"best_{p}", "accidents"], value[f"best_{p}", "return"]) for p in PENALTIES]
    axes.plot(*np.array(best).T, ":", color="black", label="best policies")
    for methods, (colour, marker, place, label) in FAMILIES.values():
        points, bars = [], []
        for metric in ("accidents", "return"):
            mean = np.array([value[method, metric] for method in methods])
            low = np.array([value[method, metric + "_95_low"] for method in methods])
            points.append(mean)
            bars.append(mean - low)
        style = {"marker": marker, "color": colour, "lw": 1, "label": label}
        axes.errorbar(*points, *bars[::-1], ecolor=to_rgba(colour, 0.3), **style)
        for method, *at in zip(methods, *points, strict=True):
            setting = method.rpartition("_")[2]
            axes.annotate(setting, at, place, textcoords="offset points", fontsize=7, color=colour)
    axes.set(xlabel="share of episodes with an accident", ylabel="return", xlim=(-0.01, None))
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=12_000)
    arguments.add_argument("--episodes", type=int, default=1_000, help="test episodes")
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument("--jobs", type=int, default=1, help="agents trained side by side")
    args = arguments.parse_args()
    tasks = [(name, args.seed + seed) for seed in range(args.seeds) for name in ALGORITHMS]
    runs = Parallel(n_jobs=args.jobs, batch_size=1, pre_dispatch="n_jobs")(
        delayed(kept_run)(train_and_test, name, seed, args=args) for name, seed in tasks
    )
    records, tested = [], {}
    for name in ALGORITHMS:
        own = [run for run, (of, _) in zip(runs, tasks, strict=True) if of == name]
        counts = [run.pop("training_accidents") for run in own]
        records += figures(name, "training_accidents", counts)
        tested |= {rule: [run[rule] for run in own] for rule in own[0]}
    for rule, results in tested.items():
        for metric in results[0]:
            records += figures(rule, metric, [result[metric] for result in results])
        records += figures(rule, "worth", [worth(result) for result in results])
    best = {}
    for name in ("uadqn", "qrdqn"):
        worths = {rule: [worth(result) for result in tested[rule]] for rule in FAMILIES[name][0]}
        best[name] = worths[max(worths, key=lambda rule: np.mean(worths[rule]))]
    records += figures("uadqn", "best_worth_more_than_qrdqn", np.subtract(*best.values()))
    for penalty in PENALTIES:
        accidents, returned = best_policy(penalty)
        records.append(record(f"best_{penalty}", DATASET, "accidents", accidents, 1))
        records.append(record(f"best_{penalty}", DATASET, "return", returned, 1))
    if args.out is not None:
        draw(args.out / "uadqn_safety.png", records)
    finish("uadqn_safety", args, records, AGENT_PACKAGES)


if __name__ == "__main__":
    main()
