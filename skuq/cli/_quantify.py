"""``skuq quantify``: a table in, the uncertainty of each of its rows out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from skuq.cli._files import (
    READABLE,
    WRITABLE,
    InputError,
    check_outputs,
    read_csv,
    require_plots,
)
from skuq.files import atomic_path
from skuq.plugins import Plugin, discover


@click.command()
@click.option("--train", type=READABLE, required=True, help="CSV file to train on.")
@click.option("--target", required=True, help="Its column with the class to predict.")
@click.option("--predict", type=READABLE, required=True, help="CSV file with rows to predict.")
@click.option("--out", type=WRITABLE, required=True, help="CSV file to write.")
@click.option("--report", type=WRITABLE, help="HTML report to write (needs extra 'plot').")
@click.option("--method", default="quam", show_default=True, help="Estimator, by name.")
@click.option(
    "--missing",
    type=click.Choice(["impute", "refuse"]),
    default="impute",
    show_default=True,
    help="How to treat missing values.",
)
@click.option("--drop", multiple=True, help="Column to leave out; may be repeated.")
@click.option("--seed", default=0, show_default=True, help="Seed of training and search.")
@click.option("--jobs", default=1, show_default=True, help="Processes; -1 uses all cores.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def quantify(
    train: Path,
    target: str,
    predict: Path,
    out: Path,
    report: Path | None,
    method: str,
    missing: str,
    drop: tuple[str, ...],
    seed: int,
    jobs: int,
    quiet: bool,
) -> None:
    """Quantify the uncertainty of predictions for a table.

    The classifier is trained on another table, which has a column with the class.
    """
    if report is not None:
        require_plots("--report")
    check_outputs([out, report], [train, predict])
    from skuq.reporting import table_report
    from skuq.tables import TableError, quantify_table

    estimator = _estimator(method, {"random_state": seed, "n_jobs": jobs, "verbose": not quiet})
    known = read_csv(train)
    table = read_csv(predict, like=known)
    try:
        result = quantify_table(
            estimator, known, target, table, missing=missing, drop=drop, random_state=seed
        )
    except TableError as error:
        raise InputError(str(error)) from error
    # All is computed before anything is written.
    page = None if report is None else table_report(result, table, target)
    try:
        with atomic_path(out) as partial:
            result.rows.to_csv(partial, index=False)
        if page is not None and report is not None:
            page.write(report)
    except OSError as error:
        raise InputError(f"Cannot write: {error}") from error
    if not quiet:
        for note in result.notes:
            click.echo(note)
        click.echo(f"Uncertainty of {len(result.rows)} rows: {out}")
        if report is not None:
            click.echo(f"Report: {report}")


def _estimator(method: str, params: dict[str, Any]) -> Any:
    """The classifier of that name, long or short, with those parameters that it has."""
    plugins = {
        name.lower(): plugin for plugin in discover() for name in (plugin.name, _short_name(plugin))
    }
    plugin = plugins.get(method.lower())
    if plugin is None:
        known = sorted({_short_name(p) for p in plugins.values() if p.estimator is not None})
        raise InputError(f"No estimator {method!r}; installed: {', '.join(known)}.")
    if plugin.estimator is None:
        raise InputError(f"Estimator {method!r} cannot be used: {plugin.error}")
    from sklearn.base import is_classifier

    try:
        estimator: Any = plugin.estimator()
    except TypeError as error:
        raise InputError(f"Estimator {method!r} can only be used from Python: {error}") from error
    if not is_classifier(estimator) or not hasattr(estimator, "predict_proba"):
        raise InputError(f"Estimator {method!r} does not predict probabilities of classes.")
    accepted = estimator.get_params()
    return estimator.set_params(**{k: v for k, v in params.items() if k in accepted})


def _short_name(plugin: Plugin) -> str:
    return plugin.name.removesuffix("Classifier").lower()
