"""``skuq play``: episodes of a trained agent, with its uncertainty."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from skuq.cli._agent_options import RUN_FOLDER, device, import_rl
from skuq.cli._files import WRITABLE, InputError, check_outputs, refusing_writes
from skuq.cli._printing import one_line


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
    help="Number of steps after which an episode is cut.",
)
@device
def play(
    run: Path, episodes: int, gif: Path | None, seed: int, max_steps: int, device: str
) -> None:
    """Play episodes with a trained agent.

    RUN is the folder that train-agent wrote; of several seeds, that of one of them. A line is
    printed for each episode: its return, and the uncertainty of the agent about the return of its
    actions. Load only runs that you trust.
    """
    if gif is not None:
        if gif.suffix.lower() != ".gif":
            raise InputError(f"--gif: {gif} must end in .gif.")
        check_outputs([gif], [])
    if seed + episodes > 2**32:
        raise InputError(f"--seed: the last episode's must be below 2**32, got {seed} as first.")
    uadqn = import_rl("skuq play")
    try:
        agent = uadqn.load_agent(run, device)
    except uadqn.RunError as error:
        raise InputError(_seeds_in(run) or one_line(error)) from error
    if not agent.finished:
        at, steps = agent.algorithm.num_timesteps, agent.config["steps"]
        click.echo(f"The run is not finished; this is its agent after {at} of {steps} steps.")
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
    """Refusal of a folder that holds the runs of several seeds; empty for another one."""
    runs = (path.parent.name for path in folder.glob("seed-*/config.json"))
    numbers = sorted(int(name) for run in runs if (name := run.removeprefix("seed-")).isdecimal())
    if not numbers or (folder / "config.json").exists():
        return ""
    names = ", ".join(f"seed-{number}" for number in numbers)
    return f"{folder} holds a run for each of several seeds; name one of its folders: {names}."


def _made(uadqn: Any, name: str) -> Any:
    try:
        return uadqn.make_env(name)
    except Exception as error:  # environments fail in any way
        raise InputError(f"Environment {name!r} cannot be made: {one_line(error)}") from error


def _film(uadqn: Any, name: str) -> Any:
    try:
        return uadqn.Film(name)
    except ImportError as error:
        raise InputError(f"--gif: {error}") from error
    except uadqn.FilmError as error:
        raise InputError(f"{name}: {one_line(error)}; leave out --gif.") from error
    except Exception as error:  # of code that is not ours
        raise InputError(f"Environment {name!r} cannot be made: {one_line(error)}") from error


def _line(played: Any, estimates: list[Any]) -> str:
    """Return, length and falls of an episode, and the mean deviations of its actions' returns."""
    parts = [f"return {played.score:.4g}", f"{played.steps} steps"]
    if not played.ended:
        parts[-1] += " (cut)"
    if played.falls is not None:
        parts.append(f"{played.falls} falls")
    for name in ("epistemic", "aleatoric"):
        spread = sum(getattr(estimate, name) for estimate in estimates) / len(estimates)
        if not math.isnan(spread):
            parts.append(f"{name} sd {spread:.3g}")
    return ", ".join(parts)
