"""Tables read from files, whole or in chunks."""

from __future__ import annotations

import bz2
import csv
import difflib
import gzip
import io
import lzma
import warnings
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
from pandas.api.types import is_numeric_dtype

from skuq.extras import import_optional
from skuq.table_files._csv_format import (
    CsvFormat,
    TableFileError,
    not_encoded,
    sniff,
)
from skuq.table_files._formulas import plain_frame, plain_text
from skuq.written_numbers import MISSING_WORDS

CHUNK_CELLS = 2**21  # values of a chunk: 16 MiB as float64
PARQUET = (".parquet", ".pq")
UNNAMED = "Unnamed: "  # begins what columns are called that have no name, as in pandas
UNKNOWN = CsvFormat()
TextColumns = bool | Collection[str]  # where words for missing values are text
COMPRESSED: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed by its ending."""
    ending = path.suffix.lower()
    if ending == ".zip":
        with zipfile.ZipFile(path) as archive:
            if len(archive.namelist()) != 1:
                raise TableFileError(f"{path} must hold one file, got {len(archive.namelist())}.")
            with archive.open(archive.namelist()[0]) as stream:
                yield stream  # type: ignore[misc]
    elif ending == ".zst":
        with import_optional("pyarrow", extra="parquet").input_stream(str(path)) as stream:
            yield stream
    else:
        with COMPRESSED.get(ending, open)(path, "rb") as stream:
            yield stream


class TableFile(ABC):
    """A table in a file, as `open_table` returns it.

    Attributes
    ----------
    path : Path
        The file.
    columns : list of str
        Names of the columns, without spaces around them.
    note : str
        A sentence on how the file is read, if it is not a plain one; else empty.
    codes : list of str
        Columns of a CSV file that hold codes with leading zeros, such as 00249, in its first rows.
        They are read as numbers, unless they are asked for as text.

    Notes
    -----
    Tables that are read say in their ``attrs`` what a model of them needs to know of the file:
    ``"decimal"``, the mark before the decimals of a number, "" if the first rows leave it open (CSV
    only); and ``"numbered"``, what a row is called ("line" or "row") and the number of the first.
    """

    _attrs: dict[str, Any] = {"numbered": ("row", 1)}

    def __init__(
        self, path: Path, columns: Sequence[str], note: str = "", codes: Sequence[int] = ()
    ) -> None:
        self.path, self.note = path, note
        stripped = [str(name).strip() for name in columns]
        self.columns = [name or f"{UNNAMED}{k}" for k, name in enumerate(stripped)]
        self.codes = [self.columns[position] for position in codes]
        twice = [name for name in self.columns if self.columns.count(name) > 1]
        if twice:
            raise TableFileError(
                f"{path} has more than one column {twice[0]!r}; rename or remove one."
            )

    def require(self, names: Collection[str]) -> None:
        """Refuse a table that lacks a column.

        Parameters
        ----------
        names : collection of str
            Columns that are needed.

        Raises
        ------
        TableFileError
            If one of them does not exist (a similar name is suggested), or holds lists.
        """
        for name in names:
            if name not in self.columns:
                near = difflib.get_close_matches(name, self.columns, n=1)
                known = ", ".join(self.columns[:10])
                hint = f"Did you mean {near[0]!r}?" if near else f"It has {known}."
                raise TableFileError(f"{self.path} has no column {name!r}. {hint}")

    def read(
        self, *, dtype: Mapping[str, Any] | None = None, text_columns: TextColumns = False
    ) -> pd.DataFrame:
        """Read the whole table.

        Parameters
        ----------
        dtype : mapping of str to dtype, optional
            Columns to read as ``str`` or ``"category"``, also where they hold numbers.
        text_columns : bool or collection of str, default=False
            Columns of a CSV file in which words for missing values, such as "NA", are text; all
            of them if True. In a Parquet file they are always text.

        Returns
        -------
        DataFrame
            With at least one row.

        Raises
        ------
        TableFileError
            If the file is damaged, or not a table. It is a `ValueError`.
        """
        frames = list(self._checked(self._frames(dtype or {}, text_columns, None)))
        return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)

    def chunks(
        self,
        *,
        dtype: Mapping[str, Any] | None = None,
        text_columns: TextColumns = False,
        n_rows: int | None = None,
    ) -> Iterator[pd.DataFrame]:
        """Read the table in chunks, of which one at a time is in memory.

        Parameters
        ----------
        dtype : mapping of str to dtype, optional
            Columns to read as ``str`` or ``"category"``. Of all others the kind may differ
            between the chunks of a CSV file, as their values do.
        text_columns : bool or collection of str, default=False
            Columns of a CSV file in which words for missing values, such as "NA", are text; all
            of them if True. In a Parquet file they are always text.
        n_rows : int, optional
            Rows of a chunk. Default: as many as hold two million values.

        Yields
        ------
        DataFrame
            Consecutive rows, numbered from 0 over the whole table; at least one chunk.

        Raises
        ------
        TableFileError
            If the file is damaged, or not a table. It is a `ValueError`.
        """
        n_rows = n_rows or max(1, CHUNK_CELLS // len(self.columns))
        return self._checked(self._frames(dtype or {}, text_columns, n_rows))

    def values_of(self, texts: Sequence[Any]) -> list[Any]:
        """Return values of a column as they would be read with it, given as ``"category"``.

        Parameters
        ----------
        texts : sequence
            All different values of the column.

        Returns
        -------
        list
            Their values: those of a CSV file are numbers, booleans or text, depending on all
            of them.
        """
        return list(texts)

    @abstractmethod
    def _frames(
        self, dtype: Mapping[str, Any], text_columns: TextColumns, n_rows: int | None
    ) -> Iterator[pd.DataFrame]: ...

    def _checked(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """The same, with errors that say what is wrong with the file, and at least one row."""
        start = 0
        while True:
            with self._errors():
                frame = next(frames, None)
            if frame is None:
                break
            if len(frame):
                frame.index = pd.RangeIndex(start, start + len(frame))
                frame.attrs |= self._attrs
                start += len(frame)
                yield frame
        if start == 0:
            raise TableFileError(f"{self.path} has no rows.")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with _errors(self.path):
            yield


class CsvFile(TableFile):
    """A CSV file, which may be compressed; ``format`` has no gaps."""

    def __init__(self, path: Path, given: CsvFormat) -> None:
        with _errors(path), opened(path) as stream:
            sniffed = sniff(path, stream, given)
        names = [plain_text(name) for name in sniffed.header]
        super().__init__(path, names, sniffed.note, sniffed.codes)
        self.format, self._n_skipped = sniffed.format, sniffed.n_skipped
        self._attrs = {"decimal": sniffed.mark, "numbered": ("line", 2 + self._n_skipped)}

    def values_of(self, texts: Sequence[Any]) -> list[Any]:
        lines = io.StringIO()
        csv.writer(lines, quoting=csv.QUOTE_ALL).writerows([["values"], *([t] for t in texts)])
        options: dict[str, Any] = {"low_memory": False, "decimal": self.format.decimal}
        column = pd.read_csv(io.StringIO(lines.getvalue()), **options)["values"]
        if not (is_numeric_dtype(column) and column.notna().any()):
            # Words for missing values are values, unless the others are numbers.
            options |= {"keep_default_na": False, "na_values": [""]}
            column = pd.read_csv(io.StringIO(lines.getvalue()), **options)["values"]
        return column.tolist()

    def _frames(
        self, dtype: Mapping[str, Any], text_columns: TextColumns, n_rows: int | None
    ) -> Iterator[pd.DataFrame]:
        sep, decimal, encoding = self.format
        options: dict[str, Any] = {"sep": sep, "decimal": decimal, "encoding": encoding}
        options |= {"header": 0, "names": self.columns, "index_col": False, "low_memory": False}
        options |= {"skiprows": self._n_skipped, "keep_default_na": False}
        kept = {*self.columns} if text_columns is True else {*(text_columns or ())}
        missing = {name: {""} if name in kept else MISSING_WORDS for name in self.columns}
        options["na_values"] = missing
        kinds = {name: kind for name, kind in dtype.items() if name in self.columns}
        with opened(self.path) as stream:
            read: Any = pd.read_csv(stream, dtype=kinds, chunksize=n_rows, **options)
            if n_rows is None:
                yield plain_frame(read)
            else:
                with read:
                    yield from map(plain_frame, read)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with super()._errors(), warnings.catch_warnings():
            # Rows with more values than the header has names: pandas drops the rest of them.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            try:
                yield
            except pd.errors.ParserWarning as error:
                raise TableFileError(
                    f"{self.path} has rows with more values than column names."
                ) from error
            except UnicodeError as error:
                raise not_encoded(self.path, str(self.format.encoding)) from error


class ParquetFile(TableFile):
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        with self._opened(path) as file:
            if file.metadata.num_rows == 0:
                raise TableFileError(f"{path} has no rows.")
            # What pandas wrote of a row index that has no name is not a column.
            names = [n for n in file.schema_arrow.names if not n.startswith("__index_level_")]
        self._stored = names
        super().__init__(path, names)

    def require(self, names: Collection[str]) -> None:
        super().require(names)
        with self._opened(self.path) as file:
            schema = file.schema_arrow
        is_nested = import_optional("pyarrow.types", extra="parquet").is_nested
        for name in names:
            kind = schema.field(self._stored[self.columns.index(name)]).type
            if is_nested(kind):
                raise TableFileError(
                    f"{self.path}: column {name!r} holds several values in each row ({kind}); "
                    "a column must hold one."
                )

    def _frames(
        self, dtype: Mapping[str, Any], text_columns: TextColumns, n_rows: int | None
    ) -> Iterator[pd.DataFrame]:
        with self._opened(self.path) as file:
            size = n_rows or file.metadata.num_rows
            for batch in file.iter_batches(size, columns=self._stored):
                # In the order of the names: a file may be divided otherwise.
                frame = batch.to_pandas(ignore_metadata=True).set_axis(self.columns, axis=1)
                for name in [n for n, t in dtype.items() if t is str and n in frame]:
                    # Names may be whole numbers, which floats would round beside a missing one.
                    column = batch.column(self.columns.index(name))
                    frame[name] = column.to_pandas(integer_object_nulls=True)
                yield frame.astype(
                    {n: t for n, t in dtype.items() if t == "category" and n in frame}
                )

    @staticmethod
    @contextmanager
    def _opened(path: Path) -> Iterator[Any]:
        parquet = import_optional("pyarrow.parquet", extra="parquet")
        with _errors(path), parquet.ParquetFile(path) as file:
            yield file


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Errors of whoever reads the file, as sentences on the file."""
    kind = "Parquet" if path.suffix.lower() in PARQUET else "CSV"
    try:
        yield
    except TableFileError:
        raise
    except DAMAGED as error:
        reason = getattr(error, "strerror", None) or _one_line(error)
        raise TableFileError(f"{path} is damaged or cannot be read: {reason}") from error
    except ValueError as error:  # those of the parsers are ValueErrors
        raise TableFileError(f"{path} cannot be read as {kind}: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def open_table(path: str | PathLike[str], format: CsvFormat = UNKNOWN) -> TableFile:
    """Open a table in a file: CSV, which may be compressed, or Parquet, by the ending.

    Parameters
    ----------
    path : path-like
        File that ends with ``.parquet`` or ``.pq``, or else a CSV file with a header, which
        may end with ``.gz``, ``.bz2``, ``.xz``, ``.zip`` or ``.zst``.
    format : CsvFormat, optional
        What is known of how a CSV file is written. The rest is found from its first rows.

    Returns
    -------
    TableFile

    Raises
    ------
    TableFileError
        If the file is not a table, or its rows leave open how it is written. It is a
        `ValueError`.
    ImportError
        If what the ending asks for needs an extra that is not installed.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from skuq.table_files import open_table
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "loans.csv")
    ...     _ = path.write_text("amount;paid\\n0,5;yes\\n12,0;no\\n")
    ...     table = open_table(path)
    ...     print(table.note)
    ...     table.read()["amount"].tolist()
    loans.csv was read with a semicolon as separator and a decimal comma.
    [0.5, 12.0]
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        what = "folder" if path.is_dir() else "pipe, which cannot be read more than once"
        raise TableFileError(f"{path} is a {what}; name a file.")
    if path.suffix.lower() in PARQUET:
        return ParquetFile(path)
    return CsvFile(path, format)
