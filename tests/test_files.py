"""Writing completely or not at all: what is left after every way to fail."""

import errno
import os
import stat
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from skuq.files import atomic_path, atomic_paths, write_atomically

posix = pytest.mark.skipif(os.name != "posix", reason="modes, links and pipes of POSIX")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def old(tmp_path):
    (tmp_path / "a.txt").write_text("old", encoding="utf-8")
    return tmp_path / "a.txt"


def write_half(path, error):
    with atomic_path(path) as partial:
        partial.write_text("ne", encoding="utf-8")
        if error is not None:
            raise error
        partial.unlink()


@pytest.mark.parametrize("content", ["Zürich\r\n1\n", "Zürich\r\n1\n".encode()])
def test_content_is_written_as_it_is_and_replaces_the_old_one(old, content):
    for path in (old, old.with_name("b.txt")):
        assert write_atomically(str(path), content) == path
        assert path.read_bytes() == "Zürich\r\n1\n".encode()
    assert len(contents(old.parent)) == 2


@pytest.mark.parametrize("error", [RuntimeError("half-way"), KeyboardInterrupt(), SystemExit(3)])
def test_a_failure_half_way_leaves_the_old_file_and_nothing_else(old, error):
    with pytest.raises(type(error)):
        write_half(old, error)
    assert contents(old.parent) == {"a.txt": b"old"}
    with pytest.raises(FileNotFoundError):
        write_half(old, None)
    assert contents(old.parent) == {"a.txt": b"old"}


def test_a_full_disk_leaves_the_old_file(old, monkeypatch):
    def full(self, data):
        self.open("wb").close()
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="full"):
        write_atomically(old, "new")
    assert contents(old.parent) == {"a.txt": b"old"}


@posix
def test_a_process_that_is_killed_leaves_the_old_file(old):
    if (child := os.fork()) == 0:
        with atomic_path(old) as partial:
            partial.write_text("ne", encoding="utf-8")
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert old.read_text(encoding="utf-8") == "old"
    write_atomically(old, "new")  # what is left over is in nobody's way
    assert old.read_text(encoding="utf-8") == "new"


@posix
def test_a_file_keeps_its_mode_a_new_one_has_the_usual_and_a_link_stays_a_link(tmp_path):
    kept, new, usual, link = (tmp_path / name for name in ("kept", "new", "usual", "link"))
    kept.write_text("old", encoding="utf-8")
    kept.chmod(0o640)
    usual.touch()
    link.symlink_to(kept)
    write_atomically(link, "new")
    write_atomically(new, "new")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    assert new.stat().st_mode == usual.stat().st_mode
    assert link.is_symlink()
    assert kept.read_text(encoding="utf-8") == "new"


@posix
def test_what_is_not_a_regular_file_is_not_replaced_and_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        write_atomically(tmp_path / "absent" / "a.txt", "new")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(OSError, match="regular file"):
            write_atomically(tmp_path / name, "new")
    assert (tmp_path / "pipe").is_fifo()


@posix
def test_a_folder_that_cannot_be_written_to_keeps_its_file(old):
    old.parent.chmod(0o555)
    try:
        if os.access(old.parent, os.W_OK):
            pytest.skip("this user may write everywhere")
        with pytest.raises(PermissionError):
            write_atomically(old, "new")
        assert contents(old.parent) == {"a.txt": b"old"}
    finally:
        old.parent.chmod(0o755)


def test_a_folder_that_fails_half_way_is_removed(tmp_path):
    def fail():
        with atomic_path(tmp_path / "whole") as partial:
            partial.mkdir()
            (partial / "a").write_text("1", encoding="utf-8")
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("divisor", [0, 1])
def test_files_that_belong_together_are_replaced_only_if_the_block_succeeds(old, divisor):
    expected = pytest.raises(ZeroDivisionError) if divisor == 0 else nullcontext()
    with expected, atomic_paths(old, old.with_name("b")) as partials:
        for partial in partials:
            partial.write_text("new", encoding="utf-8")
        1 / divisor
    whole = {"a.txt": b"new", "b": b"new"}
    assert contents(old.parent) == (whole if divisor else {"a.txt": b"old"})


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path):
    for age, name in ((2, "old"), (0.1, "new")):
        left = tmp_path / f".a[1].txt.{name:0>12}.partial"
        left.touch()
        os.utime(left, (time.time() - age * 24 * 3600,) * 2)
    write_atomically(tmp_path / "a[1].txt", "text")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"a[1].txt", f".a[1].txt.{'new':0>12}.partial"}
