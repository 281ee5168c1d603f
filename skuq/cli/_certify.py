"""``skuq certify``: certified radii of table rows, within which the predicted class is constant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skuq.cli import _io
from skuq.cli._io import POSITIVE, READABLE, WRITABLE, InputError, option, say
from skuq.imports import shown

if TYPE_CHECKING:
    import pandas as pd

EXACT_ROWS = 2000  # a training table with more rows is used with inducing points by default
INDUCING = 200  # default number of inducing points for such tables


@click.command()
@option("--train", "CSV or Parquet file to train on.", READABLE, required=True)
@option("--target", "Column with the class.", required=True)
@option("--predict", "File with rows to certify.", READABLE, required=True)
@option("--out", "CSV or Parquet file to write.", WRITABLE, required=True)
@option("--id id_column", "Column that identifies rows; copied, not a feature.")
@option("--drop", "Column not to use; may be repeated.", multiple=True)
@click.option("--fixed", default="", metavar="COLUMN,COLUMN", help="Columns that cannot change.")
@option(
    "--max-radius",
    "Largest radius, in standard deviations of each column.",
    click.FloatRange(0, min_open=True),
    1.0,
)
@option(
    "--norm",
    "Norm of a change: the radius limits each column (linf), or all together (l2, l1).",
    click.Choice(["linf", "l2", "l1"]),
    "linf",
)
@option(
    "--max-regions",
    "Limit on the work for each row and radius, beyond which the radius is not proven.",
    POSITIVE,
    300,
)
@option(
    "--inducing",
    "Number of inducing points.  [default: none for up to "
    f"{EXACT_ROWS:,} training rows, else {INDUCING}]",
    POSITIVE,
)
@_io.csv_options
def certify(
    *,
    train: Path,
    target: str,
    predict: Path,
    out: Path,
    id_column: str | None,
    drop: tuple[str, ...],
    fixed: str,
    max_radius: float,
    norm: str,
    max_regions: int,
    inducing: int | None,
    csv_format: _io.CsvOptions,
) -> None:
    """Prove how far table rows can change without changing class.

    Trains a Gaussian-process classifier (RobustGPC) on the numeric columns of another table, scaled
    to a standard deviation of 1; other columns are dropped. The proofs concern changes within the
    range of the training rows.
    """
    _io.check_outputs([out], [train, predict])
    _io.check_finite("--max-radius", max_radius)
    import numpy as np
    from sklearn.preprocessing import StandardScaler

    from skuq._table_files import CsvFormat, check_writable, open_table, write_table
    from skuq.gpc import RobustGPC

    with _io.refusing_tables():
        check_writable(out)
        training, table = (open_table(path, CsvFormat(*csv_format)) for path in (train, predict))
        training.require([target, *drop])
        codes = {target: str} if target in training.codes else {}
        known = _io.classes_as_written(training, training.read(dtype=codes), target)
        ids = {id_column: str} if id_column else {}
        names = _numeric(known, without={target, *drop, *ids})
        table.require([*names, *ids])
        new = table.read(dtype=ids, text_columns=ids)
    held = {name.strip() for name in fixed.split(",") if name.strip()}
    free = [index for index, name in enumerate(names) if name not in held]
    if not free or held - {*names}:
        raise InputError(
            "--fixed must name some of the feature columns, but not all. The numeric columns of "
            f"{train} without missing values are: {', '.join(names) or 'none'}."
        )
    if _numeric(new[names], without=set()) != names:
        raise InputError(
            f"{predict}: the columns {', '.join(names)} must be finite numbers in all rows; fill "
            "in missing values, or leave columns out with --drop."
        )
    X, X_new = known[names].to_numpy(dtype=float), new[names].to_numpy(dtype=float)
    if inducing is None and len(X) > EXACT_ROWS:
        inducing = INDUCING
    say(f"Training a Gaussian process on {len(X):,} rows and {len(names)} columns ...", err=True)
    scaler = StandardScaler().fit(X)
    try:
        gpc = RobustGPC(n_inducing=inducing, random_state=0)
        gpc.fit(scaler.transform(X), known[target].to_numpy())
    except (ValueError, MemoryError) as error:
        raise InputError(f"{train}: {error}") from error
    gpc.set_params(verbose=1)  # show the progress of the certificates, but not of the training
    # The domain of a row's proof is the range of the training rows, extended to contain the row.
    ends = np.minimum(X.min(axis=0), X_new), np.maximum(X.max(axis=0), X_new)
    # Radii are precise to 0.01 standard deviations: `precision` is relative to `max_radius`.
    points = scaler.transform(X_new)
    found = gpc.certified_radius(
        points,
        max_radius=max_radius,
        precision=min(0.01, 0.01 / max_radius),
        norm=norm,
        features=free,
        domain=tuple(map(scaler.transform, ends)),
        max_regions=max_regions,
    )
    # Clip, since values may leave the range by a rounding error when the scaling is undone.
    examples = np.clip(scaler.inverse_transform(found.counterexample), *ends)
    columns: dict[str, Any] = {id_column: new[id_column].to_numpy()} if id_column else {}
    results = {
        "class": gpc.predict(points),
        "probability": gpc.predict_proba(points).max(axis=1),
        "certified_radius": found.lower,
        "counterexample_radius": found.upper,
        **{f"counterexample_{names[index]}": examples[:, index] for index in free},
    }
    if {*columns} & {*results} or len(results) < 4 + len(free):
        raise InputError("Two columns of the result have the same name; rename data columns.")
    with _io.refusing_writes():
        rows = new.iloc[:, :0].assign(**columns, **results)
        written = write_table(out, [rows])
    basis = "the training rows"
    if inducing is not None:
        n_points = len(gpc.posterior_.inputs)
        basis = f"{n_points:,} inducing points instead of {len(X):,} training rows"
    for note in (training.note, table.note, written.note):
        if note:
            say(note)
    used = {*names, target, *drop, *ids}
    left_out = [str(name) for name in known if name not in used]
    if left_out:
        say(f"Columns without numbers in all rows were dropped: {', '.join(map(shown, left_out))}.")
    say(f"{written.rows} rows; for {(found.lower > 0).sum()}, a positive radius is proven.")
    say(
        f"The proofs hold for the Laplace approximation of the posterior on {basis}, and for values"
    )
    say(f"within the range of the training rows. Certificates: {out}")


def _numeric(frame: pd.DataFrame, without: set[str]) -> list[str]:
    import numpy as np
    from pandas.api.types import is_numeric_dtype

    from skuq._table_files import UNNAMED

    return [
        str(name)
        for name, column in frame.items()
        if name not in without
        and not str(name).startswith(UNNAMED)
        and is_numeric_dtype(column)
        and np.isfinite(column.to_numpy(dtype=float, na_value=np.nan)).all()
    ]
