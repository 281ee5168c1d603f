"""Files that run code when they are loaded: the one refusal of all functions and commands.

A pickle may call any function that it names. Nothing of the kind is loaded without ``trust=True``,
which is ``--trust`` on the command line; what a file would call is found without loading it.
"""

from __future__ import annotations

import base64
import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

MAX_BYTES = 2**22  # of each file that are searched for names
MAX_MEMBERS = 100  # of an archive
N_SHOWN = 5
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
    names = sorted(pickled_names(Path(path)), key=lambda name: (_is_usual(name), name))
    named = f" (it names {', '.join(names[:N_SHOWN])}, among others)" if names else ""
    return (
        f"{path} is loaded as pickled objects, which run code of whoever made them{named}. If you "
        f"trust it like a program, say so (`trust=True`).{' ' if instead else ''}{instead}"
    )


def _is_usual(name: str) -> bool:
    return name.partition(".")[0] in _USUAL


def pickled_names(path: Path) -> set[str]:
    """Names of functions and classes in the pickles of a path, which are not loaded.

    Those that a pickle composes while it is loaded, or that stand behind its arrays, are not found.
    """
    found: set[str] = set()
    try:
        for content in _contents(path):
            found.update(_names(content))
    except Exception:  # whatever a damaged or forged archive leads to
        return found
    return found


def _contents(path: Path) -> Iterator[bytes]:
    """The beginnings of all that may be a pickle in a file or in a folder."""
    if path.is_dir():
        for inner in sorted(path.iterdir()):
            yield from _contents(inner)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist()[:MAX_MEMBERS]:
                with archive.open(name) as member:
                    content = member.read(MAX_BYTES)
                yield content
                yield from map(base64.b64decode, _SERIALISED.findall(content))
    elif path.is_file():
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
        yield content
        try:  # as joblib and gzip compress
            yield zlib.decompressobj(wbits=zlib.MAX_WBITS | 32).decompress(content, MAX_BYTES)
        except zlib.error:
            return


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
    except Exception:  # whatever bytes that are no pickle lead to
        return
