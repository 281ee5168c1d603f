"""``skuq demo``: out-of-distribution detection on data that need no download."""

from __future__ import annotations

from pathlib import Path

import click

from skuq.cli._files import require_plots


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("skuq-demo"),
    show_default=True,
    help="Folder for the reports and the tables; created if it does not exist.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of data and training.")
@click.option("--jobs", default=-1, show_default=True, help="Processes; -1 uses all cores.")
def demo(out: Path, seed: int, jobs: int) -> None:
    """Detect out-of-distribution images and unusual table rows."""
    require_plots("skuq demo")
    out.mkdir(parents=True, exist_ok=True)
    from skuq.cli._digits_demo import run_demo, write_demo
    from skuq.cli._table_demo import run_table_demo, write_table_demo

    click.echo("Training a digit classifier and searching for models that disagree with it ...")
    result = run_demo(n_jobs=jobs, random_state=seed, verbose=1)
    click.echo(f"Accuracy on test digits: {result.accuracy:.3f}")
    click.echo("AUROC of out-of-distribution detection:")
    click.echo(result.detection.to_string(float_format="%.3f"))
    report, table = write_demo(result, out)
    click.echo(f"Report: {report}\nTable:  {table}\n")
    click.echo("Training boosted trees on a table, and refitting them with altered rows ...")
    loans = run_table_demo(n_jobs=jobs, random_state=seed)
    click.echo(f"Accuracy on test rows: {loans.accuracy:.3f}")
    click.echo("AUROC of detecting unusual rows:")
    click.echo(loans.detection.to_string(float_format="%.3f"))
    report, table = write_table_demo(loans, out)
    click.echo(f"Report: {report}\nTable:  {table}")
