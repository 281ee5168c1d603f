"""``skuq train-agent`` and ``skuq play``: train and save an agent, and play episodes with it."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any, NoReturn

import click
from tqdm import tqdm

from skuq.cli._files import (
    WRITABLE,
    InputError,
    check_outputs,
    refusing_writes,
    trust_option,
)
from skuq.cli._printing import one_line
from skuq.files import atomic_path

LAST = 100  # number of final episodes whose mean return is printed
FACTOR = click.FloatRange(0, max=math.inf, max_open=True)
RUN_FOLDER = click.Path(file_okay=False, path_type=Path)
device = click.option(
    "--device", default="auto", show_default=True, help="'auto' uses a GPU if there is one."
)


def import_rl(command: str) -> Any:
    """Import `skuq.uadqn`; if dependencies are missing, the error names the extra."""
    from skuq import uadqn

    try:
        uadqn.UADQNAlgorithm  # noqa: B018 - imports stable-baselines3
    except ImportError as error:
        raise InputError(f"{command}: {error}") from error
    return uadqn


@click.command("train-agent")
@click.option("--env", required=True, help="Id of the environment.")
@click.option("--steps", type=click.IntRange(1), required=True, help="Number of training steps.")
@click.option(
    "--out",
    type=RUN_FOLDER,
    required=True,
    help="Folder of the run: a new folder, or the folder of a run to continue.",
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
    help="Number of seeds trained in parallel.  [default: one per core]",
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
    help="Number of steps between checkpoints.",
)
@device
@trust_option
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
    trust: bool,
    quiet: bool,
) -> None:
    """Train an agent in an environment.

    To resume an interrupted run, repeat the command with --trust, because loading a checkpoint can
    run code. To extend a finished run of uadqn, repeat the command with more --steps. Several seeds
    are trained in parallel, each in its own process.
    """
    if jobs is not None and seeds is None:
        raise click.UsageError("--jobs requires --seeds, the number of seeds to train.")
    uadqn = import_rl("skuq train-agent")
    factors = {"epistemic_factor": epistemic_factor, "aleatoric_factor": aleatoric_factor}
    options = {"checkpoint_every": checkpoint_every, "device": device, "trust": trust}
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
        _say(f"The run in {out} is already finished ({outcome.steps} steps).", quiet)
        return
    _say(_summary(outcome.history), quiet)
    _say(f"Agent: {out / 'agent.zip'}\nHistory: {out / 'history.csv'}", quiet)
    _say(_picture(outcome.history, out / "training.png"), quiet)


def _train_several(
    uadqn: Any, out: Path, config: Any, seeds: int, options: dict[str, Any], quiet: bool
) -> None:
    """Train one agent per seed in parallel; print a line for each agent, and the mean return."""
    finished = uadqn.train_seeds(out, config, seeds, **options)
    returns: list[float] = []
    try:
        for run in tqdm(finished, total=seeds, unit="seed", disable=quiet):
            if len(run.history):
                returns.append(run.history.score.tail(LAST).mean())
            if not quiet:
                tqdm.write(f"{run.folder}: {_summary(run.history)}")
            _picture(run.history, run.folder / "training.png")
    except KeyboardInterrupt:
        _interrupted("from the last checkpoints")
    if not returns:
        return
    spread = f" (standard deviation {statistics.stdev(returns):.4g})" if len(returns) > 1 else ""
    of = f" of {seeds}" if len(returns) < seeds else ""  # other seeds have no finished episode
    _say(f"Mean over {len(returns)}{of} seeds: {statistics.fmean(returns):.4g}{spread}", quiet)


def _interrupted(where: str) -> NoReturn:
    click.echo(f"Interrupted; repeat the command with --trust to continue {where}.", err=True)
    click.get_current_context().exit(1)


def _announce(out: Path, uadqn: Any, steps: int) -> Any:
    """Progress bar that first prints the step at which training continues."""

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
    """Plot the training; return a line with the path, or with the reason why there is no plot."""
    if len(history) == 0:
        return "No plot: no episode has ended."
    from skuq.extras import import_optional
    from skuq.plotting import AgentTrainingDisplay

    try:
        figures = import_optional("matplotlib.figure", extra="plot")
    except ImportError as error:
        return f"No plot: {error}"
    display = AgentTrainingDisplay(history)
    figure = figures.Figure(figsize=display.size, layout="constrained")
    display.plot(figure.add_subplot())
    with atomic_path(path) as partial:
        figure.savefig(partial, format="png", dpi=150)
    return f"Plot: {path}"


# --- episodes ------------------------------------------------------------------------------------


@click.command()
@click.argument("run", type=RUN_FOLDER)
@click.option(
    "--episodes", type=click.IntRange(1), default=3, show_default=True, help="Number of episodes."
)
@click.option("--gif", type=WRITABLE, help="GIF file to write (needs extra 'plot').")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),
    default=0,
    show_default=True,
    help="Seed of the environment in the first episode; each further episode adds 1.",
)
@click.option(
    "--max-steps",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Number of steps after which an episode is truncated.",
)
@device
@trust_option
def play(
    run: Path,
    episodes: int,
    gif: Path | None,
    seed: int,
    max_steps: int,
    device: str,
    trust: bool,
) -> None:
    """Play episodes with a trained agent.

    RUN is a folder written by train-agent; if several seeds were trained, the folder of one seed.
    The command prints the return of each episode, and the agent's uncertainty about the returns of
    its actions. Agents are pickled objects, which can run code, so --trust is required.
    """
    if gif is not None:
        if gif.suffix.lower() != ".gif":
            raise InputError(f"--gif: {gif} must end in .gif.")
        check_outputs([gif], [])
    if seed + episodes > 2**32:
        raise InputError(
            f"--seed: the seed of the last episode must be below 2**32, but {episodes} episodes "
            f"start from {seed}."
        )
    uadqn = import_rl("skuq play")
    try:
        agent = uadqn.load_agent(run, device, trust=trust)
    except uadqn.RunError as error:
        raise InputError(_seeds_in(run) or one_line(error)) from error
    if not agent.finished:
        at, steps = agent.algorithm.num_timesteps, agent.config["steps"]
        click.echo(f"The run is not finished; using its agent after {at} of {steps} steps.")
    _play(uadqn, agent, episodes, gif, seed, max_steps)


def _play(
    uadqn: Any, agent: Any, episodes: int, gif: Path | None, seed: int, max_steps: int
) -> None:
    algorithm, name = agent.algorithm, agent.config["env"]
    film = None if gif is None else _film(uadqn, name)
    estimates: list[Any] = []

    def make() -> Any:
        return _made(uadqn, name) if film is None else film.begin_episode()

    def act(observations: Any) -> Any:
        return algorithm.predict(observations, deterministic=True)[0]

    def watch(observation: Any, action: int | None, score: float) -> None:
        estimate = None
        if action is not None:
            estimate = uadqn.estimate_action(algorithm, observation, action)
            estimates.append(estimate)
        if film is not None:
            film.take(observation, estimate, score)

    scores = []
    for episode in range(episodes):
        estimates.clear()
        (played,) = uadqn.play_episodes(
            make, act, [seed + episode], max_steps=max_steps, watch=watch
        )
        scores.append(played.score)
        click.echo(f"episode {episode + 1}: {_line(played, estimates)}")
    click.echo(f"mean return: {sum(scores) / episodes:.4g}")
    if film is not None and gif is not None:
        with refusing_writes():
            film.save(gif)
        rest = f" (without the last {film.n_left_out} frames)" if film.n_left_out else ""
        click.echo(f"GIF: {gif}{rest}")


def _seeds_in(folder: Path) -> str:
    """Error message for a folder with the runs of several seeds; "" for other folders."""
    runs = (path.parent.name for path in folder.glob("seed-*/config.json"))
    numbers = sorted(int(name) for run in runs if (name := run.removeprefix("seed-")).isdecimal())
    if not numbers or (folder / "config.json").exists():
        return ""
    names = ", ".join(f"seed-{number}" for number in numbers)
    return f"{folder} contains one run per seed; pass one of its folders: {names}."


def _made(uadqn: Any, name: str) -> Any:
    try:
        return uadqn.make_env(name)
    except Exception as error:  # an environment can raise any exception
        raise InputError(f"Environment {name!r} cannot be created: {one_line(error)}") from error


def _film(uadqn: Any, name: str) -> Any:
    try:
        return uadqn.Film(name)
    except ImportError as error:
        raise InputError(f"--gif: {error}") from error
    except uadqn.FilmError as error:
        raise InputError(f"{name}: {one_line(error)}; omit --gif.") from error
    except Exception as error:  # an environment can raise any exception
        raise InputError(f"Environment {name!r} cannot be created: {one_line(error)}") from error


def _line(played: Any, estimates: list[Any]) -> str:
    """Line with return, length and falls of an episode, and mean standard deviations of returns."""
    parts = [f"return {played.score:.4g}", f"{played.steps} steps"]
    if not played.ended:
        parts[-1] += " (truncated)"
    if played.falls is not None:
        parts.append(f"{played.falls} falls")
    for name in ("epistemic", "aleatoric"):
        spread = sum(getattr(estimate, name) for estimate in estimates) / len(estimates)
        if not math.isnan(spread):
            parts.append(f"{name} sd {spread:.3g}")
    return ", ".join(parts)
