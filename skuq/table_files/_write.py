"""Tables written to files, in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from skuq.extras import import_optional
from skuq.files import atomic_path
from skuq.table_files._csv_format import TableFileError
from skuq.table_files._read import COMPRESSED, PARQUET

SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
ONLY_READ = (".zip", ".zst")


class _Writer(Protocol):
    def __call__(self, frame: pd.DataFrame) -> None: ...


def check_writable(path: str | PathLike[str]) -> None:
    """Refuse a file that cannot be written as its ending says.

    Parameters
    ----------
    path : path-like
        File that `write_table` is to write, possibly much later.

    Raises
    ------
    TableFileError
        If the file ends as a spreadsheet or an archive does. It is a `ValueError`.
    ImportError
        If the file ends as Parquet does, and the extra 'parquet' is not installed.
    """
    if Path(path).suffix.lower() in SPREADSHEETS:
        raise TableFileError(
            f"{path} would be a spreadsheet, which is not written; name a file that ends with "
            ".csv, which spreadsheets open, or with .parquet."
        )
    if Path(path).suffix.lower() in ONLY_READ:
        raise TableFileError(
            f"{path} would be an archive, which is read but not written; name a file that ends "
            "with .csv.gz, or with .parquet."
        )
    if Path(path).suffix.lower() in PARQUET:
        import_optional("pyarrow.parquet", extra="parquet")


def write_table(path: str | PathLike[str], chunks: Iterable[pd.DataFrame]) -> int:
    """Write a table completely or not at all, one chunk of rows after the other.

    Parameters
    ----------
    path : path-like
        File in an existing folder, which is replaced: Parquet if it ends with ``.parquet`` or
        ``.pq``, else CSV in UTF-8, compressed if it ends with ``.gz``, ``.bz2`` or ``.xz``.
    chunks : iterable of DataFrame
        Consecutive rows, all with the same columns; at least one chunk. They may be computed
        while the file is written: if that fails, whatever was there before is untouched.

    Returns
    -------
    int
        Number of rows.

    Raises
    ------
    TableFileError
        If the file ends as a spreadsheet or an archive does. It is a `ValueError`.
    ImportError
        If the file ends as Parquet does, and the extra 'parquet' is not installed.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import pandas as pd
    >>> from skuq.table_files import write_table
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "squares.csv")
    ...     print(write_table(path, (pd.DataFrame({"square": [k * k]}) for k in range(3))))
    ...     path.read_text()
    3
    'square\\n0\\n1\\n4\\n'
    """
    check_writable(path)
    ending = Path(path).suffix.lower()
    n_rows = 0
    with atomic_path(path) as partial:
        writer = _parquet(partial) if ending in PARQUET else _csv(partial, ending)
        with writer as write:
            for chunk in chunks:
                write(chunk)
                n_rows += len(chunk)
    return n_rows


@contextmanager
def _csv(partial: Path, ending: str) -> Iterator[_Writer]:
    with COMPRESSED.get(ending, open)(partial, "wt", encoding="utf-8", newline="") as stream:
        is_first = True

        def write(frame: pd.DataFrame) -> None:
            nonlocal is_first
            frame.to_csv(stream, index=False, header=is_first)
            is_first = False

        yield write


@contextmanager
def _parquet(partial: Path) -> Iterator[_Writer]:
    arrow = import_optional("pyarrow", extra="parquet")
    parquet = import_optional("pyarrow.parquet", extra="parquet")
    writer: Any = None

    def write(frame: pd.DataFrame) -> None:
        nonlocal writer
        schema = None if writer is None else writer.schema
        table = arrow.Table.from_pandas(frame, schema=schema, preserve_index=False)
        if writer is None:
            writer = parquet.ParquetWriter(partial, table.schema)
        writer.write_table(table)

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
