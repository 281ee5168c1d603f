"""JSON files and manifests that the parties exchange."""

import json
import os
import re
from pathlib import Path

import pytest

from skuq.zk._files import (
    BUNDLES,
    MAX_BYTES,
    MAX_JSON,
    PUBLISHED,
    VerificationError,
    canonical,
    check_content,
    check_form,
    check_manifest,
    check_outside,
    digest,
    digest_file,
    read_json,
    write_json,
    write_manifest,
    write_within,
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
    assert check_manifest(folder) == {"a.json", "below", "below/b.json"}
    listed = read_json(folder / "manifest.json")["files"]
    assert set(listed) == {"a.json", "below/b.json"}
    assert listed["a.json"] == {"sha256": digest_file(folder / "a.json"), "bytes": 8}
    assert not list(folder.rglob("*.partial"))


def test_a_folder_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(VerificationError, match=r"The folder .*nowhere does not exist"):
        check_manifest(tmp_path / "nowhere")


@pytest.mark.parametrize("text", [b"1" * 5000, b"[-Infinity]", b'[{"a": {"b": 1, "b": 1}}]'])
def test_what_is_no_json_is_an_error(tmp_path, text):
    """Other examples are in ``alterations.json``, also for the functions below."""
    path = tmp_path / "x.json"
    path.write_bytes(text)
    with pytest.raises(VerificationError, match=r"The file x.json is damaged or not JSON"):
        read_json(path)


def test_a_file_that_is_missing_too_large_or_a_folder_is_an_error(tmp_path):
    with pytest.raises(VerificationError, match=r"The file x.json is missing"):
        read_json(tmp_path / "x.json")
    with pytest.raises(VerificationError, match="cannot be read"):
        read_json(tmp_path)
    with (tmp_path / "x.json").open("wb") as file:
        os.truncate(file.fileno(), MAX_JSON + 1)
    with pytest.raises(VerificationError, match=r"x.json is too large"):
        read_json(tmp_path / "x.json")
    os.truncate(tmp_path / "x.json", MAX_BYTES + 1)
    with pytest.raises(VerificationError, match=r"x.json is too large"):
        digest_file(tmp_path / "x.json")


@pytest.mark.parametrize("name", ["a.json", "manifest.json"])
def test_a_file_that_is_too_large_is_not_parsed(folder, monkeypatch, name):
    """60 MB of brackets took 1.4 GB."""
    path = folder / name
    path.write_bytes(b"[" + b"[]," * (MAX_JSON // 3) + b"[]]")
    record = json.loads((folder / "manifest.json").read_bytes()) if name == "a.json" else None
    if record is not None:
        record["files"][name] = {"sha256": digest(path.read_bytes()), "bytes": path.stat().st_size}
        write_json(folder / "manifest.json", record)
    monkeypatch.setattr(json, "loads", lambda text, **_: record)
    with pytest.raises(VerificationError, match=f"{name} is too large"):
        check_manifest(folder)


def test_a_file_that_readers_would_refuse_is_not_written(tmp_path):
    with pytest.raises(ValueError, match=r"x.json would have \d+ bytes, but readers accept"):
        write_json(tmp_path / "x.json", "x" * MAX_JSON)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("expected", "unknown"),
    [
        (PUBLISHED, "chunks"),
        (BUNDLES["bins"], "challenge.json"),
        (BUNDLES["verdict"], "reported.json"),
        (BUNDLES["predictions"], "chunks/1.json"),
        (BUNDLES["bins"], "chunks/00000.json/x"),
        (BUNDLES["bins"], "chunks/\u0661\u0661\u0661\u0661\u0661.json"),
    ],
)
def test_folders_hold_what_their_format_says_and_nothing_else(expected, unknown):
    check_content(expected, expected)
    with pytest.raises(VerificationError, match=f"{unknown}.* does not belong in a folder"):
        check_content([*expected, unknown], expected)


def test_a_file_of_the_verifiers_own_is_none_of_the_other_partys(tmp_path):
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    for folder in (theirs, own):
        (folder / "below").mkdir(parents=True)
        (folder / "below" / "srs").write_bytes(b"string")
    check_outside(own / "below" / "srs", "srs", theirs, None)
    check_outside(own / "keys", "keys", theirs)
    check_outside(None, "srs", theirs)
    (own / "link").symlink_to(theirs / "below" / "srs")
    (own / "folder").symlink_to(theirs)
    os.link(theirs / "below" / "srs", own / "hard")
    for path in (
        theirs,
        theirs / "below" / "srs",
        theirs / "absent",
        own / ".." / "theirs" / "below",
        own / "link",
        own / "folder" / "below" / "srs",
        own / "hard",
    ):
        with pytest.raises(ValueError, match=r"`srs` must not be in .*theirs"):
            check_outside(path, "srs", own / "below", theirs)
    for folder in (tmp_path, own / ".." / "own" / ".."):
        with pytest.raises(ValueError, match=r"`keys` must not be a folder that contains .*theirs"):
            check_outside(folder, "keys", own / "absent" / ".." / ".." / "theirs")
    check_outside(tmp_path / "srs", "srs", theirs)  # a file beside it is no folder around it
    with pytest.raises(ValueError, match="`auditor` must not be in"):  # a single file of theirs
        check_outside(own / "hard", "auditor", theirs / "below" / "srs")


def test_nothing_is_written_through_links(tmp_path):
    """Whoever gets the folder could plant one that leads to the writer's own files."""
    secret, out = tmp_path / "secret", tmp_path / "out"
    (secret / "chunks").mkdir(parents=True)
    (secret / "a.json").write_text("mine", encoding="utf-8")
    out.mkdir()
    (out / "chunks").symlink_to(secret / "chunks")
    (out / "a.json").symlink_to(secret / "a.json")
    (out / "new.json").symlink_to(secret / "new.json")
    (tmp_path / "linked").symlink_to(secret)
    for folder, name in (
        (out, "chunks/00000.json"),
        (out, "a.json"),
        (out, "new.json"),
        (tmp_path / "linked", "b.json"),
    ):
        with pytest.raises(OSError, match="is a symbolic link"):
            write_within(folder, name, b"theirs")
    for name in ("a.json", "new.json"):
        with pytest.raises(OSError, match="is a symbolic link"):
            write_json(out / name, {})
    assert [path.name for path in sorted(secret.rglob("*"))] == ["a.json", "chunks"]
    assert (secret / "a.json").read_text(encoding="utf-8") == "mine"
    write_within(tmp_path / "fresh", "chunks/00000.json", b"theirs")
    assert (tmp_path / "fresh" / "chunks" / "00000.json").read_bytes() == b"theirs"


FORM = {"a": int, "b": {"c": [(int, float)], "d": str | None}, "e": re.compile("[0-9]")}
RECORD = {"a": 1, "b": {"c": [[1, 2.0], [3, 4.0]], "d": None}, "e": "7"}


def test_a_record_of_the_right_form_is_accepted():
    check_form(RECORD, FORM, "x.json")
    check_form({**RECORD, "b": {"c": [], "d": "text"}}, FORM, "x.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(({"a": v}, "'a' of x.json .* type") for v in ("1", True, 1.0, None)),
        *(({"e": v}, "'e' of x.json .* type") for v in (7, "77", "\u0667", "7\n")),
        *(({"b": v}, "lacks the entry 'b.c'") for v in ({}, [], None, {"d": "x"})),
        *(
            ({"b": {"c": v, "d": None}}, "'b.c' of x.json .* type")
            for v in ({}, "12", [1], [[1, 2]], [[1, 2.0, 3]], [[1, 2.0], [1]], [(1, 2.0)])
        ),
        ({"b": {"c": [], "d": 1}}, "'b.d'"),
        ({"b": {"c": [], "d": None, "f": 1}}, "unknown entry 'b.f'"),
        ({"g": 1}, "x.json has the unknown entry 'g'"),
    ],
)
def test_what_has_another_form_is_an_error(change, message):
    with pytest.raises(VerificationError, match=message):
        check_form({**RECORD, **change}, FORM, "x.json")
    for other in ([], None, {}):
        with pytest.raises(VerificationError, match=r"x.json lacks the entry 'a'"):
            check_form(other, FORM, "x.json")


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
