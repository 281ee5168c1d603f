"""Files that cross the line between parties: JSON with hashes, never pickle.

A folder holds a manifest with the SHA-256 and size of each of its other files. It protects
against accidents and says early what was changed; what protects against malice are the proofs,
which are tied to the statement, and the auditor's own copy of the commitment.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, NoReturn

from skuq.files import write_atomically

MANIFEST = "manifest.json"
FORMAT = 1
LARGEST_JSON = 64 << 20  # bytes; more is not one of our files


class Refused(ValueError):
    """A commitment, audit or attestation that must not be believed: the message says why."""


def canonical(value: Any) -> bytes:
    """The one JSON text of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(value: Any) -> str:
    """SHA-256 of the JSON text of a value, or of bytes, in hexadecimal digits."""
    data = value if isinstance(value, bytes) else canonical(value)
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Refused(f"The file {path.name} is missing or cannot be read.") from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, whole or not at all."""
    write_atomically(path, canonical(value) + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of another party; `Refused` if it is missing, too large or no JSON."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise Refused(f"{path.name} is larger than any file of this kind.")
        return json.loads(path.read_bytes(), parse_constant=_no_number, parse_float=_finite)
    except FileNotFoundError as error:
        raise Refused(f"The file {path.name} is missing.") from error
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"The file {path.name} is damaged or no JSON: {error}") from error


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _no_number(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def write_manifest(folder: Path) -> None:
    """Write the hashes of all files in a folder and below."""
    files = {
        path.relative_to(folder).as_posix(): {
            "sha256": digest_file(path),
            "bytes": path.stat().st_size,
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    write_json(folder / MANIFEST, {"format": FORMAT, "files": files})


def check_manifest(folder: Path) -> None:
    """Compare a folder with its manifest; `Refused` names the first file that differs."""
    if not folder.is_dir():
        raise Refused(f"There is no folder {folder}.")
    manifest = read_json(folder / MANIFEST)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or manifest.get("format") != FORMAT:
        raise Refused(f"{MANIFEST} is not a manifest of format {FORMAT}.")
    present = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }
    for name in sorted(present | set(files)):
        if name not in files:
            raise Refused(f"The file {name} is not in the manifest.")
        if name not in present:
            raise Refused(f"The file {name} is missing.")
        if files[name] != {
            "sha256": digest_file(folder / name),
            "bytes": (folder / name).stat().st_size,
        }:
            raise Refused(f"The file {name} was changed: its SHA-256 is not that of the manifest.")


def field(record: Any, name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """An entry of a JSON object; `Refused` if it is missing or of another type."""
    if not isinstance(record, dict) or name not in record:
        raise Refused(f"{where} lacks the entry {name!r}.")
    value = record[name]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise Refused(f"The entry {name!r} of {where} is not of the right type.")
    return value
