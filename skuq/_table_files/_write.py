"""Writing tables to CSV and Parquet files, in chunks, with protection against formula injection.

A spreadsheet evaluates a cell of a CSV file as a formula if it begins with a character of `STARTS`;
some spreadsheets skip whitespace before this character. A cell that begins with an apostrophe is
read as text. A text that already begins with apostrophes followed by such a character gets one more
apostrophe, so that the reader can always remove exactly one.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import lzma
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from pandas.api.types import is_numeric_dtype

from skuq._table_files._csv_format import TableFileError
from skuq.files import atomic_path
from skuq.imports import import_optional

PARQUET = (".parquet", ".pq")
COMPRESSED: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
NOT_WRITTEN = (".xlsx", ".xls", ".xlsm", ".ods", ".zip", ".zst")
# The last four are full-width =, +, - and @, which East Asian keyboards can type.
STARTS = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
# The byte order mark is whitespace except at the beginning of a file. The dot stands for a further
# character, since a sign alone is not a formula.
_START = rf"[\s\ufeff]*[{re.escape(STARTS)}]."
FORMULA, MARKED = re.compile(f"'*{_START}", re.DOTALL), re.compile(f"'+{_START}", re.DOTALL)
# Signed numbers, such as -1,200.50 and +49 170 1234, are not evaluated as formulas.
NUMBER = re.compile(r"[-+][\d.,'\s]*\d[\d.,'\s]*([eE][-+]?\d+)?\s*%?")


def safe_text(text: str) -> str:
    """Prefix an apostrophe to text that a spreadsheet would evaluate as a formula."""
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text.strip(" ")) else text


def plain_text(text: str) -> str:
    """Undo `safe_text`."""
    return text[1:] if MARKED.match(text) else text


def rewritten(
    frame: pd.DataFrame, pattern: re.Pattern[str], rewrite: Callable[[str], str]
) -> tuple[pd.DataFrame, int]:
    """Apply `rewrite` to the texts whose beginning matches `pattern`; count the changed cells."""
    n_changed = 0
    for position, dtype in enumerate(frame.dtypes):
        if is_numeric_dtype(dtype) or dtype.kind in "mM":
            continue
        values = frame.iloc[:, position].astype(object).to_numpy(copy=True)
        hits = [k for k, v in enumerate(values) if isinstance(v, str) and pattern.match(v)]
        before = values[hits].tolist()
        values[hits] = after = [rewrite(text) for text in before]
        if after != before:
            n_changed += sum(new != old for new, old in zip(after, before, strict=True))
            kind = "category" if isinstance(dtype, pd.CategoricalDtype) else dtype
            frame = frame.copy(deep=False)
            frame.isetitem(position, pd.Series(values, frame.index, dtype=kind).array)
    return frame, n_changed


class WrittenTable(NamedTuple):
    """Number of rows of a written table, and of texts, column names included, with a new prefix."""

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
    """Refuse the names of spreadsheets and archives, and of Parquet files without pyarrow."""
    ending = Path(path).suffix.lower()
    if ending in NOT_WRITTEN:
        raise TableFileError(
            f"{path}: files that end with {ending} are not written; use .csv, which spreadsheets "
            "can open, .csv.gz or .parquet."
        )
    if ending in PARQUET:
        import_optional("pyarrow.parquet", extra="parquet")


def write_table(path: str | PathLike[str], chunks: Iterable[pd.DataFrame]) -> WrittenTable:
    """Write a table atomically, one chunk of rows at a time.

    The extension ``.parquet`` or ``.pq`` means Parquet, any other extension CSV in UTF-8, which is
    compressed if the extension is ``.gz``, ``.bz2`` or ``.xz``. In a CSV file, text that a
    spreadsheet would evaluate as a formula gets an apostrophe as prefix, which `open_table`
    removes. The chunks may be computed during writing; if their computation fails, an existing
    file remains unchanged.
    """
    check_writable(path)
    ending = Path(path).suffix.lower()
    n_rows = n_marked = 0
    with atomic_path(path) as partial:
        writer = _parquet(partial) if ending in PARQUET else _csv(partial, ending)
        with writer as write:
            for chunk in chunks:
                n_marked += write(chunk)
                n_rows += len(chunk)
    return WrittenTable(n_rows, n_marked)


@contextmanager
def _csv(partial: Path, ending: str) -> Iterator[Callable[[pd.DataFrame], int]]:
    with COMPRESSED.get(ending, open)(partial, "wt", encoding="utf-8", newline="") as stream:
        header: Any = None

        def write(frame: pd.DataFrame) -> int:
            nonlocal header
            is_first, n_marked = header is None, 0
            if is_first:
                header = [safe_text(name) if isinstance(name, str) else name for name in frame]
                n_marked = sum(new != old for new, old in zip(header, frame, strict=True))
            frame, n_cells = rewritten(frame.set_axis(header, axis=1), FORMULA, safe_text)
            options: dict[str, Any] = {"index": False, "header": is_first, "lineterminator": "\n"}
            text = frame.to_csv(**options)
            if "\r" in text:  # it ends a line, but the csv module does not quote it
                text = frame.to_csv(quoting=csv.QUOTE_NONNUMERIC, **options)
            stream.write(text)
            return n_marked + n_cells

        yield write


@contextmanager
def _parquet(partial: Path) -> Iterator[Callable[[pd.DataFrame], int]]:
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
