"""Files and folders that are written completely or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
    """`atomic_path` for several files: if one of them cannot be replaced, all are as before."""
    targets = [Path(os.path.realpath(path)) for path in paths]
    before = [target.read_bytes() if target.is_file() else None for target in targets]
    try:
        with ExitStack() as stack:
            yield tuple(stack.enter_context(atomic_path(path)) for path in paths)
    except BaseException:
        for target, content in zip(targets, before, strict=True):
            if content is not None and target.read_bytes() != content:
                target.write_bytes(content)
            elif content is None and target.is_file():
                target.unlink()
        raise
