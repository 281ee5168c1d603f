"""Writing completely or not at all: what is left after every way to fail."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from skuq.files import atomic_path, atomic_paths, write_atomically


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def fail_half_way(path, error):
    with atomic_path(path) as partial:
        partial.write_text("ne", encoding="utf-8")
        raise error


@pytest.mark.parametrize("content", ["Zürich\r\n1\n", "Zürich\r\n1\n".encode()])
def test_content_is_written_as_it_is_and_replaces_the_old_one(tmp_path, content):
    path = tmp_path / "a.txt"
    for _ in range(2):
        assert write_atomically(str(path), content) == path
        assert contents(tmp_path) == {"a.txt": "Zürich\r\n1\n".encode()}
        path.write_text("old", encoding="utf-8")


@pytest.mark.parametrize("error", [RuntimeError("half-way"), KeyboardInterrupt(), SystemExit(3)])
def test_a_failure_half_way_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(type(error)):
        fail_half_way(path, error)
    assert contents(tmp_path) == {"a.txt": b"old"}


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")

    def full(self, data):
        self.open("wb").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert contents(tmp_path) == {"a.txt": b"old"}


def test_a_process_that_is_killed_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")
    code = (
        "import os, sys\nfrom skuq.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as partial:\n"
        "    partial.write_text('ne')\n    os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == 9
    assert path.read_text(encoding="utf-8") == "old"
    write_atomically(path, "new")  # what is left over is in nobody's way
    assert path.read_text(encoding="utf-8") == "new"


def test_a_block_that_writes_nothing_replaces_nothing(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(FileNotFoundError), atomic_path(path):
        pass
    assert contents(tmp_path) == {"a.txt": b"old"}


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_file_keeps_its_mode_and_a_new_one_has_the_usual(tmp_path):
    kept, new, usual = (tmp_path / name for name in ("kept", "new", "usual"))
    kept.write_text("old", encoding="utf-8")
    kept.chmod(0o640)
    usual.touch()
    write_atomically(kept, "new")
    write_atomically(new, "new")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    assert new.stat().st_mode == usual.stat().st_mode


@pytest.mark.skipif(os.name != "posix", reason="links are those of POSIX")
def test_a_link_stays_a_link(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old", encoding="utf-8")
    link.symlink_to(real)
    write_atomically(link, "new")
    assert link.is_symlink()
    assert real.read_text(encoding="utf-8") == "new"


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"existing folder.*absent; create it first"):
        write_atomically(tmp_path / "absent" / "a.txt", "new")


@pytest.mark.skipif(os.name != "posix", reason="needs a pipe")
def test_what_is_not_a_regular_file_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(OSError, match="not a regular file"):
            write_atomically(tmp_path / name, "new")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_a_folder_that_cannot_be_written_to_keeps_its_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")
    tmp_path.chmod(0o555)
    try:
        if os.access(tmp_path, os.W_OK):
            pytest.skip("this user may write everywhere")
        with pytest.raises(PermissionError):
            write_atomically(path, "new")
        assert contents(tmp_path) == {"a.txt": b"old"}
    finally:
        tmp_path.chmod(0o755)


def test_a_folder_that_fails_half_way_is_removed(tmp_path):
    def fail():
        with atomic_path(tmp_path / "whole") as partial:
            partial.mkdir()
            (partial / "a").write_text("1", encoding="utf-8")
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_files_that_belong_together_are_replaced_only_if_the_block_succeeds(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    paths[0].write_text("old", encoding="utf-8")

    def write(*, fail):
        with atomic_paths(*paths) as partials:
            for partial in partials:
                partial.write_text("new", encoding="utf-8")
            if fail:
                raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        write(fail=True)
    assert contents(tmp_path) == {"a": b"old"}
    write(fail=False)
    assert contents(tmp_path) == {"a": b"new", "b": b"new"}
