"""Reproduction of the first points of recorded MinAtar learning curves with the current code.

All curves of `benchmarks.uadqn_minatar` together take many hours, so they are not repeated after
every change of the code. On the same type of machine, training is bit-identical as long as no
change affects its arithmetic or its random numbers, so the first points of each curve are
reproduced to the last recorded digit. This benchmark counts the points that are. Finished runs are
stored in ``--out``.
"""

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.harness import AGENT_PACKAGES, finish, kept_run, parser, record, set_threads
from benchmarks.uadqn_minatar import N_POINTS, RUN, binned, make_agent, recorded_curves
from skuq.uadqn import TrainingHistory


class StopAt(BaseCallback):
    """Callback that ends training after a number of steps, before the end of the run."""

    def __init__(self, steps: int):
        super().__init__()
        self.steps = steps

    def _on_step(self) -> bool:
        return self.num_timesteps < self.steps


def begin_again(game: str, method: str, seed: int, steps: int, args) -> dict[str, list[float]]:
    """Repeat the beginning of a run; return episodes and scores of its first points."""
    set_threads(args)
    agent, history = make_agent(game, method, seed, steps), TrainingHistory()
    agent.learn(steps, callback=[history, StopAt(steps // N_POINTS * args.points)])
    points = binned(history.to_frame(), steps).head(args.points)
    print(f"{game:15s} {method:12s} seed {seed}: {agent.num_timesteps} steps", flush=True)
    return points[["episodes", "score"]].to_dict("list")


def same_points(again: dict[str, list[float]], recorded: pd.DataFrame) -> int:
    """Count the points that are equal in all recorded digits."""
    before = recorded.head(len(again["score"]))
    scores = np.array([float(f"{score:.4g}") for score in again["score"]])
    same = (scores == before.score) | (np.isnan(scores) & before.score.isna())
    return int((same & (before.episodes == again["episodes"])).sum())


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--points", type=int, default=4, help=f"of the {N_POINTS} of a curve")
    arguments.add_argument("--jobs", type=int, default=1, help="agents trained side by side")
    args = arguments.parse_args()
    curves = dict(list(recorded_curves().groupby(RUN)))
    found = Parallel(n_jobs=args.jobs, batch_size=1, pre_dispatch="n_jobs")(
        delayed(kept_run)(begin_again, *run, args=args) for run in curves
    )
    runs = pd.DataFrame(list(curves), columns=RUN).assign(
        points=[len(again["score"]) for again in found],
        same_points=[same_points(*pair) for pair in zip(found, curves.values(), strict=True)],
    )
    records = [
        record(method, game, metric, own[metric].sum(), len(own))
        for (game, method), own in runs.groupby(["game", "method"])
        for metric in ("points", "same_points")
    ]
    finish("uadqn_repeated", args, records, AGENT_PACKAGES)


if __name__ == "__main__":
    main()
