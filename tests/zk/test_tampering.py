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
    N,
    assert_both_refuse,
    changed,
    edit_outputs,
    edit_proof,
    files_of,
    flip,
    no_setup,
    own_string,
    second_verifier,
    verified,
    without,
)

STATED = "statement.json"


def copy_of(run, level, tmp_path, name="bundle"):
    return shutil.copytree(getattr(run, level), tmp_path / name)


@pytest.mark.parametrize("level", LEVELS)
def test_any_byte_or_file_that_was_changed_shows(run, tmp_path, level):
    names = [path.relative_to(getattr(run, level)) for path in files_of(getattr(run, level))]
    assert len(names) >= 4
    for k, name in enumerate(names):
        bundle = copy_of(run, level, tmp_path, f"{k}")
        data = (bundle / name).read_bytes()
        for position in (0, 100, -3):
            flip(bundle / name, position)
            with pytest.raises(VerificationError, match=r"manifest|was changed|is missing"):
                verified(run, level, bundle)
            (bundle / name).write_bytes(data)
        (bundle / name).unlink()
        assert_both_refuse("is missing", run, level, bundle)
    bundle = copy_of(run, level, tmp_path, "more")
    (bundle / "more.json").write_text("{}", encoding="utf-8")
    assert_both_refuse(r"more.json is not in the manifest", run, level, bundle)


STATEMENT = {
    "alpha": [0.2, 1.5, "0.1"],
    "n_bins": [3, 5, True],
    "confidence_level": [0.5, None],
    "n_samples": [N + 1, N - 1, None],
    "reference_digest": ["0" * 64, 7],
    "commitment_digest": ["0" * 64, None],
    "level": ["nothing", "attestation", None, *LEVELS],
    "versions": [{}, {"ezkl": "0.0.1", "skuq": "0"}, {"ezkl": backend.version(), "skuq": "0"}],
    "format": [1],
    "anything": [None],
}
# How errors name an entry of a statement, where they do not always give its own name.
NAMED = {
    "n_samples": "n_samples|number of reference samples",
    "reference_digest": "reference_digest|different reference data",
    "commitment_digest": "commitment_digest|different commitment",
    "versions": f"versions|not made with ezkl|{NOT_HELD}",
}


@pytest.mark.parametrize("level", LEVELS)
def test_an_altered_statement_is_refused_by_the_name_of_its_entry(run, tmp_path, level):
    bundle = copy_of(run, level, tmp_path)
    path, before = bundle / STATED, read_json(getattr(run, level) / STATED)
    write_json(path, {**before, "alpha": 0.2})
    assert_both_refuse("was changed", run, level, bundle)
    for name, values in STATEMENT.items():
        for value in values:
            if name == "level" and value == level:
                continue
            write_json(path, {**before, name: value})
            write_manifest(bundle)
            assert_both_refuse(NAMED.get(name, name), run, level, bundle)
    for name in before:
        write_json(path, before)
        without(path, name)
        write_manifest(bundle)
        assert_both_refuse(name, run, level, bundle)


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


def flipped(position):
    def change(proof):
        data = bytearray(proof)
        data[position] ^= 1
        return bytes(data)

    return lambda w, b: edit_proof(b / CHUNK, change)


def proof(change, name=CHUNK):
    return lambda w, b: edit_proof(b / name, change)


def outputs(change):
    return lambda w, b: edit_outputs(b / CHUNK, change)


def put(name, *parents, **entries):
    return lambda w, b: changed(b / name, *parents, **entries)


def moved(found):
    """One prediction less reaches the second bin: it moves to the first, totals stay."""
    return [str(v) for v in (found[0], found[1] - 2, *found[2:])]


def copied(w, bundle, source=CHUNK, target=NEXT):
    (bundle / target).write_bytes((bundle / source).read_bytes())


def swap(w, bundle):
    first, second = ((bundle / name).read_bytes() for name in (CHUNK, NEXT))
    (bundle / CHUNK).write_bytes(second)
    (bundle / NEXT).write_bytes(first)


def chunks_of_the_other_level(w, bundle):
    shutil.rmtree(bundle / "chunks")
    shutil.copytree(w.bins / "chunks", bundle / "chunks")


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
        mine = base64.b64decode(read_json(bundle / CHUNK)["proof"])
        other = base64.b64decode(read_json(w.shrunk / CHUNK)["proof"])
        changed(bundle / CHUNK, proof=base64.b64encode(mine[:head] + other[head:]).decode())

    return change


def of_the_next_chunk(w, bundle, name=CHUNK, source=NEXT):
    changed(bundle / name, proof=read_json(bundle / source)["proof"])


def other_alpha(w, bundle):
    shutil.copy(w.other_verdict, bundle / VERDICT)


def other_alpha_stated(w, bundle):
    other_alpha(w, bundle)
    changed(bundle / STATED, alpha=0.2)


def report(bundle, row, *, confidence=None, label=None, stated=True):
    """Change one report, and state its new hash."""
    record = read_json(bundle / REPORTED)
    if confidence is not None:
        record["confidence"][row] = confidence
    if label is not None:
        record["label"][row] = (record["label"][row] + label) % 3
    write_json(bundle / REPORTED, record)
    if stated:
        changed(bundle / STATED, reported_digest=digest_file(bundle / REPORTED))


SUMS, LONGER = ("bins", "verdict"), "longer than its verifying key allows"
TAMPERINGS = {  # levels, reason, change
    "chunks swapped": (SUMS, "not about the part", swap),
    "chunks swapped, restated": (SUMS, NOT_HELD, restated(swap)),
    "chunk twice": (SUMS, NOT_HELD, restated(copied)),
    "chunk missing": (SUMS, "1 proofs of chunks where 2", lambda w, b: (b / NEXT).unlink()),
    "no chunks": (SUMS, "0 proofs of chunks", lambda w, b: shutil.rmtree(b / "chunks")),
    "one chunk more": (
        *(SUMS, "3 proofs of chunks where 2"),
        lambda w, b: copied(w, b, CHUNK, "chunks/00002.json"),
    ),
    "count moved": (SUMS, NOT_HELD, outputs(moved)),
    "one output more": (SUMS, "wrong length", outputs(lambda o: [*o, 0])),
    "one output less": (SUMS, "wrong length", outputs(lambda o: o[:-1])),
    "no outputs": (SUMS, "wrong length", outputs(lambda o: [])),
    "outputs of the field": (
        *(SUMS, "out of range"),
        outputs(lambda o: [str(v + backend.FIELD) for v in o]),
    ),
    "proof flipped": (SUMS, NOT_HELD, flipped(1500)),
    "proof flipped at its end": (SUMS, NOT_HELD, flipped(-1)),
    "proof flipped in an ordinate": (SUMS, NOT_HELD, flipped(40)),
    "proof flipped in a sign": (SUMS, OTHER_WEIGHTS, flipped(63)),
    "proof truncated": (SUMS, NOT_HELD, proof(lambda p: p[:-32])),
    "proof longer": (SUMS, LONGER, proof(lambda p: p + bytes(32))),
    "proof of another length": (SUMS, "as long as", proof(lambda p: p + bytes(1), NEXT)),
    "head of a proof": (SUMS, NOT_HELD, proof(lambda p: p[:64])),
    "no base64": (SUMS, "is damaged", put(CHUNK, proof="ä")),
    "proof of other weights": (SUMS, OTHER_WEIGHTS, of_other_weights()),
    "proof of other weights under my point": (SUMS, NOT_HELD, of_other_weights(64)),
    "proof of the next chunk": (SUMS, NOT_HELD, of_the_next_chunk),
    "pads swapped": (["verdict"], NOT_HELD, put(STATED, pads=[1, 0])),
    "flag": (["verdict"], NOT_HELD, put(VERDICT, outputs=["1", "-1", "1"])),
    "all flags": (["verdict"], NOT_HELD, put(VERDICT, outputs=["-1", "-1", "-1"])),
    "no flag": (["verdict"], "does not hold a verdict", put(VERDICT, outputs=["0", "1", "1"])),
    "few flags": (["verdict"], "does not hold a verdict", put(VERDICT, outputs=["1"])),
    "verdict at another alpha": (["verdict"], NOT_HELD, other_alpha),
    "verdict at another alpha, stated": (["verdict"], "alpha=0.2", other_alpha_stated),
    "verdict proven by a chunk": (
        *(["verdict"], LONGER),
        lambda w, b: of_the_next_chunk(w, b, VERDICT, CHUNK),
    ),
    "no verdict": (["verdict"], "verdict.json is missing", lambda w, b: (b / VERDICT).unlink()),
    "chunks of the other level": (["verdict"], NOT_HELD, restated(chunks_of_the_other_level)),
    "report": (
        *(["predictions"], "reported confidences"),
        lambda w, b: report(b, 0, confidence=9000, stated=False),
    ),
    "report, stated": (
        *(["predictions"], "reported confidences"),
        lambda w, b: report(b, 0, confidence=9000),
    ),
    "label, stated": (
        *(["predictions"], "reported confidences"),
        lambda w, b: report(b, 0, label=1),
    ),
    "nonce": (["predictions"], "different challenge", put(STATED, nonce="0" * 32)),
    "fewer proven": (["predictions"], "1 proofs of chunks where 2", put(STATED, n_proven=21)),
    "more proven": (["predictions"], "n_proven=30 is impossible", put(STATED, n_proven=30)),
    "no report": (
        *(["predictions"], "reported.json is missing"),
        lambda w, b: (b / REPORTED).unlink(),
    ),
    "outputs of reports": (["predictions"], NOT_HELD, outputs(lambda o: [o[0] - 1, *o[1:]])),
}
CASES = [(level, name) for name, row in TAMPERINGS.items() for level in row[0]]


@pytest.mark.parametrize(("level", "name"), CASES)
def test_a_tampered_audit_is_refused(run, tmp_path, level, name):
    bundle = copy_of(run, level, tmp_path)
    _, reason, change = TAMPERINGS[name]
    change(run, bundle)
    write_manifest(bundle)
    assert_both_refuse(reason, run, level, bundle)


def test_a_report_that_was_changed_before_the_challenge_fails(run, tmp_path):
    """The challenge answers the changed reports, so that only the proofs can tell."""
    bundle = copy_of(run, "predictions", tmp_path)
    report(bundle, 0, confidence=9000)
    write_manifest(bundle)
    own = {**read_json(run.challenge), "reported_digest": digest_file(bundle / REPORTED)}
    write_json(tmp_path / "own.json", own)
    assert_both_refuse(NOT_HELD, run, "predictions", bundle, challenge=tmp_path / "own.json")


def test_a_false_report_among_the_proven_is_named_when_all_else_holds(run, monkeypatch, tmp_path):
    """Were the proofs fresh ones of the false report, its row would give it away."""
    bundle = copy_of(run, "predictions", tmp_path)
    statement = SpotCheckStatement.of(read_json(bundle / STATED))
    rows = chosen_rows(statement, np.zeros(N, np.int64), PROVEN)
    report(bundle, int(rows[5]), confidence=9000)
    own = {**read_json(run.challenge), "reported_digest": digest_file(bundle / REPORTED)}
    write_json(tmp_path / "own.json", own)
    write_manifest(bundle)
    monkeypatch.setattr(auditor, "chosen_rows", lambda *_: rows)
    monkeypatch.setattr(backend, "verify", lambda *_: True)
    with pytest.raises(VerificationError, match=f"row {rows[5]} is not the model's"):
        verified(run, "predictions", bundle, challenge=tmp_path / "own.json")


COMMITMENTS = {
    "point": (OTHER_WEIGHTS, lambda r: r.update(commitment_point="0" * 64)),
    "classes": ("`classes` must be", lambda r: r.update(classes=["y", "x", "z"])),
    "key": ("public architecture", lambda r: r["keys"].update(bins="0" * 64)),
    "centre": (
        "different reference data",
        lambda r: r["encoding"]["columns"][0].__setitem__(1, 9.0),
    ),
    "tolerance": (NOT_HELD, lambda r: r.update(tolerance=0.5)),
    "pads": ("not positive", lambda r: r["architecture"].update(n_pads=-1)),
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


def test_a_commitment_whose_circuit_is_another_fails(run, tmp_path):
    public, bundle = altered(
        run, tmp_path, lambda r: r["architecture"]["rows_per_proof"].update(bins=13)
    )
    with pytest.raises(VerificationError, match="public architecture"):
        verify(bundle, run.X_ref, run.y_ref, public, level="bins", **ASKED)


def test_a_commitment_of_another_version_fails_without_advice_from_it(run, tmp_path):
    public, _ = altered(run, tmp_path, lambda r: r["versions"].update(ezkl="0.0.1"))
    with pytest.raises(VerificationError, match="not made with ezkl") as failure:
        load_commitment(public)
    assert "0.0.1" not in str(failure.value)
    assert "pip" not in str(failure.value)


def test_a_circuit_of_too_many_blocks_is_refused_before_a_key_is_made(run, tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "setup", no_setup)
    monkeypatch.setattr(verifier, "MAX_BLOCKS", 1)
    public, bundle = altered(run, tmp_path, lambda r: r["architecture"].update(digits=3))
    with pytest.raises(VerificationError, match="needs more rows"):
        verify(bundle, run.X_ref, run.y_ref, public, level="bins", **ASKED)


@pytest.mark.parametrize("name", ["srs", "commitment.json", "manifest.json"])
def test_a_public_file_that_was_changed_or_removed_shows(run, tmp_path, name):
    public = shutil.copytree(run.honest, tmp_path / "public")
    flip(public / name, 50)
    with pytest.raises(VerificationError, match=r"manifest|was changed|is missing"):
        load_commitment(public)
    if name == "srs":
        write_manifest(public)
        with pytest.raises(VerificationError, match="not the committed one"):
            load_commitment(public)
    (public / name).unlink()
    if name != "manifest.json":
        write_manifest(public)
    with pytest.raises(VerificationError, match=f"{name} is missing"):
        load_commitment(public)


ATTESTATIONS = {
    "label": (NOT_HELD, lambda s, w: s.update(label=(s["label"] + 1) % 3)),
    "confidence": (NOT_HELD, lambda s, w: s.update(confidence=s["confidence"] - 1)),
    "x": (NOT_HELD, lambda s, w: s.update(x=w.X_ref[1].tolist())),
    "x outside": ("outside the committed range", lambda s, w: s.update(x=[1e9, 0.0])),
    "x of nothing": ("columns", lambda s, w: s.update(x=[])),
    "nonce": (NOT_HELD, lambda s, w: s.update(nonce="yours")),
    "level": ("level=bins", lambda s, w: s.update(level="bins")),
    "commitment": ("different commitment", lambda s, w: s.update(commitment_digest="0" * 64)),
    "skuq": (NOT_HELD, lambda s, w: s["versions"].update(skuq="0")),
    "number": (NOT_HELD, lambda s, w: s.update(number=2)),
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


def refused_attestation(run, path, reason):
    own, second = asked(run, path), second_verifier()
    with pytest.raises(VerificationError, match=reason):
        check(path, run.honest, keys=run.keys, allow_test_string=True, **own)
    published = second.Commitment(run.honest, run.keys, own_string(run))
    with pytest.raises((second.Refused, *second.MALFORMED)):
        second.verify_attestation(path, published, own["x"].tolist(), own["nonce"])


@pytest.mark.parametrize("tampering", [*ATTESTATIONS, *PROOFS])
def test_a_changed_attestation_fails(run, tmp_path, tampering):
    record = read_json(run.attestation)
    if tampering in ATTESTATIONS:
        reason, change = ATTESTATIONS[tampering]
        change(record["statement"], run)
    else:
        reason, change = PROOFS[tampering]
        record["proof"] = change(record["proof"], run)
    assert record != read_json(run.attestation)
    write_json(tmp_path / "a.json", record)
    refused_attestation(run, tmp_path / "a.json", reason)


@pytest.mark.parametrize("text", ["[]", "{", "null", "3", None])
def test_what_is_no_attestation_fails(run, tmp_path, text):
    if text is not None:
        (tmp_path / "a.json").write_text(text, encoding="utf-8")
    refused_attestation(run, tmp_path / "a.json", r"a.json")


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
        path.write_bytes(text)
        flip(path, position)
        given = asked(run, path)
        with pytest.raises(VerificationError, match=FLIPPED):
            check(path, run.honest, keys=run.keys, allow_test_string=True, **given)
