"""``skuq train-agent``: the training of an agent, in a folder of its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from skuq.cli._agent_options import RUN_FOLDER, device, import_rl
from skuq.cli._files import InputError
from skuq.cli._printing import one_line
from skuq.files import atomic_path

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
    epistemic_factor: float | None,
    aleatoric_factor: float | None,
    checkpoint_every: int,
    device: str,
    quiet: bool,
) -> None:
    """Train an agent in an environment.

    Repeat the command to continue an interrupted training. More steps extend a finished
    training of uadqn.
    """
    runs = import_rl("skuq train-agent", "_runs")
    shown = import_rl("skuq train-agent", "_callbacks")
    factors = {"epistemic_factor": epistemic_factor, "aleatoric_factor": aleatoric_factor}
    progress = () if quiet else (_announce(out, shown, steps),)
    try:
        outcome = runs.train_run(
            out,
            runs.make_run_config(env, steps, seed, method, **factors),
            checkpoint_every=checkpoint_every,
            device=device,
            callbacks=progress,
        )
    except (runs.RunError, runs.CheckpointError, OSError) as error:
        raise InputError(one_line(error)) from error
    except KeyboardInterrupt:
        for bar in progress:
            bar.close()
        saved = runs.last_saved_step(out)
        click.echo(f"Interrupted; repeat the command to continue from step {saved}.", err=True)
        click.get_current_context().exit(1)
    if outcome.history is None:
        _say(f"The run in {out} is finished: {outcome.steps} steps. Nothing to do.", quiet)
        return
    _say(_summary(outcome.history), quiet)
    _say(f"Agent: {out / runs.AGENT}\nHistory: {out / runs.HISTORY}", quiet)
    _say(_picture(outcome.history, out / "training.png"), quiet)


def _announce(out: Path, callbacks: Any, steps: int) -> Any:
    """Progress bar, after a line about where training continues."""

    class Announced(callbacks.TrainingProgress):
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
    last = history.tail(100)
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
