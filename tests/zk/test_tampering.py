"""Audits, commitments and attestations that were tampered with, before both verifiers.

What the form of a file tells, whatever its proofs, is in ``alterations.json``.
"""

import base64
import builtins
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from skuq.zk import VerificationError, check
from skuq.zk import _ezkl as backend
from skuq.zk import _verify as auditor
from skuq.zk._files import digest_file, read_json, write_json, write_manifest
from skuq.zk._spot_check import chosen_rows
from skuq.zk._statements import SpotCheckStatement
from tests.zk import tampering as t
from tests.zk.tampering import CHUNK, LEVELS, NEXT, NOT_HELD, OTHER_WEIGHTS, STATED, N

REPORTED, VERDICT = "reported.json", "verdict.json"


@pytest.fixture
def copy_of(run, tmp_path):
    return lambda level, name="copy": shutil.copytree(run.folder / level, tmp_path / name)


@pytest.mark.parametrize("level", LEVELS)
def test_any_byte_or_file_that_was_changed_shows(run, copy_of, level):
    bundle = copy_of(level)
    paths = t.files_of(bundle)
    assert len(paths) >= 4
    for path in paths:
        data = path.read_bytes()
        for position in (0, 100, -3):
            path.write_bytes(t.flipped(data, position))
            with pytest.raises(VerificationError, match=r"manifest|was changed|is missing"):
                t.verified(run, level, bundle)
        path.unlink()
        t.assert_both_refuse("is missing", run, level, bundle)
        path.write_bytes(data)
    (bundle / "more.json").write_text("{}", encoding="utf-8")
    t.assert_both_refuse(r"more.json is not in the manifest", run, level, bundle)


def proof(change, name=CHUNK):
    return lambda w, b: t.edit_proof(b / name, change)


def flip_at(position):
    return proof(lambda data: t.flipped(data, position))


def outputs(change):
    return lambda w, b: t.edit_outputs(b / CHUNK, change)


def put(name, **entries):
    return lambda w, b: t.changed(b / name, **entries)


def put_from(find, name=CHUNK, entries=("outputs", "proof")):
    """Put entries of another file, but not its part, so that proofs have to tell."""

    def change(w, bundle):
        other = read_json(find(w, bundle))
        t.changed(bundle / name, **{entry: other[entry] for entry in entries})

    return change


def under_my_point(w, bundle):
    """Put a valid proof of the dishonest model after the head of the honest one's."""
    other = base64.b64decode(read_json(w.shrunk / CHUNK)["proof"])
    t.edit_proof(bundle / CHUNK, lambda mine: mine[:64] + other[64:])


def report(row=0, stated=True):
    """Change one report, and state its new hash."""

    def change(w, bundle):
        record = read_json(bundle / REPORTED)
        record["confidence"][row] = 9000
        write_json(bundle / REPORTED, record)
        if stated:
            t.changed(bundle / STATED, reported_digest=digest_file(bundle / REPORTED))

    return change


SUMS, VERDICTS, REPORTS = ("bins", "verdict"), ["verdict"], ["predictions"]
LONGER, PROOF = "longer than its verifying key allows", ["proof"]
TAMPERINGS = {  # levels, reason, change
    "chunk twice": (SUMS, NOT_HELD, put_from(lambda w, b: b / CHUNK, NEXT)),
    # One prediction less reaches the second bin: it moves to the first, totals stay.
    "count moved": (SUMS, NOT_HELD, outputs(lambda o: [o[0], o[1] - 2, *o[2:]])),
    "one output less": (SUMS, "wrong length", outputs(lambda o: o[:-1])),
    "outputs of the field": (SUMS, "range", outputs(lambda o: [v + backend.FIELD for v in o])),
    "proof flipped": (SUMS, NOT_HELD, flip_at(1500)),
    "proof flipped in an ordinate": (SUMS, NOT_HELD, flip_at(40)),
    "proof flipped in a sign": (SUMS, OTHER_WEIGHTS, flip_at(63)),
    "proof truncated": (SUMS, NOT_HELD, proof(lambda p: p[:-32])),
    "proof of another length": (SUMS, "as long as", proof(lambda p: p + bytes(1), NEXT)),
    "no base64": (SUMS, "is damaged", put(CHUNK, proof="ä")),
    "of other weights": (SUMS, OTHER_WEIGHTS, put_from(lambda w, b: w.shrunk / CHUNK)),
    "proof of other weights under my point": (SUMS, NOT_HELD, under_my_point),
    "proof of the next chunk": (SUMS, NOT_HELD, put_from(lambda w, b: b / NEXT, entries=PROOF)),
    "chunk of the other level": (VERDICTS, NOT_HELD, put_from(lambda w, b: w.bins / CHUNK)),
    "pads swapped": (VERDICTS, NOT_HELD, put(STATED, pads=[1, 0])),
    "flag": (VERDICTS, NOT_HELD, put(VERDICT, outputs=["1", "-1", "1"])),
    "all flags": (VERDICTS, NOT_HELD, put(VERDICT, outputs=["-1", "-1", "-1"])),
    "at another alpha": (VERDICTS, NOT_HELD, put_from(lambda w, b: w.other_verdict, VERDICT)),
    "by a chunk": (VERDICTS, LONGER, put_from(lambda w, b: b / CHUNK, VERDICT, PROOF)),
    "report": (REPORTS, "reported confidences", report(stated=False)),
    "report, stated": (REPORTS, "reported confidences", report()),
    "nonce": (REPORTS, "different challenge", put(STATED, nonce="0" * 32)),
    "fewer proven": (REPORTS, "1 proofs of chunks, but 2", put(STATED, n_proven=21)),
    "more proven": (REPORTS, "n_proven=30 is impossible", put(STATED, n_proven=30)),
    "outputs of reports": (REPORTS, NOT_HELD, outputs(lambda o: [o[0] - 1, *o[1:]])),
}
CASES = [(level, name) for name, row in TAMPERINGS.items() for level in row[0]]


@pytest.mark.parametrize(("level", "name"), CASES)
def test_a_tampered_audit_is_refused(run, copy_of, level, name):
    bundle, (_, reason, change) = copy_of(level), TAMPERINGS[name]
    change(run, bundle)
    t.assert_both_refuse_refitted(reason, run, level, bundle)


def test_a_false_report_among_the_proven_is_found(run, copy_of, monkeypatch, tmp_path):
    """It was changed before the challenge, so that only the proofs can tell."""

    def with_a_false_report(row):
        bundle, own = copy_of("predictions", f"{row}"), tmp_path / f"{row}.json"
        report(row)(run, bundle)
        reported = digest_file(bundle / REPORTED)
        write_json(own, {**read_json(run.challenge), "reported_digest": reported})
        return bundle, own

    bundle, own = with_a_false_report(0)
    t.assert_both_refuse_refitted(NOT_HELD, run, "predictions", bundle, challenge=own)
    # Were the proofs fresh ones of the false report, its row would give it away.
    statement = SpotCheckStatement.of(read_json(run.predictions / STATED))
    rows = chosen_rows(statement, np.zeros(N, np.int64), t.PROVEN)
    bundle, own = with_a_false_report(int(rows[5]))
    write_manifest(bundle)
    monkeypatch.setattr(auditor, "chosen_rows", lambda *_: rows)
    monkeypatch.setattr(backend, "verify", lambda *_: True)
    with pytest.raises(VerificationError, match=f"row {rows[5]} is not the model's"):
        t.verified(run, "predictions", bundle, challenge=own)


def into(*path, **entries):
    """Update an object within a record."""

    def change(record):
        for name in path:
            record = record[name]
        record.update(entries)

    return change


def centre(record):
    record["encoding"]["columns"][0][1] = 9.0


COMMITMENTS = {
    "point": (OTHER_WEIGHTS, into(commitment_point="0" * 64)),
    "classes": ("`classes` must be", into(classes=["y", "x", "z"])),
    "key": ("public architecture", into("keys", bins="0" * 64)),
    "centre": ("different reference data", centre),
    "tolerance": (NOT_HELD, into(tolerance=0.5)),
}


@pytest.mark.parametrize("tampering", COMMITMENTS)
def test_a_changed_commitment_fails_also_with_an_audit_that_fits_it(run, tmp_path, tampering):
    reason, change = COMMITMENTS[tampering]
    for fitted, also in ((True, ""), (False, "|statement.json is about a different")):
        public, bundle = t.altered(run, tmp_path, change, fitted=fitted)
        t.assert_both_refuse(f"{reason}{also}", run, "bins", bundle, commitment=public)


def test_a_commitment_to_another_circuit_fails(run, tmp_path):
    change = into("architecture", "rows_per_proof", bins=13)
    public, bundle = t.altered(run, tmp_path, change)
    with pytest.raises(VerificationError, match="public architecture"):
        t.verified(run, "bins", bundle, commitment=public, keys=None)


ATTESTATIONS = {  # entries of the statement, or of the proof
    "x": (NOT_HELD, {"x": [0.25, 0.5]}),
    "x outside": ("outside the committed range", {"x": [1e9, 0.0]}),
    "x of nothing": ("columns", {"x": []}),
    "nonce": (NOT_HELD, {"nonce": "yours"}),
    "level": ("level=bins", {"level": "bins"}),
    "commitment": ("different commitment", {"commitment_digest": "0" * 64}),
    "skuq": (NOT_HELD, {"versions": {"ezkl": backend.VERSION, "skuq": "0"}}),
    "number": (NOT_HELD, {"number": 2}),
    "no proof": (OTHER_WEIGHTS, lambda mine, w: ""),
    "half a proof": (NOT_HELD, lambda mine, w: mine[: len(mine) // 8 * 4]),
    "proof of an audit": (NOT_HELD, lambda mine, w: read_json(w.predictions / CHUNK)["proof"]),
    "proof of others": (OTHER_WEIGHTS, lambda mine, w: read_json(w.shrunk / CHUNK)["proof"]),
}


def asked(run, path):
    """Input and nonce as the file states them, so that only the proof can tell, or else mine."""
    found = {"x": run.X_ref[0], "nonce": "mine"}
    try:
        statement = json.loads(path.read_bytes())["statement"]
        found["x"] = np.array(statement["x"], np.float64)
        found["nonce"] = str(statement["nonce"]) or "mine"
    except (OSError, ValueError, TypeError, KeyError):
        pass
    return found


@pytest.mark.parametrize("tampering", [*ATTESTATIONS, "label", "confidence"])
def test_a_changed_attestation_fails(run, tmp_path, second, tampering):
    record, path = read_json(run.attestation), tmp_path / "a.json"
    statement = record["statement"]
    reason, change = ATTESTATIONS.get(tampering, (NOT_HELD, {}))
    if callable(change):
        record["proof"] = change(record["proof"], run)
    elif change:
        statement.update(change)
    else:
        statement[tampering] += -1 if statement[tampering] else 1
    assert record != read_json(run.attestation)
    write_json(path, record)
    own = asked(run, path)
    with pytest.raises(VerificationError, match=reason):
        check(path, run.public, keys=run.keys, **t.TEST, **own)
    published = t.published_to_second(run)
    with t.refused_by_second():
        second.verify_attestation(path, published, own["x"].tolist(), own["nonce"])


def test_flipped_bytes_of_an_attestation_fail(run, tmp_path):
    text, path = run.attestation.read_bytes(), tmp_path / "a.json"
    start = text.index(b'"statement"')
    # Some of the proof, and every ninth character of the statement.
    for position in [*range(12, start - 30, 1999), *range(start, len(text), 9)]:
        path.write_bytes(t.flipped(text, position))
        with pytest.raises(VerificationError):
            check(path, run.public, keys=run.keys, **t.TEST, **asked(run, path))


@pytest.mark.parametrize("level", [*LEVELS, "attestation"])
def test_a_file_that_is_exchanged_once_it_was_opened_changes_nothing(run, tmp_path, level):
    """Each file of the other party is read once, so that what is checked is what is used."""
    theirs, false, opened = tmp_path / "theirs", tmp_path / "false", set()
    public = shutil.copytree(run.public, theirs / "public")
    given = theirs / getattr(run, level).name
    (shutil.copytree if given.suffix == "" else shutil.copy)(getattr(run, level), given)
    shutil.copytree(theirs, false)
    for path in t.files_of(false):
        t.flip(path, path.stat().st_size // 2)

    def exchanging(original):
        def exchanged(path, *arguments, **settings):
            file = original(path, *arguments, **settings)
            if isinstance(path, str | Path) and theirs in Path(path).parents:
                opened.add(Path(path))
                if (false / (name := Path(path).relative_to(theirs))).exists():
                    (false / name).replace(path)
            return file

        return exchanged

    with pytest.MonkeyPatch.context() as patch:
        for module in (os, io, builtins):
            patch.setattr(module, "open", exchanging(module.open))
        if level == "attestation":
            answer = {"x": run.X_ref[0], "nonce": "mine", "keys": run.keys, **t.TEST}
            assert check(given, public, **answer).label in "xyz"
        else:
            assert t.verified(run, level, given, commitment=public).passed
    assert opened == set(t.files_of(theirs))
    assert not t.files_of(false)
