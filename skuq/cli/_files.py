"""Checks, options and errors for the files that the commands read and write."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skuq.cli._printing import one_line

if TYPE_CHECKING:
    import pandas as pd

    from skuq._table_files import TableFile


CsvOptions = tuple[str | None, str | None, str | None]  # fields of `CsvFormat`
READABLE = click.Path(exists=True, dir_okay=False, path_type=Path)
SEPARATORS = {"tab": "\t", "\\t": "\t"}  # names for the tab, which is hard to type in a shell
WRITABLE = click.Path(dir_okay=False, path_type=Path)


class InputError(click.ClickException):
    """Unusable input, with exit code 2; the message says in one line what to change."""

    exit_code = 2


def check_outputs(outputs: list[Path | None], inputs: list[Path]) -> None:
    """Refuse outputs whose folder is missing or that would overwrite an input or another output."""
    taken = {path.resolve() for path in inputs}
    for path in filter(None, outputs):
        if not path.parent.is_dir():
            raise InputError(f"The folder {path.parent} does not exist; create it first.")
        if str(path) == "-":
            raise InputError("Results cannot be written to '-'; pass the name of a file.")
        if path.resolve() in taken:
            raise InputError(
                f"{path} is already an input or output of this command; choose a new file."
            )
        taken.add(path.resolve())


def check_finite(option: str, value: float | None) -> None:
    """Refuse NaN and infinity, which click's ranges accept."""
    if value is not None and not math.isfinite(value):
        raise InputError(f"{option} must be a finite number, got {value}.")


def check_jobs(jobs: int) -> None:
    """Refuse zero processes."""
    if jobs == 0:
        raise InputError("--jobs must be a number of processes, or -1 for all cores; got 0.")


def classes_as_written(table: TableFile, frame: pd.DataFrame, target: str) -> pd.DataFrame:
    """Restore the spelling that boolean classes have in the file; pandas parses TRUE as True."""
    from pandas.api.types import is_bool_dtype

    if target not in frame or not is_bool_dtype(frame[target]):
        return frame
    return frame.assign(**{target: table.read(dtype={target: str})[target]})


def require_plots(what: str) -> None:
    """Raise an error if matplotlib, which `what` needs, is not installed."""
    from skuq.imports import import_optional

    try:
        import_optional("matplotlib", extra="plot")
    except ImportError as error:
        raise InputError(f"{what}: {error}") from error


def files_of(option: str, patterns: Sequence[str]) -> list[Path]:
    """Expand the file names and patterns of an option; matches of a pattern are sorted."""
    paths: list[Path] = []
    known: set[Path] = set()
    for pattern in patterns:
        found = [Path(pattern)] if Path(pattern).exists() else sorted(map(Path, glob(pattern)))
        if not found or not pattern:
            what = "no file matches" if has_magic(pattern) else "cannot find"
            raise InputError(f"{option}: {what} {pattern or repr(pattern)}.")
        for path in found:
            if not path.is_file():
                raise InputError(f"{option}: {path} is not a file; pass files, or {path}/*.csv.")
            if path.resolve() in known:  # its rows would be counted twice
                raise InputError(f"{option}: {path} is named twice.")
            known.add(path.resolve())
            paths.append(path)
    return paths


@contextmanager
def refusing_writes() -> Iterator[None]:
    """Convert errors of writing to `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"Cannot write: {one_line(error)}") from error


@contextmanager
def refusing_tables() -> Iterator[None]:
    """Convert errors of reading tables to `InputError`."""
    from skuq._table_files import TableFileError

    try:
        yield
    except (TableFileError, ImportError) as error:
        raise InputError(one_line(error)) from error


def csv_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator with the options of the CSV format, passed to the command as `csv_format`."""

    @wraps(command)
    def with_format(
        *args: Any, sep: str | None, decimal: str | None, encoding: str | None, **options: Any
    ) -> Any:
        # Pass a plain tuple: an instance of `CsvFormat` would require the import of pandas, which
        # is too slow for a help page.
        csv_format = (SEPARATORS.get(str(sep).lower(), sep), decimal, encoding)
        return command(*args, csv_format=csv_format, **options)

    for name, what in (
        ("--encoding", "Encoding of CSV files, such as cp1252.  [default: detected]"),
        ("--decimal", "Decimal mark in CSV files, '.' or ','.  [default: detected]"),
        ("--sep", "Separator in CSV files, such as ';' or tab.  [default: detected]"),
    ):
        with_format = click.option(name, help=what)(with_format)
    return with_format


trust_option = click.option(
    "--trust", is_flag=True, help="Allow loading files that can run arbitrary code."
)


def text_columns(frame: pd.DataFrame) -> dict[str, type[str]]:
    """Map the names of the text columns of `frame` to `str`: a `dtype` for reading another file."""
    from pandas import CategoricalDtype
    from pandas.api.types import infer_dtype

    values = {
        str(name): frame[name].cat.categories
        if isinstance(frame[name].dtype, CategoricalDtype)
        else frame[name]
        for name in frame
    }
    return {name: str for name in values if infer_dtype(values[name]) == "string"}


def read_csv(
    path: Path,
    like: pd.DataFrame | None = None,
    needed: list[str] | None = None,
    label: str | None = None,
) -> pd.DataFrame:
    """Read a CSV table with commas and decimal points; text columns of `like` are read as text.

    In column `label`, words such as "NA" and "None" are labels, unless the column is numeric.
    """
    from pandas.api.types import is_numeric_dtype

    from skuq._table_files import CsvFormat, open_table

    with refusing_tables():
        table = open_table(path, CsvFormat(",", ".", "utf-8"))
        table.require(needed or ())
        frame = table.read(dtype={} if like is None else text_columns(like))
        if label is None or frame[label].notna().all():
            return frame
        if is_numeric_dtype(frame[label]) and frame[label].notna().any():
            return frame
        return frame.assign(**{label: table.read(text_columns=True)[label]})
