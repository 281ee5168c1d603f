"""Files and folders that are written completely or not at all, and paths that may be written."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file completely or not at all; text is written as UTF-8, with its line endings."""
    with atomic_path(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an unused path in the same folder, which replaces the given path after the block.

    The block creates a file, or a folder if there is nothing at the path. If it raises, or the
    process dies, a file at the path is unchanged. A file that is replaced keeps its mode, and a
    link stays a link.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"`path` must be in an existing folder, got {Path(path).parent}; create it first."
        )
    if target.exists() and not target.is_file():  # such as a device
        raise OSError(f"{path} exists and is not a regular file.")
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.partial")
    try:
        yield partial
        if target.exists():
            shutil.copymode(target, partial)
        os.replace(partial, target)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_paths(*paths: str | os.PathLike[str]) -> Iterator[tuple[Path, ...]]:
    """`atomic_path` for several files: none is replaced unless the block succeeds."""
    with ExitStack() as stack:
        yield tuple(stack.enter_context(atomic_path(path)) for path in paths)


def is_within(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether a path is the given folder, lies in it, or is a link, also hard, to a file in it."""
    if Path(path).resolve().is_relative_to(Path(folder).resolve()):
        return True
    if not os.path.exists(path):
        return False
    folder = Path(folder).resolve()
    entries = folder.rglob("*") if folder.is_dir() else [folder] if folder.exists() else []
    return any(os.path.samestat(os.stat(path), entry.lstat()) for entry in entries)


def check_unlinked(path: str | os.PathLike[str]) -> None:
    """Refuse a symbolic link, and a folder that contains one at any depth.

    Another user who can write to the folder could place a link in it, and the caller would then
    overwrite the file that the link points to.
    """
    inner = (os.path.join(top, n) for top, *names in os.walk(path) for n in chain(*names))
    for entry in (os.fspath(path), *inner):
        if os.path.islink(entry):
            raise OSError(
                f"{entry} is a symbolic link, and skuq does not write through links; remove it."
            )
