"""Groups of commands whose modules are imported when a command is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """A group that lists its commands without importing them.

    Parameters
    ----------
    commands_at : mapping of str to (str, str)
        For each command its place, as ``module:function``, and its short help.
    *args, **kwargs
        As of `click.Group`.
    """

    def __init__(
        self, *args: Any, commands_at: Mapping[str, tuple[str, str]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.commands_at = dict(commands_at)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; one that cannot be imported leaves the others usable."""
        if cmd_name not in self.commands_at:
            return None
        module, _, function = self.commands_at[cmd_name][0].partition(":")
        try:
            command: click.Command = getattr(import_module(module), function)
        except Exception as error:  # whatever a broken installation raises
            raise click.ClickException(
                f"The command {cmd_name!r} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.commands_at[name][1]) for name in sorted(self.commands_at)]
            )
