"""``skuq train-agent``: the training of an agent, in a folder of its own."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any, NoReturn

import click
from tqdm import tqdm

from skuq.cli._agent_options import RUN_FOLDER, device, import_rl
from skuq.cli._files import InputError
from skuq.cli._printing import one_line
from skuq.files import atomic_path

LAST = 100  # episodes whose mean return is printed
FACTOR = click.FloatRange(0, max=math.inf, max_open=True)


@click.command("train-agent")
@click.option("--env", required=True, help="Environment, by its id.")
@click.option("--steps", type=click.IntRange(1), required=True, help="Steps of training.")
@click.option(
    "--out",
    type=RUN_FOLDER,
    required=True,
    help="Folder of the run: a new one, or that of a run to continue.",
)
@click.option(
    "--method",
    type=click.Choice(["uadqn", "qrdqn", "dqn", "bootstrapped"]),
    default="uadqn",
    show_default=True,
    help="The agent.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Seed of networks, exploration and environment.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    help="Train this many seeds, from --seed on, in folders seed-N of --out.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1),
    help="How many of the seeds are trained at once.  [default: one for each core]",
)
@click.option(
    "--epistemic-factor",
    type=FACTOR,
    help="Weight of epistemic uncertainty in exploration (uadqn).  [default: by environment]",
)
@click.option(
    "--aleatoric-factor",
    type=FACTOR,
    help="Weight of aleatoric uncertainty in avoiding risk (uadqn).  [default: by environment]",
)
@click.option(
    "--checkpoint-every",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Steps from one checkpoint to the next.",
)
@device
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def train_agent(
    env: str,
    steps: int,
    out: Path,
    method: str,
    seed: int,
    seeds: int | None,
    jobs: int | None,
    epistemic_factor: float | None,
    aleatoric_factor: float | None,
    checkpoint_every: int,
    device: str,
    quiet: bool,
) -> None:
    """Train an agent in an environment.

    Repeat the command to continue an interrupted training. More steps extend a finished
    training of uadqn. Several seeds are trained side by side, each in a process.
    """
    if jobs is not None and seeds is None:
        raise click.UsageError("--jobs is for several seeds; give their number with --seeds.")
    uadqn = import_rl("skuq train-agent")
    factors = {"epistemic_factor": epistemic_factor, "aleatoric_factor": aleatoric_factor}
    options = {"checkpoint_every": checkpoint_every, "device": device}
    try:
        config = uadqn.make_run_config(env, steps, seed, method, **factors)
        if seeds is None:
            _train_one(uadqn, out, config, options, quiet)
        else:
            _train_several(uadqn, out, config, seeds, options | {"n_jobs": jobs or -1}, quiet)
    except (uadqn.RunError, uadqn.CheckpointError, OSError) as error:
        raise InputError(one_line(error)) from error


def _train_one(uadqn: Any, out: Path, config: Any, options: dict[str, Any], quiet: bool) -> None:
    progress = () if quiet else (_announce(out, uadqn, config.steps),)
    try:
        outcome = uadqn.train_run(out, config, callbacks=progress, **options)
    except KeyboardInterrupt:
        for bar in progress:
            bar.close()
        _interrupted(f"from step {uadqn.last_saved_step(out)}")
    if outcome.history is None:
        _say(f"The run in {out} is finished: {outcome.steps} steps. Nothing to do.", quiet)
        return
    _say(_summary(outcome.history), quiet)
    _say(f"Agent: {out / 'agent.zip'}\nHistory: {out / 'history.csv'}", quiet)
    _say(_picture(outcome.history, out / "training.png"), quiet)


def _train_several(
    uadqn: Any, out: Path, config: Any, seeds: int, options: dict[str, Any], quiet: bool
) -> None:
    """Train seeds side by side; a line for each as it is finished, and their mean."""
    finished = uadqn.train_seeds(out, config, seeds, **options)
    returns: list[float] = []
    try:
        for run in tqdm(finished, total=seeds, unit="seed", disable=quiet):
            if len(run.history):
                returns.append(run.history.score.tail(LAST).mean())
            if not quiet:
                tqdm.write(f"{run.folder}: {_summary(run.history)}")  # above the bar
            _picture(run.history, run.folder / "training.png")
    except KeyboardInterrupt:
        _interrupted("from the last checkpoints")
    if not returns:
        return
    spread = f" (standard deviation {statistics.stdev(returns):.4g})" if len(returns) > 1 else ""
    of = f" of {seeds}" if len(returns) < seeds else ""  # of the others, no episode has ended
    _say(f"Mean over {len(returns)}{of} seeds: {statistics.fmean(returns):.4g}{spread}", quiet)


def _interrupted(where: str) -> NoReturn:
    click.echo(f"Interrupted; repeat the command to continue {where}.", err=True)
    click.get_current_context().exit(1)


def _announce(out: Path, uadqn: Any, steps: int) -> Any:
    """Progress bar, after a line about where training continues."""

    class Announced(uadqn.TrainingProgress):
        def _on_training_start(self) -> None:
            if self.num_timesteps:
                click.echo(f"The run in {out} continues from step {self.num_timesteps}.")
            super()._on_training_start()

        def close(self) -> None:
            if hasattr(self, "bar"):
                self.bar.close()

    return Announced(steps)


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        click.echo(text)


def _summary(history: Any) -> str:
    if len(history) == 0:
        return "No episode has ended."
    last = history.tail(LAST)
    falls = f", {history.falls.sum()} falls" if history.falls.any() else ""
    return (
        f"{len(history)} episodes{falls}; mean return of the last {len(last)}: "
        f"{last.score.mean():.4g}"
    )


def _picture(history: Any, path: Path) -> str:
    """Draw the training; return a line about the picture, or about the lack of matplotlib."""
    if len(history) == 0:
        return "No picture: no episode has ended."
    from skuq.extras import import_optional
    from skuq.plotting import AgentTrainingDisplay

    try:
        figures = import_optional("matplotlib.figure", extra="plot")
    except ImportError as error:
        return f"No picture: {error}"
    display = AgentTrainingDisplay(history)
    figure = figures.Figure(figsize=display.size, layout="constrained")
    display.plot(figure.add_subplot())
    with atomic_path(path) as partial:
        figure.savefig(partial, format="png", dpi=150)
    return f"Picture: {path}"
