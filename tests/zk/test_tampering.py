"""Audits whose files were tampered with, with and without a manifest that fits."""

import base64
import shutil

import numpy as np
import pytest

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq.zk import (
    VerificationError,
)
from skuq.zk import _ezkl as backend
from skuq.zk import _verify as auditor
from skuq.zk._files import REPORTED, VERDICT, digest_file, read_json, write_json, write_manifest
from skuq.zk._spot_check import chosen_rows
from skuq.zk._statements import SpotCheckStatement
from tests.zk.tampering import (
    CHUNK,
    LEVELS,
    NEXT,
    NOT_HELD,
    ONE,
    OTHER_WEIGHTS,
    PROVEN,
    WRONG_TYPE,
    N,
    changed,
    edit_outputs,
    edit_proof,
    files_of,
    flip,
    verified,
    without,
)

pytestmark = pytest.mark.slow  # they share one run of the protocol, which takes minutes


@pytest.mark.parametrize("level", LEVELS)
def test_a_flipped_byte_in_any_file_of_an_audit_fails(run, tmp_path, level):
    names = [path.relative_to(getattr(run, level)) for path in files_of(getattr(run, level))]
    assert len(names) >= 4
    for k, name in enumerate(names):
        for position in (0, 100, -3):
            bundle = shutil.copytree(getattr(run, level), tmp_path / f"{k} {position}")
            flip(bundle / name, position)
            with pytest.raises(VerificationError, match=r"manifest|was changed|is missing"):
                verified(run, level, bundle)


@pytest.mark.parametrize("level", LEVELS)
def test_a_missing_or_additional_file_fails(run, tmp_path, level):
    for k, path in enumerate(files_of(getattr(run, level))):
        bundle = shutil.copytree(getattr(run, level), tmp_path / str(k))
        (bundle / path.relative_to(getattr(run, level))).unlink()
        with pytest.raises(VerificationError, match="is missing"):
            verified(run, level, bundle)
    bundle = shutil.copytree(getattr(run, level), tmp_path / "more")
    (bundle / "more.json").write_text("{}", encoding="utf-8")
    with pytest.raises(VerificationError, match=r"more.json is not in the manifest"):
        verified(run, level, bundle)


STATEMENT = {
    "alpha": [0.2, 0.099, 1.5, "0.1", 1],
    "n_bins": [3, 1, 0, 5, 4.0, True],
    "confidence_level": [0.5, None, 2.0, "0.95"],
    "n_samples": [N + 1, N - 1, 0, None, f"{N}"],
    "reference_digest": ["0" * 64, "", 7],
    "commitment_digest": ["0" * 64, None],
    "level": ["nothing", "attestation", None],
    "versions": [
        {},
        [],
        None,
        {"ezkl": "0.0.1", "skuq": "0"},
        {"ezkl": backend.version(), "skuq": "0"},
    ],
    "format": [1, "2", True],
    "anything": [1, None],
}


# How errors name an entry of a statement, where they do not always give its own name.
NAMED = {
    "n_samples": "n_samples|number of reference samples",
    "reference_digest": "reference_digest|different reference data",
    "commitment_digest": "commitment_digest|different commitment",
    "level": "level|entry '(pads|n_proven|reported_digest)'",
    "versions": f"versions|entry 'skuq'|not made with ezkl|{NOT_HELD}",
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", STATEMENT)
def test_a_changed_statement_fails(run, tmp_path, level, name):
    others = list(STATEMENT[name])
    if name == "level":
        others += [other for other in LEVELS if other != level]
    for k, value in enumerate(others):
        bundle = shutil.copytree(getattr(run, level), tmp_path / str(k))
        path = bundle / "statement.json"
        before = path.read_bytes()
        write_json(path, {**read_json(path), name: value})
        assert path.read_bytes() != before
        write_manifest(bundle)
        with pytest.raises(VerificationError, match=NAMED.get(name, name)):
            verified(run, level, bundle)


@pytest.mark.parametrize("level", LEVELS)
def test_a_statement_that_lacks_an_entry_fails(run, tmp_path, level):
    for name in read_json(getattr(run, level) / "statement.json"):
        bundle = shutil.copytree(getattr(run, level), tmp_path / name)
        without(bundle / "statement.json", name)
        write_manifest(bundle)
        with pytest.raises(VerificationError, match=f"lacks the entry '{name}'"):
            verified(run, level, bundle)


@pytest.mark.parametrize("level", LEVELS)
def test_a_statement_with_an_infinite_number_fails(run, tmp_path, level):
    bundle = shutil.copytree(getattr(run, level), tmp_path / "bundle")
    path = bundle / "statement.json"
    path.write_text(
        path.read_text(encoding="utf-8").replace("{", '{"more":1e999,', 1), encoding="utf-8"
    )
    write_manifest(bundle)
    with pytest.raises(VerificationError, match="1e999 is not a finite number"):
        verified(run, level, bundle)


@pytest.mark.parametrize("level", LEVELS)
def test_a_number_of_samples_that_is_not_that_of_the_data_fails_even_if_proven(
    run, tmp_path, monkeypatch, level
):
    """A provider may well make proofs of a statement that says so."""
    bundle = shutil.copytree(getattr(run, level), tmp_path / "bundle")
    changed(bundle / "statement.json", n_samples=10**6)
    write_manifest(bundle)
    monkeypatch.setattr(backend, "verify", lambda *_: True)
    with pytest.raises(VerificationError, match=r"number of (reference )?samples|list of pads"):
        verified(run, level, bundle)


@pytest.mark.parametrize(
    ("pads", "reason"),
    [
        ([1, 0], NOT_HELD),
        (3, WRONG_TYPE),
        *(
            (pads, "the list of pads is impossible")
            for pads in (
                [0, 0],
                [0],
                [0, 2],
                [0, -1],
                [0, 1, 1],
                ["0", "1"],
                [True, 0],
                [False, True],
                [],
            )
        ),
    ],
)
def test_other_pads_fail(run, tmp_path, pads, reason):
    bundle = shutil.copytree(run.verdict, tmp_path / "bundle")
    changed(bundle / "statement.json", pads=pads, nothing=1)
    without(bundle / "statement.json", "nothing")
    write_manifest(bundle)
    with pytest.raises(VerificationError, match=reason):
        verified(run, "verdict", bundle)


def flipped(proof, position):
    data = bytearray(proof)
    data[position] ^= 1
    return bytes(data)


def moved(outputs):
    """One prediction less reaches the second bin: it moves to the first, totals stay."""
    outputs = list(outputs)
    outputs[1] -= 2
    return [str(v) for v in outputs]


def copied(w, bundle, source, target):
    (bundle / target).write_bytes((bundle / source).read_bytes())


def swap(w, bundle):
    first, second = ((bundle / name).read_bytes() for name in (CHUNK, NEXT))
    (bundle / CHUNK).write_bytes(second)
    (bundle / NEXT).write_bytes(first)


def restate(bundle, *changes):
    """Change files, and let each chunk say that it is where it is, so that proofs have to tell."""
    parts = {name: read_json(bundle / name)["part"] for name in (CHUNK, NEXT)}
    for change in changes:
        change()
    for name, part in parts.items():
        write_json(bundle / name, {**read_json(bundle / name), "part": part})


def of_other_weights(w, bundle, head=0):
    """Put a valid proof of the dishonest model, after the head of the honest one's."""
    mine = base64.b64decode(read_json(bundle / CHUNK)["proof"])
    other = base64.b64decode(read_json(w.shrunk / CHUNK)["proof"])
    text = base64.b64encode(mine[:head] + other[head:]).decode()
    changed(bundle / CHUNK, proof=text)


CHUNKS = {
    "swapped": ("is not about the part", swap),
    "swapped, restated": (NOT_HELD, lambda w, b: restate(b, lambda: swap(w, b))),
    "twice": (NOT_HELD, lambda w, b: restate(b, lambda: copied(w, b, CHUNK, NEXT))),
    "missing": ("has 1 proofs of chunks where 2", lambda w, b: (b / NEXT).unlink()),
    "no chunks": ("has 0 proofs of chunks where 2", lambda w, b: shutil.rmtree(b / "chunks")),
    "one more": (
        "has 3 proofs of chunks where 2",
        lambda w, b: copied(w, b, CHUNK, "chunks/00002.json"),
    ),
    "a file beside": (
        "chunks/x does not belong in a folder of this kind",
        lambda w, b: (b / "chunks" / "x").write_text("", encoding="utf-8"),
    ),
    "count moved": (NOT_HELD, lambda w, b: edit_outputs(b / CHUNK, moved)),
    "one output more": (
        "has the wrong length",
        lambda w, b: edit_outputs(b / CHUNK, lambda o: [*o, 0]),
    ),
    "one output less": (
        "has the wrong length",
        lambda w, b: edit_outputs(b / CHUNK, lambda o: o[:-1]),
    ),
    "no outputs": ("has the wrong length", lambda w, b: edit_outputs(b / CHUNK, lambda o: [])),
    "outputs of the field": (
        "out of range",
        lambda w, b: edit_outputs(b / CHUNK, lambda o: [str(v + backend.FIELD) for v in o]),
    ),
    "large outputs": (
        "not integers",
        lambda w, b: edit_outputs(b / CHUNK, lambda o: ["9" * 6000, *o[1:]]),
    ),
    "no numbers": ("not integers", lambda w, b: edit_outputs(b / CHUNK, lambda o: ["a", *o[1:]])),
    "infinite": (
        "1e999 is not a finite number",
        lambda w, b: (b / CHUNK).write_text(
            (b / CHUNK).read_text(encoding="utf-8").replace('"outputs":[', '"outputs":[1e999,'),
            encoding="utf-8",
        ),
    ),
    "nested outputs": ("not integers", lambda w, b: edit_outputs(b / CHUNK, lambda o: [o])),
    "outputs no list": (WRONG_TYPE, lambda w, b: changed(b / CHUNK, outputs="1")),
    "no entry": ("lacks the entry 'outputs'", lambda w, b: without(b / CHUNK, "outputs")),
    "no record": (
        "lacks the entry 'outputs'",
        lambda w, b: (b / CHUNK).write_text("[]", encoding="utf-8"),
    ),
    "flipped proof": (
        NOT_HELD,
        lambda w, b: edit_proof(b / CHUNK, lambda p: flipped(p, len(p) // 2)),
    ),
    "flipped end": (NOT_HELD, lambda w, b: edit_proof(b / CHUNK, lambda p: flipped(p, -1))),
    "flipped ordinate": (NOT_HELD, lambda w, b: edit_proof(b / CHUNK, lambda p: flipped(p, 40))),
    "flipped sign": (OTHER_WEIGHTS, lambda w, b: edit_proof(b / CHUNK, lambda p: flipped(p, 63))),
    "truncated proof": (NOT_HELD, lambda w, b: edit_proof(b / CHUNK, lambda p: p[:-32])),
    "longer proof": (
        "longer than its verifying key allows",
        lambda w, b: edit_proof(b / CHUNK, lambda p: p + bytes(32)),
    ),
    "another length": (
        "but earlier proofs of the same circuit",
        lambda w, b: edit_proof(b / NEXT, lambda p: p + bytes(1)),
    ),
    "head of a proof": (NOT_HELD, lambda w, b: edit_proof(b / CHUNK, lambda p: p[:64])),
    "empty proof": (OTHER_WEIGHTS, lambda w, b: changed(b / CHUNK, proof="")),
    "no base64": ("is damaged", lambda w, b: changed(b / CHUNK, proof="ä")),
    "proof no text": (WRONG_TYPE, lambda w, b: changed(b / CHUNK, proof=[1])),
    "no proof": ("lacks the entry 'proof'", lambda w, b: without(b / CHUNK, "proof")),
    "proof of other weights": (OTHER_WEIGHTS, of_other_weights),
    "proof of other weights under my point": (NOT_HELD, lambda w, b: of_other_weights(w, b, 64)),
    "proof of the next chunk": (
        NOT_HELD,
        lambda w, b: changed(b / CHUNK, proof=read_json(b / NEXT)["proof"]),
    ),
}


@pytest.mark.parametrize(
    "tampering",
    CHUNKS,
)
@pytest.mark.parametrize("level", ["bins", "verdict"])
def test_changed_chunks_fail(run, tmp_path, level, tampering):
    bundle = shutil.copytree(getattr(run, level), tmp_path / "bundle")
    reason, change = CHUNKS[tampering]
    change(run, bundle)
    write_manifest(bundle)
    with pytest.raises(VerificationError, match=reason):
        verified(run, level, bundle)


def test_the_proof_of_another_model_is_named(run, tmp_path):
    bundle = shutil.copytree(run.bins, tmp_path / "bundle")
    of_other_weights(run, bundle)
    write_manifest(bundle)
    with pytest.raises(VerificationError, match="its commitment is not the published one"):
        verified(run, "bins", bundle)


VERDICTS = {
    "flag": (NOT_HELD, lambda w, b: changed(b / VERDICT, outputs=["1", "-1", "1"])),
    "all flags": (NOT_HELD, lambda w, b: changed(b / VERDICT, outputs=["-1", "-1", "-1"])),
    "no flag": (
        "does not hold a verdict",
        lambda w, b: changed(b / VERDICT, outputs=["0", "1", "1"]),
    ),
    "few flags": ("does not hold a verdict", lambda w, b: changed(b / VERDICT, outputs=["1"])),
    "other alpha": (NOT_HELD, lambda w, b: write_json(b / VERDICT, w.other_verdict)),
    "other alpha, stated": (
        "made with alpha=0.2",
        lambda w, b: (
            write_json(b / VERDICT, w.other_verdict),
            changed(b / "statement.json", alpha=0.2),
        ),
    ),
    "proof of a chunk": (
        "longer than its verifying key allows",
        lambda w, b: changed(b / VERDICT, proof=read_json(b / CHUNK)["proof"]),
    ),
    "missing": ("verdict.json is missing", lambda w, b: (b / VERDICT).unlink()),
    "no record": (
        "lacks the entry 'outputs'",
        lambda w, b: (b / VERDICT).write_text("[]", encoding="utf-8"),
    ),
    "no proof": (OTHER_WEIGHTS, lambda w, b: changed(b / VERDICT, proof="")),
    "chunks of the other level": (
        NOT_HELD,
        lambda w, b: restate(
            b,
            lambda: shutil.rmtree(b / "chunks"),
            lambda: shutil.copytree(w.bins / "chunks", b / "chunks"),
        ),
    ),
}


@pytest.mark.parametrize("tampering", VERDICTS)
def test_changed_verdicts_fail(run, tmp_path, tampering):
    bundle = shutil.copytree(run.verdict, tmp_path / "bundle")
    reason, change = VERDICTS[tampering]
    change(run, bundle)
    write_manifest(bundle)
    with pytest.raises(VerificationError, match=reason):
        verified(run, "verdict", bundle)


def report(bundle, row, *, confidence=None, label=None, stated=True):
    """Change one report, and state its new hash."""
    record = read_json(bundle / REPORTED)
    if confidence is not None:
        record["confidence"][row] = confidence
    if label is not None:
        record["label"][row] = label
    write_json(bundle / REPORTED, record)
    if stated:
        changed(bundle / "statement.json", reported_digest=digest_file(bundle / REPORTED))


def report_raw(bundle, text):
    (bundle / REPORTED).write_text(text, encoding="utf-8")
    changed(bundle / "statement.json", reported_digest=digest_file(bundle / REPORTED))


REPORTS = {
    "changed": (
        "or different reported confidences; none of these may change",
        lambda w, b: report(b, 0, confidence=9000, stated=False),
    ),
    "changed and stated": (
        "or different reported confidences; none of these may change",
        lambda w, b: report(b, 0, confidence=9000),
    ),
    "other label": (
        "or different reported confidences; none of these may change",
        lambda w, b: report(b, 0, label=(read_json(b / REPORTED)["label"][0] + 1) % 3),
    ),
    "nonce": (
        "answers a different challenge",
        lambda w, b: changed(b / "statement.json", nonce="0" * 32),
    ),
    "fewer proven": (
        "has 1 proofs of chunks where 2",
        lambda w, b: changed(b / "statement.json", n_proven=21),
    ),
    "more proven": (
        "n_proven=30 is impossible",
        lambda w, b: changed(b / "statement.json", n_proven=30),
    ),
    "none proven": (
        "n_proven=0 is impossible",
        lambda w, b: changed(b / "statement.json", n_proven=0),
    ),
    "all proven": (
        "n_proven=51 is impossible",
        lambda w, b: changed(b / "statement.json", n_proven=51),
    ),
    "no number proven": (
        WRONG_TYPE,
        lambda w, b: changed(b / "statement.json", n_proven=f"{PROVEN}"),
    ),
    "missing": ("reported.json is missing", lambda w, b: (b / REPORTED).unlink()),
    "outputs": (NOT_HELD, lambda w, b: edit_outputs(b / CHUNK, lambda o: [o[0] - 1, *o[1:]])),
}


@pytest.mark.parametrize("tampering", REPORTS)
def test_changed_reports_fail(run, tmp_path, tampering):
    bundle = shutil.copytree(run.predictions, tmp_path / "bundle")
    reason, change = REPORTS[tampering]
    change(run, bundle)
    write_manifest(bundle)
    with pytest.raises(VerificationError, match=reason):
        verified(run, "predictions", bundle)


IMPOSSIBLE = "holds an impossible label or confidence"
TOO_FEW = "does not hold one prediction per reference sample"


@pytest.mark.parametrize(
    ("reason", "tampering"),
    [
        (NOT_HELD, lambda b: report(b, 0, confidence=9000)),
        (IMPOSSIBLE, lambda b: report(b, 0, confidence=0)),
        (IMPOSSIBLE, lambda b: report(b, 0, confidence=ONE + 1)),
        ("out of range", lambda b: report(b, 0, confidence=10**30)),
        ("not integers", lambda b: report(b, 0, confidence="a")),
        ("not integers", lambda b: report(b, 0, confidence=[1])),
        (IMPOSSIBLE, lambda b: report(b, 0, label=3)),
        (IMPOSSIBLE, lambda b: report(b, 0, label=-1)),
        ("lacks the entry 'label'", lambda b: report_raw(b, "[]")),
        ("lacks the entry 'label'", lambda b: report_raw(b, "{}")),
        (TOO_FEW, lambda b: report_raw(b, '{"label":[],"confidence":[]}')),
        (TOO_FEW, lambda b: report_raw(b, '{"label":[0],"confidence":[9000]}')),
        (
            "1e999 is not a finite number",
            lambda b: report_raw(b, '{"label":[1e999],"confidence":[9000]}'),
        ),
    ],
)
def test_reports_that_were_changed_before_the_challenge_fail(run, tmp_path, reason, tampering):
    """The challenge answers the changed reports, so that only the proofs can tell."""
    bundle = shutil.copytree(run.predictions, tmp_path / "bundle")
    tampering(bundle)
    asked = {**read_json(run.challenge), "reported_digest": digest_file(bundle / REPORTED)}
    write_json(tmp_path / "challenge.json", asked)
    write_manifest(bundle)
    with pytest.raises(VerificationError, match=reason):
        verified(run, "predictions", bundle, challenge=tmp_path / "challenge.json")


def test_a_false_report_among_the_proven_is_named_when_all_else_holds(run, monkeypatch, tmp_path):
    """Were the proofs fresh ones of the false report, its row would give it away."""
    bundle = shutil.copytree(run.predictions, tmp_path / "bundle")
    statement = SpotCheckStatement.of(read_json(bundle / "statement.json"))
    row = int(chosen_rows(statement, np.zeros(N, np.int64), PROVEN)[5])
    report(bundle, row, confidence=9000)
    asked = {**read_json(run.challenge), "reported_digest": digest_file(bundle / REPORTED)}
    write_json(tmp_path / "challenge.json", asked)
    write_manifest(bundle)
    monkeypatch.setattr(
        auditor, "chosen_rows", lambda *_: chosen_rows(statement, np.zeros(N, np.int64), PROVEN)
    )
    monkeypatch.setattr(backend, "verify", lambda *_: True)
    with pytest.raises(
        VerificationError, match=f"The reported confidence of row {row} is not the model's"
    ):
        verified(run, "predictions", bundle, challenge=tmp_path / "challenge.json")
