"""Audits, commitments and attestations that were tampered with, before both verifiers.

What the form of a file tells, whatever its proofs, is in ``alterations.json``.
"""

import base64
import json
import shutil

import numpy as np
import pytest

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq.zk import VerificationError, check, load_commitment, verify
from skuq.zk import _ezkl as backend
from skuq.zk import _keys as verifier
from skuq.zk import _verify as auditor
from skuq.zk._files import (
    REPORTED,
    VERDICT,
    digest,
    digest_file,
    read_json,
    write_json,
    write_manifest,
)
from skuq.zk._spot_check import chosen_rows
from skuq.zk._statements import SpotCheckStatement
from tests.zk.tampering import (
    ASKED,
    CHUNK,
    LEVELS,
    NEXT,
    NOT_HELD,
    OTHER_WEIGHTS,
    PROVEN,
    STATED,
    TEST,
    N,
    assert_both_refuse,
    changed,
    edit_outputs,
    edit_proof,
    files_of,
    flipped,
    never,
    published_to_second,
    refused_by_second,
    second_verifier,
    verified,
)


def copy_of(run, level, tmp_path, name="bundle"):
    return shutil.copytree(getattr(run, level), tmp_path / name)


@pytest.mark.parametrize("level", LEVELS)
def test_any_byte_or_file_that_was_changed_shows(run, tmp_path, level):
    bundle = copy_of(run, level, tmp_path)
    paths = files_of(bundle)
    assert len(paths) >= 4
    for path in paths:
        data = path.read_bytes()
        for position in (0, 100, -3):
            path.write_bytes(flipped(data, position))
            with pytest.raises(VerificationError, match=r"manifest|was changed|is missing"):
                verified(run, level, bundle)
        path.unlink()
        assert_both_refuse("is missing", run, level, bundle)
        path.write_bytes(data)
    (bundle / "more.json").write_text("{}", encoding="utf-8")
    assert_both_refuse(r"more.json is not in the manifest", run, level, bundle)


STATEMENT = {  # other values of entries, and what errors call these, if not by their name
    "alpha": ([0.2, 1.5], ""),
    "n_bins": ([3, 5], ""),
    "confidence_level": ([0.5, None], ""),
    "n_samples": ([N + 1, N - 1], "|number of reference samples"),
    "reference_digest": (["0" * 64], "|different reference data"),
    "commitment_digest": (["0" * 64], "|different commitment"),
    "level": (["nothing", "attestation", None, *LEVELS], ""),
    "versions": ([{"ezkl": v, "skuq": "0"} for v in ("0.1", backend.VERSION)], "|ezkl|not hold"),
    "format": ([1], ""),
}


@pytest.mark.parametrize("level", LEVELS)
def test_an_altered_statement_is_refused_by_the_name_of_its_entry(run, tmp_path, level):
    bundle, before = copy_of(run, level, tmp_path), read_json(getattr(run, level) / STATED)
    write_json(bundle / STATED, {**before, "alpha": 0.2})
    assert_both_refuse("was changed", run, level, bundle)
    altered = [
        (f"{name}{also}", {**before, name: value})
        for name, (values, also) in STATEMENT.items()
        for value in values
    ]
    altered += [(name, {k: v for k, v in before.items() if k != name}) for name in before]
    for reason, statement in altered:
        if statement != before:
            write_json(bundle / STATED, statement)
            write_manifest(bundle)
            assert_both_refuse(reason, run, level, bundle)


@pytest.mark.parametrize("level", LEVELS)
def test_a_number_of_samples_that_is_not_that_of_the_data_fails_even_if_proven(
    run, tmp_path, monkeypatch, level
):
    """A provider may well make proofs of a statement that says so."""
    bundle = copy_of(run, level, tmp_path)
    changed(bundle / STATED, n_samples=10**6)
    write_manifest(bundle)
    monkeypatch.setattr(backend, "verify", lambda *_: True)
    with pytest.raises(VerificationError, match=r"number of (reference )?samples|list of pads"):
        verified(run, level, bundle)


def proof(change, name=CHUNK):
    return lambda w, b: edit_proof(b / name, change)


def flip_at(position):
    return proof(lambda data: flipped(data, position))


def outputs(change):
    return lambda w, b: edit_outputs(b / CHUNK, change)


def put(name, **entries):
    return lambda w, b: changed(b / name, **entries)


def remove(name):
    return lambda w, b: shutil.rmtree(b / name) if name == "chunks" else (b / name).unlink()


def copied(source, target):
    return lambda w, b: shutil.copy(b / source, b / target)


def swap(w, bundle):
    first, second = ((bundle / name).read_bytes() for name in (CHUNK, NEXT))
    (bundle / CHUNK).write_bytes(second)
    (bundle / NEXT).write_bytes(first)


def chunks_of_the_other_level(w, bundle):
    shutil.copytree(w.bins / "chunks", bundle / "chunks", dirs_exist_ok=True)


def restated(change):
    """Change files, and let each chunk say that it is where it is, so that proofs have to tell."""

    def changes(w, bundle):
        parts = {name: read_json(bundle / name)["part"] for name in (CHUNK, NEXT)}
        change(w, bundle)
        for name, part in parts.items():
            write_json(bundle / name, {**read_json(bundle / name), "part": part})

    return changes


def of_other_weights(head=0):
    """Put a valid proof of the dishonest model, after the head of the honest one's."""

    def change(w, bundle):
        other = base64.b64decode(read_json(w.shrunk / CHUNK)["proof"])
        edit_proof(bundle / CHUNK, lambda mine: mine[:head] + other[head:])

    return change


def proven_by(source, name=CHUNK):
    return lambda w, b: changed(b / name, proof=read_json(b / source)["proof"])


def other_alpha(w, bundle):
    shutil.copy(w.other_verdict, bundle / VERDICT)


def other_alpha_stated(w, bundle):
    other_alpha(w, bundle)
    changed(bundle / STATED, alpha=0.2)


def report(row=0, stated=True, **entry):
    """Change one report, and state its new hash."""

    def change(w, bundle):
        record = read_json(bundle / REPORTED)
        for name, value in entry.items():
            assert record[name][row] != value
            record[name][row] = value
        write_json(bundle / REPORTED, record)
        if stated:
            changed(bundle / STATED, reported_digest=digest_file(bundle / REPORTED))

    return change


SUMS, LONGER = ("bins", "verdict"), "longer than its verifying key allows"
VERDICTS, REPORTS, CHANGED = ["verdict"], ["predictions"], "reported confidences"
TAMPERINGS = {  # levels, reason, change
    "chunks swapped": (SUMS, "not about the part", swap),
    "chunks swapped, restated": (SUMS, NOT_HELD, restated(swap)),
    "chunk twice": (SUMS, NOT_HELD, restated(copied(CHUNK, NEXT))),
    "chunk missing": (SUMS, "1 proofs of chunks where 2", remove(NEXT)),
    "no chunks": (SUMS, "0 proofs of chunks", remove("chunks")),
    "one chunk more": (SUMS, "3 proofs of chunks where 2", copied(CHUNK, "chunks/00002.json")),
    # One prediction less reaches the second bin: it moves to the first, totals stay.
    "count moved": (SUMS, NOT_HELD, outputs(lambda o: [o[0], o[1] - 2, *o[2:]])),
    "one output more": (SUMS, "wrong length", outputs(lambda o: [*o, 0])),
    "one output less": (SUMS, "wrong length", outputs(lambda o: o[:-1])),
    "outputs of the field": (SUMS, "range", outputs(lambda o: [v + backend.FIELD for v in o])),
    "proof flipped": (SUMS, NOT_HELD, flip_at(1500)),
    "proof flipped at its end": (SUMS, NOT_HELD, flip_at(-1)),
    "proof flipped in an ordinate": (SUMS, NOT_HELD, flip_at(40)),
    "proof flipped in a sign": (SUMS, OTHER_WEIGHTS, flip_at(63)),
    "proof truncated": (SUMS, NOT_HELD, proof(lambda p: p[:-32])),
    "proof longer": (SUMS, LONGER, proof(lambda p: p + bytes(32))),
    "proof of another length": (SUMS, "as long as", proof(lambda p: p + bytes(1), NEXT)),
    "head of a proof": (SUMS, NOT_HELD, proof(lambda p: p[:64])),
    "no base64": (SUMS, "is damaged", put(CHUNK, proof="ä")),
    "proof of other weights": (SUMS, OTHER_WEIGHTS, of_other_weights()),
    "proof of other weights under my point": (SUMS, NOT_HELD, of_other_weights(64)),
    "proof of the next chunk": (SUMS, NOT_HELD, proven_by(NEXT)),
    "pads swapped": (VERDICTS, NOT_HELD, put(STATED, pads=[1, 0])),
    "flag": (VERDICTS, NOT_HELD, put(VERDICT, outputs=["1", "-1", "1"])),
    "all flags": (VERDICTS, NOT_HELD, put(VERDICT, outputs=["-1", "-1", "-1"])),
    "no flag": (VERDICTS, "not hold a verdict", put(VERDICT, outputs=["0", "1", "1"])),
    "few flags": (VERDICTS, "not hold a verdict", put(VERDICT, outputs=["1"])),
    "verdict at another alpha": (VERDICTS, NOT_HELD, other_alpha),
    "verdict at another alpha, stated": (VERDICTS, "alpha=0.2", other_alpha_stated),
    "verdict proven by a chunk": (VERDICTS, LONGER, proven_by(CHUNK, VERDICT)),
    "no verdict": (VERDICTS, "verdict.json is missing", remove(VERDICT)),
    "chunks of the other level": (VERDICTS, NOT_HELD, restated(chunks_of_the_other_level)),
    "report": (REPORTS, CHANGED, report(confidence=9000, stated=False)),
    "report, stated": (REPORTS, CHANGED, report(confidence=9000)),
    "nonce": (REPORTS, "different challenge", put(STATED, nonce="0" * 32)),
    "fewer proven": (REPORTS, "1 proofs of chunks where 2", put(STATED, n_proven=21)),
    "more proven": (REPORTS, "n_proven=30 is impossible", put(STATED, n_proven=30)),
    "no report": (REPORTS, "reported.json is missing", remove(REPORTED)),
    "outputs of reports": (REPORTS, NOT_HELD, outputs(lambda o: [o[0] - 1, *o[1:]])),
}
CASES = [(level, name) for name, row in TAMPERINGS.items() for level in row[0]]


@pytest.mark.parametrize(("level", "name"), CASES)
def test_a_tampered_audit_is_refused(run, tmp_path, level, name):
    bundle, (_, reason, change) = copy_of(run, level, tmp_path), TAMPERINGS[name]
    change(run, bundle)
    write_manifest(bundle)
    assert_both_refuse(reason, run, level, bundle)


def with_a_false_report(run, tmp_path, row):
    """Reports that were changed before the challenge, so that only the proofs can tell."""
    bundle, own = copy_of(run, "predictions", tmp_path), tmp_path / "own.json"
    report(row, confidence=9000)(run, bundle)
    write_manifest(bundle)
    reported = digest_file(bundle / REPORTED)
    write_json(own, {**read_json(run.challenge), "reported_digest": reported})
    return bundle, own


def test_a_false_report_among_the_proven_is_found(run, monkeypatch, tmp_path):
    bundle, own = with_a_false_report(run, tmp_path, 0)
    assert_both_refuse(NOT_HELD, run, "predictions", bundle, challenge=own)
    # Were the proofs fresh ones of the false report, its row would give it away.
    statement = SpotCheckStatement.of(read_json(run.predictions / STATED))
    rows = chosen_rows(statement, np.zeros(N, np.int64), PROVEN)
    (tmp_path / "fresh").mkdir()
    bundle, own = with_a_false_report(run, tmp_path / "fresh", int(rows[5]))
    monkeypatch.setattr(auditor, "chosen_rows", lambda *_: rows)
    monkeypatch.setattr(backend, "verify", lambda *_: True)
    with pytest.raises(VerificationError, match=f"row {rows[5]} is not the model's"):
        verified(run, "predictions", bundle, challenge=own)


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


def altered(run, tmp_path, change, fitted=True):
    """A changed commitment and, if fitted, an audit that states it."""
    public = shutil.copytree(run.honest, tmp_path / f"public {fitted}")
    bundle = copy_of(run, "bins", tmp_path, f"bundle {fitted}")
    record = read_json(public / "commitment.json")
    change(record)
    assert record != run.committed.record
    write_json(public / "commitment.json", record)
    write_manifest(public)
    if fitted:
        changed(bundle / STATED, commitment_digest=digest(record))
        write_manifest(bundle)
    return public, bundle


@pytest.mark.parametrize("tampering", COMMITMENTS)
def test_a_changed_commitment_fails_also_with_an_audit_that_fits_it(run, tmp_path, tampering):
    reason, change = COMMITMENTS[tampering]
    public, bundle = altered(run, tmp_path, change)
    assert_both_refuse(reason, run, "bins", bundle, commitment=public)
    public, bundle = altered(run, tmp_path, change, fitted=False)
    reason = f"{reason}|statement.json is about a different"
    assert_both_refuse(reason, run, "bins", bundle, commitment=public)


def test_a_commitment_to_another_circuit_fails(run, tmp_path, monkeypatch):
    for name, reason in (("rows", "public architecture"), ("digits", "needs more rows")):
        (tmp_path / name).mkdir()
        change = into("architecture", digits=3)
        if name == "rows":
            change = into("architecture", "rows_per_proof", bins=13)
        else:  # before a key is made
            monkeypatch.setattr(backend, "setup", never)
            monkeypatch.setattr(verifier, "MAX_BLOCKS", 1)
        public, bundle = altered(run, tmp_path / name, change)
        with pytest.raises(VerificationError, match=reason):
            verify(bundle, *run.data, public, level="bins", **ASKED)


@pytest.mark.parametrize("name", ["srs", "commitment.json", "manifest.json"])
def test_a_public_file_that_was_changed_shows(run, tmp_path, name):
    public = shutil.copytree(run.honest, tmp_path / "public")
    (public / name).write_bytes(flipped((public / name).read_bytes(), 50))
    with pytest.raises(VerificationError, match=r"manifest|was changed|is missing"):
        load_commitment(public)
    if name == "srs":
        write_manifest(public)
        with pytest.raises(VerificationError, match="not the committed one"):
            load_commitment(public)


ATTESTATIONS = {
    "x": (NOT_HELD, {"x": [0.25, 0.5]}),
    "x outside": ("outside the committed range", {"x": [1e9, 0.0]}),
    "x of nothing": ("columns", {"x": []}),
    "nonce": (NOT_HELD, {"nonce": "yours"}),
    "level": ("level=bins", {"level": "bins"}),
    "commitment": ("different commitment", {"commitment_digest": "0" * 64}),
    "skuq": (NOT_HELD, {"versions": {"ezkl": backend.VERSION, "skuq": "0"}}),
    "number": (NOT_HELD, {"number": 2}),
}
PROOFS = {
    "empty": (OTHER_WEIGHTS, lambda mine, w: ""),
    "half": (NOT_HELD, lambda mine, w: mine[: len(mine) // 8 * 4]),
    "of an audit": (NOT_HELD, lambda mine, w: read_json(w.predictions / CHUNK)["proof"]),
    "of other weights": (OTHER_WEIGHTS, lambda mine, w: read_json(w.shrunk / CHUNK)["proof"]),
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


@pytest.mark.parametrize("tampering", [*ATTESTATIONS, *PROOFS, "label", "confidence"])
def test_a_changed_attestation_fails(run, tmp_path, tampering):
    record, path, reason = read_json(run.attestation), tmp_path / "a.json", NOT_HELD
    statement = record["statement"]
    if tampering in ATTESTATIONS:
        reason, entries = ATTESTATIONS[tampering]
        statement.update(entries)
    elif tampering in PROOFS:
        reason, change = PROOFS[tampering]
        record["proof"] = change(record["proof"], run)
    else:
        statement[tampering] += -1 if statement[tampering] else 1
    assert record != read_json(run.attestation)
    write_json(path, record)
    own = asked(run, path)
    with pytest.raises(VerificationError, match=reason):
        check(path, run.honest, keys=run.keys, **TEST, **own)
    with refused_by_second():
        second_verifier().verify_attestation(
            path, published_to_second(run), own["x"].tolist(), own["nonce"]
        )


# What a flipped byte may change: the text, its entries, their values, or the proof.
FLIPPED = (
    "is damaged|lacks the entry|unknown entry|has format|asked for|ezkl|different commitment|"
    "is impossible|outside the committed range|right type|different weights|does not hold"
)


def test_flipped_bytes_of_an_attestation_fail(run, tmp_path):
    text, path = run.attestation.read_bytes(), tmp_path / "a.json"
    start = text.index(b'"statement"')
    # Some of the proof, and every ninth character of the statement.
    for position in [*range(12, start - 30, 1999), *range(start, len(text), 9)]:
        path.write_bytes(flipped(text, position))
        with pytest.raises(VerificationError, match=FLIPPED):
            check(path, run.honest, keys=run.keys, **TEST, **asked(run, path))
