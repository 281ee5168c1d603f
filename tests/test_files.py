"""Writing completely or not at all: what is left after every way to fail."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from skuq import files
from skuq.files import atomic_folder, atomic_path, atomic_paths, remove_partials, write_atomically


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def fail_half_way(path, error):
    with atomic_path(path) as partial:
        partial.write_text("ne", encoding="utf-8")
        raise error


def write_all(paths):
    with atomic_paths(*paths) as partials:
        for partial in partials:
            partial.write_text("new", encoding="utf-8")


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
    for other in (".note.partial", "report.0123456789ab.partial"):
        (tmp_path / other).write_text("of somebody else", encoding="utf-8")
    assert len([*tmp_path.iterdir()]) == 4
    remove_partials(tmp_path)
    assert {*contents(tmp_path)} == {"a.txt", ".note.partial", "report.0123456789ab.partial"}


def test_a_folder_that_was_moved_away_and_not_replaced_is_put_back(tmp_path, monkeypatch):
    target = tmp_path / "run"
    target.mkdir()
    (target / "a.txt").write_text("old", encoding="utf-8")
    replace, calls = os.replace, []

    def killed_at_the_second(*names):
        calls.append(names)
        if len(calls) > 1:
            raise KeyboardInterrupt
        replace(*names)

    # A process that is killed puts nothing back: neither does this one, whose renamings fail.
    monkeypatch.setattr("os.replace", killed_at_the_second)
    with pytest.raises(KeyboardInterrupt), atomic_folder(target):
        pass
    monkeypatch.undo()
    assert not target.exists()
    remove_partials(tmp_path)
    assert (target / "a.txt").read_text(encoding="utf-8") == "old"
    (tmp_path / ".run.0123456789ab.old").mkdir()  # left by one that was killed after it
    remove_partials(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


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


@pytest.mark.parametrize("second_is_there", [True, False])
def test_files_that_belong_together_are_replaced_together(tmp_path, monkeypatch, second_is_there):
    names = ["a", "b", "c"]
    before = {"a": b"old a", "c": b"old c"} | ({"b": b"old b"} if second_is_there else {})
    for name, text in before.items():
        (tmp_path / name).write_bytes(text)
    replace = os.replace

    def fail_at_last(source, target):
        if Path(target).name == "c":
            raise OSError(errno.EIO, "no luck")
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", fail_at_last)
    paths = [tmp_path / name for name in names]
    with pytest.raises(OSError, match="no luck"):
        write_all(paths)
    assert contents(tmp_path) == before
    monkeypatch.undo()
    write_all(paths)
    assert contents(tmp_path) == dict.fromkeys(names, b"new")


def test_a_folder_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    fsync, replace = files._fsync, os.replace
    monkeypatch.setattr(files, "_fsync", lambda path: (done.append(path.name), fsync(path)))
    monkeypatch.setattr(files.os, "replace", lambda *p: (done.append("replace"), replace(*p)))
    with atomic_path(tmp_path / "whole", durable=True) as partial:
        partial.mkdir()
        (partial / "a").write_text("1", encoding="utf-8")
        temporary = partial.name
    assert done == ["a", temporary, "replace", tmp_path.name]
    assert (tmp_path / "whole" / "a").read_text(encoding="utf-8") == "1"


def test_a_folder_that_fails_half_way_is_removed(tmp_path):
    def fail():
        with atomic_path(tmp_path / "whole") as partial:
            partial.mkdir()
            (partial / "a").write_text("1", encoding="utf-8")
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_replaced_when_it_is_complete(tmp_path):
    target = tmp_path / "whole"
    for content in ("1", "2"):
        with atomic_folder(target, durable=True) as partial:
            (partial / content).write_text(content, encoding="utf-8")
            assert target.exists() == (content == "2")
        assert contents(target) == {content: content.encode()}
        assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("when", ["write", "replace"])
def test_a_folder_that_cannot_be_replaced_is_as_it_was(tmp_path, monkeypatch, when):
    target, replace = tmp_path / "whole", os.replace
    target.mkdir()
    (target / "old").write_text("1", encoding="utf-8")

    def fail_at_the_new_one(source, destination):
        if destination == target and not (source / "old").exists():
            raise OSError("no luck")
        replace(source, destination)

    def write():
        with atomic_folder(target) as partial:
            (partial / "new").write_text("2", encoding="utf-8")
            if when == "write":
                raise OSError("no luck")

    monkeypatch.setattr(files.os, "replace", fail_at_the_new_one)
    with pytest.raises(OSError, match="no luck"):
        write()
    assert contents(target) == {"old": b"1"}
    assert list(tmp_path.iterdir()) == [target]


def test_files_are_open_for_writing_when_they_are_flushed(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    flushed, fsync = [], os.fsync

    def record(descriptor):
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        flushed.append((is_file, fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE))
        fsync(descriptor)

    monkeypatch.setattr(files.os, "fsync", record)
    with atomic_path(tmp_path / "a.txt", durable=True) as partial:
        partial.write_text("new", encoding="utf-8")
    # Windows refuses others; folders can be opened for reading alone.
    assert flushed == [(True, os.O_RDWR), (False, os.O_RDONLY)]
