"""UADQN beside QR-DQN, DQN and bootstrapped DQN on MinAtar: learning curves over seeds.

All agents have the settings of the paper's Table 1, quantiles at the levels that the paper
prints, and the full set of six actions, as its authors' runs had. QR-DQN is `QuantileDQN`: it
shares loss and networks with UADQN and differs in the choice of actions. DQN is
stable-baselines3's, with its loss and initial weights. A score is the mean over training
episodes that end in the last 100,000 steps; bands of the curves are one standard error over
seeds. Finished runs are kept in ``--out`` and not repeated: empty it after a change of code.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, delayed

from benchmarks.harness import AGENT_PACKAGES, finish, kept_run, parser, record, set_threads
from skuq.uadqn import BootstrappedDQN, DQNAlgorithm, QuantileDQN, TrainingHistory, UADQNAlgorithm
from skuq.uadqn._envs import make_env

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
METHODS = {
    "uadqn": UADQNAlgorithm,
    "qrdqn": QuantileDQN,
    "dqn": DQNAlgorithm,
    "bootstrapped": BootstrappedDQN,
}
COLOURS = ("#0072b2", "#d55e00", "#555555", "#009e73")
EXPLORATION_STEPS = 100_000
WINDOW = 100_000  # steps that a score is averaged over
N_POINTS = 40  # of a learning curve


def train(method: str, game: str, seed: int, steps: int, args) -> dict:
    """Train one agent; return its learning curve and final score."""
    set_threads(args)
    # Levels of quantiles as the paper prints them; the others have none.
    options = {"policy_kwargs": {"levels": "paper"}} if method in ("uadqn", "qrdqn") else {}
    if method != "uadqn":
        options["exploration_fraction"] = min(1.0, EXPLORATION_STEPS / steps)
    env = make_env(f"MinAtar/{game.title().replace('_', '')}-v0")
    agent = METHODS[method]("GridPolicy", env, seed=seed, device=args.device, **options)
    history = TrainingHistory()
    agent.learn(steps, callback=history)
    frame = history.to_frame()
    points = np.linspace(0, steps, N_POINTS + 1)[1:].astype(int).tolist()
    run = {
        "method": method,
        "game": game,
        "seed": seed,
        "steps": points,
        "scores": [recent_score(frame, point, steps // N_POINTS) for point in points],
        "score": recent_score(frame, steps, min(WINDOW, steps)),
        "exploratory": float(frame.exploratory.tail(50).mean()),
    }
    print(f"{game:15s} {method:6s} seed {seed}: {run['score']:.2f}", flush=True)
    return run


def recent_score(history: pd.DataFrame, step: int, window: int) -> float:
    """Mean score of the episodes that ended in the last steps before one; NaN if none did."""
    ended = history[(history.step > step - window) & (history.step <= step)]
    return float(ended.score.mean())


def released(game: str, steps: int, folder: Path) -> dict[str, float]:
    """Scores of the authors' own single runs after that many steps, where known."""
    name = "uadqn_released_curves.json"
    path = next((p for p in (folder / name, folder.parent / name) if p.exists()), None)
    if path is None:
        return {}
    curves = json.loads(path.read_text())
    names = {"uadqn": "UADQN", "qrdqn": "QRDQN", "dqn": "DQN", "bootstrapped": "Bootstrapped"}
    found = {method: curves.get(f"{game}-{name}", {}) for method, name in names.items()}
    return {m: curve[str(steps)] for m, curve in found.items() if str(steps) in curve}


def plot(runs: list[dict], games: list[str], path: Path) -> None:
    """Learning curves: mean over seeds, band of one standard error."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(games), figsize=(4 * len(games), 3.4), squeeze=False)
    for axis, game in zip(axes[0], games, strict=True):
        for method, colour in zip(METHODS, COLOURS, strict=True):
            own = [run for run in runs if (run["game"], run["method"]) == (game, method)]
            if not own:
                continue
            scores = np.array([run["scores"] for run in own], float)
            spread = scores.std(0, ddof=min(1, len(own) - 1))
            mean, error = scores.mean(0), spread / len(own) ** 0.5
            axis.plot(own[0]["steps"], mean, color=colour, label=f"{method} ({len(own)} seeds)")
            axis.fill_between(own[0]["steps"], mean - error, mean + error, color=colour, alpha=0.2)
        axis.set(title=game.replace("_", " "), xlabel="steps", ylabel="score of an episode")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--game", nargs="+", choices=GAMES, default=["breakout"])
    arguments.add_argument("--steps", type=int, default=200_000)
    arguments.add_argument("--seeds", type=int, default=3, help="seeds of each agent")
    arguments.add_argument(
        "--methods", nargs="+", choices=list(METHODS), default=["uadqn", "qrdqn", "dqn"]
    )
    arguments.add_argument("--jobs", type=int, default=1, help="agents trained side by side")
    arguments.add_argument("--device", default="auto")
    args = arguments.parse_args()
    tasks = [
        delayed(kept_run)(train, method, game, args.seed + seed, args.steps, args=args)
        for seed in range(args.seeds)
        for game in args.game
        for method in args.methods
    ]
    runs = Parallel(n_jobs=args.jobs, batch_size=1, pre_dispatch="n_jobs")(tasks)
    records = []
    for game in args.game:
        reference = released(game, args.steps, args.data_dir)
        for method in args.methods:
            scores = [r["score"] for r in runs if (r["game"], r["method"]) == (game, method)]
            spread = np.std(scores, ddof=1) if len(scores) > 1 else 0.0
            records.append(record(method, game, "score", np.mean(scores), len(scores), spread))
            if method in reference:
                records.append(record(f"{method}-released", game, "score", reference[method], 1))
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        plot(runs, args.game, args.out / "uadqn_minatar.png")
    finish("uadqn_minatar", args, records, AGENT_PACKAGES)


if __name__ == "__main__":
    main()
