"""Attested predictions, and attestations that were tampered with."""

import json
import os

import numpy as np
import pytest

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq.zk import (
    VerificationError,
    attest,
    check,
    reported_predictions,
)
from skuq.zk import _ezkl as backend
from skuq.zk._files import read_json
from tests.zk.tampering import (
    CHUNK,
    NOT_HELD,
    ONE,
    OTHER_WEIGHTS,
    WRONG_TYPE,
    edit,
    flip,
)

TEST = {"allow_test_string": True}
pytestmark = pytest.mark.slow  # they share one run of the protocol, which takes minutes


def asked(run, path):
    """Input and nonce as the file states them, so that only the proof can tell, or else mine."""
    found = {"x": run.X_ref[0], "nonce": "mine", **TEST}
    try:
        statement = json.loads(path.read_bytes())["statement"]
        found["x"] = np.array(statement["x"], np.float64)
        found["nonce"] = str(statement["nonce"]) or "mine"
    except (OSError, ValueError, TypeError, KeyError):
        pass
    return found


def test_a_prediction_is_proven(run):
    found = check(run.attestation, run.honest, x=run.X_ref[0], nonce="mine", keys=run.keys, **TEST)
    labels, confidence = reported_predictions(run.honest, run.X_ref[:1])
    assert (found.label, found.confidence) == (labels[0], confidence[0])
    assert found.x == run.X_ref[0].tolist()
    assert found.statement["nonce"] == "mine"


def test_a_prediction_for_another_input_or_nonce_fails(run):
    with pytest.raises(VerificationError, match="for a different input"):
        check(run.attestation, run.honest, x=run.X_ref[0] + 1e-9, nonce="mine", **TEST)
    with pytest.raises(VerificationError, match="for a different input"):
        check(run.attestation, run.honest, x=run.X_ref[:1], nonce="mine", **TEST)
    with pytest.raises(VerificationError, match="answers a different nonce from yours"):
        check(run.attestation, run.honest, x=run.X_ref[0], nonce="yours", **TEST)
    with pytest.raises(VerificationError, match="different commitment from the published one"):
        check(run.attestation, run.dishonest, x=run.X_ref[0], nonce="mine", **TEST)


def test_without_a_nonce_nothing_is_attested_or_checked(run, tmp_path):
    with pytest.raises(ValueError, match="must be the text that you chose"):
        check(run.attestation, run.honest, x=run.X_ref[0], nonce="", **TEST)
    with pytest.raises(ValueError, match="must be the text that the client chose"):
        attest(run.honest, run.X_ref[0], tmp_path / "a.json", nonce="")


def test_no_attestation_is_used_up_by_a_file_that_cannot_be_written(run, tmp_path):
    ledger = (run.honest.parent / "private" / "ledger.json").read_bytes()
    for out in (tmp_path / "absent" / "a.json", tmp_path):
        with pytest.raises(OSError, match=r"absent|is a folder"):
            attest(run.honest, run.X_ref[0], out, nonce="mine")
    assert (run.honest.parent / "private" / "ledger.json").read_bytes() == ledger


@pytest.mark.parametrize("x", [[[0.0, 0.0]], 0.0])
def test_an_input_of_another_shape_fails(run, tmp_path, x):
    with pytest.raises(ValueError, match=r"`x` must have shape \(n_features,\)"):
        attest(run.honest, x, tmp_path / "a.json", nonce="mine")


# What a flipped byte may change: the text, its entries, their values, or the proof.
FLIPPED = "|".join(
    (
        "is damaged",
        "lacks the entry",
        "unknown entry",
        "has format",
        "unknown level",
        "not made with ezkl",
        "the version of (skuq|ezkl) is malformed",
        "about a different commitment",
        "is impossible",
        "outside the committed range",
        WRONG_TYPE,
        OTHER_WEIGHTS,
        NOT_HELD,
    )
)


def test_flipped_bytes_of_an_attestation_fail(run, tmp_path):
    size = run.attestation.stat().st_size
    # Each second character of the statement, some of the proof.
    text = run.attestation.read_bytes()
    start = text.index(b'"statement"')
    for position in [*range(12, start - 30, 397), *range(start, size, 2)]:
        path = tmp_path / "a.json"
        path.write_bytes(text)
        flip(path, position)
        with pytest.raises(VerificationError, match=FLIPPED):
            check(path, run.honest, keys=run.keys, **asked(run, path))


def attested(name, value):
    def change(record, w):
        record["statement"][name] = value

    return change


ATTESTATIONS = {
    "label": (
        NOT_HELD,
        lambda r, w: edit(r, "statement", "label", value=(r["statement"]["label"] + 1) % 3),
    ),
    "confidence": (
        NOT_HELD,
        lambda r, w: edit(r, "statement", "confidence", value=r["statement"]["confidence"] - 1),
    ),
    "impossible label": ("the label is impossible", attested("label", 3)),
    "huge label": ("the label is impossible", attested("label", 10**40)),
    "label no number": (WRONG_TYPE, attested("label", True)),
    "impossible confidence": ("the confidence is impossible", attested("confidence", 0)),
    "confidence above one": ("the confidence is impossible", attested("confidence", ONE + 1)),
    "x": (NOT_HELD, lambda r, w: edit(r, "statement", "x", value=w.X_ref[1].tolist())),
    "x outside": ("outside the committed range", attested("x", [1e9, 0.0])),
    "x in words": ("the input is impossible", attested("x", ["1.0", "2.0"])),
    "x nested": ("the input is impossible", attested("x", [[1.0, 2.0]])),
    "x ragged": ("the input is impossible", attested("x", [[1.0], 2.0])),
    "x of nothing": (r"must have shape \(n_samples, 2\)", attested("x", [])),
    "x null": ("the input is impossible", attested("x", [None, None])),
    "x record": ("the input is impossible", attested("x", [{}, {}])),
    "nonce": (NOT_HELD, attested("nonce", "yours")),
    "commitment": ("about a different commitment", attested("commitment_digest", "0" * 64)),
    "level": ("unknown level", attested("level", "bins")),
    "format": ("has format 1", attested("format", 1)),
    "versions": ("not made with ezkl", attested("versions", {"ezkl": "0.0.1", "skuq": "0"})),
    "versions no record": (WRONG_TYPE, attested("versions", [])),
    "versions null": (WRONG_TYPE, attested("versions", None)),
    "other skuq": (NOT_HELD, attested("versions", {"ezkl": backend.version(), "skuq": "0"})),
    "anything": ("unknown entry 'anything'", attested("anything", 1)),
    "number": (NOT_HELD, attested("number", 2)),
    "number beyond the budget": (
        "the number 5, which must be from 1 to",
        attested("number", 5),
    ),
    "number no number": (WRONG_TYPE, attested("number", "1")),
    "statement no record": (WRONG_TYPE, lambda r, w: edit(r, "statement", value=[])),
    "no statement": ("lacks the entry 'statement'", lambda r, w: r.pop("statement")),
    "no proof": ("lacks the entry 'proof'", lambda r, w: r.pop("proof")),
    "empty proof": (OTHER_WEIGHTS, lambda r, w: edit(r, "proof", value="")),
    "half a proof": (
        NOT_HELD,
        lambda r, w: edit(r, "proof", value=r["proof"][: len(r["proof"]) // 8 * 4]),
    ),
    "proof of an audit": (
        NOT_HELD,
        lambda r, w: edit(r, "proof", value=read_json(w.predictions / CHUNK)["proof"]),
    ),
    "proof of other weights": (
        OTHER_WEIGHTS,
        lambda r, w: edit(r, "proof", value=read_json(w.shrunk / CHUNK)["proof"]),
    ),
}


@pytest.mark.parametrize("tampering", ATTESTATIONS)
def test_a_changed_attestation_fails(run, tmp_path, tampering):
    record = read_json(run.attestation)
    reason, change = ATTESTATIONS[tampering]
    change(record, run)
    assert record != read_json(run.attestation)
    (tmp_path / "a.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(VerificationError, match=reason):
        check(tmp_path / "a.json", run.honest, keys=run.keys, **asked(run, tmp_path / "a.json"))


def test_what_is_no_attestation_fails(run, tmp_path):
    for text in ("[]", "{", "null", "3"):
        (tmp_path / "a.json").write_text(text, encoding="utf-8")
        with pytest.raises(VerificationError, match=r"a.json"):
            check(tmp_path / "a.json", run.honest, keys=run.keys, **asked(run, tmp_path / "a.json"))
    with pytest.raises(VerificationError, match=r"b.json is missing"):
        check(tmp_path / "b.json", run.honest, keys=run.keys, **asked(run, tmp_path / "b.json"))
    os.mkdir(tmp_path / "c.json")
    with pytest.raises(VerificationError, match=r"c.json is not a regular file"):
        check(tmp_path / "c.json", run.honest, keys=run.keys, **asked(run, tmp_path / "c.json"))
