"""Refusal to load pickled files that the user does not trust, for all functions and commands.

Loading a pickle may call any function that the file names. Pickles are loaded only with
``trust=True`` (``--trust`` on the command line). The names in a file are read without loading it.
"""

from __future__ import annotations

import base64
import os
import pickletools
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

MAX_BYTES = 2**22  # maximum number of bytes that are searched for names, per file
BUDGET = 2**24  # maximum number of bytes that are searched in all files together
MAX_MEMBERS = 100  # maximum number of members per archive or folder
N_SHOWN = 5
# Functions and modules, at any position of a dotted name, that can run code or access files.
_COMMANDS = {"eval", "exec", "execfile", "compile", "__import__", "getattr", "load", "loads"}
_COMMANDS |= {"read_pickle", "_load_from_bytes", "open", "system", "popen", "os", "posix", "nt"}
_COMMANDS |= {"subprocess", "runpy", "importlib", "shutil", "socket", "ctypes", "pty", "pickle"}
# Packages that any pickled model may name, and that are therefore shown last.
_USUAL = {"sklearn", "numpy", "scipy", "pandas", "torch", "joblib", "skuq", "gymnasium", "_codecs"}
_USUAL |= {"copy_reg", "copyreg", "collections"}
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
# Files of stable-baselines3 contain JSON with base64-encoded pickles.
_SERIALISED = re.compile(rb'":serialized:":\s*"([A-Za-z0-9+/=]+)')


def untrusted(path: str | PathLike[str], instead: str = "") -> str:
    """Message that explains why a file or folder with pickles is not loaded without trust.

    Parameters
    ----------
    path : path-like
        File or folder with pickled objects, such as files of joblib or stable-baselines3.
    instead : str, default=""
        Sentence that names an alternative to loading the pickle.

    Returns
    -------
    str
        The reason, some of the functions and classes that the pickles name, and the remedy.

    Raises
    ------
    FileNotFoundError
        If the path does not exist.
    """
    Path(path).stat()
    names = sorted(pickled_names(Path(path)), key=lambda name: (_rank(name), name))
    named = f" (it names {', '.join(names[:N_SHOWN])}, among others)" if names else ""
    return (
        f"{path} is loaded as pickled objects, which run code of whoever made them{named}. If you "
        "trust it as you would trust a program, say so (`trust=True`)."
        f"{' ' if instead else ''}{instead}"
    )


def _rank(name: str) -> int:
    """Sort key of a name: 0 for functions that run code, 2 for common packages, 1 for others."""
    parts = name.split(".")
    if not _COMMANDS.isdisjoint(parts):
        return 0
    return 2 if parts[0] in _USUAL else 1


def pickled_names(path: Path) -> set[str]:
    """Names of functions and classes in the pickles at a path, found without loading them.

    The search is incomplete. It misses names that a pickle composes during loading, names stored
    after the arrays of a pickle, names in unreadable files, and names beyond the limits on the
    number and size of files.
    """
    found: set[str] = set()
    left = BUDGET
    for file in islice(_regular_files(path.resolve()), MAX_MEMBERS):
        for content in _contents(file):
            found.update(_names(content[:left]))
            left -= len(content)
            if left <= 0:
                return found
    return found


def _regular_files(path: Path) -> Iterator[Path]:
    """The path itself, or all files below a folder; links, pipes and devices are skipped."""
    with suppress(OSError, RecursionError):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            yield path
        elif stat.S_ISDIR(mode):
            for inner in sorted(path.iterdir()):
                yield from _regular_files(inner)


def _contents(path: Path) -> Iterator[bytes]:
    """First bytes of possible pickles: the file itself, archive members, decompressed content."""
    with suppress(Exception), _opened(path) as file:  # damaged or forged files may raise anything
        content = file.read(MAX_BYTES)
        yield content
        if zipfile.is_zipfile(file):  # even if a pickle precedes the archive
            with zipfile.ZipFile(file) as archive:
                for name in archive.namelist()[:MAX_MEMBERS]:
                    yield from _member(archive, name)
            return
        # Decompress zlib and gzip, which joblib uses.
        yield zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(content, MAX_BYTES)


def _opened(path: Path) -> BinaryIO:
    """Open a file without following links and without blocking on pipes."""
    safe_flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | safe_flags))


def _member(archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    content = b""
    with suppress(Exception), archive.open(name) as member:
        content = member.read(MAX_BYTES)
    yield content
    for text in _SERIALISED.findall(content):
        with suppress(ValueError):
            yield base64.b64decode(text)


def _names(content: bytes) -> Iterator[str]:
    """Names in a pickle, up to the first invalid opcode."""
    texts: list[str] = []  # strings in the order in which they are pushed
    memo: dict[int, str | None] = {}
    last: str | None = None  # top of the stack, if it is a string
    try:
        value: Any
        for opcode, value, _ in pickletools.genops(content):
            name = None
            if opcode.name in ("GLOBAL", "INST"):
                name = str(value).replace(" ", ".")
            elif opcode.name == "STACK_GLOBAL":
                name = ".".join(texts[-2:])
            elif opcode.name == "MEMOIZE":
                memo[len(memo)] = last
            elif opcode.name.endswith("PUT"):
                memo[value] = last
            else:
                last = memo.get(value) if opcode.name.endswith("GET") else value
                last = last if isinstance(last, str) else None
                texts += [] if last is None else [last]
            if name is not None:
                last = None
                if _NAME.fullmatch(name):
                    yield name
    except Exception:  # bytes that are not a pickle may raise anything
        return
