"""Writing tables to CSV and Parquet files, in chunks."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pandas as pd

from skuq._table_files._csv_format import TableFileError
from skuq._table_files._formulas import safe_frame, safe_text, text_positions
from skuq._table_files._read import COMPRESSED, PARQUET
from skuq.extras import import_optional
from skuq.files import atomic_path

SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
ONLY_READ = (".zip", ".zst")


class _Writer(Protocol):
    def __call__(self, frame: pd.DataFrame) -> int: ...


class WrittenTable(NamedTuple):
    """Numbers of rows and of protected texts in a written table.

    Attributes
    ----------
    rows : int
        Number of rows.
    marked : int
        Number of texts, including column names, that were prefixed with an apostrophe to ensure
        that spreadsheets do not evaluate the texts as formulas.
    """

    rows: int
    marked: int

    @property
    def note(self) -> str:
        """A sentence on the marked texts; empty if there are none."""
        if self.marked == 0:
            return ""
        cells = "1 text begins" if self.marked == 1 else f"{self.marked:,} texts begin"
        return (
            f"{cells} with =, +, -, @ or a control character. A spreadsheet would evaluate such "
            "text as a formula, so it got an apostrophe as prefix, which skuq removes on reading."
        )


def check_writable(path: str | PathLike[str]) -> None:
    """Check that `write_table` supports the extension of a file.

    Parameters
    ----------
    path : path-like
        File to write later.

    Raises
    ------
    TableFileError
        If the file has the extension of a spreadsheet or an archive. `TableFileError` is a
        `ValueError`.
    ImportError
        If the file has the extension of a Parquet file and the extra 'parquet' is not installed.
    """
    if Path(path).suffix.lower() in SPREADSHEETS:
        raise TableFileError(
            f"{path}: spreadsheet files cannot be written; use a file that ends with .csv, which "
            "spreadsheets can open, or with .parquet."
        )
    if Path(path).suffix.lower() in ONLY_READ:
        raise TableFileError(
            f"{path}: archives of this type can be read but not written; use a file that ends with "
            ".csv.gz or .parquet."
        )
    if Path(path).suffix.lower() in PARQUET:
        import_optional("pyarrow.parquet", extra="parquet")


def write_table(
    path: str | PathLike[str], chunks: Iterable[pd.DataFrame], *, raw_text: bool = False
) -> WrittenTable:
    """Write a table atomically, one chunk of rows at a time.

    In a CSV file, text that a spreadsheet would evaluate as a formula is prefixed with an
    apostrophe. Such text, which may also be a column name, begins with ``=``, ``+``, ``-``, ``@``,
    a tab or a carriage return. Numbers are written unchanged, even in text columns. `open_table`
    removes the apostrophe.

    Parameters
    ----------
    path : path-like
        File in an existing folder; an existing file is replaced. The extension ``.parquet`` or
        ``.pq`` means Parquet, any other extension CSV in UTF-8. The CSV file is compressed if the
        extension is ``.gz``, ``.bz2`` or ``.xz``.
    chunks : iterable of DataFrame
        Consecutive rows, all with the same columns; at least one chunk. The chunks may be computed
        during writing; if their computation fails, an existing file remains unchanged.
    raw_text : bool, default=False
        Whether to write text to a CSV file unchanged, without protection against formulas.

    Returns
    -------
    WrittenTable
        Number of ``rows``, number of ``marked`` texts, and a ``note`` on the marked texts.

    Raises
    ------
    TableFileError
        If the file has the extension of a spreadsheet or an archive. `TableFileError` is a
        `ValueError`.
    ImportError
        If the file has the extension of a Parquet file and the extra 'parquet' is not installed.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import pandas as pd
    >>> from skuq._table_files import write_table
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "squares.csv")
    ...     write_table(path, (pd.DataFrame({"square": [k * k]}) for k in range(3))).rows
    ...     path.read_text()
    3
    'square\\n0\\n1\\n4\\n'
    """
    check_writable(path)
    ending = Path(path).suffix.lower()
    n_rows = n_marked = 0
    with atomic_path(path) as partial:
        writer = _parquet(partial) if ending in PARQUET else _csv(partial, ending, raw_text)
        with writer as write:
            for chunk in chunks:
                n_marked += write(chunk)
                n_rows += len(chunk)
    return WrittenTable(n_rows, n_marked)


@contextmanager
def _csv(partial: Path, ending: str, raw_text: bool) -> Iterator[_Writer]:
    with COMPRESSED.get(ending, open)(partial, "wt", encoding="utf-8", newline="") as stream:
        is_first = True

        def write(frame: pd.DataFrame) -> int:
            nonlocal is_first
            n_marked = 0
            if not raw_text:
                names = [safe_text(name) if isinstance(name, str) else name for name in frame]
                if is_first:
                    n_marked = sum(new != old for new, old in zip(names, frame, strict=True))
                frame, in_rows = safe_frame(frame.set_axis(names, axis=1))
                n_marked += in_rows
            # The csv module does not quote values with carriage returns, but programs that read the
            # file treat a carriage return as the end of a line.
            quoting: Any = csv.QUOTE_NONNUMERIC if _has_returns(frame) else csv.QUOTE_MINIMAL
            frame.to_csv(stream, index=False, header=is_first, quoting=quoting)
            is_first = False
            return n_marked

        yield write


def _has_returns(frame: pd.DataFrame) -> bool:
    """Whether a text or a column name contains a carriage return."""
    texts = [frame.iloc[:, k].astype(str) for k in text_positions(frame)]
    texts.append(pd.Series([str(name) for name in frame], dtype=object))
    return any(text.str.contains("\r", regex=False).any() for text in texts)


@contextmanager
def _parquet(partial: Path) -> Iterator[_Writer]:
    arrow = import_optional("pyarrow", extra="parquet")
    parquet = import_optional("pyarrow.parquet", extra="parquet")
    writer: Any = None

    def write(frame: pd.DataFrame) -> int:
        nonlocal writer
        schema = None if writer is None else writer.schema
        table = arrow.Table.from_pandas(frame, schema=schema, preserve_index=False)
        if writer is None:
            writer = parquet.ParquetWriter(partial, table.schema)
        writer.write_table(table)
        return 0

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
