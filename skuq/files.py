"""Atomic writes: files and folders are written completely or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write a file completely or not at all.

    Parameters
    ----------
    path : path-like
        File in an existing folder. An existing file is replaced; its mode is kept.
    content : str or bytes
        Text is written as UTF-8, without conversion of line endings.

    Returns
    -------
    Path
        The path.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from skuq.files import write_atomically
    >>> with TemporaryDirectory() as folder:
    ...     write_atomically(f"{folder}/note.txt", "done").read_text()
    'done'
    """
    with atomic_path(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


@contextmanager
def atomic_path(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary path, which replaces the given path at the end of the block.

    If the block raises, or the process dies during it, an existing file at the path is unchanged.

    Parameters
    ----------
    path : path-like
        File to replace or to create, or folder to create; the parent folder must exist.
    durable : bool, default=False
        Whether to wait until the content is on disk, so that it survives a power failure.

    Yields
    ------
    Path
        Unused name in the same folder; the block creates a file or a folder there.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from skuq.files import atomic_path
    >>> with TemporaryDirectory() as folder:
    ...     with atomic_path(Path(folder, "table.csv")) as partial:
    ...         _ = partial.write_text("1,2")
    ...     [path.name for path in Path(folder).iterdir()]
    ['table.csv']
    """
    with atomic_paths(path, durable=durable) as (partial,):
        yield partial


@contextmanager
def atomic_folder(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[Path]:
    """Yield a temporary folder, which replaces the given folder at the end of the block.

    Unlike `atomic_path`, it can replace an existing folder. Operating systems cannot replace a
    folder in one step: if the process dies between the two renames, no folder of that name exists
    until `remove_partials` restores the old folder.

    Parameters
    ----------
    path : path-like
        Folder to replace or to create, in an existing folder.
    durable : bool, default=False
        Whether to wait until the content is on disk.

    Yields
    ------
    Path
        Empty folder next to the path.
    """
    target = Path(path)
    partial, old = _beside(target, "partial"), _beside(target, "old")
    try:
        partial.mkdir()
        yield partial
        if durable:
            _flush(partial)
        try:
            if target.exists():
                os.replace(target, old)
            os.replace(partial, target)
        except BaseException:
            if old.exists():
                os.replace(old, target)
            raise
        if durable:
            _fsync(target.parent)
        _remove(old)
    finally:
        _remove(partial)


@contextmanager
def atomic_paths(
    *paths: str | os.PathLike[str], durable: bool = False
) -> Iterator[tuple[Path, ...]]:
    """Yield temporary paths, which replace the given paths together at the end of the block.

    Works like `atomic_path`, but for several files. If one path cannot be replaced, all paths are
    restored.

    Parameters
    ----------
    *paths : path-like
        Different files to replace or to create.
    durable : bool, default=False
        Whether to wait until the contents are on disk.

    Yields
    ------
    tuple of Path
        One temporary path for each given path.
    """
    targets = [_target(path) for path in paths]
    partials = tuple(_beside(target, "partial") for target in targets)
    try:
        yield partials
        if durable:
            for partial in partials:
                _flush(partial)
        _replace_all(partials, targets)
        if durable:
            for folder in {target.parent for target in targets}:
                _fsync(folder)
    finally:
        for partial in partials:
            _remove(partial)


def is_within(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether a path is the given folder, lies in it, or is a link to a file in it.

    Symbolic links are followed. A hard link to a file in the folder also counts as within the
    folder.

    Parameters
    ----------
    path : path-like
        File or folder, which need not exist.
    folder : path-like
        Folder, or a single file.

    Returns
    -------
    bool

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from skuq.files import is_within
    >>> with TemporaryDirectory() as home:
    ...     _ = Path(home, "note.txt").write_text("done")
    ...     is_within(f"{home}/note.txt", home), is_within(home, f"{home}/note.txt")
    (True, False)
    """
    if Path(path).resolve().is_relative_to(Path(folder).resolve()):
        return True
    try:
        own = os.stat(path)
    except OSError:
        return False
    return any(_is_same(own, entry) for entry in _entries(folder))


def check_unlinked(path: str | os.PathLike[str]) -> None:
    """Reject a symbolic link, and a folder that contains a symbolic link at any depth.

    Another user who can write to the folder could place a link in it, and the caller would then
    overwrite the file that the link points to.

    Parameters
    ----------
    path : path-like
        File or folder to be written, which need not exist.

    Raises
    ------
    OSError
        If there is a symbolic link; the message names it.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from skuq.files import check_unlinked
    >>> with TemporaryDirectory() as home:
    ...     check_unlinked(home)
    ...     Path(home, "chunks").symlink_to("/elsewhere")
    ...     try:
    ...         check_unlinked(home)
    ...     except OSError as error:
    ...         print(str(error).rsplit("/")[-1])
    chunks is a symbolic link, and skuq does not write through links; remove it.
    """
    for entry in _entries(path):
        if os.path.islink(entry):
            raise OSError(
                f"{entry} is a symbolic link, and skuq does not write through links; remove it."
            )


def remove_partials(folder: str | os.PathLike[str]) -> None:
    """Remove temporary files in a folder, left by processes that were killed.

    Files that such a process had renamed, but not yet replaced, are restored.

    Parameters
    ----------
    folder : path-like
        Folder that no other process is writing to; it need not exist.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from skuq.files import remove_partials
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, ".table.csv.0123456789ab.partial").write_text("1,")
    ...     remove_partials(folder)
    ...     [*Path(folder).iterdir()]
    []
    """
    left = f".*.{'[0-9a-f]' * 12}"
    for old in Path(folder).glob(f"{left}.old"):
        target = old.with_name(old.name[1:].rsplit(".", 2)[0])
        if target.exists():
            _remove(old)
        else:
            os.replace(old, target)
    for partial in Path(folder).glob(f"{left}.partial"):
        _remove(partial)


def _entries(path: str | os.PathLike[str]) -> Iterator[str]:
    """The path itself, and all files and folders below it; links are not followed."""
    yield os.fspath(path)
    for parent, folders, files in os.walk(path):
        for name in (*folders, *files):
            yield os.path.join(parent, name)


def _is_same(own: os.stat_result, entry: str) -> bool:
    try:
        return os.path.samestat(own, os.stat(entry, follow_symlinks=False))
    except OSError:
        return False


def _target(path: str | os.PathLike[str]) -> Path:
    """Resolve links, and check that a file can be written at the path."""
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"`path` must be in an existing folder, got {Path(path).parent}; create it first."
        )
    if target.exists() and not target.is_file():  # such as a device
        raise OSError(f"{path} exists and is not a regular file.")
    return target


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.{ending}")


def _replace_all(partials: Sequence[Path], targets: Sequence[Path]) -> None:
    existing = [target for target in targets if target.exists()]
    copies = {target: _beside(target, "old") for target in existing if len(targets) > 1}
    replaced: list[Path] = []
    try:
        for target, copy in copies.items():
            shutil.copy2(target, copy)
        for partial, target in zip(partials, targets, strict=True):
            if target in existing:
                shutil.copymode(target, partial)
            os.replace(partial, target)
            replaced.append(target)
    except BaseException:
        for target in replaced:
            if target in copies:
                os.replace(copies[target], target)
            else:
                _remove(target)
        raise
    finally:
        for copy in copies.values():
            _remove(copy)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until a file, or a folder with its contents, is on disk."""
    if path.is_dir():
        for inner in path.iterdir():
            _flush(inner)
    _fsync(path)


def _fsync(path: Path) -> None:
    if path.is_dir() and os.name != "posix":
        return  # only POSIX systems can open folders
    # Windows cannot flush files that are opened read-only.
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
