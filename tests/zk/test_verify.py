"""Verification of honest audits and predictions, and of answers to another question."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq import CalibrationAuditor
from skuq.zk import VerificationError, attest, challenge, check, reported_predictions, verify
from skuq.zk import _ezkl as backend
from skuq.zk._files import REPORTED, digest_file, read_json, write_json, write_manifest
from skuq.zk._keys import verifying_key
from skuq.zk._statements import ReferenceData, VerdictStatement, encoded
from skuq.zk._verify import _verify_verdict
from tests.zk.tampering import (
    ALPHA,
    ASKED,
    LEVELS,
    N_BINS,
    ONE,
    PROVEN,
    N,
    assert_both_refuse,
    changed,
    no_setup,
    own_string,
    second_verifier,
    verified,
    verified_again,
)

TEST = {"allow_test_string": True}


@pytest.mark.parametrize("level", LEVELS)
def test_both_verifiers_agree_on_an_honest_audit(run, level):
    result = verified(run, level, alpha=ALPHA, n_bins=N_BINS)
    assert result.passed
    assert result.robust
    assert result.level == level
    assert result.n_proofs == {"bins": 2, "verdict": 3, "predictions": 1}[level]
    assert result.statement["n_samples"] == N
    assert result.reference_string == "test"
    assert result.classes == ["x", "y", "z"]
    assert json.loads(json.dumps(result.as_record()))["passed"] is True
    again = verified_again(run, level)
    if level == "verdict":
        assert again == {"passed": True}
        return
    sums = result.sums
    assert again["count"] == sums.count.tolist()
    assert again["correct"] == sums.correct.tolist()
    assert again["confidence_sum"] == (sums.confidence / sums.scale).tolist()
    gaps = abs(sums.deviation) <= 0.1 * sums.count * sums.scale
    assert again["within_alpha"] == bool(gaps.all())


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
    data = ReferenceData(np.zeros((N, 2), np.int64), zeros, zeros)
    checker = SimpleNamespace(committed=run.committed)
    with pytest.raises(VerificationError, match=r"at least 37 reference samples instead of 24"):
        _verify_verdict(checker, VerdictStatement.of(stated), run.verdict, data)


def test_the_sample_that_was_proven_is_named_with_what_it_misses(run):
    notes = " ".join(verified(run, "predictions").notes)
    assert f"{PROVEN} of {N} reported predictions were proven" in notes
    assert f"5 % ({0.95**PROVEN:.2g})" in notes
    assert "No region was audited" in notes


def test_a_model_that_shrinks_its_confidence_fails(run):
    asked = {**ASKED, "n_bins": 1}
    result = verify(run.shrunk, *run.few, run.dishonest, keys=run.keys, level="bins", **asked)
    assert not result.passed
    assert result.result.bins.direction[0] == "underconfident"
    sums = result.sums
    assert sums.correct[0] / sums.count[0] > sums.confidence[0] / sums.count[0] / ONE + 0.3


def test_keys_are_made_once(run, monkeypatch):
    monkeypatch.setattr(backend, "setup", no_setup)
    assert verified(run, "bins").passed
    answer = {"x": run.X_ref[0], "nonce": "mine", **TEST}
    assert check(run.attestation, run.honest, keys=run.keys, **answer).label in "xyz"
    with pytest.raises(AssertionError, match="a key was made"):
        verify(run.bins, run.X_ref, run.y_ref, run.honest, level="bins", **ASKED)
    with (
        pytest.raises(VerificationError, match="no circuit for 'other'"),
        verifying_key(run.committed, "other", run.keys),
    ):
        pass


def other_labels(run):
    labels = run.y_ref.copy()
    labels[7] = "x" if labels[7] != "x" else "y"
    return labels


@pytest.mark.parametrize("level", LEVELS)
def test_an_audit_of_other_data_fails(run, level):
    features = run.X_ref.copy()
    features[7, 1] += 0.5
    for settings in (
        {"X": features},
        {"X": run.X_ref[::-1], "y": run.y_ref[::-1]},
        {"X": run.X_ref[:-1], "y": run.y_ref[:-1]},
    ):
        with pytest.raises(VerificationError, match="different reference data from yours"):
            verified(run, level, **settings)
    assert_both_refuse("different reference data", run, level, None, y=other_labels(run))


@pytest.mark.parametrize("level", LEVELS)
def test_an_audit_of_other_data_whose_hash_was_stated_fails(run, tmp_path, level):
    labels = other_labels(run)
    other = encoded(run.committed.encoding, run.committed.classes, run.X_ref, labels).digest
    bundle = shutil.copytree(getattr(run, level), tmp_path / level)
    changed(bundle / "statement.json", reference_digest=other)
    settings = {}
    if level == "predictions":
        changed(bundle / REPORTED, reference_digest=other)
        answered = {"reported_digest": digest_file(bundle / REPORTED)}
        changed(bundle / "statement.json", **answered)
        settings = {"challenge": tmp_path / "own.json"}
        own = {**read_json(run.challenge), "reference_digest": other, **answered}
        write_json(tmp_path / "own.json", own)
    write_manifest(bundle)
    assert_both_refuse("does not hold", run, level, bundle, y=labels, **settings)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("name", "value"),
    [("alpha", 0.05), ("n_bins", 10), ("confidence_level", 0.5), ("confidence_level", None)],
)
def test_another_question_than_was_asked_is_named(run, level, name, value):
    assert_both_refuse(f"{name}=.*, but you asked for {value}", run, level, None, **{name: value})


def test_a_level_is_one_of_three(run):
    with pytest.raises(ValueError, match="`level` must be"):
        verify(run.bins, run.X_ref, run.y_ref, run.honest, level="attestation", **ASKED)


def test_an_audit_of_another_commitment_fails(run):
    assert_both_refuse("different commitment", run, "bins", None, commitment=run.dishonest)
    with pytest.raises(VerificationError, match="different commitment"):
        verify(run.shrunk, *run.few, run.honest, keys=run.keys, level="bins", **ASKED)


def test_an_audit_of_reports_needs_the_auditors_own_challenge(run, tmp_path):
    assert_both_refuse("`challenge`", run, "predictions", None, challenge=None)
    data = run.X_ref, run.y_ref
    again = challenge(run.predictions, run.honest, *data, tmp_path / "again.json")
    assert read_json(again)["nonce"] != read_json(run.challenge)["nonce"]
    assert_both_refuse("different challenge", run, "predictions", None, challenge=again)
    again.unlink()
    assert_both_refuse(r"again.json is missing", run, "predictions", None, challenge=again)
    write_json(again, {**read_json(run.challenge), "n_proven": 228})
    reason = f"Only {PROVEN} predictions were proven, but {N} are needed"
    assert_both_refuse(reason, run, "predictions", None, challenge=again)


def test_both_verifiers_agree_on_a_prediction(run):
    given, x = {"x": run.X_ref[0], "nonce": "mine", "keys": run.keys}, run.X_ref[0].tolist()
    found = check(run.attestation, run.honest, **given, **TEST)
    labels, confidence = reported_predictions(run.honest, run.X_ref[:1])
    assert (found.label, found.confidence) == (labels[0], confidence[0])
    assert found.x == x
    assert found.statement["nonce"] == "mine"
    second = second_verifier()
    published = second.Commitment(run.honest, run.keys, own_string(run))
    again = second.verify_attestation(run.attestation, published, x, "mine")
    assert again == {"label": found.label, "confidence": found.confidence}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (lambda run: {"x": run.X_ref[0] + 1e-9}, "different input"),
        (lambda run: {"x": run.X_ref[:1]}, "different input"),
        (lambda run: {"nonce": "yours"}, "different nonce"),
        (lambda run: {"commitment": run.dishonest}, "different commitment"),
        (lambda run: {"nonce": ""}, "`nonce`"),
    ],
)
def test_a_prediction_for_another_question_fails(run, other, reason):
    given = {"commitment": run.honest, "x": run.X_ref[0], "nonce": "mine", **other(run)}
    with pytest.raises(ValueError, match=reason):
        check(run.attestation, **given, **TEST)


@pytest.mark.parametrize(
    ("x", "nonce", "name"), [([0.0, 0.0], "", "nonce"), ([[0.0, 0.0]], "a", "x"), (0.0, "a", "x")]
)
def test_an_attestation_needs_a_row_and_a_nonce(run, tmp_path, x, nonce, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        attest(run.honest, x, tmp_path / "a.json", nonce=nonce)


def test_no_attestation_is_used_up_by_a_file_that_cannot_be_written(run, tmp_path):
    ledger = (run.honest.parent / "private" / "ledger.json").read_bytes()
    for out in (tmp_path / "absent" / "a.json", tmp_path):
        with pytest.raises(OSError, match=r"absent|is a folder"):
            attest(run.honest, run.X_ref[0], out, nonce="mine")
    assert (run.honest.parent / "private" / "ledger.json").read_bytes() == ledger
