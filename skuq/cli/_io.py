"""Options and checks of the files that commands read and write, and the text that they print."""

from __future__ import annotations

import math
import os
import re
import sys
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from glob import glob, has_magic
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from skuq.imports import shown

if TYPE_CHECKING:
    import pandas as pd

    from skuq._table_files import TableFile

CsvOptions = tuple[str | None, str | None, str | None, int | None]  # fields of `CsvFormat`
READABLE = click.Path(exists=True, dir_okay=False, path_type=Path)
WRITABLE = click.Path(dir_okay=False, path_type=Path)
NEW_FOLDER = click.Path(file_okay=False, path_type=Path)
SHARE, POSITIVE = click.FloatRange(0, 1, min_open=True, max_open=True), click.IntRange(1)
SEPARATORS = {"tab": "\t", "\\t": "\t"}  # names for the tab, which is hard to type in a shell
# Command-line option for each parameter. Messages of the package write a parameter in backticks,
# with or without its value.
OPTIONS = {
    "TableModel.save": "--save",
    "allow_test_string": "--test-string",
    "id_column": "--id",
    "n_attestations": "--attestations",
    "n_proofs": "--proofs",
    "sample_weight": "--weights",
    "search_regions": "--features",
    "sensitive_features": "--groups",
}
for _name in (
    *(
        "absent_classes",
        "challenge",
        "classes",
        "decimal",
        "drop",
        "encoding",
        "held_out",
        "keys",
        "max_error",
    ),
    *("groups", "out", "proba", "regions", "sep", "skip", "srs", "strict", "task", "time", "trust"),
    *("verdict_samples", "weights_are"),
):
    OPTIONS[_name] = f"--{_name.replace('_', '-')}"
PARAMETER = re.compile(rf"`({'|'.join(map(re.escape, OPTIONS))})(?:=([^`]+))?`")


def one_line(error: BaseException) -> str:
    """Return an error message in one line, with command-line options for Python parameters."""
    return as_options(" ".join(str(error).split()))


def as_options(message: str) -> str:
    """Replace Python parameters in a message by command-line options.

    `` `drop=['x']` `` becomes `--drop x`; a parameter that is True becomes a flag.
    """

    def as_option(match: re.Match[str]) -> str:
        name, value = OPTIONS[match[1]], match[2]
        try:
            given = True if value is None else literal_eval(value)
        except (SyntaxError, ValueError):
            return match[0]
        values = given if isinstance(given, list) else [given]
        return name if given is True else " ".join(f"{name} {quote(str(each))}" for each in values)

    return PARAMETER.sub(as_option, message)


def say(*lines: str, err: bool = False, **style: Any) -> None:
    """Print lines; characters that would break a line, or cannot be encoded, are escaped."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    for line in lines:
        text = shown(line, None).encode(encoding, "backslashreplace").decode(encoding)
        try:
            click.secho(text, err=err, **style)
        except BrokenPipeError:  # the reader has closed the pipe, as `head` in `skuq audit | head`
            raise
        except OSError as error:
            if not err:  # without this, Python would fail again when it flushes stdout at exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise InputError(f"Cannot write to the terminal or pipe: {one_line(error)}") from error


def say_bins(rows: Iterable[Mapping[str, Any]]) -> None:
    from skuq.labels import amount
    from skuq.reporting import bin_finding, bin_range

    say(f"  {'confidence':<16}{'samples':>9}{'claimed':>9}{'right':>8}{'difference':>12}  finding")
    for row in rows:
        if row["count"]:
            say(
                f"  {bin_range(row):<16}{amount(row['count']):>9}"
                f"{row['confidence']:>9.1%}{row['accuracy']:>8.1%}{100 * row['gap']:>+z12.1f}"
                f"  {bin_finding(row)}"
            )


def option(names: str, text: str, type: Any = None, default: Any = None, **settings: Any) -> Any:
    """Return a decorator that adds an option; `names` may include the name of its parameter."""
    if default is not None:
        settings |= {"default": default, "show_default": True}
    return click.option(*names.split(), help=text, type=type, **settings)


trust_option = option("--trust", "Allow loading files that can run arbitrary code.", is_flag=True)
quiet_option = option("--quiet", "Print nothing but errors.", is_flag=True)


def csv_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the CSV format to a command, which receives them as `csv_format`."""

    @wraps(command)
    def with_format(*args: Any, sep: str | None, **options: Any) -> Any:
        # Pass a plain tuple: an instance of `CsvFormat` would require the import of pandas, which
        # is too slow for a help page.
        others = (options.pop(name) for name in ("decimal", "encoding", "skip"))
        csv_format = (SEPARATORS.get(str(sep).lower(), sep), *others)
        return command(*args, csv_format=csv_format, **options)

    skipped = "Lines above the names in CSV files, such as titles.  [default: detected]"
    with_format = option("--skip", skipped, click.IntRange(0))(with_format)
    for name, what in (
        ("--encoding", "Encoding of CSV files, such as cp1252.  [default: detected]"),
        ("--decimal", "Decimal mark in CSV files, '.' or ','.  [default: detected]"),
        ("--sep", "Separator in CSV files, such as ';' or tab.  [default: detected]"),
    ):
        with_format = option(name, what)(with_format)
    return with_format


class InputError(click.ClickException):
    """Unusable input, with exit code 2; the message says in one line what to change."""

    exit_code = 2

    def format_message(self) -> str:
        return shown(self.message, None)


def check_outputs(outputs: list[Path | None], inputs: list[Path]) -> None:
    """Raise if an output would be in a missing folder, or overwrite an input or another output."""
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
    if jobs == 0:
        raise InputError("--jobs must be a number of processes, or -1 for all cores; got 0.")


def require_plots(what: str) -> None:
    """Raise an error if matplotlib, which `what` needs, is not installed."""
    from skuq.imports import import_optional

    try:
        import_optional("matplotlib", extra="plot")
    except ImportError as error:
        raise InputError(f"{what}: {error}") from error


def files_of(option: str, patterns: Sequence[str]) -> list[Path]:
    """Expand the file names and patterns of an option; matches of a pattern are sorted."""
    paths: dict[Path, Path] = {}
    for pattern in patterns:
        found = [Path(pattern)] if Path(pattern).exists() else sorted(map(Path, glob(pattern)))
        if not found or not pattern:
            what = "no file matches" if has_magic(pattern) else "cannot find"
            raise InputError(f"{option}: {what} {pattern or repr(pattern)}.")
        for path in found:
            if not path.is_file():
                raise InputError(f"{option}: {path} is not a file; pass files, or {path}/*.csv.")
            if path.resolve() in paths:  # rows would be counted twice
                raise InputError(f"{option}: {path} is named twice.")
            paths[path.resolve()] = path
    return [*paths.values()]


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


def classes_as_written(table: TableFile, frame: pd.DataFrame, target: str) -> pd.DataFrame:
    """Restore the spelling that boolean classes have in the file; pandas parses TRUE as True."""
    from pandas.api.types import is_bool_dtype

    if target not in frame or not is_bool_dtype(frame[target]):
        return frame
    return frame.assign(**{target: table.read(dtype={target: str})[target]})


def text_columns(frame: pd.DataFrame) -> dict[str, type[str]]:
    """Return a `dtype` argument with which the text columns of `frame` are text in another file."""
    from pandas import CategoricalDtype
    from pandas.api.types import infer_dtype

    def values(column: pd.Series) -> Any:
        is_category = isinstance(column.dtype, CategoricalDtype)
        return column.cat.categories if is_category else column

    return {str(name): str for name in frame if infer_dtype(values(frame[name])) == "string"}


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
