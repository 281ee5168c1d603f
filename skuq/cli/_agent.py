"""``skuq train-agent`` and ``skuq play``: agents that say how uncertain they are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from skuq.cli._files import InputError, check_outputs, one_line

RUN_FOLDER = click.Path(file_okay=False, path_type=Path)
DEVICE = click.option(
    "--device", default="auto", show_default=True, help="'auto' takes a GPU if there is one."
)
QUIET = click.option("--quiet", is_flag=True, help="Print nothing but errors.")
FACTOR = click.FloatRange(0, max=math.inf, max_open=True)


def _rl_module(command: str, name: str) -> Any:
    from skuq.uadqn._rl import rl_module

    try:
        return rl_module(name)
    except ImportError as error:
        raise InputError(f"{command}: {error}") from error


@click.command("train-agent")
@click.option("--env", required=True, help="Environment, by its id.")
@click.option("--steps", type=click.IntRange(1), required=True, help="Steps of training.")
@click.option("--out", type=RUN_FOLDER, required=True, help="Folder of the run: new or its own.")
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
    help="How strongly ignorance drives exploration (uadqn).  [default: by environment]",
)
@click.option(
    "--aleatoric-factor",
    type=FACTOR,
    help="How strongly risk is avoided (uadqn).  [default: by environment]",
)
@click.option(
    "--checkpoint-every",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Steps from one checkpoint to the next.",
)
@DEVICE
@QUIET
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

    The same command again goes on where training was interrupted. If it is finished, more
    steps extend it, for uadqn.
    """
    runs = _rl_module("skuq train-agent", "_runs")
    history = _rl_module("skuq train-agent", "_history")
    factors = {"epistemic_factor": epistemic_factor, "aleatoric_factor": aleatoric_factor}
    progress = () if quiet else (_announce(out, history, steps),)
    try:
        outcome = runs.train_run(
            out,
            runs.plan_run(env, steps, seed, method, **factors),
            checkpoint_every=checkpoint_every,
            device=device,
            callbacks=progress,
        )
    except (runs.RunError, runs.CheckpointError, OSError) as error:
        raise InputError(one_line(error)) from error
    except KeyboardInterrupt:
        for shown in progress:
            shown.close()
        saved = runs.last_saved_step(out)
        click.echo(f"Interrupted; the same command goes on from step {saved}.", err=True)
        click.get_current_context().exit(1)
    if outcome.history is None:
        _say(f"The run in {out} is finished: {outcome.steps} steps. Nothing to do.", quiet)
        return
    _say(_summary(outcome.history), quiet)
    _say(f"Agent: {out / runs.AGENT}\nHistory: {out / runs.HISTORY}", quiet)
    _say(_picture(outcome.history, out / "training.png"), quiet)


def _announce(out: Path, history: Any, steps: int) -> Any:
    """Progress bar that says first where training goes on from."""

    class Announced(history.Progress):
        def _on_training_start(self) -> None:
            if self.num_timesteps:
                click.echo(f"The run in {out} goes on from step {self.num_timesteps}.")
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
        return "No episode came to its end."
    last = history.tail(100)
    falls = f", {history.falls.sum()} falls" if history.falls.any() else ""
    return (
        f"{len(history)} episodes{falls}; mean return of the last {len(last)}: "
        f"{last.score.mean():.4g}"
    )


def _picture(history: Any, path: Path) -> str:
    """Draw the training, and say where; a missing matplotlib spoils no training."""
    if len(history) == 0:
        return "There is no picture, for no episode has ended."
    from skuq.extras import import_optional
    from skuq.plotting import AgentTrainingDisplay

    try:
        figures = import_optional("matplotlib.figure", extra="plot")
    except ImportError as error:
        return f"There is no picture: {error}"
    display = AgentTrainingDisplay(history)
    figure = figures.Figure(figsize=display.size, layout="constrained")
    partial = path.with_name(f".{path.name}.partial")
    display.plot(figure.add_subplot())
    figure.savefig(partial, format="png", dpi=150)
    partial.replace(path)
    return f"Picture: {path}"


@click.command()
@click.argument("run", type=RUN_FOLDER)
@click.option("--episodes", type=click.IntRange(1), default=3, show_default=True, help="How many.")
@click.option(
    "--gif",
    type=click.Path(dir_okay=False, path_type=Path),
    help="GIF file to write (needs extra 'plot').",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the environment."
)
@click.option(
    "--max-steps",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Steps after which an episode is cut.",
)
@DEVICE
def play(
    run: Path, episodes: int, gif: Path | None, seed: int, max_steps: int, device: str
) -> None:
    """Let the agent of a run play.

    RUN is the folder that train-agent wrote. Each episode is a line: its return, and how
    uncertain the agent was of what it did. Load only runs that you trust.
    """
    if gif is not None:
        if gif.suffix.lower() != ".gif":
            raise InputError(f"--gif: {gif} must end in .gif.")
        check_outputs([gif], [])
    runs = _rl_module("skuq play", "_runs")
    try:
        agent = runs.load_agent(run, device)
    except runs.RunError as error:
        raise InputError(one_line(error)) from error
    if not agent.finished:
        at, steps = agent.algorithm.num_timesteps, agent.config["steps"]
        click.echo(f"The run is not finished; its agent after {at} of {steps} steps plays.")
    _play(agent, episodes, gif, seed, max_steps)


def _play(agent: Any, episodes: int, gif: Path | None, seed: int, max_steps: int) -> None:
    plays = _rl_module("skuq play", "_play")
    env, film = _stage(agent.config["env"], gif is not None)
    scores = []
    for episode in range(1, episodes + 1):
        if film is not None:
            film.episode = episode
        played = plays.play_episode(
            agent.algorithm,
            env,
            seed=seed if episode == 1 else None,
            max_steps=max_steps,
            watch=film and film.watch,
        )
        scores.append(played.score)
        click.echo(f"episode {episode}: {_line(played)}")
    click.echo(f"mean return: {sum(scores) / episodes:.4g}")
    if film is not None and gif is not None:
        try:
            film.save(gif)
        except OSError as error:
            raise InputError(f"Cannot write: {error}") from error
        rest = f" (without the last {film.n_left_out} frames)" if film.n_left_out else ""
        click.echo(f"GIF: {gif}{rest}")


def _stage(name: str, filmed: bool) -> tuple[Any, Any]:
    """The environment, and a film of it if one is wanted."""
    envs = _rl_module("skuq play", "_envs")
    try:
        env = envs.make_env(name)
    except Exception as error:  # environments fail in any way
        raise InputError(f"Environment {name!r} cannot be made: {one_line(error)}") from error
    if not filmed:
        return env, None
    films = _rl_module("skuq play --gif", "_film")
    try:
        return films.stage(name, env)
    except ImportError as error:
        raise InputError(f"--gif: {error}") from error
    except films.FilmError as error:
        raise InputError(f"{name}: {one_line(error)}; leave out --gif.") from error


def _line(played: Any) -> str:
    parts = [f"return {played.score:.4g}", f"{played.steps} steps"]
    if not played.ended:
        parts[-1] += " (cut)"
    if played.falls is not None:
        parts.append(f"{played.falls} falls")
    for name in ("epistemic", "aleatoric"):
        spread = getattr(played, name)
        if not math.isnan(spread):
            parts.append(f"{name} sd {spread:.3g}")
    return ", ".join(parts)
