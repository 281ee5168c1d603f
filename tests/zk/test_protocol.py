"""Audits and predictions from commitment to verification, and what is refused on the way."""

import base64
import copy
import json
import os
import shutil
import stat
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq import CalibrationAuditor
from skuq.datasets import make_gaussian_classes
from skuq.zk import (
    ProofSystemError,
    Refused,
    attest,
    check,
    commit,
    load_commitment,
    make_challenge,
    prove,
    reported_predictions,
    verify,
)
from skuq.zk import _commit as committing
from skuq.zk import _ezkl as backend
from skuq.zk import _provider as provider
from skuq.zk import _verifier as auditor
from skuq.zk._files import digest, digest_file, read_json, write_json, write_manifest
from skuq.zk._fixed_point import CONFIDENCE_BITS
from skuq.zk._keys import verifying_key
from skuq.zk._statements import encoded, reference_digest

ONE = 1 << CONFIDENCE_BITS
N, N_BINS, ALPHA = 50, 4, 0.1
SAMPLE = {"false_share": 0.1, "error": 0.1}  # 22 proofs of predictions
COMMITTED = {"n_bins": N_BINS, "n_proofs": 16, "verdict_samples": 56, "tolerance": 0.02}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Two commitments, one audit of each level, and an attestation, made once."""
    folder = tmp_path_factory.mktemp("zk")
    X, y = make_gaussian_classes((60, 60, 20), random_state=0)[:2]
    names = np.array(["x", "y", "z"])
    model = LogisticRegression().fit(X, names[y])
    shrunk = copy.deepcopy(model)
    shrunk.coef_, shrunk.intercept_ = model.coef_ / 8, model.intercept_ / 8
    w = SimpleNamespace(folder=folder, keys=folder / "keys", model=model, X=X, y=names[y])
    w.honest, w.dishonest = folder / "honest" / "public", folder / "dishonest" / "public"
    w.committed = commit(model, X, w.honest.parent, **COMMITTED)
    commit(shrunk, X, w.dishonest.parent, srs=w.committed.srs, **COMMITTED)
    w.rows = np.random.default_rng(0).permutation(len(X))[:N]
    w.X_ref, w.y_ref = X[w.rows], names[y][w.rows]
    data = w.X_ref, w.y_ref
    asked = {"alpha": ALPHA, "n_bins": N_BINS}

    w.bins = folder / "bins"
    with pytest.MonkeyPatch.context() as patch:
        w.calls = interrupt_the_second(patch)
        with pytest.raises(KeyboardInterrupt, match="by the provider"):
            prove(w.honest, *data, w.bins, **asked)
    w.left = {path.name: path.read_bytes() for path in w.bins.rglob("*") if path.is_file()}
    w.bundle = prove(w.honest, *data, w.bins, **asked)

    w.verdict = folder / "verdict"
    prove(w.honest, *data, w.verdict, disclose="verdict", **asked)
    w.other_verdict = verdict_at_another_alpha(w)

    w.predictions, w.challenge = folder / "predictions", folder / "challenge.json"
    arguments = {"disclose": "predictions", **asked, **SAMPLE}
    w.waiting = prove(w.honest, *data, w.predictions, **arguments)
    make_challenge(w.predictions, w.challenge)
    prove(w.honest, *data, w.predictions, challenge=w.challenge, **arguments)

    w.attestation = attest(w.honest, w.X_ref[0], folder / "attestation.json", nonce="mine")
    w.shrunk = folder / "shrunk"
    w.few = w.X_ref[:30], w.y_ref[:30]
    prove(w.dishonest, *w.few, w.shrunk, alpha=ALPHA, n_bins=1)
    w.settings = {
        "bins": {},
        "verdict": {},
        "predictions": {"challenge": w.challenge, **SAMPLE},
    }
    return w


def interrupt_the_second(patch):
    """Interrupt the second proof."""
    original, calls = backend.prove, []

    def prove_once(*arguments, **settings):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt("by the provider")
        return original(*arguments, **settings)

    patch.setattr(backend, "prove", prove_once)
    return calls


def verdict_at_another_alpha(w):
    """A valid proof of the same commitment about the same sums, but for alpha=0.2."""
    private = w.honest.parent / "private"
    run = provider._Run(load_commitment(w.honest), private, w.folder, 600, False)
    statement = {**read_json(w.verdict / "statement.json"), "alpha": 0.2}
    outputs = [
        [int(v) for v in read_json(path)["outputs"]]
        for path in sorted((w.verdict / "chunks").iterdir())
    ]
    values = provider.verdict_inputs(
        run.committed.shape, run.committed.tolerance, statement, outputs
    )
    return run.proof(statement, "verdict", values, "verdict")


def verified(w, level, bundle=None, *, X=None, y=None, commitment=None, **settings):
    return verify(
        getattr(w, level) if bundle is None else bundle,
        w.X_ref if X is None else X,
        w.y_ref if y is None else y,
        w.honest if commitment is None else commitment,
        keys=w.keys,
        **{**w.settings[level], **settings},
    )


LEVELS = ["bins", "verdict", "predictions"]


# Commitments


def test_a_commitment_is_as_small_as_it_can_be_and_agrees_with_the_model(world):
    shape = world.committed.shape
    assert shape.rows == 13
    assert shape.kinds == ("predict", "bins", "padded", "verdict")
    assert 25 <= min(shape.points.values()) <= max(shape.points.values()) < N  # two chunks
    assert shape.n_pads == 2
    labels, confidence = reported_predictions(world.honest, world.X)
    proba = world.model.predict_proba(world.X)
    np.testing.assert_array_equal(labels, world.model.classes_[proba.argmax(axis=1)])
    np.testing.assert_allclose(confidence, proba.max(axis=1), atol=COMMITTED["tolerance"])
    assert world.committed.record["agreement"]["argmax"] == 1.0


def test_a_commitment_is_loaded_as_it_was_made(world):
    again = load_commitment(world.honest)
    assert again.record == world.committed.record
    assert again.shape == world.committed.shape
    assert again.digest == world.committed.digest
    assert again.classes.tolist() == ["x", "y", "z"]


def test_nobody_else_may_enter_the_private_folder(world):
    mode = stat.S_IMODE((world.honest.parent / "private").stat().st_mode)
    assert mode & 0o077 == 0


def test_nothing_public_holds_a_weight_or_salt(world):
    assert {path.name for path in world.honest.iterdir()} == {
        "commitment.json",
        "manifest.json",
        "srs",
    }
    private = world.honest.parent / "private"
    with np.load(private / "constants.npz") as arrays:
        constants = [arrays[name] for name in arrays.files]
    public = [world.attestation, world.challenge]
    for folder in (world.honest, world.bins, world.verdict, world.predictions):
        public += [path for path in folder.rglob("*") if path.is_file()]
    contents = [path.read_bytes() for path in public]
    contents += [base64.b64decode(read_json(world.attestation)["proof"])]
    patterns = []
    for values in (part.ravel() for part in constants if part.size > 1):
        for kind in ("<f4", "<f8", "<i8", "<i4"):
            patterns.append(values[:3].astype(kind).tobytes())
        patterns.append(",".join(str(int(v)) for v in values[:3]).encode())
    own = b"".join(path.read_bytes() for path in private.iterdir() if path.suffix != ".pk")
    assert any(pattern in own for pattern in patterns)  # they are found where they are
    for content in contents:
        assert not any(pattern in content for pattern in patterns)


def test_the_point_of_a_commitment_depends_on_salt_and_weights_and_keys_do_not(world):
    other = load_commitment(world.dishonest)
    assert other.point != world.committed.point
    assert other.record["keys"] == world.committed.record["keys"]


def test_the_same_model_is_never_committed_to_by_the_same_numbers(world, monkeypatch):
    written = []

    def keep(shape, network):
        written.append(original(shape, network))
        raise RuntimeError("enough")

    original = committing._constants
    monkeypatch.setattr(committing, "_constants", keep)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="enough"):
            commit(
                world.model, world.X, world.folder / "again", srs=world.committed.srs, **COMMITTED
            )
    first, second = written
    for a, b in zip(first[:2], second[:2], strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(first[2:], second[2:], strict=True):
        assert (a != b).mean() > 0.99
    assert not (world.folder / "again" / "private").exists()


def test_committing_twice_to_one_folder_is_refused(world):
    with pytest.raises(FileExistsError, match="holds a commitment already; name another folder"):
        commit(world.model, world.X, world.honest.parent, **COMMITTED)
    assert load_commitment(world.honest).point == world.committed.point


def no_setup(*_):
    raise AssertionError("a key was made")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_memory": 0.1}, r"too large: \d+ numbers .* max_memory=0.1 GiB"),
        ({"n_proofs": 10**6}, r"too large: \d+ numbers to commit to need at least"),
        ({"tolerance": 1e-5}, "cannot be kept within tolerance=1e-05"),
        ({"tolerance": 0}, r"`tolerance` must be in \(0, 1\), got 0"),
        ({"n_bins": 0}, "`n_bins` must be an integer of at least 1, got 0"),
        ({"n_proofs": 1.5}, "`n_proofs` must be an integer of at least 1, got 1.5"),
        ({"verdict_samples": -1}, "`verdict_samples` must be an integer of at least 0"),
    ],
)
def test_what_cannot_be_committed_to_is_refused_before_any_key_is_made(
    world, tmp_path, monkeypatch, settings, message
):
    monkeypatch.setattr(backend, "setup", no_setup)
    with pytest.raises(ValueError, match=message):
        commit(world.model, world.X, tmp_path / "out", **{**COMMITTED, **settings})
    assert not (tmp_path / "out").exists()


def test_a_reference_string_that_is_no_file_is_refused(world, tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "setup", no_setup)
    with pytest.raises(ValueError, match="reference string cannot be read"):
        commit(world.model, world.X, tmp_path, srs=tmp_path / "none", **COMMITTED)


def test_without_the_proof_system_the_extra_is_named(world, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ezkl", None)
    for call in (
        lambda: commit(world.model, world.X, tmp_path / "out"),
        lambda: verified(world, "bins"),
        lambda: check(world.attestation, world.honest),
        lambda: attest(world.honest, world.X_ref[0], tmp_path / "a.json"),
    ):
        with pytest.raises(ImportError, match=r"pip install 'skuq\[zk\]'"):
            call()


# Honest audits


@pytest.mark.parametrize("level", LEVELS)
def test_an_honest_audit_passes(world, level):
    result = verified(world, level, alpha=ALPHA, n_bins=N_BINS)
    assert result.passed
    assert result.robust
    assert result.level == level
    assert result.n_proofs == {"bins": 2, "verdict": 3, "predictions": 1}[level]
    assert result.statement["n_samples"] == N
    assert any("generated locally by the provider" in note for note in result.notes)
    assert json.loads(json.dumps(result.as_record()))["passed"] is True


@pytest.mark.parametrize("level", ["bins", "predictions"])
def test_proven_sums_are_those_of_an_audit_in_the_open(world, level):
    sums = verified(world, level).sums
    labels, confidence = reported_predictions(world.honest, world.X_ref)
    classes = world.model.classes_
    proba = np.where(labels[:, None] == classes, confidence[:, None], (1 - confidence[:, None]) / 2)
    audit = CalibrationAuditor.from_predictions(
        world.y_ref, proba, classes=classes, n_bins=N_BINS, strategy="uniform"
    )
    np.testing.assert_array_equal(sums.count, audit.sums_.count)
    np.testing.assert_array_equal(sums.correct, audit.sums_.correct)
    np.testing.assert_allclose(
        sums.confidence / sums.scale, audit.sums_.confidence / audit.sums_.scale, atol=1e-6
    )
    assert (sums.count > 0).sum() >= 2
    assert sums.count.sum() == N


def test_a_verdict_reveals_no_sums(world):
    result = verified(world, "verdict")
    assert result.sums is None
    assert result.judgement is None
    assert "bins" not in result.as_record()
    plain = verified(world, "bins").sums
    chunks = [read_json(path)["outputs"] for path in (world.verdict / "chunks").iterdir()]
    assert min(abs(int(v)) for outputs in chunks for v in outputs) > 2**40
    assert int(plain.confidence.sum()) < 2**40


def test_the_sample_that_was_proven_is_named_with_what_it_misses(world):
    notes = " ".join(verified(world, "predictions").notes)
    assert "22 of 50 reported predictions were proven" in notes
    assert "5 % but with probability 0.32" in notes


def test_a_model_that_shrinks_its_confidence_fails(world):
    result = verify(world.shrunk, *world.few, world.dishonest, keys=world.keys)
    assert not result.passed
    assert result.judgement.bins.direction[0] == "underconfident"
    sums = result.sums
    assert sums.correct[0] / sums.count[0] > sums.confidence[0] / sums.count[0] / ONE + 0.3


def test_another_tolerance_for_chance_than_was_asked_is_refused(world):
    assert verified(world, "bins", confidence_level=0.95).passed
    for level in (0.5, None):
        with pytest.raises(Refused, match=f"confidence_level=0.95, asked was {level}"):
            verified(world, "bins", confidence_level=level)


def test_keys_are_made_once(world, monkeypatch):
    verified(world, "bins")
    check(world.attestation, world.honest, keys=world.keys)
    monkeypatch.setattr(backend, "setup", no_setup)
    assert verified(world, "bins").passed
    assert check(world.attestation, world.honest, keys=world.keys).label in "xyz"
    with pytest.raises(AssertionError, match="a key was made"):
        verify(world.bins, world.X_ref, world.y_ref, world.honest)


# The provider


def test_an_interrupted_audit_goes_on_where_it_was(world):
    assert len(world.calls) == 2
    assert set(world.left) == {"statement.json", "00000.json"}
    for name in ("statement.json", "chunks/00000.json"):
        assert (world.bins / name).read_bytes() == world.left[name.split("/")[-1]]
    assert world.bundle == (world.bins, 2, True)


@pytest.mark.parametrize("level", ["bins", "verdict"])
def test_a_finished_audit_is_not_made_again(world, monkeypatch, level):
    def never(*_, **__):
        raise AssertionError("a proof was made")

    monkeypatch.setattr(backend, "prove", never)
    ledger = (world.honest.parent / "private" / "ledger.json").read_bytes()
    arguments = {"alpha": ALPHA, "n_bins": N_BINS, "disclose": level}
    prove(world.honest, world.X_ref, world.y_ref, getattr(world, level), **arguments)
    assert (world.honest.parent / "private" / "ledger.json").read_bytes() == ledger


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (N, {"alpha": 0.2}),
        (N, {"n_bins": 3}),
        (N, {"confidence_level": None}),
        (N, {"disclose": "verdict"}),
        (N - 1, {}),
    ],
)
def test_another_audit_into_the_same_folder_is_refused(world, rows, settings):
    before = {path: path.read_bytes() for path in world.bins.rglob("*") if path.is_file()}
    arguments = {"alpha": ALPHA, "n_bins": N_BINS, **settings}
    pads = (world.honest.parent / "private" / "ledger.json").read_bytes()
    with pytest.raises(ValueError, match="holds another audit; name another folder"):
        prove(world.honest, world.X_ref[:rows], world.y_ref[:rows], world.bins, **arguments)
    assert (world.honest.parent / "private" / "ledger.json").read_bytes() == pads
    assert {p: p.read_bytes() for p in world.bins.rglob("*") if p.is_file()} == before


def test_confidences_that_were_reported_of_other_data_are_not_proven(world, monkeypatch):
    def never(*_, **__):
        raise AssertionError("a proof was made")

    monkeypatch.setattr(backend, "witness", never)
    other = world.folder / "other"
    arguments = {"disclose": "predictions", "alpha": ALPHA, "n_bins": N_BINS, **SAMPLE}
    prove(world.honest, world.X_ref, world.y_ref, other, **arguments)
    challenge = make_challenge(other, world.folder / "other.json")
    with pytest.raises(ValueError, match=r"another audit|other reported confidences"):
        prove(
            world.honest,
            world.X_ref[::-1],
            world.y_ref[::-1],
            other,
            challenge=challenge,
            **arguments,
        )


def test_an_audit_of_predictions_waits_for_its_challenge(world):
    assert world.waiting == (world.predictions, 0, False)


def test_a_challenge_to_other_reports_is_refused(world, tmp_path):
    write_json(tmp_path / "c.json", {"reported": "0" * 64, "nonce": "1"})
    with pytest.raises(ValueError, match="answers other reported confidences"):
        prove(
            world.honest,
            world.X_ref,
            world.y_ref,
            world.predictions,
            disclose="predictions",
            alpha=ALPHA,
            n_bins=N_BINS,
            challenge=tmp_path / "c.json",
        )
    with pytest.raises(Refused, match=r"reported.json is missing"):
        make_challenge(world.bins, tmp_path / "d.json")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -0.1}, r"`alpha` must be in \[0, 1\], got -0.1"),
        ({"n_bins": 5}, "between 1 and the committed 4, got 5"),
        ({"n_bins": 0}, "between 1 and the committed 4, got 0"),
        ({"confidence_level": 1.0}, r"`confidence_level` must be in \(0, 1\) or None"),
        ({"disclose": "nothing"}, "must be one of verdict, bins, predictions, got 'nothing'"),
        ({"disclose": "verdict", "alpha": 0.0505}, "alpha is a multiple of .001, got 0.0505"),
        ({"X_ref": np.full((N, 2), 1e6)}, "Feature 0 is 1e.06 in row 0, outside the committed"),
        ({"y_ref": ["w"] * N}, r"not among the classes: \['w'\] not in \['x', 'y', 'z'\]"),
        ({"y_ref": ["x"]}, "There are 50 inputs and 1 labels"),
        ({"X_ref": np.zeros((1, 2)), "y_ref": ["x"]}, "1 reference samples are too few for 4"),
    ],
)
def test_an_audit_that_cannot_be_made_is_refused(world, tmp_path, settings, message):
    arguments = {"X_ref": world.X_ref, "y_ref": world.y_ref, "n_bins": N_BINS, **settings}
    with pytest.raises(ValueError, match=message):
        prove(world.honest, out=tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_what_is_no_challenge_is_refused(world, tmp_path):
    write_json(tmp_path / "c.json", {"reported": digest_file(world.predictions / REPORTED)})
    with pytest.raises(ValueError, match="nonce"):
        prove(
            world.honest,
            world.X_ref,
            world.y_ref,
            world.predictions,
            disclose="predictions",
            alpha=ALPHA,
            n_bins=N_BINS,
            challenge=tmp_path / "c.json",
        )


def test_verdicts_need_pads_and_each_serves_once(world, tmp_path):
    with pytest.raises(RuntimeError, match="needs 2 pads, and 0 of 2 are left"):
        prove(world.honest, world.X_ref, world.y_ref, tmp_path, n_bins=N_BINS, disclose="verdict")
    assert not (tmp_path / "statement.json").exists()


@pytest.fixture
def ledger(world):
    """The provider's ledger, put back after the test."""
    path = world.honest.parent / "private" / "ledger.json"
    before = path.read_bytes()
    yield path
    path.write_bytes(before)


def test_proofs_beyond_those_committed_to_are_refused(world, tmp_path, ledger):
    write_json(ledger, {"proofs": 16, "pads": 2})
    with pytest.raises(RuntimeError, match="All n_proofs=16 proofs of this commitment are made"):
        attest(world.honest, world.X_ref[0], tmp_path / "a.json")
    assert not (tmp_path / "a.json").exists()


def test_every_proof_that_was_begun_is_counted(world, ledger):
    # bins 2 and the interrupted one, verdict 3, its other proof, predictions, attestation.
    assert read_json(ledger) == {"proofs": 9, "pads": 2}


def test_a_proof_that_takes_too_long_is_stopped_and_counted(world, tmp_path, ledger):
    before = read_json(ledger)["proofs"]
    with pytest.raises(ProofSystemError, match=r"did not finish 'prove' within 0.01 s"):
        attest(world.honest, world.X_ref[0], tmp_path / "a.json", timeout=0.01)
    assert not (tmp_path / "a.json").exists()
    assert read_json(ledger)["proofs"] == before + 1


def test_proofs_are_made_where_the_commitment_was_made_only(world, tmp_path):
    shutil.copytree(world.honest, tmp_path / "public")
    with pytest.raises(FileNotFoundError, match="does not hold the provider's keys"):
        attest(tmp_path / "public", world.X_ref[0], tmp_path / "a.json")


# Predictions


def test_a_prediction_is_proven(world):
    found = check(world.attestation, world.honest, x=world.X_ref[0], nonce="mine", keys=world.keys)
    labels, confidence = reported_predictions(world.honest, world.X_ref[:1])
    assert (found.label, found.confidence) == (labels[0], confidence[0])
    assert found.x == world.X_ref[0].tolist()
    assert found.statement["nonce"] == "mine"


def test_a_prediction_for_another_input_or_nonce_is_refused(world):
    with pytest.raises(Refused, match="about another input"):
        check(world.attestation, world.honest, x=world.X_ref[0] + 1e-9, keys=world.keys)
    with pytest.raises(Refused, match="about another input"):
        check(world.attestation, world.honest, x=world.X_ref[:1], keys=world.keys)
    with pytest.raises(Refused, match="answers another nonce; it may be an older one"):
        check(world.attestation, world.honest, nonce="yours", keys=world.keys)
    with pytest.raises(Refused, match="another commitment than the published one"):
        check(world.attestation, world.dishonest, keys=world.keys)


@pytest.mark.parametrize("x", [[[0.0, 0.0]], 0.0])
def test_an_input_of_another_shape_is_refused(world, tmp_path, x):
    with pytest.raises(ValueError, match=r"`x` must have shape \(n_features,\)"):
        attest(world.honest, x, tmp_path / "a.json")


# What must be refused: clumsy changes, which the manifest tells


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("level", LEVELS)
def test_a_flipped_byte_in_any_file_of_an_audit_is_refused(world, tmp_path, level):
    names = [path.relative_to(getattr(world, level)) for path in files_of(getattr(world, level))]
    assert len(names) >= 4
    for k, name in enumerate(names):
        for position in (0, 100, -3):
            bundle = shutil.copytree(getattr(world, level), tmp_path / f"{k} {position}")
            flip(bundle / name, position)
            with pytest.raises(Refused, match=r"manifest|was changed|is missing"):
                verified(world, level, bundle)


def test_a_flipped_byte_in_any_public_file_is_refused(world, tmp_path):
    for path in files_of(world.honest):
        public = shutil.copytree(world.honest, tmp_path / path.name)
        flip(public / path.name, 50)
        with pytest.raises(Refused, match=r"manifest|was changed|is missing"):
            verified(world, "bins", commitment=public)


@pytest.mark.parametrize("level", LEVELS)
def test_a_missing_or_additional_file_is_refused(world, tmp_path, level):
    for k, path in enumerate(files_of(getattr(world, level))):
        bundle = shutil.copytree(getattr(world, level), tmp_path / str(k))
        (bundle / path.relative_to(getattr(world, level))).unlink()
        with pytest.raises(Refused, match="is missing"):
            verified(world, level, bundle)
    bundle = shutil.copytree(getattr(world, level), tmp_path / "more")
    (bundle / "more.json").write_text("{}")
    with pytest.raises(Refused, match=r"more.json is not in the manifest"):
        verified(world, level, bundle)


def test_flipped_bytes_of_an_attestation_are_refused(world, tmp_path):
    size = world.attestation.stat().st_size
    # Each second character of the statement, some of the proof.
    text = world.attestation.read_bytes()
    start = text.index(b'"statement"')
    for position in [*range(12, start - 30, 397), *range(start, size, 2)]:
        path = tmp_path / "a.json"
        path.write_bytes(text)
        flip(path, position)
        with pytest.raises(Refused, match=r"."):
            check(path, world.honest, keys=world.keys)


# What must be refused: clever changes, whose manifest was written again


def changed(path, **entries):
    record = read_json(path)
    assert any(record.get(name) != value for name, value in entries.items())
    write_json(path, {**record, **entries})


def without(path, name):
    record = read_json(path)
    del record[name]
    path.write_text(json.dumps(record))


STATEMENT = {
    "alpha": [0.2, 0.099, 1.5, "0.1", 1],
    "n_bins": [3, 1, 0, 5, 4.0, True],
    "confidence_level": [0.5, None, 2.0, "0.95"],
    "n_samples": [51, 49, 0, None, "50"],
    "reference": ["0" * 64, "", 7],
    "commitment": ["0" * 64, None],
    "level": ["nothing", "attestation", None],
    "versions": [{}, [], None, {"ezkl": "0.0.1"}, {"ezkl": backend.version(), "skuq": "0"}],
    "format": [2, "1", True],
    "anything": [1, None],
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", STATEMENT)
def test_a_changed_statement_is_refused(world, tmp_path, level, name):
    others = list(STATEMENT[name])
    if name == "level":
        others += [other for other in LEVELS if other != level]
    for k, value in enumerate(others):
        bundle = shutil.copytree(getattr(world, level), tmp_path / str(k))
        path = bundle / "statement.json"
        before = path.read_bytes()
        write_json(path, {**read_json(path), name: value})
        assert path.read_bytes() != before
        write_manifest(bundle)
        with pytest.raises(Refused, match=r"."):
            verified(world, level, bundle)


@pytest.mark.parametrize("level", LEVELS)
def test_a_statement_that_lacks_an_entry_is_refused(world, tmp_path, level):
    for name in read_json(getattr(world, level) / "statement.json"):
        bundle = shutil.copytree(getattr(world, level), tmp_path / name)
        without(bundle / "statement.json", name)
        write_manifest(bundle)
        with pytest.raises(Refused, match=r"."):
            verified(world, level, bundle)


@pytest.mark.parametrize("level", LEVELS)
def test_a_statement_with_an_infinite_number_is_refused(world, tmp_path, level):
    bundle = shutil.copytree(getattr(world, level), tmp_path / "bundle")
    path = bundle / "statement.json"
    path.write_text(path.read_text().replace("{", '{"more":1e999,', 1))
    write_manifest(bundle)
    with pytest.raises(Refused, match=r"."):
        verified(world, level, bundle)


@pytest.mark.parametrize("level", LEVELS)
def test_a_number_of_samples_that_is_not_that_of_the_data_is_refused_even_if_proven(
    world, tmp_path, monkeypatch, level
):
    """A provider may well make proofs of a statement that says so."""
    bundle = shutil.copytree(getattr(world, level), tmp_path / "bundle")
    changed(bundle / "statement.json", n_samples=10**6)
    write_manifest(bundle)
    monkeypatch.setattr(backend, "verify", lambda *_: True)
    with pytest.raises(Refused, match=r"number of (reference )?samples"):
        verified(world, level, bundle)


@pytest.mark.parametrize(
    "pads",
    [[1, 0], [0, 0], [0], [0, 2], [0, -1], [0, 1, 1], ["0", "1"], [True, 0], [False, True], 3, []],
)
def test_other_pads_are_refused(world, tmp_path, pads):
    bundle = shutil.copytree(world.verdict, tmp_path / "bundle")
    changed(bundle / "statement.json", pads=pads, nothing=1)
    without(bundle / "statement.json", "nothing")
    write_manifest(bundle)
    with pytest.raises(Refused, match=r"."):
        verified(world, "verdict", bundle)


CHUNK, NEXT = "chunks/00000.json", "chunks/00001.json"


def edit_proof(path, change):
    record = read_json(path)
    proof = change(base64.b64decode(record["proof"]))
    write_json(path, {**record, "proof": base64.b64encode(proof).decode()})


def edit_outputs(path, change):
    record = read_json(path)
    write_json(path, {**record, "outputs": change([int(v) for v in record["outputs"]])})


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


def foreign(w, bundle, head=0):
    """A valid proof of the dishonest model, with the head of the honest one's."""
    mine = base64.b64decode(read_json(bundle / CHUNK)["proof"])
    other = base64.b64decode(read_json(w.shrunk / CHUNK)["proof"])
    text = base64.b64encode(mine[:head] + other[head:]).decode()
    changed(bundle / CHUNK, proof=text)


CHUNKS = {
    "swapped": swap,
    "twice": lambda w, b: copied(w, b, CHUNK, NEXT),
    "missing": lambda w, b: (b / NEXT).unlink(),
    "no chunks": lambda w, b: shutil.rmtree(b / "chunks"),
    "one more": lambda w, b: copied(w, b, CHUNK, "chunks/00002.json"),
    "a file beside": lambda w, b: (b / "chunks" / "x").write_text(""),
    "count moved": lambda w, b: edit_outputs(b / CHUNK, moved),
    "one output more": lambda w, b: edit_outputs(b / CHUNK, lambda o: [*o, 0]),
    "one output less": lambda w, b: edit_outputs(b / CHUNK, lambda o: o[:-1]),
    "no outputs": lambda w, b: edit_outputs(b / CHUNK, lambda o: []),
    "outputs of the field": lambda w, b: edit_outputs(
        b / CHUNK, lambda o: [str(v + backend.FIELD) for v in o]
    ),
    "large outputs": lambda w, b: edit_outputs(b / CHUNK, lambda o: ["9" * 6000, *o[1:]]),
    "no numbers": lambda w, b: edit_outputs(b / CHUNK, lambda o: ["a", *o[1:]]),
    "infinite": lambda w, b: (b / CHUNK).write_text(
        (b / CHUNK).read_text().replace('"outputs":[', '"outputs":[1e999,')
    ),
    "nested outputs": lambda w, b: edit_outputs(b / CHUNK, lambda o: [o]),
    "outputs no list": lambda w, b: changed(b / CHUNK, outputs="1"),
    "no entry": lambda w, b: without(b / CHUNK, "outputs"),
    "no record": lambda w, b: (b / CHUNK).write_text("[]"),
    "flipped proof": lambda w, b: edit_proof(b / CHUNK, lambda p: flipped(p, len(p) // 2)),
    "flipped end": lambda w, b: edit_proof(b / CHUNK, lambda p: flipped(p, -1)),
    "flipped ordinate": lambda w, b: edit_proof(b / CHUNK, lambda p: flipped(p, 40)),
    "flipped sign": lambda w, b: edit_proof(b / CHUNK, lambda p: flipped(p, 63)),
    "truncated proof": lambda w, b: edit_proof(b / CHUNK, lambda p: p[:-32]),
    "head of a proof": lambda w, b: edit_proof(b / CHUNK, lambda p: p[:64]),
    "empty proof": lambda w, b: changed(b / CHUNK, proof=""),
    "no base64": lambda w, b: changed(b / CHUNK, proof="ä"),
    "proof no text": lambda w, b: changed(b / CHUNK, proof=[1]),
    "no proof": lambda w, b: without(b / CHUNK, "proof"),
    "foreign proof": foreign,
    "foreign proof under my point": lambda w, b: foreign(w, b, 64),
    "proof of the next chunk": lambda w, b: changed(b / CHUNK, proof=read_json(b / NEXT)["proof"]),
}


def test_what_follows_a_proof_changes_nothing(world, tmp_path):
    """The proof system does not read it, and the manifest would tell."""
    bundle = shutil.copytree(world.bins, tmp_path / "bundle")
    edit_proof(bundle / CHUNK, lambda proof: proof + bytes(32))
    with pytest.raises(Refused, match="was changed"):
        verified(world, "bins", bundle)
    write_manifest(bundle)
    assert (
        verified(world, "bins", bundle).as_record()
        == verified(world, "bins", world.bins).as_record()
    )


@pytest.mark.parametrize(
    "tampering",
    CHUNKS,
)
@pytest.mark.parametrize("level", ["bins", "verdict"])
def test_changed_chunks_are_refused(world, tmp_path, level, tampering):
    bundle = shutil.copytree(getattr(world, level), tmp_path / "bundle")
    CHUNKS[tampering](world, bundle)
    write_manifest(bundle)
    with pytest.raises(Refused, match=r"."):
        verified(world, level, bundle)


def test_the_proof_of_another_model_is_named(world, tmp_path):
    bundle = shutil.copytree(world.bins, tmp_path / "bundle")
    foreign(world, bundle)
    write_manifest(bundle)
    with pytest.raises(Refused, match="its commitment is not the published one"):
        verified(world, "bins", bundle)


VERDICT = "verdict.json"
VERDICTS = {
    "flag": lambda w, b: changed(b / VERDICT, outputs=["1", "-1", "1"]),
    "all flags": lambda w, b: changed(b / VERDICT, outputs=["-1", "-1", "-1"]),
    "no flag": lambda w, b: changed(b / VERDICT, outputs=["0", "1", "1"]),
    "few flags": lambda w, b: changed(b / VERDICT, outputs=["1"]),
    "other alpha": lambda w, b: write_json(b / VERDICT, w.other_verdict),
    "other alpha, stated": lambda w, b: (
        write_json(b / VERDICT, w.other_verdict),
        changed(b / "statement.json", alpha=0.2),
    ),
    "proof of a chunk": lambda w, b: changed(b / VERDICT, proof=read_json(b / CHUNK)["proof"]),
    "missing": lambda w, b: (b / VERDICT).unlink(),
    "no record": lambda w, b: (b / VERDICT).write_text("[]"),
    "no proof": lambda w, b: changed(b / VERDICT, proof=""),
    "chunks of the other level": lambda w, b: (
        shutil.rmtree(b / "chunks"),
        shutil.copytree(w.bins / "chunks", b / "chunks"),
    ),
}


@pytest.mark.parametrize("tampering", VERDICTS)
def test_changed_verdicts_are_refused(world, tmp_path, tampering):
    bundle = shutil.copytree(world.verdict, tmp_path / "bundle")
    VERDICTS[tampering](world, bundle)
    write_manifest(bundle)
    with pytest.raises(Refused, match=r"."):
        verified(world, "verdict", bundle)


REPORTED = "reported.json"


def report(bundle, row, *, confidence=None, label=None, stated=True):
    """Change one report, and state its new hash."""
    record = read_json(bundle / REPORTED)
    if confidence is not None:
        record["confidence"][row] = confidence
    if label is not None:
        record["label"][row] = label
    write_json(bundle / REPORTED, record)
    if stated:
        changed(bundle / "statement.json", reported=digest_file(bundle / REPORTED))


def report_raw(bundle, text):
    (bundle / REPORTED).write_text(text)
    changed(bundle / "statement.json", reported=digest_file(bundle / REPORTED))


REPORTS = {
    "changed": lambda w, b: report(b, 0, confidence=9000, stated=False),
    "changed and stated": lambda w, b: report(b, 0, confidence=9000),
    "other label": lambda w, b: report(b, 0, label=(read_json(b / REPORTED)["label"][0] + 1) % 3),
    "nonce": lambda w, b: changed(b / "statement.json", nonce="0" * 32),
    "fewer proven": lambda w, b: changed(b / "statement.json", n_proven=21),
    "more proven": lambda w, b: changed(b / "statement.json", n_proven=30),
    "none proven": lambda w, b: changed(b / "statement.json", n_proven=0),
    "all proven": lambda w, b: changed(b / "statement.json", n_proven=51),
    "no number proven": lambda w, b: changed(b / "statement.json", n_proven="22"),
    "missing": lambda w, b: (b / REPORTED).unlink(),
    "outputs": lambda w, b: edit_outputs(b / CHUNK, lambda o: [o[0] - 1, *o[1:]]),
}


@pytest.mark.parametrize("tampering", REPORTS)
def test_changed_reports_are_refused(world, tmp_path, tampering):
    bundle = shutil.copytree(world.predictions, tmp_path / "bundle")
    REPORTS[tampering](world, bundle)
    write_manifest(bundle)
    with pytest.raises(Refused, match=r"."):
        verified(world, "predictions", bundle)


@pytest.mark.parametrize(
    "tampering",
    [
        lambda b: report(b, 0, confidence=9000),
        lambda b: report(b, 0, confidence=0),
        lambda b: report(b, 0, confidence=ONE + 1),
        lambda b: report(b, 0, confidence=10**30),
        lambda b: report(b, 0, confidence="a"),
        lambda b: report(b, 0, confidence=[1]),
        lambda b: report(b, 0, label=3),
        lambda b: report(b, 0, label=-1),
        lambda b: report_raw(b, "[]"),
        lambda b: report_raw(b, "{}"),
        lambda b: report_raw(b, '{"label":[],"confidence":[]}'),
        lambda b: report_raw(b, '{"label":[0],"confidence":[9000]}'),
        lambda b: report_raw(b, '{"label":[1e999],"confidence":[9000]}'),
    ],
)
def test_reports_that_were_changed_before_the_challenge_are_refused(world, tmp_path, tampering):
    """The challenge answers the changed reports, so that only the proofs can tell."""
    bundle = shutil.copytree(world.predictions, tmp_path / "bundle")
    tampering(bundle)
    asked = {**read_json(world.challenge), "reported": digest_file(bundle / REPORTED)}
    write_json(tmp_path / "challenge.json", asked)
    write_manifest(bundle)
    with pytest.raises(Refused, match=r"."):
        verified(world, "predictions", bundle, challenge=tmp_path / "challenge.json")


def test_a_false_report_among_the_proven_is_named_when_all_else_holds(world, monkeypatch, tmp_path):
    """Were the proofs fresh ones of the false report, its row would give it away."""
    bundle = shutil.copytree(world.predictions, tmp_path / "bundle")
    statement = read_json(bundle / "statement.json")
    row = int(provider.chosen_rows(statement, N, 22)[5])
    report(bundle, row, confidence=9000)
    asked = {**read_json(world.challenge), "reported": digest_file(bundle / REPORTED)}
    write_json(tmp_path / "challenge.json", asked)
    write_manifest(bundle)
    monkeypatch.setattr(auditor, "chosen_rows", lambda *_: provider.chosen_rows(statement, N, 22))
    monkeypatch.setattr(backend, "verify", lambda *_: True)
    with pytest.raises(Refused, match=f"The reported confidence of row {row} is not the model's"):
        verified(world, "predictions", bundle, challenge=tmp_path / "challenge.json")


def test_an_audit_of_reports_needs_the_auditors_own_challenge(world, tmp_path):
    with pytest.raises(Refused, match="needs the auditor's own challenge"):
        verified(world, "predictions", challenge=None)
    again = make_challenge(world.predictions, tmp_path / "again.json")
    assert read_json(again)["nonce"] != read_json(world.challenge)["nonce"]
    with pytest.raises(Refused, match="answers another challenge; it may be an older one"):
        verified(world, "predictions", challenge=again)
    again.unlink()
    with pytest.raises(Refused, match=r"again.json is missing"):
        verified(world, "predictions", challenge=again)


def test_fewer_proofs_of_predictions_than_needed_are_refused(world):
    with pytest.raises(Refused, match="22 predictions were proven, 50 of 50 are needed"):
        verified(world, "predictions", false_share=0.02, error=0.01)


# What must be refused: other data, other questions


def test_an_audit_of_other_data_is_refused(world):
    for level in LEVELS:
        labels = world.y_ref.copy()
        labels[7] = "x" if labels[7] != "x" else "y"
        features = world.X_ref.copy()
        features[7, 1] += 0.5
        for settings in (
            {"y": labels},
            {"X": features},
            {"X": world.X_ref[::-1], "y": world.y_ref[::-1]},
            {"X": world.X_ref[:-1], "y": world.y_ref[:-1]},
        ):
            with pytest.raises(Refused, match="about other reference data than these"):
                verified(world, level, **settings)


def test_an_audit_of_other_data_whose_hash_was_stated_is_refused(world, tmp_path):
    labels = world.y_ref.copy()
    labels[7] = "x" if labels[7] != "x" else "y"
    other = reference_digest(
        *encoded(world.committed.encoding, world.committed.classes, world.X_ref, labels)
    )
    for level in LEVELS:
        bundle = shutil.copytree(getattr(world, level), tmp_path / level)
        changed(bundle / "statement.json", reference=other)
        write_manifest(bundle)
        with pytest.raises(Refused, match="does not hold for this statement"):
            verified(world, level, bundle, y=labels)


@pytest.mark.parametrize("level", LEVELS)
def test_another_question_than_was_asked_is_refused(world, level):
    with pytest.raises(Refused, match=r"about alpha=0.1, asked was 0.05"):
        verified(world, level, alpha=0.05)
    with pytest.raises(Refused, match=r"about n_bins=4, asked was 10"):
        verified(world, level, n_bins=10)


def test_an_audit_of_another_commitment_is_refused(world):
    with pytest.raises(Refused, match="another commitment than the published one"):
        verified(world, "bins", commitment=world.dishonest)
    with pytest.raises(Refused, match="another commitment than the published one"):
        verify(world.shrunk, *world.few, world.honest, keys=world.keys)


# What must be refused: another commitment, with the audit made to fit


def edit(record, *path, value):
    for name in path[:-1]:
        record = record[name]
    record[path[-1]] = value


COMMITMENTS = {
    "point": lambda r: edit(r, "commitment", value="0" * 64),
    "classes": lambda r: edit(r, "classes", value=["y", "x", "z"]),
    "fewer classes": lambda r: edit(r, "classes", value=["x", "y"]),
    "nested classes": lambda r: edit(r, "classes", value=[["x"], ["y"], ["z"]]),
    "key": lambda r: edit(r, "keys", "bins", value="0" * 64),
    "no keys": lambda r: r.pop("keys"),
    "keys no record": lambda r: edit(r, "keys", value=[]),
    "no key": lambda r: r["keys"].pop("bins"),
    "reference string": lambda r: edit(r, "reference_string", "sha256", value="0" * 64),
    "no reference string": lambda r: r.pop("reference_string"),
    "centre": lambda r: edit(r, "encoding", "columns", 0, 1, value=9.0),
    "bits": lambda r: edit(r, "encoding", "bits", value=7),
    "no columns": lambda r: edit(r, "encoding", "columns", value=[]),
    "negative scale": lambda r: edit(r, "encoding", "columns", 0, 2, value=-1.0),
    "rows": lambda r: edit(r, "architecture", "rows", value=40),
    "no points": lambda r: edit(r, "architecture", "points", value={}),
    "points no record": lambda r: edit(r, "architecture", "points", value=3),
    "unknown circuit": lambda r: edit(r, "architecture", "points", "x", value=3),
    "no widths": lambda r: edit(r, "architecture", "widths", value=[]),
    "widths no list": lambda r: edit(r, "architecture", "widths", value=None),
    "words for numbers": lambda r: edit(r, "architecture", "digits", value="three"),
    "no architecture": lambda r: r.pop("architecture"),
    "tolerance": lambda r: edit(r, "tolerance", value=0.5),
    "tolerance no number": lambda r: edit(r, "tolerance", value="0.02"),
    "format": lambda r: edit(r, "format", value=0),
    "version": lambda r: edit(r, "versions", "ezkl", value="0.0.1"),
    "no versions": lambda r: edit(r, "versions", value=[]),
    "proofs": lambda r: edit(r, "n_proofs", value=10**6),
    "agreement": lambda r: edit(r, "agreement", value=None),
    "source": lambda r: edit(r, "reference_string", "source", value="a ceremony"),
}
COSTLY = {  # another verifying key is made to find out
    "digits": lambda r: edit(r, "architecture", "digits", value=3),
}


def altered(world, tmp_path, change, fitted):
    """A changed commitment and, if fitted, an audit that states it."""
    public = shutil.copytree(world.honest, tmp_path / "public")
    bundle = shutil.copytree(world.bins, tmp_path / "bundle")
    record = read_json(public / "commitment.json")
    change(record)
    assert record != world.committed.record
    write_json(public / "commitment.json", record)
    write_manifest(public)
    if fitted:
        changed(bundle / "statement.json", commitment=digest(record))
        write_manifest(bundle)
    return public, bundle


@pytest.mark.parametrize("tampering", COMMITMENTS)
def test_a_changed_commitment_is_refused(world, tmp_path, tampering):
    public, bundle = altered(world, tmp_path, COMMITMENTS[tampering], False)
    with pytest.raises(Refused, match=r"."):
        verified(world, "bins", bundle, commitment=public)


@pytest.mark.parametrize("tampering", COMMITMENTS)
def test_a_changed_commitment_is_refused_also_with_an_audit_that_fits_it(
    world, tmp_path, tampering
):
    public, bundle = altered(world, tmp_path, COMMITMENTS[tampering], True)
    with pytest.raises(Refused, match=r"."):
        verified(world, "bins", bundle, commitment=public)


@pytest.mark.parametrize("tampering", COSTLY)
def test_a_commitment_whose_circuit_is_another_is_refused(world, tmp_path, tampering):
    public, bundle = altered(world, tmp_path, COSTLY[tampering], True)
    with pytest.raises(Refused, match="does not follow from the public architecture"):
        verify(bundle, world.X_ref, world.y_ref, public)


def test_a_commitment_of_another_version_is_refused_and_the_version_named(world, tmp_path):
    public, _ = altered(world, tmp_path, COMMITMENTS["version"], True)
    with pytest.raises(Refused, match=r"made with ezkl 0.0.1, but .* pip install ezkl==0.0.1"):
        load_commitment(public)


@pytest.mark.parametrize("name", ["srs", "commitment.json"])
def test_a_commitment_that_lacks_a_file_is_refused(world, tmp_path, name):
    public = shutil.copytree(world.honest, tmp_path / "public")
    (public / name).unlink()
    write_manifest(public)
    with pytest.raises(Refused, match=f"{name} is missing"):
        load_commitment(public)


def test_another_reference_string_is_refused(world, tmp_path):
    public = shutil.copytree(world.honest, tmp_path / "public")
    flip(public / "srs", 1000)
    write_manifest(public)
    with pytest.raises(Refused, match="not the one that was committed to"):
        load_commitment(public)


def test_there_is_no_key_of_a_circuit_that_was_not_committed_to(world):
    with (
        pytest.raises(Refused, match="no circuit for 'other'"),
        verifying_key(world.committed, "other", world.keys),
    ):
        raise AssertionError("a key was found")


# What must be refused: attestations


def attested(name, value):
    def change(record, w):
        record["statement"][name] = value

    return change


ATTESTATIONS = {
    "label": lambda r, w: edit(r, "statement", "label", value=(r["statement"]["label"] + 1) % 3),
    "confidence": lambda r, w: edit(
        r, "statement", "confidence", value=r["statement"]["confidence"] - 1
    ),
    "impossible label": attested("label", 3),
    "huge label": attested("label", 10**40),
    "label no number": attested("label", True),
    "impossible confidence": attested("confidence", 0),
    "confidence above one": attested("confidence", ONE + 1),
    "x": lambda r, w: edit(r, "statement", "x", value=w.X_ref[1].tolist()),
    "x outside": attested("x", [1e9, 0.0]),
    "x in words": attested("x", ["1.0", "2.0"]),
    "x nested": attested("x", [[1.0, 2.0]]),
    "x ragged": attested("x", [[1.0], 2.0]),
    "x of nothing": attested("x", []),
    "x null": attested("x", [None, None]),
    "x record": attested("x", [{}, {}]),
    "nonce": attested("nonce", "yours"),
    "commitment": attested("commitment", "0" * 64),
    "level": attested("level", "bins"),
    "format": attested("format", 2),
    "versions": attested("versions", {"ezkl": "0.0.1"}),
    "versions no record": attested("versions", []),
    "versions null": attested("versions", None),
    "other skuq": attested("versions", {"ezkl": backend.version(), "skuq": "0"}),
    "anything": attested("anything", 1),
    "statement no record": lambda r, w: edit(r, "statement", value=[]),
    "no statement": lambda r, w: r.pop("statement"),
    "no proof": lambda r, w: r.pop("proof"),
    "empty proof": lambda r, w: edit(r, "proof", value=""),
    "half a proof": lambda r, w: edit(r, "proof", value=r["proof"][: len(r["proof"]) // 8 * 4]),
    "proof of an audit": lambda r, w: edit(
        r, "proof", value=read_json(w.predictions / CHUNK)["proof"]
    ),
    "proof of other weights": lambda r, w: edit(
        r, "proof", value=read_json(w.shrunk / CHUNK)["proof"]
    ),
}


@pytest.mark.parametrize("tampering", ATTESTATIONS)
def test_a_changed_attestation_is_refused(world, tmp_path, tampering):
    record = read_json(world.attestation)
    ATTESTATIONS[tampering](record, world)
    assert record != read_json(world.attestation)
    (tmp_path / "a.json").write_text(json.dumps(record))
    with pytest.raises(Refused, match=r"."):
        check(tmp_path / "a.json", world.honest, keys=world.keys)


def test_what_is_no_attestation_is_refused(world, tmp_path):
    for text in ("[]", "{", "null", "3"):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(Refused, match=r"a.json"):
            check(tmp_path / "a.json", world.honest, keys=world.keys)
    with pytest.raises(Refused, match=r"b.json is missing"):
        check(tmp_path / "b.json", world.honest, keys=world.keys)
    os.mkdir(tmp_path / "c.json")
    with pytest.raises(Refused, match=r"c.json is damaged"):
        check(tmp_path / "c.json", world.honest, keys=world.keys)
