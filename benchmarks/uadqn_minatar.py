"""Learning curves of UADQN, QR-DQN, DQN and bootstrapped DQN on MinAtar over seeds.

All agents have the settings of the paper's Table 1, quantiles at the levels that the paper prints,
and the full set of six actions, as in the authors' runs. QR-DQN is `QuantileDQN`: it has the same
loss and networks as UADQN and differs only in the choice of actions. DQN is that of
stable-baselines3, with its loss and initial weights. A score is the mean over training episodes
that end in the last 100,000 steps, or in all steps if there are fewer; a late score is the mean
over the second half of the steps, if there are fewer than 200,000. The authors' runs are averaged
in the same way (`benchmarks.uadqn_released`).

The curve of each finished run is stored in ``--out``, and ``--record`` stores it in
``results/uadqn_minatar.csv``; runs whose curves are stored are not repeated, so an interrupted
benchmark loses only the runs in progress. ``--no-training`` evaluates stored curves. Curves and
records are interquartile means over seeds (means for fewer than four seeds), with 95 % intervals
from 2,000 bootstrap samples, as in Agarwal et al., "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", 2021.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from scipy.stats import bootstrap, trim_mean

from benchmarks.harness import (
    AGENT_PACKAGES,
    RESULTS,
    finish,
    kept_run,
    parser,
    record,
    set_threads,
)
from benchmarks.uadqn_baselines import METHODS as ALGORITHMS
from skuq.files import atomic_path
from skuq.uadqn import TrainingHistory, make_env

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
METHODS = ("uadqn", "qrdqn", "dqn", "bootstrapped")
LABELS = {"uadqn": "UADQN", "qrdqn": "QR-DQN", "dqn": "DQN", "bootstrapped": "Bootstrapped DQN"}
COLOURS = ("#0072b2", "#d55e00", "#555555", "#009e73")
WINDOW = 100_000  # number of steps over which a score is averaged
N_POINTS = 40  # points of a learning curve
CURVES = RESULTS / "uadqn_minatar.csv"  # curves of finished runs, which are not repeated
RELEASED = RESULTS / "uadqn_released.csv"  # curves of the authors' runs
RUN = ["game", "method", "seed", "steps"]  # columns that identify a run
COLUMNS = {"game": str, "method": str, "seed": int, "steps": int}
COLUMNS |= {"step": int, "episodes": int, "score": float}
NO_CURVES = pd.DataFrame(columns=list(COLUMNS)).astype(COLUMNS)
TABLE = (50_000, 100_000, 200_000, 500_000, 1_000_000)  # steps whose scores are recorded


def make_agent(game: str, method: str, seed: int, steps: int, device: str = "cpu"):
    """Create an agent with the settings of Table 1 and levels as the paper prints them."""
    options: dict = {"epistemic_factor": 0.2, "policy_kwargs": {"levels": "paper"}}
    if method != "uadqn":
        del options["epistemic_factor"]
        # Epsilon decreases over 100,000 steps.
        options["exploration_fraction"] = min(1.0, 100_000 / steps)
        options["exploration_final_eps"] = 0.03
    if method in ("dqn", "bootstrapped"):
        del options["policy_kwargs"]  # no quantiles
    env = make_env(f"MinAtar/{game.title().replace('_', '')}-v0")
    return ALGORITHMS[method]("GridPolicy", env, seed=seed, device=device, **options)


def train(game: str, method: str, seed: int, steps: int, args) -> dict:
    """Train one agent; return its learning curve."""
    set_threads(args)
    agent, history = make_agent(game, method, seed, steps, args.device), TrainingHistory()
    agent.learn(steps, callback=history)
    print(f"{game:15s} {method:12s} seed {seed}: {agent.num_timesteps} steps", flush=True)
    return binned(history.to_frame(), steps).to_dict("list")


def binned(history: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Compute number and mean score of the episodes that end in each interval of a curve."""
    points = np.linspace(0, steps, N_POINTS + 1).astype(int)
    ended = pd.cut(history.step, points, labels=points[1:])
    scores = history.score.groupby(ended, observed=False).agg(["size", "mean"]).reset_index()
    return scores.set_axis(["step", "episodes", "score"], axis=1).astype({"step": int})


def recorded_curves(path: Path = CURVES) -> pd.DataFrame:
    """Read the curves of runs that were finished earlier."""
    return pd.read_csv(path, dtype=COLUMNS) if path.exists() else NO_CURVES


def recent_score(curve: pd.DataFrame, step: int, window: int = WINDOW) -> float:
    """Mean score of the episodes that ended in the `window` steps before `step`; NaN if none."""
    ended = curve[(curve.step > step - window) & (curve.step <= step) & (curve.episodes > 0)]
    return float(np.average(ended.score, weights=ended.episodes)) if len(ended) else np.nan


def interval(scores: np.ndarray) -> tuple[float, float, float]:
    """Interquartile mean and its 95 % bootstrap interval, NaN for fewer than two scores."""
    scores = scores[np.isfinite(scores)]
    middle = float(trim_mean(scores, 0.25)) if len(scores) else np.nan
    if len(scores) < 2:
        return middle, np.nan, np.nan
    found = bootstrap(
        (scores,),
        lambda x, axis: trim_mean(x, 0.25, axis=axis),
        n_resamples=2_000,
        method="percentile",
        random_state=np.random.default_rng(0),
    )
    low, high = found.confidence_interval
    return middle, float(low), float(high)


def scores_of(curve: pd.DataFrame, step: int) -> dict[str, float]:
    """Compute the scores of a run after a number of steps, by metric."""
    found = {f"score_{step}": recent_score(curve, step)}
    if step < 2 * WINDOW:
        found[f"late_score_{step}"] = recent_score(curve, step, step // 2)
    return found


def plot(curves: pd.DataFrame, games: list[str], path: Path) -> None:
    """Plot interquartile means over seeds with intervals; the authors' runs are dashed."""
    import matplotlib.pyplot as plt

    released = recorded_curves(RELEASED)
    released = released[released.steps == curves.steps.max()]
    figure, axes = plt.subplots(1, len(games), figsize=(4 * len(games), 3.4), squeeze=False)
    for axis, game in zip(axes[0], games, strict=True):
        for method, colour in zip(METHODS, COLOURS, strict=True):
            own = curves[(curves.game == game) & (curves.method == method)]
            if own.empty:
                continue
            by_step = own.groupby("step").score
            bands = np.array([interval(scores.to_numpy()) for _, scores in by_step])
            steps, n_seeds = list(by_step.groups), own.seed.nunique()
            seeds = f"{n_seeds} seed{'s' * (n_seeds > 1)}"
            axis.plot(steps, bands[:, 0], color=colour, label=f"{LABELS[method]} ({seeds})")
            axis.fill_between(steps, bands[:, 1], bands[:, 2], color=colour, alpha=0.2)
            theirs = released[(released.game == game) & (released.method == method)]
            axis.plot(theirs.step, theirs.score, "--", color=colour, lw=1)
        axis.set(title=game.replace("_", " ").capitalize(), xlabel="steps")
        axis.locator_params(axis="x", nbins=4)  # since labels are long
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("score of an episode")
    axes[0, 0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def records(curves: pd.DataFrame) -> list[dict]:
    """Build records of scores after each number of steps, for our runs and the authors'."""
    found = []
    theirs = dict(list(recorded_curves(RELEASED).groupby(["game", "method", "steps"])))
    for (game, method, steps), own in curves.groupby(["game", "method", "steps"]):
        for step in TABLE:
            runs = [run for _, run in own.groupby("seed") if run.step.max() >= step]
            if not runs:
                continue
            table = pd.DataFrame([scores_of(run, step) for run in runs])
            for metric, scores in table.items():
                values = zip(("", "_95_low", "_95_high"), interval(scores.to_numpy()), strict=True)
                spread = np.std(scores, ddof=min(1, len(scores) - 1))
                for name, value in values:
                    found.append(record(method, game, f"{metric}{name}", value, len(runs), spread))
            released = theirs.get((game, method, steps))
            if released is not None:
                for metric, score in scores_of(released, step).items():
                    found.append(record(f"{method}-released", game, metric, score, 1))
    return found


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--game", nargs="+", choices=GAMES, default=["breakout"])
    arguments.add_argument("--steps", type=int, default=200_000)
    arguments.add_argument("--seeds", type=int, default=3, help="seeds of each agent")
    arguments.add_argument(
        "--methods", nargs="+", choices=METHODS, default=["uadqn", "qrdqn", "dqn"]
    )
    arguments.add_argument("--jobs", type=int, default=1, help="agents trained side by side")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--no-training", action="store_true", help="look at what there is")
    args = arguments.parse_args()
    runs = [
        (game, method, args.seed + seed, args.steps)
        for seed in range(args.seeds)
        for game in args.game
        for method in args.methods
    ]
    before = recorded_curves()
    finished = set(before[RUN].itertuples(index=False, name=None))
    left = [] if args.no_training else [run for run in runs if run not in finished]
    curves = Parallel(n_jobs=args.jobs, batch_size=1, pre_dispatch="n_jobs")(
        delayed(kept_run)(train, *run, args=args) for run in left
    )
    named = [
        pd.DataFrame(curve).assign(**dict(zip(RUN, run, strict=True)))
        for curve, run in zip(curves, left, strict=True)
    ]
    table = pd.concat([before, *named])
    if args.record is not None:
        with atomic_path(CURVES) as partial:
            table[list(COLUMNS)].to_csv(partial, index=False, float_format="%.4g")
    asked = table[pd.MultiIndex.from_frame(table[RUN]).isin(runs)]
    if args.out is not None:
        plot(asked, args.game, args.out / "uadqn_minatar.png")
    finish("uadqn_minatar", args, records(asked), AGENT_PACKAGES, is_new=len(left) == len(runs))


if __name__ == "__main__":
    main()
