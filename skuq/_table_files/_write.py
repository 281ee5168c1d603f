"""Writing tables to CSV and Parquet files, in chunks, with protection against formula injection.

A spreadsheet evaluates a cell of a CSV file as a formula if it begins with a character of `STARTS`;
some spreadsheets skip whitespace before this character. A cell that begins with an apostrophe is
read as text. A text that already begins with apostrophes followed by such a character gets one more
apostrophe, so that the reader can always remove exactly one. The same holds for each part of a text
after a semicolon, tab or bar, at which spreadsheets of other locales split lines.
"""

import bz2
import csv
import gzip
import lzma
import re
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

import pandas as pd
from pandas.api.types import is_numeric_dtype

from skuq._table_files._csv_format import TableFileError
from skuq.files import atomic_path
from skuq.imports import import_optional

PARQUET = (".parquet", ".pq")
COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
NOT_WRITTEN = (".xlsx", ".xls", ".xlsm", ".ods", ".zip", ".zst")
# The last four are full-width =, +, - and @, which East Asian keyboards can type.
STARTS = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
# A byte order mark may count as whitespace. Due to the last ".", one sign alone does not match.
_START = rf"[\s\ufeff]*[{re.escape(STARTS)}]."
_BEGINS = r"(?:\A|[;\t|])"
FORMULA = re.compile(f"{_BEGINS}'*{_START}", re.DOTALL)
MARKED = re.compile(f"{_BEGINS}'+{_START}", re.DOTALL)
PARTS = re.compile(r"(?<=[;\t|])")
# Signed numbers, such as -1,200.50 and +49 170 1234, are not evaluated as formulas.
NUMBER = re.compile(r"[-+][\d.,'\s]*\d[\d.,'\s]*([eE][-+]?\d+)?\s*%?")


def safe_text(text: str) -> str:
    """Prefix an apostrophe to each part of a text that a spreadsheet would take for a formula."""
    first, *rest = PARTS.split(text)
    return _marked(first + "".join(map(_marked, rest)))


def _marked(text: str) -> str:
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text.strip(" ")) else text


def plain_text(text: str) -> str:
    """Undo `safe_text`."""
    first, *rest = PARTS.split(_unmarked(text))
    return first + "".join(map(_unmarked, rest))


def _unmarked(text: str) -> str:
    return text[1:] if re.match(f"'+{_START}", text, re.DOTALL) else text


def rewritten(
    frame: pd.DataFrame, pattern: re.Pattern[str], rewrite: Callable[[str], str]
) -> tuple[pd.DataFrame, int]:
    """Apply `rewrite` to texts in which `pattern` occurs; also return how many cells changed."""
    n_changed = 0
    for position, dtype in enumerate(frame.dtypes):
        if is_numeric_dtype(dtype) or dtype.kind in "mM":
            continue
        values = frame.iloc[:, position].astype(object).to_numpy(copy=True)
        found = {v for v in {v for v in values if isinstance(v, str)} if pattern.search(v)}
        hits = (
            [k for k, v in enumerate(values) if isinstance(v, str) and v in found] if found else []
        )
        before = values[hits].tolist()
        values[hits] = after = [rewrite(text) for text in before]
        if after != before:
            n_changed += sum(new != old for new, old in zip(after, before, strict=True))
            kind = "category" if isinstance(dtype, pd.CategoricalDtype) else dtype
            frame = frame.copy(deep=False)
            frame.isetitem(position, pd.Series(values, frame.index, dtype=kind).array)
    return frame, n_changed


class WrittenTable(NamedTuple):
    """Number of rows written, and number of texts (or column names) that got an apostrophe."""

    rows: int
    marked: int

    @property
    def note(self) -> str:
        if self.marked == 0:
            return ""
        cells = "1 text begins" if self.marked == 1 else f"{self.marked:,} texts begin"
        return (
            f"{cells} with =, +, -, @ or a control character. A spreadsheet would evaluate such "
            "text as a formula, so it got an apostrophe as prefix, which skuq removes on reading."
        )


def check_writable(path: str | PathLike[str]) -> None:
    """Raise for names of spreadsheets or archives, and of Parquet files if pyarrow is missing."""
    ending = Path(path).suffix.lower()
    if ending in NOT_WRITTEN:
        raise TableFileError(
            f"{path}: files that end with {ending} are not written; use .csv, which spreadsheets "
            "can open, .csv.gz or .parquet."
        )
    if ending in PARQUET:
        import_optional("pyarrow.parquet", extra="parquet")


def write_table(path: str | PathLike[str], chunks: Iterable[pd.DataFrame]) -> WrittenTable:
    """Write a table chunk by chunk; if the computation of a chunk fails, no file is written.

    ``.parquet`` and ``.pq`` mean Parquet, other extensions CSV in UTF-8, which is compressed for
    ``.gz``, ``.bz2`` and ``.xz``. In a CSV file, text that a spreadsheet would evaluate as a
    formula gets an apostrophe as prefix, which `open_table` removes.
    """
    check_writable(path)
    ending = Path(path).suffix.lower()
    n_rows = n_marked = 0
    with atomic_path(path) as partial:
        if ending in PARQUET:
            with partial.open("wb") as file:  # open it here: pyarrow encodes paths by locale
                n_rows = _write_parquet(file, chunks)
        else:
            opened = COMPRESSED.get(ending, open)
            with opened(partial, "wt", encoding="utf-8", newline="") as stream:
                for k, chunk in enumerate(chunks):
                    n_marked += _write_csv(stream, chunk, is_first=k == 0)
                    n_rows += len(chunk)
    return WrittenTable(n_rows, n_marked)


def _write_csv(stream: TextIO, frame: pd.DataFrame, *, is_first: bool) -> int:
    """Write rows, with a header if `is_first`; return the number of texts with an apostrophe."""
    header = [safe_text(name) if isinstance(name, str) else name for name in frame]
    n_marked = is_first * sum(new != old for new, old in zip(header, frame, strict=True))
    frame, n_cells = rewritten(frame.set_axis(header, axis=1), FORMULA, safe_text)
    options: dict[str, Any] = {"index": False, "header": is_first, "lineterminator": "\n"}
    text = frame.to_csv(**options)
    if "\r" in text:  # quote all texts, since readers end a line at a \r that is not quoted
        text = frame.to_csv(quoting=csv.QUOTE_NONNUMERIC, **options)
    stream.write(text.replace("\0", "\N{REPLACEMENT CHARACTER}"))  # NUL is invalid in CSV
    return n_marked + n_cells


def _write_parquet(file: BinaryIO, chunks: Iterable[pd.DataFrame]) -> int:
    """Write all chunks with the schema of the first chunk; return the number of rows."""
    arrow = import_optional("pyarrow", extra="parquet")
    parquet = import_optional("pyarrow.parquet", extra="parquet")
    n_rows, schema = 0, None
    with ExitStack() as stack:
        for chunk in chunks:
            table = arrow.Table.from_pandas(chunk, schema=schema, preserve_index=False)
            if schema is None:
                schema = table.schema
                writer = stack.enter_context(parquet.ParquetWriter(file, schema))
            writer.write_table(table)
            n_rows += len(chunk)
    return n_rows
