"""Learning curves of the authors' runs on MinAtar, from the logs in their repository.

The authors' code logs the score of every training episode with the step at which it ended (clone
github.com/IndustAI/risk-and-uncertainty; the logs are in ``figs2-3_rl/results``). This script
stores short and long curves in the same format as `benchmarks.uadqn_minatar`, so that both can be
averaged in the same way. The curves are the beginning of five million steps, with one run of each
agent and game.
"""

import argparse
import pickle
from pathlib import Path

import pandas as pd

from benchmarks.uadqn_minatar import COLUMNS, GAMES, RELEASED, RUN, binned
from skuq.files import atomic_path

STEPS = (200_000, 1_000_000)
NAMES = {"uadqn": "UADQN", "qrdqn": "QRDQN", "dqn": "DQN", "bootstrapped": "Bootstrapped"}


class NumbersOnly(pickle.Unpickler):
    """Unpickler for lists, dictionaries and numbers that raises for anything that can run code."""

    def find_class(self, module: str, name: str):
        raise pickle.UnpicklingError(f"The log holds {module}.{name} where numbers were expected.")


def logged(path: Path) -> pd.DataFrame:
    """Read the score of each episode, and the step at which it ended."""
    with path.open("rb") as file:
        log = NumbersOnly(file).load()
    history = pd.DataFrame(log["Episode_score"], columns=["score", "step"])
    return history.assign(step=history.step + 1)  # their first step is 0


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("results", type=Path, help="figs2-3_rl/results of a clone")
    args = arguments.parse_args()
    curves = []
    for game in GAMES:
        for method, name in NAMES.items():
            history = logged(args.results / f"{game}-{name}" / "log_data.pkl")
            for steps in STEPS:
                run = dict(zip(RUN, (game, method, 0, steps), strict=True))
                curves.append(binned(history, steps).assign(**run))
    with atomic_path(RELEASED) as partial:
        pd.concat(curves)[list(COLUMNS)].to_csv(partial, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
