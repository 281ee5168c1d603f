"""Files exchanged between the parties: JSON with hashes, never pickle.

Each folder contains a manifest with the SHA-256 and size of all its other files, which detects
accidental changes early. The manifest does not protect against malice. Protection comes from the
proofs, which are bound to their statement, and from the verifier's own copy of the commitment.
"""

import base64
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, get_args

from skuq.files import write_atomically
from skuq.imports import shown

FORMAT = 6  # version of the format of all files
MANIFEST = "manifest.json"  # file in every folder
COMMITMENT, REFERENCE_STRING = "commitment.json", "srs"  # files of a commitment
STATEMENT, CHUNKS = "statement.json", "chunks"  # files of an audit
VERDICT, VERDICTS = "verdict.json", "verdicts"  # verdict on all samples; folder for regions
REPORTED = "reported.json"  # predictions at level "predictions"
# Patterns for `check_form`: of a SHA-256 or curve point, and of the software versions.
DIGEST = re.compile("[0-9a-f]{64}")
VERSIONS = dict.fromkeys(("skuq", "ezkl"), re.compile("[0-9A-Za-z.+!_-]{1,40}"))
# Files and subfolders of each kind of folder, except the manifest. Files of chunks are numbered.
PUBLISHED = {COMMITMENT, REFERENCE_STRING}
BUNDLES = {
    "bins": {STATEMENT, CHUNKS},
    "verdict": {STATEMENT, CHUNKS, VERDICT, VERDICTS},
    "predictions": {STATEMENT, CHUNKS, REPORTED},
}
MAX_JSON, MAX_BYTES = 1 << 20, 64 << 20  # maximum bytes of most files, and of those in `LARGE`
LARGE = (REFERENCE_STRING, REPORTED)
MAX_CHUNKS = 8000  # maximum per audit; with more chunks, the manifest would be too large
MAX_FILES, MAX_FOLDER = 2 * MAX_CHUNKS, 1 << 30  # maximum numbers of entries and bytes in a folder
MAX_MESSAGE = 500  # maximum characters of an error message, which may quote another party's text


def chunk_file(k: int) -> str:
    return f"{CHUNKS}/{k:05d}.json"


class VerificationError(ValueError):
    """Failed verification of a commitment, an audit or an attestation; the message names the check.

    The error is not a verdict on the model. Text quoted from another party's files is escaped and
    truncated, so that it cannot imitate lines of a report.
    """

    def __init__(self, message: object):
        super().__init__(shown(message, MAX_MESSAGE))


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(value: Any) -> str:
    """Compute the SHA-256 of bytes, or of a value's canonical JSON, in hexadecimal."""
    data = value if isinstance(value, bytes) else canonical(value)
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path, limit: int = MAX_BYTES) -> str:
    return digest(read_bytes(path, limit))


def read_bytes(path: Path, limit: int) -> bytes:
    """Read a file of another party; raise if it is missing, too large or not a regular file.

    A pipe could block forever when it is opened, and reading a device might never end.
    """
    waitless = getattr(os, "O_NONBLOCK", 0)
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | waitless)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise VerificationError(f"{path.name} is not a regular file.")
            data = file.read(limit + 1)
    except FileNotFoundError as error:
        raise VerificationError(f"The file {path.name} is missing.") from error
    except OSError as error:
        raise VerificationError(f"The file {path.name} cannot be read: {error}") from error
    if len(data) > limit:
        raise VerificationError(f"{path.name} is too large: at most {limit} bytes are accepted.")
    return data


def write_json(path: Path, value: Any, limit: int = MAX_JSON) -> None:
    """Write a value as JSON atomically; raise if readers would reject the file as too large."""
    text = canonical(value) + b"\n"
    if len(text) > limit:
        raise ValueError(
            f"{path.name} would have {len(text)} bytes, but readers accept at most {limit}; use "
            "fewer rows, columns or entries."
        )
    check_unlinked(path)
    write_atomically(path, text)


def check_unlinked(path: str | Path) -> None:
    """Raise if a path is or contains a symbolic link; writing to it would change another file."""
    for entry in _entries(path):
        if os.path.islink(entry):
            raise OSError(f"{entry} is a symbolic link, but a file or folder is needed; remove it.")


def is_within(path: str | Path, folder: str | Path) -> bool:
    """Whether a path is the folder, lies in it, or is a link (also a hard link) to a file in it."""
    if Path(path).resolve().is_relative_to(Path(folder).resolve()):
        return True
    try:
        own = os.stat(path)
    except OSError:
        return False
    return any(os.path.samestat(own, entry.lstat()) for entry in map(Path, _entries(folder)))


def _entries(path: str | Path) -> Iterator[str]:
    if os.path.lexists(path):
        yield os.fspath(path)
    for parent, folders, files in os.walk(path):
        for name in (*folders, *files):
            yield os.path.join(parent, name)


def write_within(folder: Path, name: str, content: bytes) -> None:
    """Write a file to a folder that others may modify, without following symbolic links."""
    target = folder / name
    for path in (*(folder / parent for parent in Path(name).parents), target):
        if path.is_symlink():
            check_unlinked(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, content)


def check_outside(path: str | Path | None, name: str, *sources: str | Path | None) -> None:
    """Raise if a file or folder of the verifier is in, or contains, a folder of the other party."""
    for source in sources:
        if path is None or source is None:
            continue
        if is_within(path, source):
            raise ValueError(
                f"`{name}` must not be in {source}: the other party made that folder. Keep a file "
                "that decides what you accept in a folder of your own."
            )
        if Path(source).resolve().is_relative_to(Path(path).resolve()):
            raise ValueError(
                f"`{name}` must not be a folder that contains {source}, which the other party "
                "made; use a folder of your own."
            )


def read_json(path: Path, limit: int = MAX_JSON) -> Any:
    """Read a JSON file of another party; raise if it is missing, too large or malformed."""
    data = read_bytes(path, limit)
    try:
        return json.loads(
            data.decode(),  # only UTF-8 without a byte order mark
            parse_constant=_reject_number,
            parse_float=_finite,
            object_pairs_hook=_without_repetition,
        )
    except (ValueError, RecursionError) as error:
        raise VerificationError(f"The file {path.name} is damaged or not JSON: {error}") from error


def _without_repetition(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from JSON entries; reject repeated keys, which parsers resolve differently."""
    found = dict(entries)
    if len(found) < len(entries):
        raise ValueError("an object has two entries with the same name")
    return found


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _reject_number(text)


def _reject_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a finite number")


def write_manifest(folder: Path) -> None:
    """Write a manifest with the hashes of all files in a folder and its subfolders."""
    files = {
        path.relative_to(folder).as_posix(): {
            "sha256": digest_file(path),
            "bytes": path.stat().st_size,
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / MANIFEST
    }
    write_json(folder / MANIFEST, {"format": FORMAT, "files": files})


class PrivateCopy:
    """A private copy of another party's folder, compared with the manifest in this folder.

    Each file is read only once, so whoever can write to the folder cannot exchange a file between
    its check and its use. The copy is deleted with this object. `names` contains the names of all
    copied files and folders, except the manifest, for `check_content`.
    """

    def __init__(self, source: Path):
        if not source.is_dir():
            raise VerificationError(f"The folder {source} does not exist.")
        self.folder = Path(tempfile.mkdtemp(prefix="skuq-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        try:
            present = self._copied(source)
        except OSError as error:
            raise VerificationError(f"{source} cannot be copied: {error}") from error
        manifest = read_form(self.folder / MANIFEST, {"format": int, "files": dict})
        check_format(manifest, MANIFEST)
        files: dict[str, Any] = manifest["files"]
        self.names = set(present) - {MANIFEST}
        for name in sorted(self.names | set(files)):
            if name not in present:
                raise VerificationError(f"The file {name} is missing.")
            if present[name] is None:
                continue
            if name not in files:
                raise VerificationError(f"The file {name} is not in the manifest.")
            if canonical(files[name]) != canonical(present[name]):  # `!=` would accept 1.0 for 1
                raise VerificationError(f"The file {name} was changed: the manifest differs.")

    def _copied(self, source: Path) -> dict[str, dict[str, Any] | None]:
        """Copy all files; map each name to its entry in the manifest, or to None for a folder."""
        present: dict[str, dict[str, Any] | None] = {}
        room = MAX_FOLDER
        for path in map(Path, _entries(source)):
            if path == source:
                continue
            name, mode = path.relative_to(source).as_posix(), path.lstat().st_mode
            present[name] = None
            if stat.S_ISDIR(mode):
                (self.folder / name).mkdir()
                continue
            if not stat.S_ISREG(mode):
                raise VerificationError(f"{name} is not a regular file.")
            data = read_bytes(path, MAX_BYTES if name in LARGE else MAX_JSON)
            room -= len(data)
            if room < 0 or len(present) > MAX_FILES:
                raise VerificationError(
                    f"The folder has more than {MAX_FILES} files or {MAX_FOLDER} bytes."
                )
            (self.folder / name).write_bytes(data)
            present[name] = {"sha256": digest(data), "bytes": len(data)}
        return present


def check_format(record: Any, where: str) -> None:
    """Raise unless a record has the format of this version; call this before reading entries."""
    found = record.get("format") if isinstance(record, dict) else None
    if type(found) is not int or found != FORMAT:
        raise VerificationError(f"{where} has format {found!r}, expected {FORMAT}.")


def check_content(names: Iterable[str], expected: set[str]) -> None:
    for name in sorted(names):
        within = expected & {CHUNKS, VERDICTS}
        is_numbered = any(re.fullmatch(f"{folder}/[0-9]{{5}}[.]json", name) for folder in within)
        if name not in expected and not is_numbered:
            raise VerificationError(f"{name} does not belong in a folder of this kind.")


def decoded(text: str) -> bytes:
    """Decode base64; ValueError unless the text is the canonical encoding of its bytes."""
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise ValueError("not canonical")
    return data


def check_form(value: Any, form: Any, where: str, name: str = "") -> None:
    """Raise unless JSON of another party, or its entry `name`, has the required form.

    A form is a type or a union of types, a pattern for a whole text, a list with one form for all
    elements, a tuple with one form per element, or a dict with one form per entry.
    """
    if isinstance(form, dict):
        found = value if isinstance(value, dict) else {}
        for entry, part in form.items():
            if entry not in found:
                raise VerificationError(f"{where} lacks the entry {name + entry!r}.")
            check_form(found[entry], part, where, f"{name}{entry}.")
        unknown = sorted(set(found) - set(form))
        if unknown:
            raise VerificationError(f"{where} has the unknown entry {name + unknown[0]!r}.")
        return
    if isinstance(form, (list, tuple)):
        forms = form * len(value) if isinstance(form, list) and isinstance(value, list) else form
        fits = isinstance(value, list) and len(forms) == len(value)
        for element, part in zip(value, forms, strict=True) if fits else ():
            check_form(element, part, where, name)
    elif isinstance(form, re.Pattern):
        fits = isinstance(value, str) and form.fullmatch(value) is not None
    else:
        fits = type(value) in (get_args(form) or (form,))  # True and 1.0 do not fit int
    if not fits:
        raise VerificationError(f"The entry {name[:-1]!r} of {where} is not of the right type.")


def read_form(path: Path, form: dict[str, Any], limit: int = MAX_JSON) -> dict[str, Any]:
    """Read a JSON file of another party, and check its form."""
    record = read_json(path, limit)
    check_form(record, form, path.name)
    return dict(record)
