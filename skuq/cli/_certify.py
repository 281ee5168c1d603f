"""``skuq certify``: certified radii of table rows, within which the predicted class is constant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skuq.cli._counterexamples import Columns, certified, whole_notes
from skuq.cli._files import (
    READABLE,
    WRITABLE,
    CsvOptions,
    InputError,
    check_finite,
    check_jobs,
    check_outputs,
    classes_as_written,
    csv_options,
    raw_text_option,
    refusing_tables,
    refusing_writes,
    require_plots,
)
from skuq.cli._main import say

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from sklearn.preprocessing import StandardScaler

    from skuq.gpc import RobustGPC

RESULTS = ("class", "probability", "certified_radius", "counterexample_radius", "whole")
EXACT_ROWS = 2000  # largest training table used without inducing points by default
INDUCING = 200  # default number of inducing points for larger tables


@click.command()
@click.option("--train", required=True, type=READABLE, help="CSV or Parquet file to train on.")
@click.option("--target", required=True, help="Column with the class.")
@click.option("--predict", required=True, type=READABLE, help="File with rows to certify.")
@click.option("--out", required=True, type=WRITABLE, help="CSV or Parquet file to write.")
@click.option("--report", type=WRITABLE, help="HTML report to write (needs extra 'plot').")
@click.option("--id", "id_column", help="Column that identifies rows; copied, not a feature.")
@click.option("--drop", multiple=True, help="Column not to use; may be repeated.")
@click.option(
    "--fixed",
    default="",
    metavar="COLUMN,COLUMN",
    help="Columns that cannot change, such as age,sex; all other columns may.",
)
@click.option(
    "--bounds",
    type=click.Choice(["data", "none"]),
    default="data",
    show_default=True,
    help="Whether columns stay within the range of the training rows (data), or are unbounded.",
)
@click.option(
    "--max-radius",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Largest radius, in standard deviations of each column.",
)
@click.option(
    "--norm",
    type=click.Choice(["linf", "l2", "l1"]),
    default="linf",
    show_default=True,
    help="Norm of a change: the radius limits each column (linf), or all together (l2, l1).",
)
@click.option(
    "--max-regions",
    type=click.IntRange(1),
    default=300,
    show_default=True,
    help="Limit on the work for each row and radius; if it is reached, the radius counts as not "
    "proven.",
)
@click.option(
    "--inducing",
    type=click.IntRange(1),
    help="Number of inducing points.  [default: none for up to "
    f"{EXACT_ROWS:,} training rows, else {INDUCING}]",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option("--jobs", type=click.IntRange(-1), default=1, show_default=True, help="Processes.")
@csv_options
@raw_text_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def certify(
    *,
    train: Path,
    target: str,
    predict: Path,
    out: Path,
    report: Path | None,
    id_column: str | None,
    drop: tuple[str, ...],
    fixed: str,
    bounds: str,
    max_radius: float,
    norm: str,
    max_regions: int,
    inducing: int | None,
    seed: int,
    jobs: int,
    csv_format: CsvOptions,
    raw_text: bool,
    quiet: bool,
) -> None:
    """Prove how far table rows can change without changing class.

    Trains a Gaussian-process classifier (RobustGPC) on the numeric columns of another table, scaled
    to a standard deviation of 1; other columns are dropped. The proofs concern changes within the
    range of the training rows. In counterexamples, columns of integers stay integers.
    """
    check_outputs([out, report], [train, predict])
    if report is not None:
        require_plots("--report")
    check_finite("--max-radius", max_radius)
    check_jobs(jobs)
    from skuq._table_files import check_writable, write_table

    with refusing_tables():
        check_writable(out)
    known, new, names, notes = _read(train, predict, target, id_column, drop, csv_format)
    free, held = _free_and_held(names, fixed)
    _check_result_names(names, free, id_column)
    if known[target].isna().any():
        raise InputError(
            f"{train}: column {target} has missing values; remove these rows. (Words such as "
            "None and NA count as missing: rename classes with such names.)"
        )
    X, X_new = known[names].to_numpy(dtype=float), _numbers(new[names], predict)
    free, constant = _free_and_constant(X, free, train)
    still = [names[index] for index in constant]
    if not quiet:
        say(
            f"Training a Gaussian process on {len(X):,} rows and {len(names)} columns ...", err=True
        )
    options = {"n_inducing": inducing, "random_state": seed, "n_jobs": jobs}
    gpc, scaler = _fitted(X, known[target].to_numpy(), train, **options)
    gpc.set_params(verbose=int(not quiet))  # progress bar for the certificates only
    about = _about(gpc, len(X), bounds)
    request = {"max_radius": max_radius, "norm": norm, "features": free}
    # Radii are precise to 0.01 standard deviations: `precision` is relative to `max_radius`.
    request["precision"] = min(0.01, 0.01 / max_radius)
    request["max_regions"] = max_regions
    table = Columns(names, X, X_new)
    rows = certified(gpc, scaler, table, request, bounds == "data")
    if id_column:
        rows.insert(0, id_column, new[id_column].to_numpy())
    about = " ".join([about, *whole_notes(rows)])
    pages = [] if report is None else [_report(rows, max_radius, norm, [*held, *still], about)]
    with refusing_writes():
        written = write_table(out, [rows], raw_text=raw_text)
        if report is not None:
            pages[0].write(report)
    if not quiet:
        for note in notes:
            say(note)
        if still:
            say(f"Columns with one value in all training rows, held fixed: {', '.join(still)}.")
        proven = int((rows["certified_radius"] > 0).sum())
        if written.note:
            say(written.note)
        say(f"{written.rows} rows; for {proven}, the class is proven within a positive radius.")
        say(about)
        say(f"Certificates: {out}")
        if report is not None:
            say(f"Report: {report}")


def _read(
    train: Path,
    predict: Path,
    target: str,
    id_column: str | None,
    drop: tuple[str, ...],
    csv_format: CsvOptions,
) -> tuple[pd.DataFrame, pd.DataFrame, list[str], list[str]]:
    """Return the training table, the table to certify, the feature columns, and notes."""
    from skuq._table_files import CsvFormat, open_table

    kinds = {id_column: str} if id_column else {}
    with refusing_tables():
        training = open_table(train, CsvFormat(*csv_format))
        training.require([target, *drop])
        codes = {target: str} if target in training.codes else {}
        known = classes_as_written(training, training.read(dtype=codes), target)
        columns = [name for name in training.columns if name not in {target, *drop, *kinds}]
        names, notes = _columns_of_numbers(known[columns])
        if not names:
            why = " ".join([f"{train} has no numeric column besides {target}.", *notes])
            raise InputError(why)
        table = open_table(predict, CsvFormat(*csv_format))
        table.require([*names, *kinds])
        new = table.read(dtype=kinds, text_columns=kinds)
    return known, new, names, [*(note for note in (training.note, table.note) if note), *notes]


def _columns_of_numbers(frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return the columns of finite numbers, and notes on the dropped columns."""
    import numpy as np
    from pandas.api.types import is_numeric_dtype

    from skuq._table_files import UNNAMED

    left_out: dict[str, list[str]] = {}
    for name, column in frame.items():
        if str(name).startswith(UNNAMED):
            left_out.setdefault("without a name", []).append(str(name))
        elif not is_numeric_dtype(column):
            left_out.setdefault("that are not numeric", []).append(str(name))
        elif not np.isfinite(column.to_numpy(dtype=float, na_value=np.nan)).all():
            left_out.setdefault("with missing or infinite values", []).append(str(name))
    out = {name for names in left_out.values() for name in names}
    notes = [
        f"Columns {which} were dropped: {', '.join(names)}." for which, names in left_out.items()
    ]
    return [str(name) for name in frame if name not in out], notes


def _free_and_held(names: list[str], fixed: str) -> tuple[list[int], list[str]]:
    """Return the indices of the columns that may change, and the names of the fixed columns."""
    held = [name.strip() for name in fixed.split(",") if name.strip()]
    unknown = [name for name in held if name not in names]
    free = [index for index, name in enumerate(names) if name not in held]
    if unknown or not free:
        what = f"unknown columns {', '.join(unknown)}" if unknown else "all columns"
        raise InputError(f"--fixed contains {what}; the feature columns are {', '.join(names)}.")
    return free, held


def _check_result_names(names: list[str], free: list[int], id_column: str | None) -> None:
    """Refuse data columns with the name of a result column."""
    made = [*RESULTS, *(f"counterexample_{names[index]}" for index in free), id_column]
    twice = sorted({str(name) for name in made if made.count(name) > 1})
    if twice:
        raise InputError(
            f"The result would have two columns named {', '.join(twice)}; rename the column in the "
            "data."
        )


def _free_and_constant(
    X: np.ndarray[Any, Any], free: list[int], train: Path
) -> tuple[list[int], list[int]]:
    """Split the columns that may change into varying and constant columns."""
    constant = [index for index in free if X[:, index].min() == X[:, index].max()]
    if constant == free:
        raise InputError(
            f"{train}: all columns that can change are constant, so changes cannot be "
            "measured in standard deviations."
        )
    return [index for index in free if index not in constant], constant


def _fitted(
    X: np.ndarray[Any, Any],
    y: np.ndarray[Any, Any],
    train: Path,
    *,
    n_inducing: int | None,
    **options: Any,
) -> tuple[RobustGPC, StandardScaler]:
    """Fit the scaler and the classifier on scaled inputs."""
    from sklearn.preprocessing import StandardScaler

    from skuq.gpc import RobustGPC

    if n_inducing is None and len(X) > EXACT_ROWS:
        n_inducing = INDUCING
    scaler = StandardScaler().fit(X)
    gpc = RobustGPC(n_inducing=n_inducing, **options)
    try:
        gpc.fit(scaler.transform(X), y)
    except (ValueError, MemoryError) as error:
        raise InputError(f"{train}: {error}") from error
    return gpc, scaler


def _about(gpc: RobustGPC, n_rows: int, bounds: str) -> str:
    """Sentence on the posterior approximation and the changes that the certificates cover."""
    basis = "the training rows"
    if gpc.n_inducing is not None:
        n_points = len(gpc.posterior_.inputs)
        basis = f"{n_points:,} inducing points instead of {n_rows:,} training rows"
    within = ", and for values within the range of the training rows" if bounds == "data" else ""
    return f"Certificates hold for the Laplace approximation of the posterior on {basis}{within}."


def _numbers(frame: pd.DataFrame, path: Path) -> np.ndarray[Any, Any]:
    """Values of a table; raise an error if a column has text, missing or infinite values."""
    import numpy as np
    from pandas.api.types import is_numeric_dtype

    words = [str(name) for name in frame if not is_numeric_dtype(frame[name])]
    if words:
        raise InputError(
            f"{path}: the columns {', '.join(words)} are not numeric; drop them (--drop), or "
            "encode them as numbers first."
        )
    values = frame.to_numpy(dtype=float)
    finite = np.isfinite(values).all(axis=0)
    gaps = [str(name) for name, complete in zip(frame, finite, strict=True) if not complete]
    if gaps:
        raise InputError(
            f"{path}: the columns {', '.join(gaps)} have missing or infinite values; fill them in "
            "first."
        )
    return values


def _report(rows: pd.DataFrame, max_radius: float, norm: str, held: list[str], about: str) -> Any:
    """Report with the certified share by radius, and the rows with the smallest radii."""
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure

    from skuq.reporting import Report

    radii = np.linspace(0, max_radius, 101)
    proven, refuted = rows["certified_radius"], rows["counterexample_radius"]
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(radii, [(proven >= r).mean() for r in radii], label="proven to keep their class")
    axes.plot(radii, [(refuted > r).mean() for r in radii], "--", label="no counterexample found")
    axes.set(xlabel=f"radius ({norm}, standard deviations)", ylabel="share of rows", ylim=(0, 1.05))
    axes.legend()
    fixed = f" Fixed columns: {', '.join(held)}." if held else ""
    page = Report(
        "Certified predictions",
        f"{len(rows)} rows. For half of them, the class is proven constant within a radius of "
        f"{_shown(pd.Series([proven.median()]), np.floor).item():.4g} standard deviations."
        f"{fixed} {about}",
    )
    page.figure(
        "Share of rows by radius",
        figure,
        "The true share lies between the curves. Rows below the lower curve are proven; rows above "
        "the upper one have a counterexample.",
    )
    narrow = rows.sort_values("certified_radius", kind="stable").head(20)
    page.table(
        "Rows with the smallest certified radii",
        narrow.assign(
            certified_radius=_shown(narrow["certified_radius"], np.floor),
            counterexample_radius=_shown(narrow["counterexample_radius"], np.ceil),
        ).rename(columns=_heading),
        "For each row, a change as large as the radius of the counterexample changes the class.",
    )
    return page


def _heading(name: str) -> str:
    """Column heading with spaces, which let it wrap in a narrow column."""
    is_ours = name in RESULTS or name.startswith("counterexample_")
    return name.replace("_", " ", 1) if is_ours else name


def _shown(radii: pd.Series, rounding: Callable[[Any], Any]) -> pd.Series:
    """Round radii to four digits: proven radii down and refuted radii up, so all claims hold."""
    import numpy as np

    finite = np.isfinite(radii) & (radii > 0)
    unit = 10.0 ** (np.floor(np.log10(radii.where(finite, 1.0))) - 3)
    return (rounding(radii / unit) * unit).where(finite, radii)
