"""``skuq estimators``: the installed estimators."""

from __future__ import annotations

import click

from skuq.plugins import discover


@click.command()
def estimators() -> None:
    """List the installed estimators, third-party plugins included."""
    plugins = discover()
    width = max(len(plugin.name) for plugin in plugins)
    for plugin in plugins:
        if plugin.estimator is None:
            click.secho(f"{plugin.name:{width}}  broken: {plugin.error}", fg="red")
        else:
            summary = (plugin.estimator.__doc__ or "").strip().splitlines() or [""]
            click.echo(f"{plugin.name:{width}}  {summary[0]}  [{plugin.distribution}]")
