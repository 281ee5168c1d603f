"""Proofs of audits: interruptions, limits of proofs and pads, and the challenge."""

import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from joblib import cpu_count

from skuq.zk import ProofSystemError, VerificationError, attest, challenge, prove
from skuq.zk import _ezkl as backend
from skuq.zk import _private_commitment as simultaneous
from skuq.zk._files import read_json, write_json
from tests.zk.tampering import CHUNK, LEVELS, STATED, N, contents_of, never

ASKED = {"tolerance": 0.1, "n_bins": 4}


@pytest.fixture
def ledger(run):
    """The provider's ledger, put back after the test."""
    before = run.ledger.read_bytes()
    yield run.ledger
    run.ledger.write_bytes(before)


def test_an_interrupted_audit_goes_on_where_it_was_and_no_other_in_its_folder(run):
    left = contents_of(run.interrupted)
    assert set(left) == {Path(STATED), Path(CHUNK)}
    assert left.items() <= contents_of(run.bins).items()
    before, ledger = contents_of(run.bins), run.ledger.read_bytes()
    fewer = run.X_ref[:-1], run.y_ref[:-1]
    others = {"tolerance": 0.2}, {"n_bins": 3}, {"confidence_level": None}, run.settings["verdict"]
    for data, settings in (*((run.data, each) for each in others), (fewer, {})):
        with pytest.raises(ValueError, match="holds another audit"):
            prove(run.public, *data, run.bins, **{**ASKED, **settings})
    assert run.ledger.read_bytes() == ledger
    assert contents_of(run.bins) == before


@pytest.mark.parametrize("level", LEVELS)
def test_a_proven_audit_is_handed_out_again_without_a_proof(run, tmp_path, no_proof, level):
    ledger = run.ledger.read_bytes()
    prove(run.public, *run.data, tmp_path / "again", **ASKED, **run.settings[level])
    assert contents_of(tmp_path / "again") == contents_of(run.folder / level)
    assert run.ledger.read_bytes() == ledger


def test_a_challenge_for_something_else_is_not_answered(run, tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "witness", never)
    turned, own = (run.X_ref[::-1], run.y_ref[::-1]), tmp_path / "c.json"
    with pytest.raises(VerificationError, match=r"reported.json is missing"):
        challenge(run.bins, run.public, *run.data, own)
    for data, change, message in (
        (turned, {}, "drawn for a different commitment"),
        (run.data, {"reported_digest": "0" * 64}, "different reported confidences"),
        (run.data, {"nonce": 7}, "'nonce'"),
    ):
        write_json(own, {**read_json(run.challenge), **change})
        asked = {**ASKED, **run.settings["predictions"], "challenge": own}
        with pytest.raises(ValueError, match=message):
            prove(run.public, *data, tmp_path / "out", **asked)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tolerance": -0.1}, "alpha=-0.1 is impossible"),
        *(({"n_bins": n}, f"n_bins={n}, which must be from 1 to 4") for n in (0, 5)),
        ({"confidence_level": 1.0}, "confidence_level=1.0 is impossible"),
        ({"level": "nothing"}, "`level` must be"),
        ({"level": "verdict", "tolerance": 0.0505}, "not a multiple of 0.001"),
        ({"level": "verdict", "tolerance": 0.2}, r"at least \d+ reference samples instead of 24"),
        ({"X_ref": np.full((N, 2), 1e6)}, "Feature 0 is 1e.06 in row 0, outside the committed"),
        ({"y_ref": ["w"] * N}, r"\['w'\] not in \['x', 'y', 'z'\]"),
        ({"y_ref": [["x"] * N]}, "Labels"),
        ({"y_ref": ["x"]}, f"{N} inputs, but 1 labels"),
        ({"X_ref": np.zeros((1, 2)), "y_ref": ["x"]}, "n_bins=4 needs 4 reference samples, got 1"),
    ],
)
def test_an_audit_that_cannot_be_made_fails(run, tmp_path, settings, message):
    arguments = {"X_ref": run.X_ref, "y_ref": run.y_ref, "n_bins": 4, **settings}
    with pytest.raises(ValueError, match=message):
        prove(run.public, out=tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_proofs_and_pads_beyond_those_committed_to_fail_and_use_up_nothing(run, tmp_path, ledger):
    # bins 2 and the interrupted one, verdict 3, its other proof, predictions.
    assert read_json(ledger) == {"audits": 8, "attestations": 1, "pads": 2}
    turned, out = (run.X_ref[::-1], run.y_ref[::-1]), tmp_path / "out"

    def audit(level, data):
        return lambda: prove(run.public, *data, out, **ASKED, **run.settings[level])

    few = r"needs [23] of the 12 proofs .* but only 1 are left; .* larger `n_proofs`"
    for counts, call, message in (
        ((11, 0, 0), audit("bins", turned), few),
        ((11, 0, 0), audit("verdict", turned), few),
        (
            (0, 4, 0),
            lambda: attest(run.public, run.X_ref[0], out, nonce="mine"),
            "needs 1 of the 4 attestations",
        ),
        # Each pad serves once.
        ((8, 1, 2), audit("verdict", turned), r"needs 2 of the 2 pads .* only 0 are left"),
    ):
        write_json(ledger, dict(zip(("audits", "attestations", "pads"), counts, strict=True)))
        before = ledger.read_bytes()
        with pytest.raises(RuntimeError, match=message):
            call()
        assert ledger.read_bytes() == before
        assert not out.exists()


def test_no_attestation_is_used_up_by_a_wrong_question_or_an_impossible_file(run, tmp_path):
    before, x, fine = run.ledger.read_bytes(), run.X_ref[0], tmp_path / "a.json"
    shutil.copytree(run.public, tmp_path / "public")
    for public, given, nonce, out, error, message in (
        (run.public, x, "", fine, ValueError, "`nonce`"),
        (run.public, [x], "a", fine, ValueError, "`x`"),
        (run.public, 0.0, "a", fine, ValueError, "`x`"),
        (run.public, x, "a", tmp_path / "absent" / "a.json", OSError, "absent"),
        (run.public, x, "a", tmp_path, OSError, "is a folder"),
        (tmp_path / "public", x, "a", fine, FileNotFoundError, "not hold the provider's keys"),
    ):
        with pytest.raises(error, match=message):
            attest(public, given, out, nonce=nonce)
    assert run.ledger.read_bytes() == before


def test_a_proof_that_takes_too_long_is_stopped_and_counted(run, tmp_path, ledger):
    before = read_json(ledger)["attestations"]
    with pytest.raises(ProofSystemError, match=r"did not finish 'prove' within 0.01 s"):
        attest(run.public, run.X_ref[0], tmp_path / "a.json", nonce="mine", timeout=0.01)
    assert not (tmp_path / "a.json").exists()
    assert read_json(ledger)["attestations"] == before + 1


def test_proofs_at_once_are_counted_before_and_kept_one_by_one(run, tmp_path, ledger, monkeypatch):
    """Neither error, order nor number of processes changes what an audit is."""
    monkeypatch.setattr(simultaneous, "available_memory", lambda: 2**40)
    both, seen, failing, out = threading.Barrier(2), [], [True], tmp_path / "out"

    def fake(witness, *_, timeout, threads):
        both.wait(60)  # for the other one
        seen.append((witness, read_json(ledger)["audits"], threads))
        if failing and seen[0][0] != witness:
            raise ProofSystemError("planted")
        return b"proof"

    monkeypatch.setattr(backend, "prove", fake)
    write_json(ledger, {"audits": 0, "attestations": 0, "pads": 0})
    asked = {"tolerance": 0.35, "n_bins": 4, "n_jobs": 2}
    with pytest.raises(ProofSystemError, match="planted"):
        prove(run.public, *run.data, out, **asked)
    assert len({witness for witness, _, _ in seen}) == 2
    assert [(used, threads) for _, used, threads in seen] == [(2, max(1, cpu_count() // 2))] * 2
    (kept,) = (out / "chunks").iterdir()
    before = kept.read_bytes()

    failing.clear()
    both = threading.Barrier(1)
    prove(run.public, *run.data, out, **asked)
    assert len(seen) == 3
    assert read_json(ledger)["audits"] == 3
    assert kept.read_bytes() == before
    for path in (run.bins / "chunks").iterdir():
        again = read_json(out / "chunks" / path.name)
        assert again["outputs"] == read_json(path)["outputs"]
