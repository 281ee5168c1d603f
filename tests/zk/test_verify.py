"""Verification of honest audits and predictions, and of answers to another question."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from skuq import CalibrationAuditor
from skuq.zk import VerificationError, challenge, check, reported_predictions, verify
from skuq.zk import _circuits as circuits
from skuq.zk import _ezkl as backend
from skuq.zk._files import REPORTED, digest_file, read_json, write_json, write_manifest
from skuq.zk._keys import verifying_key
from skuq.zk._statements import ReferenceData, VerdictStatement, encoded
from skuq.zk._verify import _verify_verdict
from tests.zk import tampering as t


@pytest.mark.parametrize("level", t.LEVELS)
def test_both_verifiers_agree_on_an_honest_audit_which_is_that_in_the_open(run, level):
    result, again = t.verified(run, level), t.verified_again(run, level)
    assert (result.passed, result.robust, result.level) == (True, True, level)
    assert result.n_proofs == {"bins": 2, "verdict": 3, "predictions": 1}[level]
    assert result.statement["n_samples"] == t.N
    assert result.reference_string == "test"
    assert result.classes == ["x", "y", "z"]
    record, sums = result.as_record(), result.sums
    assert json.loads(json.dumps(record))["passed"] is True
    if level == "verdict":  # which reveals no sums
        assert again == {"passed": True}
        assert (sums, result.result, record.get("bins")) == (None, None, None)
        chunks = [read_json(path)["outputs"] for path in (run.verdict / "chunks").iterdir()]
        assert min(abs(int(v)) for outputs in chunks for v in outputs) > 2**40 > t.N * t.ONE
        return
    assert again["count"] == sums.count.tolist()
    assert again["correct"] == sums.correct.tolist()
    assert again["confidence_sum"] == (sums.confidence / sums.scale).tolist()
    gaps = abs(sums.deviation) <= 0.1 * sums.count * sums.scale
    assert again["within_tolerance"] == bool(gaps.all())

    labels, confidence = reported_predictions(run.public, run.X_ref)
    classes = run.model.classes_
    proba = np.where(labels[:, None] == classes, confidence[:, None], (1 - confidence[:, None]) / 2)
    settings = {"classes": classes, "n_bins": 4, "strategy": "uniform"}
    plain = CalibrationAuditor.from_predictions(run.y_ref, proba, **settings).sums_
    np.testing.assert_array_equal(sums.count, plain.count)
    np.testing.assert_array_equal(sums.correct, plain.correct)
    mine, theirs = (part.confidence / part.scale for part in (sums, plain))
    np.testing.assert_allclose(mine, theirs, atol=1e-6)
    assert (sums.count > 0).sum() >= 2
    if level == "predictions":
        notes = " ".join(result.notes)
        assert f"{t.PROVEN} of {t.N} reported predictions were proven" in notes
        assert f"5 % ({0.95**t.PROVEN:.2g})" in notes


def test_a_verdict_that_could_pass_whatever_the_labels_are_is_refused(run):
    stated = {**read_json(run.verdict / t.STATED), "confidence_level": 0.95}
    zeros = np.zeros(t.N, np.int64)
    data = ReferenceData(np.zeros((t.N, 2), np.int64), zeros, zeros)
    checker = SimpleNamespace(committed=run.committed)
    with pytest.raises(VerificationError, match=r"at least 37 reference samples instead of 24"):
        _verify_verdict(checker, VerdictStatement.of(stated), run.verdict, data)


def test_a_model_that_shrinks_its_confidence_fails(run):
    X, y = run.few
    result = t.verified(run, "bins", run.shrunk, X=X, y=y, commitment=run.dishonest, n_bins=1)
    assert not result.passed
    assert result.result.bins.direction[0] == "underconfident"
    count, correct, confidence = (v[0] for v in result.sums[1:4])
    assert correct / count > confidence / count / t.ONE + 0.3


def test_keys_are_made_once_for_the_circuits_that_are_built_now(run, monkeypatch, tmp_path):
    monkeypatch.setattr(backend, "setup", t.never)
    assert t.verified(run, "bins").passed
    answer = {"x": run.X_ref[0], "nonce": "mine", **t.TEST}
    assert check(run.attestation, run.public, keys=run.keys, **answer).label in "xyz"
    with pytest.raises(VerificationError, match="no circuit for 'other'"):
        verifying_key(run.committed, "other", run.keys, tmp_path)
    with pytest.raises(AssertionError, match="a key or a proof was made"):
        t.verified(run, "bins", keys=None)
    # An older version may have had a circuit that was not sound.
    monkeypatch.setattr(circuits.fixed, "EXP_BASE", 1.5 * circuits.fixed.EXP_BASE)
    with pytest.raises(AssertionError, match="a key or a proof was made"):
        t.verified(run, "bins")


@pytest.mark.parametrize("level", t.LEVELS)
def test_an_audit_of_other_data_fails_even_if_its_hash_was_stated(run, tmp_path, level):
    labels = np.where(np.arange(t.N) == 7, np.where(run.y_ref == "x", "y", "x"), run.y_ref)
    features = run.X_ref.copy()
    features[7, 1] += 0.5
    X, y = run.data
    for other in ((features, y), (X[::-1], y[::-1]), (X[:-1], y[:-1])):
        with pytest.raises(VerificationError, match="different reference data from yours"):
            t.verified(run, level, X=other[0], y=other[1])
    t.assert_both_refuse("different reference data", run, level, y=labels)

    other = encoded(run.committed.encoding, run.committed.classes, run.X_ref, labels).digest
    bundle = shutil.copytree(getattr(run, level), tmp_path / level)
    settings, stated = {}, {"reference_digest": other}
    if level == "predictions":
        t.changed(bundle / REPORTED, **stated)
        stated["reported_digest"] = digest_file(bundle / REPORTED)
        settings = {"challenge": tmp_path / "own.json"}
        write_json(tmp_path / "own.json", {**read_json(run.challenge), **stated})
    t.changed(bundle / t.STATED, **stated)
    write_manifest(bundle)
    t.assert_both_refuse(t.NOT_HELD, run, level, bundle, y=labels, **settings)


def test_an_audit_at_no_level_of_another_commitment_or_of_another_challenge_fails(run, tmp_path):
    asked = {**t.TEST, **run.asked("bins"), "level": "attestation"}
    with pytest.raises(ValueError, match="`level` must be"):
        verify(run.bins, *run.data, run.public, **asked)
    t.assert_both_refuse("different commitment", run, "bins", commitment=run.dishonest)
    with pytest.raises(VerificationError, match="different commitment"):
        t.verified(run, "bins", run.shrunk)
    again = challenge(run.predictions, run.public, *run.data, tmp_path / "again.json")
    assert read_json(again)["nonce"] != read_json(run.challenge)["nonce"]
    t.assert_both_refuse("different challenge", run, "predictions", challenge=again)


def test_both_verifiers_agree_on_a_prediction(run, second):
    x = run.X_ref[0].tolist()
    found = check(run.attestation, run.public, x=x, nonce="mine", keys=run.keys, **t.TEST)
    labels, confidence = reported_predictions(run.public, run.X_ref[:1])
    assert (found.label, found.confidence) == (labels[0], confidence[0])
    assert (found.x, found.statement["nonce"]) == (x, "mine")
    again = second.verify_attestation(run.attestation, t.published_to_second(run), x, "mine")
    assert again == {"label": found.label, "confidence": found.confidence}
    given = {"commitment": run.public, "x": run.X_ref[0], "nonce": "mine"}
    for other, reason in (
        ({"x": run.X_ref[0] + 1e-9}, "different input"),
        ({"x": run.X_ref[:1]}, "different input"),
        ({"nonce": "yours"}, "different nonce"),
        ({"commitment": run.dishonest}, "different commitment"),
        ({"nonce": ""}, "`nonce`"),
    ):
        with pytest.raises(ValueError, match=reason):
            check(run.attestation, **{**given, **other}, **t.TEST)
