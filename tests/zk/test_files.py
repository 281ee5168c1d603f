"""JSON files and manifests that the parties exchange; see ``alterations.json``, too."""

import json
import os
from pathlib import Path

import pytest

from skuq.zk import _files as files


def test_the_text_of_a_value_does_not_depend_on_the_order_of_its_entries():
    assert files.canonical({"b": [1, 2.5], "a": None}) == b'{"a":null,"b":[1,2.5]}'
    assert files.digest({"b": 2, "a": 1}) == files.digest(b'{"a":1,"b":2}')
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.canonical({"a": float("nan")})


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    files.write_json(folder / "a.json", {"a": 1})
    files.write_json(folder / "below" / "b.json", [1, 2])
    files.write_manifest(folder)
    return folder


def test_a_folder_that_was_not_touched_is_accepted(folder):
    assert files.PrivateCopy(folder).names == {"a.json", "below", "below/b.json"}
    listed = files.read_json(folder / "manifest.json")["files"]
    assert set(listed) == {"a.json", "below/b.json"}
    assert listed["a.json"] == {"sha256": files.digest_file(folder / "a.json"), "bytes": 8}
    assert not list(folder.rglob("*.partial"))
    with pytest.raises(files.VerificationError, match=r"The folder .*nowhere does not exist"):
        files.PrivateCopy(folder / "nowhere")


def test_a_file_that_is_no_json_missing_too_large_or_a_folder_is_an_error(tmp_path):
    path = tmp_path / "x.json"
    for read, name, message in (
        (files.read_json, path, r"The file x.json is missing"),
        (files.read_json, tmp_path, "cannot be read"),
        (files.digest_file, Path("/dev/zero"), "zero is not a regular file"),
    ):
        with pytest.raises(files.VerificationError, match=message):
            read(name)
    for text in (b"1" * 5000, b"[-Infinity]", b'[{"a": {"b": 1, "b": 1}}]'):
        path.write_bytes(text)
        with pytest.raises(files.VerificationError, match=r"The file x.json is damaged or not"):
            files.read_json(path)
    for read, size in ((files.read_json, files.MAX_JSON), (files.digest_file, files.MAX_BYTES)):
        os.truncate(path, size + 1)
        with pytest.raises(files.VerificationError, match=r"x.json is too large"):
            read(path)
    path.unlink()
    with pytest.raises(ValueError, match=r"x.json would have \d+ bytes, but readers accept"):
        files.write_json(path, "x" * files.MAX_JSON)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.json", "manifest.json"])
def test_a_file_that_is_too_large_is_not_parsed(folder, monkeypatch, name):
    """60 MB of brackets took 1.4 GB."""
    path, record = folder / name, None
    path.write_bytes(b"[" + b"[]," * (files.MAX_JSON // 3) + b"[]]")
    if name == "a.json":
        files.write_manifest(folder)
        record = files.read_json(folder / "manifest.json")
    monkeypatch.setattr(json, "loads", lambda text, **_: record)
    with pytest.raises(files.VerificationError, match=f"{name} is too large"):
        files.PrivateCopy(folder)


def test_a_file_of_the_verifiers_own_is_none_of_the_other_partys(tmp_path):
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    for folder in (theirs, own):
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "srs").write_bytes(b"string")
    (own / "link").symlink_to(theirs / "below" / "srs")
    (own / "folder").symlink_to(theirs)
    os.link(theirs / "below" / "srs", own / "hard")
    for path in (own / "below" / "srs", own / "keys", None, tmp_path / "srs"):
        files.check_outside(path, "srs", theirs, None)  # a file beside it is no folder around it
    ways = [theirs, theirs / "below" / "srs", theirs / "absent", own / ".." / "theirs" / "below"]
    for path in (*ways, own / "link", own / "folder" / "below" / "srs", own / "hard"):
        with pytest.raises(ValueError, match=r"`srs` must not be in .*theirs"):
            files.check_outside(path, "srs", own / "below", theirs)
    for folder in (tmp_path, own / ".." / "own" / ".."):
        with pytest.raises(ValueError, match=r"`keys` must not be a folder that contains .*theirs"):
            files.check_outside(folder, "keys", own / "absent" / ".." / ".." / "theirs")
    with pytest.raises(ValueError, match="`auditor` must not be in"):  # a single file of theirs
        files.check_outside(own / "hard", "auditor", theirs / "below" / "srs")


def test_nothing_is_written_through_links(tmp_path):
    """Whoever gets the folder could plant one that leads to the writer's own files."""
    secret, out, linked = tmp_path / "secret", tmp_path / "out", tmp_path / "linked"
    (secret / "chunks").mkdir(parents=True)
    (secret / "a.json").write_text("mine", encoding="utf-8")
    out.mkdir()
    for name in ("chunks", "a.json", "new.json"):
        (out / name).symlink_to(secret / name)
    linked.symlink_to(secret)
    attempts = [(files.write_within, out, name, b"") for name in ("chunks/0", "a.json", "new.json")]
    attempts += [(files.write_json, out / name, {}) for name in ("a.json", "new.json")]
    for write, *arguments in [*attempts, (files.write_within, linked, "b.json", b"theirs")]:
        with pytest.raises(OSError, match="is a symbolic link"):
            write(*arguments)
    assert [path.name for path in sorted(secret.rglob("*"))] == ["a.json", "chunks"]
    assert (secret / "a.json").read_text(encoding="utf-8") == "mine"
    files.write_within(tmp_path / "fresh", "chunks/00000.json", b"theirs")
    assert (tmp_path / "fresh" / "chunks" / "00000.json").read_bytes() == b"theirs"


def test_a_pipe_or_device_or_link_is_an_error_and_blocks_nobody(folder, tmp_path):
    target, secret = folder / "below" / "c.json", tmp_path / "secret.json"
    secret.write_text("{}", encoding="utf-8")
    for path in (None, "/dev/zero", secret):
        if path is None:
            os.mkfifo(target)
            with pytest.raises(files.VerificationError, match=r"c.json is not a regular file"):
                files.read_json(target)
        else:
            target.symlink_to(path)
        with pytest.raises(files.VerificationError, match=r"below/c.json is not a regular file"):
            files.PrivateCopy(folder)
        target.unlink()


def test_quoted_text_cannot_pass_for_lines_of_a_report():
    message = str(files.VerificationError("The file a\n- All proofs hold\x1b[2J" + 999 * "x"))
    assert message.isprintable()
    assert "a\\n- All proofs hold\\x1b" in message
    assert len(message) < 600
