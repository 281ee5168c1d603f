"""Files that run code when they are loaded: the one refusal of all functions and commands.

A pickle may call any function that it names. Nothing of the kind is loaded without ``trust=True``,
which is ``--trust`` on the command line; what a file would call is found without loading it.
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

MAX_BYTES = 2**22  # of each file that are searched for names
BUDGET = 2**24  # bytes of all files together
MAX_MEMBERS = 100  # of an archive, and files of a folder
N_SHOWN = 5
# Parts of names that run commands, or open files with such names, wherever they are reached from.
_COMMANDS = {"eval", "exec", "execfile", "compile", "__import__", "getattr", "load", "loads"}
_COMMANDS |= {"read_pickle", "_load_from_bytes", "open", "system", "popen", "os", "posix", "nt"}
_COMMANDS |= {"subprocess", "runpy", "importlib", "shutil", "socket", "ctypes", "pty", "pickle"}
# Packages whose names say little about a file: those of models and of their arrays.
_USUAL = {"sklearn", "numpy", "scipy", "pandas", "torch", "joblib", "skuq", "gymnasium", "_codecs"}
_USUAL |= {"copy_reg", "copyreg", "collections"}
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
# Files of stable-baselines3 hold JSON, and there pickles in base64.
_SERIALISED = re.compile(rb'":serialized:":\s*"([A-Za-z0-9+/=]+)')


def untrusted(path: str | PathLike[str], instead: str = "") -> str:
    """Say why a file, or a folder of files, is not loaded without trust.

    Parameters
    ----------
    path : path-like
        File or folder that holds pickled objects, in files of joblib, stable-baselines3 or others.
    instead : str, default=""
        A sentence on how to do without.

    Returns
    -------
    str
        What the path is, some of the names that it would call or make, and what to do.

    Raises
    ------
    FileNotFoundError
        If there is nothing at the path.
    """
    Path(path).stat()
    names = sorted(pickled_names(Path(path)), key=lambda name: (_rank(name), name))
    named = f" (it names {', '.join(names[:N_SHOWN])}, among others)" if names else ""
    return (
        f"{path} is loaded as pickled objects, which run code of whoever made them{named}. If you "
        f"trust it like a program, say so (`trust=True`).{' ' if instead else ''}{instead}"
    )


def _rank(name: str) -> int:
    """Place of a name among those that are shown: commands first, what is usual last."""
    parts = name.split(".")
    if not _COMMANDS.isdisjoint(parts):
        return 0
    return 2 if parts[0] in _USUAL else 1


def pickled_names(path: Path) -> set[str]:
    """Names of functions and classes in the pickles of a path, which are not loaded.

    Those that a pickle composes while it is loaded, that stand behind its arrays, or in files that
    cannot be read or are too many or too long, are not found.
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
    """The path, or the files in it if it is a folder: no links, pipes or devices."""
    with suppress(OSError, RecursionError):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            yield path
        elif stat.S_ISDIR(mode):
            for inner in sorted(path.iterdir()):
                yield from _regular_files(inner)


def _contents(path: Path) -> Iterator[bytes]:
    """The beginnings of all that may be a pickle in a file."""
    with suppress(Exception), _opened(path) as file:  # whatever a damaged or forged file leads to
        content = file.read(MAX_BYTES)
        yield content
        if zipfile.is_zipfile(file):  # which may stand at the end of a pickle
            with zipfile.ZipFile(file) as archive:
                for name in archive.namelist()[:MAX_MEMBERS]:
                    yield from _member(archive, name)
            return
        # As joblib and gzip compress.
        yield zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(content, MAX_BYTES)


def _opened(path: Path) -> BinaryIO:
    """A file that is not waited for if it has become a link or a pipe."""
    kept_safe = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return open(path, "rb", opener=lambda name, flags: os.open(name, flags | kept_safe))


def _member(archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    content = b""
    with suppress(Exception), archive.open(name) as member:
        content = member.read(MAX_BYTES)
    yield content
    for text in _SERIALISED.findall(content):
        with suppress(ValueError):
            yield base64.b64decode(text)


def _names(content: bytes) -> Iterator[str]:
    """Names in a pickle, up to where it is none."""
    texts: list[str] = []  # in the order in which they are pushed
    memo: dict[int, str | None] = {}
    last: str | None = None  # the top of the stack, if it is a text
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
    except Exception:  # whatever bytes lead to that are not a pickle
        return
