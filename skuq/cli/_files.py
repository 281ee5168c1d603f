"""Files that the commands read and write."""

from __future__ import annotations

import difflib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skuq.cli._printing import one_line

if TYPE_CHECKING:
    import pandas as pd


READABLE = click.Path(exists=True, dir_okay=False, path_type=Path)
WRITABLE = click.Path(dir_okay=False, path_type=Path)


class InputError(click.ClickException):
    """Input that cannot be used: one line on what to change, and exit code 2."""

    exit_code = 2


def check_outputs(outputs: list[Path | None], inputs: list[Path]) -> None:
    """Refuse to write into a folder that is not there, or over a file that is read."""
    taken = {path.resolve() for path in inputs}
    for path in filter(None, outputs):
        if not path.parent.is_dir():
            raise InputError(f"The folder {path.parent} does not exist; create it first.")
        if path.resolve() in taken:
            raise InputError(f"{path} would overwrite another file of this call.")
        taken.add(path.resolve())


def require_plots(what: str) -> None:
    """Refuse what needs matplotlib where it is missing."""
    from skuq.extras import import_optional

    try:
        import_optional("matplotlib", extra="plot")
    except ImportError as error:
        raise InputError(f"{what}: {error}") from error


def read_csv(
    path: Path,
    like: pd.DataFrame | None = None,
    needed: list[str] | None = None,
    label: str | None = None,
) -> pd.DataFrame:
    """Read a table; columns of text in `like` are read as text too.

    With `needed` columns, which must exist, spaces around all names are removed.
    In column `label` words such as "NA" and "None" are labels, unless it holds numbers.
    """
    import pandas as pd
    from pandas.api.types import infer_dtype

    names = [] if like is None else [name for name in like if infer_dtype(like[name]) == "string"]
    texts = dict.fromkeys(names, str)
    try:
        header = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0]
        _check_separator(path, header.tolist())
        header = header if needed is None else header.str.strip()
        for name in needed or ():
            _check_column(path, name, header.dropna().tolist())
        with warnings.catch_warnings():
            # Rows with more values than the header has names: pandas drops the rest of them.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(path, dtype=texts, index_col=False, low_memory=False)
    except pd.errors.ParserWarning as error:
        raise InputError(f"{path} has rows with more values than column names.") from error
    except UnicodeError as error:
        message = f"{path} cannot be read as CSV: {one_line(error)}; save it as CSV in UTF-8."
        raise InputError(message) from error
    except ValueError as error:  # pandas' parser errors are ValueErrors
        raise InputError(f"{path} cannot be read as CSV: {one_line(error)}") from error
    if header.dropna().duplicated().any():  # pandas would rename them
        twice = header[header.duplicated() & header.notna()].iloc[0]
        raise InputError(f"{path} has more than one column {twice!r}; rename or remove one.")
    if len(frame) == 0:
        raise InputError(f"{path} has no rows.")
    if needed is not None:
        frame.columns = frame.columns.str.strip()
    return frame if label is None else frame.assign(**{label: _labels(path, frame[label])})


def _labels(path: Path, column: pd.Series) -> pd.Series:
    """The same column as text, in which only an empty cell is missing."""
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    if column.notna().all() or (is_numeric_dtype(column) and column.notna().any()):
        return column
    frame = pd.read_csv(
        path, index_col=False, low_memory=False, keep_default_na=False, na_values=[""]
    )
    frame.columns = frame.columns.str.strip()
    return frame[column.name]


def _check_separator(path: Path, header: list[str]) -> None:
    if len(header) == 1 and any(mark in str(header[0]) for mark in ";\t"):
        raise InputError(
            f"{path} has a single column, {str(header[0])!r}: the separator must be a comma, "
            "and numbers need a decimal point."
        )


def _check_column(path: Path, name: str, known: list[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else f" It has {', '.join(known[:10])}."
        raise InputError(f"{path} has no column {name!r}.{hint}")
