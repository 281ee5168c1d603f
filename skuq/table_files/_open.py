"""Files that may be compressed, as streams of bytes."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from skuq.extras import import_optional
from skuq.table_files._csv_format import TableFileError

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
