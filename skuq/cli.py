"""The ``skuq`` command: a thin skin over the package.

Exit codes: 0 done, 2 the input cannot be used (the message says why), 1 anything else.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skuq import __version__
from skuq.plugins import Plugin, discover

if TYPE_CHECKING:
    import pandas as pd


READABLE = click.Path(exists=True, dir_okay=False, path_type=Path)
WRITABLE = click.Path(dir_okay=False, path_type=Path)


class InputError(click.ClickException):
    """Input that cannot be used: one line on what to change, and exit code 2."""

    exit_code = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="skuq")
def main() -> None:
    """Honest uncertainty for scikit-learn models."""


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
    _require_plots("skuq demo")
    out.mkdir(parents=True, exist_ok=True)
    from skuq.demo import run_demo, write_demo

    click.echo("Training a digit classifier and searching for models that disagree with it ...")
    result = run_demo(n_jobs=jobs, random_state=seed, verbose=1)
    click.echo(f"Accuracy on test digits: {result.accuracy:.3f}")
    click.echo("AUROC of telling foreign inputs from test digits:")
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
        _require_plots("--report")
    _check_outputs([out, report], [train, predict])
    from skuq.tables import TableError, quantify_table, table_report

    estimator = _estimator(method, {"random_state": seed, "n_jobs": jobs, "verbose": not quiet})
    known = _read_csv(train)
    table = _read_csv(predict, like=known)
    try:
        result = quantify_table(
            estimator, known, target, table, missing=missing, drop=drop, random_state=seed
        )
    except TableError as error:
        raise InputError(str(error)) from error
    # All is computed before anything is written.
    page = None if report is None else table_report(result, table, target)
    try:
        _write_csv(result.rows, out)
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


def _check_outputs(outputs: list[Path | None], inputs: list[Path]) -> None:
    """Refuse to write into a folder that is not there, or over a file that is read."""
    taken = {path.resolve() for path in inputs}
    for path in filter(None, outputs):
        if not path.parent.is_dir():
            raise InputError(f"The folder {path.parent} does not exist; create it first.")
        if path.resolve() in taken:
            raise InputError(f"{path} would overwrite another file of this call.")
        taken.add(path.resolve())


def _require_plots(what: str) -> None:
    from skuq.extras import import_optional

    try:
        import_optional("matplotlib", extra="plot")
    except ImportError as error:
        raise InputError(f"{what}: {error}") from error


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


def _read_csv(path: Path, like: pd.DataFrame | None = None) -> pd.DataFrame:
    """Read a table; columns that hold text in the table `like` are read as text too."""
    import pandas as pd
    from pandas.api.types import infer_dtype

    names = [] if like is None else [name for name in like if infer_dtype(like[name]) == "string"]
    texts = dict.fromkeys(names, str)
    try:
        header = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].dropna()
        with warnings.catch_warnings():
            # Rows with more values than the header has names: pandas drops the rest of them.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, dtype=texts, index_col=False, low_memory=False)
    except pd.errors.ParserWarning as error:
        raise InputError(f"{path} has rows with more values than column names.") from error
    except (ValueError, UnicodeError) as error:  # pandas' parser errors are ValueErrors
        raise InputError(f"{path} cannot be read as CSV: {_one_line(error)}") from error
    if header.duplicated().any():  # pandas would rename them
        twice = header[header.duplicated()].iloc[0]
        raise InputError(f"{path} has more than one column {twice!r}; rename or remove one.")
    if len(frame) == 0:
        raise InputError(f"{path} has no rows.")
    return frame


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _write_csv(rows: pd.DataFrame, path: Path) -> None:
    """Write completely or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        rows.to_csv(partial, index=False)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
