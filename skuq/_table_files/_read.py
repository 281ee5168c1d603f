"""Reading tables from CSV and Parquet files, whole or in chunks."""

import csv
import difflib
import io
import lzma
import re
import warnings
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
from pandas.api.types import is_numeric_dtype

from skuq._table_files import _csv_format
from skuq._table_files._csv_format import SEPARATORS, CsvFormat, TableFileError, not_encoded
from skuq._table_files._write import COMPRESSED, MARKED, PARQUET, plain_text, rewritten
from skuq.imports import import_optional
from skuq.written_numbers import MISSING_WORDS

LONGEST_LINE = 2**26  # maximum number of bytes of a line; a longer line raises an error
CHUNK_CELLS = 2**21  # values per chunk: 16 MiB as float64
UNNAMED = "Unnamed: "  # prefix of the names of unnamed columns, as in pandas
UNKNOWN = CsvFormat()
# Columns in which words such as "NA" are text and not missing values; True means all columns.
TextColumns = bool | Collection[str]
OUTER_BLANKS = re.compile(r"\s|.*\s\Z", re.DOTALL)
DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


class _Lines(io.RawIOBase):
    """Stream that raises for a very long line, since a small compressed file may expand to one."""

    def __init__(self, stream: BinaryIO):
        self._stream, self._length = stream, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        end = max(data.rfind(b"\n"), data.rfind(b"\r"))
        self._length = len(data) - end - 1 + (self._length if end < 0 else 0)
        if self._length > LONGEST_LINE:
            raise TableFileError(f"A line has more than {LONGEST_LINE >> 20} MiB; is this a table?")
        return len(data)


@contextmanager
def _decompressed(path: Path) -> Iterator[BinaryIO]:
    ending = path.suffix.lower()
    if ending == ".zip":
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if len(names) != 1:
                raise TableFileError(f"{path} must contain one file, got {len(names)}.")
            with archive.open(names[0]) as stream:
                yield stream  # type: ignore[misc]
    elif ending == ".zst":
        arrow = import_optional("pyarrow", extra="parquet")
        with path.open("rb") as file, arrow.input_stream(file, compression="zstd") as stream:
            yield stream
    else:
        with COMPRESSED.get(ending, open)(path, "rb") as stream:
            yield stream


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with _decompressed(path) as stream:
        yield io.BufferedReader(_Lines(stream), 2**20)


class TableFile(ABC):
    """A table in a file, as `open_table` returns it.

    Attributes
    ----------
    columns : list of str
        Names of the columns, without surrounding spaces.
    note : str
        A sentence on the detected format, if it is unusual; else empty.
    codes : list of str
        Columns of a CSV file whose first rows contain codes with leading zeros, such as 00249.
        These columns are read as numbers, unless `dtype` is ``str``.
    """

    # `attrs` of tables: `numbered` has the word for a row and the number of the first row. Those of
    # CSV files have `decimal`, the decimal mark ("" if unknown), and `assumed`, the mark to use.
    _attrs: dict[str, Any] = {"numbered": ("row", 1)}
    _split = ""  # how a CSV file is split, in words for errors
    strips = True  # whether outer blanks of cells of a CSV file are removed

    def __init__(
        self, path: Path, columns: Sequence[str], note: str = "", codes: Sequence[int] = ()
    ) -> None:
        self.path, self.note = path, note
        self.columns = [str(name).strip() or f"{UNNAMED}{k}" for k, name in enumerate(columns)]
        self.codes = [self.columns[position] for position in codes]
        for name in self.columns:
            if self.columns.count(name) > 1:
                raise TableFileError(
                    f"{path} has more than one column named {name!r}; rename or remove one."
                )

    def require(self, names: Collection[str]) -> None:
        """Raise an error, which suggests a similar name, if the table lacks one of the columns."""
        for name in names:
            if name not in self.columns:
                near = difflib.get_close_matches(name, self.columns, n=1)
                hint = f"It has {', '.join(self.columns[:10])}."
                if len(self.columns) == 1 and self._split:
                    hint = f"It has a single column, {self.columns[0]!r}, if it is {self._split}."
                    if " " in self.columns[0]:
                        hint += " If blanks separate columns, pass `sep=' '`."
                hint = f"Did you mean {near[0]!r}?" if near else hint
                if number := next(filter(_csv_format.NUMBERS["."].fullmatch, self.columns), None):
                    hint += f" {number} is not a name: the first line must have column names."
                raise TableFileError(f"{self.path} has no column {name!r}. {hint}")

    def read(
        self, *, dtype: Mapping[str, Any] | None = None, text_columns: TextColumns = False
    ) -> pd.DataFrame:
        """Read the whole table; parameters as in `chunks`."""
        frames = list(self._checked(self._frames(dtype or {}, text_columns, None)))
        return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)

    def chunks(
        self,
        *,
        dtype: Mapping[str, Any] | None = None,
        text_columns: TextColumns = False,
        n_rows: int | None = None,
    ) -> Iterator[pd.DataFrame]:
        """Read the table in chunks of `n_rows`, by default of about two million values.

        `dtype` names columns to read as ``str`` or ``"category"``; the dtype of other columns of a
        CSV file is inferred from each chunk. In the `text_columns` of a CSV file, words such as
        "NA" are not missing values but text, as always in a Parquet file. Rows are numbered from 0
        over the whole table; a table without rows raises an error.
        """
        n_rows = n_rows or max(1, CHUNK_CELLS // len(self.columns))
        return self._checked(self._frames(dtype or {}, text_columns, n_rows))

    def values_of(self, texts: Sequence[Any]) -> list[Any]:
        """Convert all distinct texts of a column read as ``"category"`` to the inferred dtype."""
        return list(texts)

    @abstractmethod
    def _frames(
        self, dtype: Mapping[str, Any], text_columns: TextColumns, n_rows: int | None
    ) -> Iterator[pd.DataFrame]: ...

    def _checked(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yield the frames that have rows; errors, also that of a file without rows, name it."""
        start = 0
        while True:
            with _errors(self.path):
                frame = next(frames, None)
            if frame is None:
                break
            if len(frame):
                frame.index = pd.RangeIndex(start, start := start + len(frame))
                frame.attrs |= self._attrs
                yield frame
        if start == 0:
            raise TableFileError(f"{self.path} has no rows.")


class CsvFile(TableFile):
    """A CSV file, possibly compressed; every attribute of ``format`` is set."""

    def __init__(self, path: Path, given: CsvFormat) -> None:
        with _errors(path), _opened(path) as stream:
            sniffed = _csv_format.sniff(path, stream, given)
        names = [plain_text(name) for name in sniffed.header]
        super().__init__(path, names, sniffed.note, sniffed.codes)
        self.format, self._n_skipped = sniffed.format, sniffed.n_skipped
        self._split = f"split at {SEPARATORS.get(str(self.format.sep), repr(self.format.sep))}"
        self._attrs = {"decimal": sniffed.mark, "numbered": ("line", 2 + self._n_skipped)}
        self._attrs |= {"assumed": "."} if self.format.sep == "," else {}

    def values_of(self, texts: Sequence[Any]) -> list[Any]:
        # Values become numbers, booleans or text, depending on all values together.
        lines = io.StringIO()
        csv.writer(lines, quoting=csv.QUOTE_ALL).writerows([["values"], *([t] for t in texts)])
        options: dict[str, Any] = {"low_memory": False, "decimal": self.format.decimal}
        column = pd.read_csv(io.StringIO(lines.getvalue()), **options)["values"]
        if not (is_numeric_dtype(column) and column.notna().any()):
            # In a text column, words such as "NA" are values, not missing values.
            options |= {"keep_default_na": False, "na_values": [""]}
            column = pd.read_csv(io.StringIO(lines.getvalue()), **options)["values"]
        return column.tolist()

    def _frames(
        self, dtype: Mapping[str, Any], text_columns: TextColumns, n_rows: int | None
    ) -> Iterator[pd.DataFrame]:
        kept = {*self.columns} if text_columns is True else {*(text_columns or ())}
        missing = {name: {""} if name in kept else MISSING_WORDS for name in self.columns}
        options: dict[str, Any] = {"header": 0, "names": self.columns, "index_col": False}
        options |= {"skiprows": self._n_skipped, "keep_default_na": False, "low_memory": False}
        options["dtype"] = {name: kind for name, kind in dtype.items() if name in self.columns}
        sep, decimal, encoding, _ = self.format
        options |= {"sep": r"\s+" if sep == " " else sep, "decimal": decimal, "encoding": encoding}
        options |= {"na_values": missing, "chunksize": n_rows}
        with _opened(self.path) as stream:
            read: Any = pd.read_csv(stream, **options)
            for frame in [read] if n_rows is None else read:
                frame = rewritten(frame, MARKED, plain_text)[0]
                yield _stripped(frame, missing, {*dtype}) if self.strips else frame


def _stripped(frame: pd.DataFrame, missing: Mapping[str, Any], fixed: set[str]) -> pd.DataFrame:
    """Remove outer blanks of cells, because pandas reads a number with outer blanks as text."""
    stripped, n_changed = rewritten(frame, OUTER_BLANKS, str.strip)
    for name in map(str, frame if n_changed else ()):
        if not stripped[name].equals(frame[name]):
            column = stripped[name].where(~stripped[name].isin(missing[name]))
            numbers = pd.to_numeric(column, errors="coerce")
            is_text = name in fixed or (numbers.isna() & column.notna()).any()
            stripped[name] = column if is_text else numbers
    return stripped


class ParquetFile(TableFile):
    def __init__(self, path: Path) -> None:
        with self._file(path) as file:
            if file.metadata.num_rows == 0:
                raise TableFileError(f"{path} has no rows.")
            # Skip the columns in which pandas stores an unnamed index.
            names = [n for n in file.schema_arrow.names if not n.startswith("__index_level_")]
        self._stored = names
        super().__init__(path, names)

    def _frames(
        self, dtype: Mapping[str, Any], text_columns: TextColumns, n_rows: int | None
    ) -> Iterator[pd.DataFrame]:
        with self._file(self.path) as file:
            size = n_rows or file.metadata.num_rows
            for batch in file.iter_batches(size, columns=self._stored):
                frame = batch.to_pandas(ignore_metadata=True).set_axis(self.columns, axis=1)
                for name, kind in dtype.items():
                    if kind is str and name in frame:
                        # Keep integer ids exact: with missing values, they would become floats.
                        column = batch.column(self.columns.index(name))
                        frame[name] = column.to_pandas(integer_object_nulls=True)
                    elif name in frame:
                        frame[name] = frame[name].astype(kind)
                yield frame

    @staticmethod
    @contextmanager
    def _file(path: Path) -> Iterator[Any]:
        parquet = import_optional("pyarrow.parquet", extra="parquet")
        # Pass an open file, because pyarrow encodes file names by the locale.
        with _errors(path), path.open("rb") as stream, parquet.ParquetFile(stream) as file:
            yield file


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            # Raise an error where pandas only warns that it drops the surplus values of a row.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            yield
    except TableFileError:
        raise
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        reason = str(error)
        if unclosed := re.search(r"EOF inside string starting at row (\d+)", reason):
            reason = f"a quotation mark in line {int(unclosed[1]) + 1} is never closed."
        problem = TableFileError(f"{path} cannot be read as CSV: {reason}")
        if uneven := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", reason):
            n_names, line, n_values = map(int, uneven.groups())
            problem = _csv_format.uneven(path, line, n_values, n_names)
        raise problem from error
    except UnicodeError as error:
        raise not_encoded(path, getattr(error, "encoding", "UTF-8")) from error
    except (*DAMAGED, ValueError) as error:  # parsers raise subclasses of ValueError
        kind = "Parquet" if path.suffix.lower() in PARQUET else "CSV"
        is_damaged = isinstance(error, DAMAGED)
        what = "is damaged or cannot be read" if is_damaged else f"cannot be read as {kind}"
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise TableFileError(f"{path} {what}: {reason}") from error


def open_table(path: str | PathLike[str], format: CsvFormat = UNKNOWN) -> TableFile:
    """Open a Parquet file (``.parquet``, ``.pq``) or a CSV file with a header.

    ``.gz``, ``.bz2``, ``.xz``, ``.zip`` and ``.zst`` are decompressed. Attributes of `format` that
    are None are detected from the first rows of a CSV file. A file that is not a table, or whose
    format is ambiguous, raises a `TableFileError`, which is a `ValueError`.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        what = "folder" if path.is_dir() else "pipe, which cannot be read more than once"
        raise TableFileError(f"{path} is a {what}; pass a file.")
    return ParquetFile(path) if path.suffix.lower() in PARQUET else CsvFile(path, format)
