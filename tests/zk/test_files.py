"""JSON files and manifests that the parties exchange."""

import json
import os
from pathlib import Path

import pytest

from skuq.zk._files import (
    MAX_BYTES,
    VerificationError,
    canonical,
    check_manifest,
    digest,
    digest_file,
    field,
    read_json,
    write_json,
    write_manifest,
)


def test_the_text_of_a_value_does_not_depend_on_the_order_of_its_entries():
    assert canonical({"b": [1, 2.5], "a": None}) == b'{"a":null,"b":[1,2.5]}'
    assert canonical({"a": 1, "b": 2}) == canonical({"b": 2, "a": 1})
    assert digest({"a": 1, "b": 2}) == digest(b'{"a":1,"b":2}')
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"a": float("nan")})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "below").mkdir()
    write_json(tmp_path / "a.json", {"a": 1})
    write_json(tmp_path / "below" / "b.json", [1, 2])
    write_manifest(tmp_path)
    return tmp_path


def test_a_folder_that_was_not_touched_is_accepted(folder):
    check_manifest(folder)
    listed = read_json(folder / "manifest.json")["files"]
    assert set(listed) == {"a.json", "below/b.json"}
    assert listed["a.json"] == {"sha256": digest_file(folder / "a.json"), "bytes": 8}
    assert not list(folder.rglob("*.partial"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "a.json").write_bytes(b'{"a":2}\n'), "The file a.json was changed"),
        (lambda f: (f / "below" / "b.json").unlink(), "The file below/b.json is missing"),
        (
            lambda f: (f / "c.json").write_text("{}", encoding="utf-8"),
            "The file c.json is not in the manifest",
        ),
        (lambda f: (f / "manifest.json").unlink(), "The file manifest.json is missing"),
        (
            lambda f: (f / "manifest.json").write_text("[]", encoding="utf-8"),
            "is not a manifest of format 6",
        ),
        (
            lambda f: (f / "manifest.json").write_text('{"files":{}}', encoding="utf-8"),
            "not a manifest of format 6",
        ),
        (
            lambda f: (f / "manifest.json").write_text("{", encoding="utf-8"),
            "manifest.json is damaged or not JSON",
        ),
        (
            lambda f: (f / "manifest.json").write_text(
                '{"format":6,"files":{"../x":{}}}', encoding="utf-8"
            ),
            "The file ../x is missing",
        ),
    ],
)
def test_a_folder_that_was_changed_is_an_error(folder, change, message):
    change(folder)
    with pytest.raises(VerificationError, match=message):
        check_manifest(folder)


def test_a_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(VerificationError, match=r"There is no folder .*nowhere"):
        check_manifest(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"NaN",
        b"[-Infinity]",
        b"1e999",
        b"1" * 5000,
        b'{"passed": false, "passed": true}',
        b'[{"a": {"b": 1, "b": 1}}]',
    ],
)
def test_what_is_no_json_is_an_error(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(VerificationError, match=r"The file x.json is damaged or not JSON"):
        read_json(path)


def test_a_file_that_is_missing_too_large_or_a_folder_is_an_error(tmp_path):
    with pytest.raises(VerificationError, match=r"The file x.json is missing"):
        read_json(tmp_path / "x.json")
    with pytest.raises(VerificationError, match="is not a regular file"):
        read_json(tmp_path)
    with (tmp_path / "x.json").open("wb") as file:
        os.truncate(file.fileno(), MAX_BYTES + 1)
    with pytest.raises(VerificationError, match=r"x.json is larger than any file of this kind"):
        read_json(tmp_path / "x.json")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("inf")})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 1}


@pytest.mark.parametrize(
    ("record", "kind", "message"),
    [
        ({}, int, "x.json lacks the entry 'a'"),
        ([], int, "x.json lacks the entry 'a'"),
        ({"a": "1"}, int, "The entry 'a' of x.json is not of the right type"),
        ({"a": True}, int, "The entry 'a' of x.json is not of the right type"),
        ({"a": None}, (float, int), "The entry 'a' of x.json is not of the right type"),
    ],
)
def test_an_entry_that_is_missing_or_of_another_type_is_an_error(record, kind, message):
    with pytest.raises(VerificationError, match=message):
        field(record, "a", kind, "x.json")


def test_an_entry_of_the_right_type_is_returned():
    assert field({"a": 1}, "a", (int, str), "x.json") == 1
    assert field({"a": True}, "a", bool, "x.json") is True


def test_a_pipe_or_device_or_link_is_an_error_and_blocks_nobody(folder, tmp_path_factory):
    target = folder / "below" / "c.json"
    os.mkfifo(target)
    with pytest.raises(VerificationError, match=r"below/c.json is not a regular file"):
        check_manifest(folder)
    with pytest.raises(VerificationError, match=r"c.json is not a regular file"):
        read_json(target)
    target.unlink()
    outside = tmp_path_factory.mktemp("outside") / "secret.json"
    outside.write_text("{}", encoding="utf-8")
    for path in ("/dev/zero", outside):
        target.symlink_to(path)
        with pytest.raises(VerificationError, match=r"below/c.json is not a regular file"):
            check_manifest(folder)
        target.unlink()
    with pytest.raises(VerificationError, match=r"zero is not a regular file"):
        digest_file(Path("/dev/zero"))


def test_quoted_text_cannot_pass_for_lines_of_a_report():
    message = str(VerificationError("The file a\n- All proofs hold\x1b[2J" + 999 * "x"))
    assert message.isprintable()
    assert "a\\n- All proofs hold\\x1b" in message
    assert len(message) < 600
