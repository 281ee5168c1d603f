"""Options and imports that the commands of agents share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from skuq.cli._files import InputError

RUN_FOLDER = click.Path(file_okay=False, path_type=Path)
device = click.option(
    "--device", default="auto", show_default=True, help="'auto' uses a GPU if there is one."
)


def import_rl(command: str) -> Any:
    """The package `skuq.uadqn`, or one line that names the missing extra."""
    from skuq import uadqn

    try:
        uadqn.UADQNAlgorithm  # noqa: B018 - imports stable-baselines3
    except ImportError as error:
        raise InputError(f"{command}: {error}") from error
    return uadqn
