"""Files that the parties exchange: JSON with hashes, never pickle.

A folder holds a manifest with the SHA-256 and size of each of its other files. It finds accidental
changes early. It does not protect against malice: that is the task of the proofs, which are bound
to their statement, and of the verifier's own copy of the commitment.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any, NoReturn

from skuq.files import write_atomically

FORMAT = 2  # of all files; others are not read
MANIFEST = "manifest.json"  # in every folder
COMMITMENT, REFERENCE_STRING = "commitment.json", "srs"  # of a commitment
STATEMENT, CHUNKS, VERDICT = "statement.json", "chunks", "verdict.json"  # of an audit
REPORTED = "reported.json"  # of an audit at level "predictions"
MAX_JSON_BYTES = 64 << 20


class VerificationError(ValueError):
    """Failed verification of a commitment, an audit or an attestation; the message says of what.

    It is not a verdict on the model: nothing was learned about it.
    """


def canonical(value: Any) -> bytes:
    """Return the canonical JSON text of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(value: Any) -> str:
    """Compute the SHA-256 of the JSON text of a value, or of bytes, in hexadecimal digits."""
    data = value if isinstance(value, bytes) else canonical(value)
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """Compute the SHA-256 of a file, in hexadecimal digits."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise VerificationError(f"The file {path.name} is missing or cannot be read.") from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, completely or not at all."""
    write_atomically(path, canonical(value) + b"\n")


def read_json(path: Path) -> Any:
    """Read a JSON file of another party; fail if it is missing, too large or malformed."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise VerificationError(f"{path.name} is larger than any file of this kind.")
        return json.loads(path.read_bytes(), parse_constant=_reject_number, parse_float=_finite)
    except FileNotFoundError as error:
        raise VerificationError(f"The file {path.name} is missing.") from error
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, VerificationError):
            raise
        raise VerificationError(f"The file {path.name} is damaged or not JSON: {error}") from error


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _reject_number(text)


def _reject_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


def write_manifest(folder: Path) -> None:
    """Write the hashes of all files in a folder and its subfolders."""
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
    """Compare a folder with its manifest; fail with the name of the first file that differs."""
    if not folder.is_dir():
        raise VerificationError(f"There is no folder {folder}.")
    manifest = read_json(folder / MANIFEST)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, dict) or manifest.get("format") != FORMAT:
        raise VerificationError(f"{MANIFEST} is not a manifest of format {FORMAT}.")
    present = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and path.name != MANIFEST
    }
    for name in sorted(present | set(files)):
        if name not in files:
            raise VerificationError(f"The file {name} is not in the manifest.")
        if name not in present:
            raise VerificationError(f"The file {name} is missing.")
        if files[name] != {
            "sha256": digest_file(folder / name),
            "bytes": (folder / name).stat().st_size,
        }:
            raise VerificationError(
                f"The file {name} was changed: its SHA-256 is not that of the manifest."
            )


def field(record: Any, name: str, types: type | tuple[type, ...], where: str) -> Any:
    """Return an entry of a JSON object; fail if it is missing or of another type."""
    if not isinstance(record, dict) or name not in record:
        raise VerificationError(f"{where} lacks the entry {name!r}.")
    value = record[name]
    allowed = types if isinstance(types, tuple) else (types,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise VerificationError(f"The entry {name!r} of {where} is not of the right type.")
    return value
