"""The ``skuq`` command: a thin skin over the package.

Exit codes: 0 done, 2 the input cannot be used (the message says why), 1 anything else. Those of
``skuq audit`` are its own: 0 passed, 1 failed, 2 no verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from skuq import __version__
from skuq.cli._agent import play, train_agent
from skuq.cli._audit import audit
from skuq.cli._files import (
    READABLE,
    WRITABLE,
    InputError,
    check_outputs,
    read_csv,
    require_plots,
    write_csv,
)
from skuq.plugins import Plugin, discover


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="skuq")
def main() -> None:
    """Honest uncertainty for scikit-learn models."""


main.add_command(audit)
main.add_command(play)
main.add_command(train_agent)


@main.command()
def estimators() -> None:
    """List the estimators that are installed, third-party plugins included."""
    plugins = discover()
    width = max(len(plugin.name) for plugin in plugins)
    for plugin in plugins:
        if plugin.estimator is None:
            click.secho(f"{plugin.name:{width}}  broken: {plugin.error}", fg="red")
        else:
            summary = (plugin.estimator.__doc__ or "").strip().splitlines() or [""]
            click.echo(f"{plugin.name:{width}}  {summary[0]}  [{plugin.distribution}]")


@main.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("skuq-demo"),
    show_default=True,
    help="Folder for the report and the table; made if it is not there.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of data and training.")
@click.option("--jobs", default=-1, show_default=True, help="Processes; -1 takes all cores.")
def demo(out: Path, seed: int, jobs: int) -> None:
    """Quantify uncertainty of digits and of inputs that are no digits."""
    require_plots("skuq demo")
    out.mkdir(parents=True, exist_ok=True)
    from skuq.cli._digits_demo import run_demo, write_demo

    click.echo("Training a digit classifier and searching for models that disagree with it ...")
    result = run_demo(n_jobs=jobs, random_state=seed, verbose=1)
    click.echo(f"Accuracy on test digits: {result.accuracy:.3f}")
    click.echo("AUROC of telling out-of-distribution inputs from test digits:")
    click.echo(result.detection.to_string(float_format="%.3f"))
    report, table = write_demo(result, out)
    click.echo(f"Report: {report}\nTable:  {table}")


@main.command()
@click.option("--train", type=READABLE, required=True, help="CSV file to learn from.")
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
    help="What to do about missing values.",
)
@click.option("--drop", multiple=True, help="Column to leave out; may be repeated.")
@click.option("--seed", default=0, show_default=True, help="Seed of training and search.")
@click.option("--jobs", default=1, show_default=True, help="Processes; -1 takes all cores.")
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
    """Learn from one table, predict another, and say how uncertain each row is."""
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
        write_csv(result.rows, out)
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
