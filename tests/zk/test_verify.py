"""Verification of honest audits, and of audits that answer another question."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq import CalibrationAuditor
from skuq.zk import (
    VerificationError,
    challenge,
    check,
    reported_predictions,
    verify,
)
from skuq.zk import _ezkl as backend
from skuq.zk._files import (
    REPORTED,
    digest_file,
    read_json,
    write_json,
    write_manifest,
)
from skuq.zk._keys import verifying_key
from skuq.zk._statements import ReferenceData, VerdictStatement, encoded, reference_digest
from skuq.zk._verify import _verify_verdict
from tests.zk.tampering import (
    ALPHA,
    ASKED,
    LEVELS,
    N_BINS,
    ONE,
    PROVEN,
    N,
    changed,
    no_setup,
    verified,
)

pytestmark = pytest.mark.slow  # they share one run of the protocol, which takes minutes


@pytest.mark.parametrize("level", LEVELS)
def test_an_honest_audit_passes(run, level):
    result = verified(run, level, alpha=ALPHA, n_bins=N_BINS)
    assert result.passed
    assert result.robust
    assert result.level == level
    assert result.n_proofs == {"bins": 2, "verdict": 3, "predictions": 1}[level]
    assert result.statement["n_samples"] == N
    assert result.reference_string == "test"
    assert result.classes == ["x", "y", "z"]
    assert json.loads(json.dumps(result.as_record()))["passed"] is True


@pytest.mark.parametrize("level", ["bins", "predictions"])
def test_proven_sums_are_those_of_an_audit_in_the_open(run, level):
    sums = verified(run, level).sums
    labels, confidence = reported_predictions(run.honest, run.X_ref)
    classes = run.model.classes_
    proba = np.where(labels[:, None] == classes, confidence[:, None], (1 - confidence[:, None]) / 2)
    audit = CalibrationAuditor.from_predictions(
        run.y_ref, proba, classes=classes, n_bins=N_BINS, strategy="uniform"
    )
    np.testing.assert_array_equal(sums.count, audit.sums_.count)
    np.testing.assert_array_equal(sums.correct, audit.sums_.correct)
    np.testing.assert_allclose(
        sums.confidence / sums.scale, audit.sums_.confidence / audit.sums_.scale, atol=1e-6
    )
    assert (sums.count > 0).sum() >= 2
    assert sums.count.sum() == N


def test_a_verdict_reveals_no_sums(run):
    result = verified(run, "verdict")
    assert result.sums is None
    assert result.result is None
    assert "bins" not in result.as_record()
    plain = verified(run, "bins").sums
    chunks = [read_json(path)["outputs"] for path in (run.verdict / "chunks").iterdir()]
    assert min(abs(int(v)) for outputs in chunks for v in outputs) > 2**40
    assert int(plain.confidence.sum()) < 2**40


def test_a_verdict_that_could_pass_whatever_the_labels_are_is_refused(run):
    stated = {**read_json(run.verdict / "statement.json"), "confidence_level": 0.95}
    zeros = np.zeros(N, np.int64)
    with pytest.raises(VerificationError, match=r"at least 37 reference samples instead of 24"):
        _verify_verdict(
            SimpleNamespace(committed=run.committed),
            VerdictStatement.of(stated),
            run.verdict,
            ReferenceData(np.zeros((N, 2), np.int64), zeros, zeros),
            [],
            "test",
        )


def test_the_sample_that_was_proven_is_named_with_what_it_misses(run):
    notes = " ".join(verified(run, "predictions").notes)
    assert f"{PROVEN} of {N} reported predictions were proven" in notes
    assert f"5 % ({0.95**PROVEN:.2g})" in notes
    assert "No region was audited" in notes


def test_a_model_that_shrinks_its_confidence_fails(run):
    result = verify(
        run.shrunk, *run.few, run.dishonest, keys=run.keys, level="bins", **{**ASKED, "n_bins": 1}
    )
    assert not result.passed
    assert result.result.bins.direction[0] == "underconfident"
    sums = result.sums
    assert sums.correct[0] / sums.count[0] > sums.confidence[0] / sums.count[0] / ONE + 0.3


def test_keys_are_made_once(run, monkeypatch):
    verified(run, "bins")
    answer = {"x": run.X_ref[0], "nonce": "mine", "allow_test_string": True}
    check(run.attestation, run.honest, keys=run.keys, **answer)
    monkeypatch.setattr(backend, "setup", no_setup)
    assert verified(run, "bins").passed
    assert check(run.attestation, run.honest, keys=run.keys, **answer).label in "xyz"
    with pytest.raises(AssertionError, match="a key was made"):
        verify(run.bins, run.X_ref, run.y_ref, run.honest, level="bins", **ASKED)


def test_there_is_no_key_of_a_circuit_that_was_not_committed_to(run):
    with (
        pytest.raises(VerificationError, match="no circuit for 'other'"),
        verifying_key(run.committed, "other", run.keys),
    ):
        raise AssertionError("a key was found")


def test_an_audit_of_other_data_fails(run):
    for level in LEVELS:
        labels = run.y_ref.copy()
        labels[7] = "x" if labels[7] != "x" else "y"
        features = run.X_ref.copy()
        features[7, 1] += 0.5
        for settings in (
            {"y": labels},
            {"X": features},
            {"X": run.X_ref[::-1], "y": run.y_ref[::-1]},
            {"X": run.X_ref[:-1], "y": run.y_ref[:-1]},
        ):
            with pytest.raises(VerificationError, match="different reference data from yours"):
                verified(run, level, **settings)


def test_an_audit_of_other_data_whose_hash_was_stated_fails(run, tmp_path):
    labels = run.y_ref.copy()
    labels[7] = "x" if labels[7] != "x" else "y"
    other = reference_digest(
        *encoded(run.committed.encoding, run.committed.classes, run.X_ref, labels)[:2]
    )
    for level in LEVELS:
        bundle = shutil.copytree(getattr(run, level), tmp_path / level)
        changed(bundle / "statement.json", reference_digest=other)
        own, answered = tmp_path / f"{level}.json", {}
        if level == "predictions":
            changed(bundle / REPORTED, reference_digest=other)
            answered = {"reported_digest": digest_file(bundle / REPORTED)}
            changed(bundle / "statement.json", **answered)
        write_manifest(bundle)
        write_json(own, {**read_json(run.challenge), "reference_digest": other, **answered})
        settings = {"challenge": own} if level == "predictions" else {}
        with pytest.raises(VerificationError, match="does not hold for this statement"):
            verified(run, level, bundle, y=labels, **settings)


@pytest.mark.parametrize("level", LEVELS)
def test_another_question_than_was_asked_fails(run, level):
    with pytest.raises(VerificationError, match=r"with alpha=0.1, but you asked for 0.05"):
        verified(run, level, alpha=0.05)
    with pytest.raises(VerificationError, match=r"with n_bins=4, but you asked for 10"):
        verified(run, level, n_bins=10)


def test_another_tolerance_for_chance_than_was_asked_fails(run):
    assert verified(run, "bins", confidence_level=0.95).passed
    for level in (0.5, None):
        with pytest.raises(
            VerificationError, match=f"confidence_level=0.95, but you asked for {level}"
        ):
            verified(run, "bins", confidence_level=level)


def test_an_audit_of_another_commitment_fails(run):
    with pytest.raises(VerificationError, match="different commitment from the published one"):
        verified(run, "bins", commitment=run.dishonest)
    with pytest.raises(VerificationError, match="different commitment from the published one"):
        verify(run.shrunk, *run.few, run.honest, keys=run.keys, level="bins", **ASKED)


def test_an_audit_of_reports_needs_the_auditors_own_challenge(run, tmp_path):
    with pytest.raises(VerificationError, match="needs the auditor's own challenge"):
        verified(run, "predictions", challenge=None)
    data = run.X_ref, run.y_ref
    again = challenge(run.predictions, run.honest, *data, tmp_path / "again.json")
    assert read_json(again)["nonce"] != read_json(run.challenge)["nonce"]
    with pytest.raises(
        VerificationError,
        match="answers a different challenge from yours; it may be an older audit",
    ):
        verified(run, "predictions", challenge=again)
    again.unlink()
    with pytest.raises(VerificationError, match=r"again.json is missing"):
        verified(run, "predictions", challenge=again)


def test_a_challenge_is_not_replaced(run):
    before = run.challenge.read_bytes()
    with pytest.raises(FileExistsError, match="challenged only once"):
        challenge(run.predictions, run.honest, run.X_ref, run.y_ref, run.challenge)
    assert run.challenge.read_bytes() == before


def test_fewer_proofs_of_predictions_than_needed_fail(run, tmp_path):
    write_json(tmp_path / "c.json", {**read_json(run.challenge), "n_proven": 228})
    with pytest.raises(
        VerificationError, match=f"Only {PROVEN} of {N} predictions were proven, but {N} are needed"
    ):
        verified(run, "predictions", challenge=tmp_path / "c.json")
