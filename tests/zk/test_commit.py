"""Commitments: agreement with the model, binding, and nothing secret in public files."""

import base64
import stat
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from skuq.zk import VerificationError, attest, check, commit, load_commitment, reported_predictions
from skuq.zk import _commit as committing
from skuq.zk import _ezkl as backend
from skuq.zk._files import read_json
from skuq.zk._fixed_point import CIRCUITS, MAX_BLOCKS, Architecture
from skuq.zk._keys import make_keys
from tests.zk.tampering import COMMITTED, N, contents_of, files_of, never, verified
from tests.zk.test_fixed_point import random_network


def test_a_commitment_is_as_small_as_it_can_be_and_agrees_with_the_model(run):
    shape = run.committed.shape
    assert (shape.log_rows, shape.circuits, shape.n_pads) == (13, CIRCUITS, 2)
    for circuit in ("bins", "padded_bins"):
        assert N / 2 <= shape.rows_of(circuit) < N  # two chunks
    labels, confidence = reported_predictions(run.public, run.X)
    proba = run.model.predict_proba(run.X)
    np.testing.assert_array_equal(labels, run.model.classes_[proba.argmax(axis=1)])
    np.testing.assert_allclose(confidence, proba.max(axis=1), atol=COMMITTED["max_error"])
    assert run.committed.record["agreement"]["argmax"] == 1.0
    other = load_commitment(run.dishonest)
    assert other.shape == shape
    assert other.point != run.committed.point


def test_nothing_public_holds_a_weight_or_salt(run):
    names = {"commitment.json", "manifest.json", "srs"}
    assert {path.name for path in run.public.iterdir()} == names
    private = run.private
    assert stat.S_IMODE(private.stat().st_mode) & 0o077 == 0  # nobody else may enter
    with np.load(private / "constants.npz") as arrays:
        heads = [arrays[name].ravel()[:3] for name in arrays.files if arrays[name].size > 1]
    kinds = ("<f4", "<f8", "<i8", "<i4")
    patterns = [values.astype(kind).tobytes() for values in heads for kind in kinds]
    patterns += [",".join(str(int(v)) for v in values).encode() for values in heads]
    own = b"".join(path.read_bytes() for path in files_of(private) if path.suffix != ".pk")
    assert any(pattern in own for pattern in patterns)  # they are found where they are
    contents = [run.attestation.read_bytes(), run.challenge.read_bytes()]
    contents.append(base64.b64decode(read_json(run.attestation)["proof"]))
    for folder in (run.public, run.bins, run.verdict, run.predictions):
        contents += contents_of(folder).values()
    assert not any(pattern in content for content in contents for pattern in patterns)


def test_the_same_model_is_never_committed_to_by_the_same_numbers(run, monkeypatch):
    original, written = committing._constants, []

    def keep(shape, network):
        written.append(original(shape, network))
        raise RuntimeError("enough")

    monkeypatch.setattr(committing, "_constants", keep)
    monkeypatch.setattr(backend, "make_reference_string", lambda *_: None)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="enough"):
            commit(run.model, run.X, run.folder / "again", **COMMITTED)
    share_of_others = [(a != b).mean() for a, b in zip(*written, strict=True)]
    assert share_of_others[:2] == [0, 0]  # weights and biases
    assert min(share_of_others[2:]) > 0.99
    assert not (run.folder / "again" / "private").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_memory": 0.1}, r"too large: \d+ committed numbers .* max_memory=0.1 GiB"),
        ({"n_proofs": 10**6}, r"too large: \d+ committed numbers need a circuit of at least"),
        ({"max_error": 1e-5}, "max_error=1e-05"),
        ({"max_error": 0}, "`max_error` must be"),
        ({"n_bins": 0}, "`n_bins` must be"),
        ({"n_proofs": 1.5}, "`n_proofs` must be"),
        ({"verdict_samples": -1}, "`verdict_samples` must be"),
        ({"srs": "none"}, "none"),
    ],
)
def test_what_cannot_be_committed_leaves_no_folder(run, tmp_path, monkeypatch, settings, message):
    monkeypatch.setattr(backend, "setup", never)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        commit(run.model, run.X, tmp_path / "out", **{**COMMITTED, **settings})
    assert not files_of(tmp_path)


@pytest.mark.parametrize("name", ["public/index.html", "private/ledger.json"])
def test_what_was_in_the_folder_before_is_kept_but_an_empty_one_may_be_there(run, tmp_path, name):
    impossible, mine = {**COMMITTED, "max_error": 1e-5}, tmp_path / name
    (tmp_path / "public").mkdir()
    with pytest.raises(ValueError, match="max_error=1e-05"):  # it goes on until here
        commit(run.model, run.X, tmp_path, **impossible)
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match="is not empty"):
        commit(run.model, run.X, tmp_path, **impossible)
    assert mine.read_text(encoding="utf-8") == "mine"


def test_columns_must_be_those_that_the_model_was_fitted_on(run, tmp_path):
    frame = pd.DataFrame(run.X, columns=["income", "age"])
    model = LogisticRegression().fit(frame, run.y)
    with pytest.raises(ValueError, match="in the same order: income, age; got age, income"):
        commit(model, frame[["age", "income"]], tmp_path / "out", **COMMITTED)


@pytest.mark.parametrize("dtype", [bool, "Int64", "boolean"])
def test_columns_may_hold_numbers_of_several_types(run, tmp_path, dtype):
    frame = pd.DataFrame({"x": run.X[:, 0], "above": pd.Series(run.X[:, 1] > 0, dtype=dtype)})
    model = LogisticRegression().fit(frame, run.y)
    with pytest.raises(ValueError, match="cannot be kept within max_error=1e-05"):  # and no more
        commit(model, frame, tmp_path / "out", **{**COMMITTED, "max_error": 1e-5})


def test_the_form_of_a_given_reference_string_is_checked(run, tmp_path, monkeypatch):
    def refuse(*_):
        raise VerificationError("It could open weights.")

    monkeypatch.setattr(backend, "setup", never)
    monkeypatch.setattr(committing, "check_string", refuse)
    with pytest.raises(VerificationError, match="could open weights"):
        commit(run.model, run.X, tmp_path / "out", srs=run.committed.srs, **COMMITTED)
    assert not (tmp_path / "out" / "private").exists()


def test_without_the_proof_system_the_extra_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ezkl", None)
    for call in (
        lambda: commit(run.model, run.X, tmp_path / "out"),
        lambda: verified(run, "bins"),
        lambda: check(run.attestation, run.public, x=run.X_ref[0], nonce="mine"),
        lambda: attest(run.public, run.X_ref[0], tmp_path / "a.json", nonce="mine"),
    ):
        with pytest.raises(ImportError, match=r"pip install 'skuq\[zk\]'"):
            call()


def filled(folder, shape, circuit):
    rows = committing._circuit_rows(folder, circuit, shape, shape.rows_of(circuit))
    return rows / (2**shape.log_rows - backend.BLINDING_ROWS)


def test_a_proof_of_an_audit_has_blocks_for_many_rows_and_an_attestation_has_one(tmp_path):
    network = random_network(np.random.default_rng(0), (2, 60, 2), size=1.5)[1:]
    memories = backend.memory_estimate(13, 1), 8.0
    few, many = (committing.fit_shape(*network, 4, 20, 50, memory) for memory in memories)
    assert few.log_rows == many.log_rows == 13
    for circuit in ("bins", "predictions"):
        assert few.rows_of(circuit) < committing.MANY_ROWS <= many.rows_of(circuit)
        assert 0.9 < filled(tmp_path, few, circuit) <= 1
        blocks = np.ceil(filled(tmp_path, many, circuit))
        assert 1 < blocks <= MAX_BLOCKS
        assert filled(tmp_path, many, circuit) > 0.9 * blocks
    assert filled(tmp_path, many, "attestation") <= 1
    for shape in (few, many):  # more rows per proof need fewer pads
        assert shape.n_pads == -(-50 // shape.rows_of("padded_bins"))


def test_a_verifier_builds_no_more_than_the_largest_number_of_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "compile_circuit", never)
    shape = Architecture((2, 60, 2), 20, 3, 200, 0, 4, 13, {"bins": 120}, {"bins": 3})
    constants = [np.arange(np.prod(s)).reshape(s) for s in shape.shapes]
    with pytest.raises(VerificationError, match="needs more rows"):
        make_keys(tmp_path, "bins", shape, constants, tmp_path / "srs", "")
