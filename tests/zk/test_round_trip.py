"""One small commitment, honest proofs of it, and attacks on what a verifier takes from them.

What the form of a file tells is in ``alterations.json``.
"""

import os
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq.zk import (
    ProofSystemError,
    VerificationError,
    attest,
    challenge,
    check,
    commit,
    load_commitment,
    prove,
    reported_predictions,
)
from skuq.zk import _circuits as circuits
from skuq.zk import _ezkl as backend
from skuq.zk import _keys as keys
from skuq.zk._files import REPORTED, digest, digest_file, read_json, write_json, write_manifest
from skuq.zk._fixed_point import Architecture
from skuq.zk._reference_string import commitment_point, sample_constants
from skuq.zk._results import audited, judged
from skuq.zk._spot_check import check_challenge, chosen_rows
from skuq.zk._statements import AuditStatement
from tests.zk.exchange import ASKED, TEST, N, reuse_keys
from tests.zk.tampering import CHUNK, STATED, changed, edit_outputs, edit_proof, never


def test_a_fresh_audit_verifies(exchange, tmp_path):
    """Its proofs are made here, whatever the cache of the tests holds."""
    asked = {**ASKED, "alpha": 0.25}
    prove(exchange.public, exchange.X, exchange.y, tmp_path / "fresh", level="bins", **asked)
    found = exchange.verify("bins", tmp_path / "fresh", **asked)
    labels, confidence = reported_predictions(exchange.public, exchange.X)
    for each in (found, exchange.verify("bins"), exchange.verify("predictions")):
        assert each.n_proofs == 1
        assert each.sums.count.sum() == N == len(exchange.X)
        assert each.sums.correct.sum() == (labels == exchange.y).sum()
        assert each.sums.confidence.sum() / each.sums.scale == pytest.approx(confidence.sum())
    # Circuits of these proofs overflow a block of columns.
    settings = read_json(exchange.public.parent / "private" / "bins.settings")
    assert 2**13 < settings["num_rows"] <= 2 * 2**13


def published(exchange, folder, change=lambda record: None, string=lambda data: data):
    """The provider's folder with changes, and all hashes made to fit."""
    public = shutil.copytree(exchange.public, folder / "published")
    (public / "srs").write_bytes(string((public / "srs").read_bytes()))
    record = read_json(public / "commitment.json")
    record["reference_string"] = {"sha256": digest_file(public / "srs")}
    change(record)
    write_json(public / "commitment.json", record)
    write_manifest(public)
    return public


def stated_of(exchange, folder, public):
    """The honest audit, whose statement is now about another commitment."""
    bundle = shutil.copytree(exchange.audit("bins"), folder / "bundle")
    changed(bundle / STATED, commitment_digest=digest(read_json(public / "commitment.json")))
    write_manifest(bundle)
    return bundle


def test_a_reference_string_of_unknown_origin_is_not_trusted(exchange, tmp_path):
    with pytest.raises(VerificationError, match="not that of the public ceremony"):
        exchange.verify("bins", allow_test_string=False)
    supplied = shutil.copyfile(exchange.public / "srs", tmp_path / "string")
    found = exchange.verify("bins", allow_test_string=False, srs=supplied)
    assert found.reference_string == found.as_record()["reference_string"] == "supplied"
    sentence = "NOT the public ceremony's string: trusted because you supplied it"
    assert found.as_record()["reference_string_is"] == sentence
    assert f"The reference string is {sentence}." in found.notes
    given = {"x": exchange.X[0], "nonce": "1", "keys": exchange.keys, "srs": supplied}
    assert check(exchange.attestation, exchange.public, **given).reference_string == "supplied"


def test_what_decides_whether_to_believe_never_comes_from_the_provider(exchange, tmp_path):
    """Whose string, key, challenge or list it is would be the provider's choice."""
    public, bundle = exchange.public, shutil.copytree(exchange.audit("bins"), tmp_path / "bundle")
    link, hard, folder = tmp_path / "link", tmp_path / "hard", tmp_path / "folder"
    link.symlink_to(public / "srs")
    os.link(public / "srs", hard)
    folder.symlink_to(public)
    ways = [public / "srs", link, hard, folder / "srs", public / ".." / "public" / "srs"]

    def audit(**theirs):
        exchange.verify("bins", bundle, **theirs)

    def attestation(**theirs):
        given = {"x": exchange.X[0], "nonce": "1", **TEST, **theirs}
        check(exchange.attestation, public, **given)

    for call, names, own in (
        (audit, ["srs", "keys", "challenge"], [bundle / STATED, bundle]),
        (attestation, ["srs", "keys"], [exchange.attestation]),
    ):
        for name in names:
            for path in [*ways, *own]:
                with pytest.raises(ValueError, match=f"`{name}` must not be in"):
                    call(**{name: path})
    for out in (bundle / "challenge.json", public / "challenge.json"):
        with pytest.raises(ValueError, match="`out` must not be in"):
            challenge(bundle, public, exchange.X, exchange.y, out)
        assert not out.exists()


@pytest.mark.parametrize("n_bytes", [1, 30_000])
def test_what_follows_a_proof_is_refused_before_any_work(exchange, tmp_path, monkeypatch, n_bytes):
    """Many files would pass for one proof, and 30 MB of noise took 8 s."""
    bundle = shutil.copytree(exchange.audit("bins"), tmp_path / "bundle")
    edit_proof(bundle / CHUNK, lambda proof: proof + bytes(n_bytes))
    write_manifest(bundle)
    monkeypatch.setattr(backend, "verify", never)
    with pytest.raises(VerificationError, match="longer than its verifying key allows"):
        exchange.verify("bins", bundle)


def test_the_proof_system_that_reads_proofs_in_another_way_is_noticed(exchange, monkeypatch):
    monkeypatch.setattr(backend, "TOO_SHORT", ())
    with pytest.raises(ProofSystemError, match="reported an unknown error"):
        exchange.verify("bins")


@pytest.mark.parametrize("name", ["", "chunks", CHUNK, STATED, "manifest.json"])
def test_a_provider_does_not_write_through_links(exchange, tmp_path, no_proof, name):
    """The auditor, who can write to the folder, could choose where in the provider's folders."""
    out, target, link = tmp_path / "out", tmp_path / "target", tmp_path / "link.json"
    target.mkdir()
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).symlink_to(target, target_is_directory=True)
    link.symlink_to(target / "target.json")
    data, ledger = (exchange.X, exchange.y), exchange.ledger.read_bytes()
    for write in (
        lambda: prove(exchange.public, *data, out, **ASKED),
        lambda: prove(exchange.public, *data, out, **ASKED, level="predictions"),
        lambda: commit(None, exchange.X, out),
        lambda: attest(exchange.public, exchange.X[0], link, nonce="1"),
        lambda: challenge(exchange.audit("predictions"), exchange.public, *data, link),
    ):
        with pytest.raises(OSError, match="is a symbolic link"):
            write()
    assert not list(target.iterdir())
    assert exchange.ledger.read_bytes() == ledger


def test_forged_sums_under_a_degenerate_reference_string_do_not_verify(exchange, tmp_path):
    """With both points of G2 at infinity, the proof system accepts any proof."""
    public = published(exchange, tmp_path, string=lambda data: data[:-256] + bytes(256))
    bundle = stated_of(exchange, tmp_path, public)
    edit_outputs(bundle / CHUNK, lambda out: [v + 2 for v in out])
    write_manifest(bundle)
    with pytest.raises(VerificationError, match="wrong generators"):
        exchange.verify("bins", bundle, public)


def test_names_of_columns_are_committed(exchange):
    encoding = load_commitment(exchange.public).encoding
    assert encoding.names == ("a", "b")
    encoding.encode(pd.DataFrame(exchange.X, columns=["a", "b "]))
    with pytest.raises(ValueError, match="in this order: a, b; got b, a"):
        encoding.encode(pd.DataFrame(exchange.X, columns=["b", "a"]))


def test_no_text_of_the_provider_is_in_the_report(exchange, tmp_path, monkeypatch):
    forged = published(exchange, tmp_path, lambda r: r["versions"].update(skuq="ceremony"))
    bundle = stated_of(exchange, tmp_path, forged)
    monkeypatch.setattr(backend, "verify", lambda *_: True)
    notes = exchange.verify("bins", bundle, forged).notes
    assert all(note.isprintable() for note in notes)
    assert "ceremony" not in " ".join(notes)


def result_of(exchange, sums, **entries):
    """The result of the honest audit, with other sums and another question."""
    committed = load_commitment(exchange.public)
    statement = AuditStatement.of({**read_json(exchange.audit("bins") / STATED), **entries})
    judgements = judged([sums], statement, committed.tolerance)
    region = np.zeros(statement.n_samples, np.int64)
    return audited(committed, statement, judgements, region, 1, [], [], "test")


def test_a_challenge_is_about_one_commitment_and_one_set_of_data(exchange, tmp_path):
    """Whoever could still choose either would try until no false report is to be proven."""
    data, sent, rows = (exchange.X, exchange.y), tmp_path / "sent", set()
    sent.mkdir()
    write_json(sent / REPORTED, {"label": [0] * N, "confidence": [9000] * N})
    path = challenge(sent, exchange.public, *data, tmp_path / "challenge.json")
    asked = read_json(path)
    check_challenge(sent, SimpleNamespace(**asked), path, N)
    for k in range(9):
        for name in ("commitment_digest", "reference_digest"):
            ground = SimpleNamespace(**{**asked, name: digest(f"{k}")})
            rows.add(tuple(chosen_rows(ground, np.zeros(N, np.int64), 4)))
            with pytest.raises(VerificationError, match="none of these may change"):
                check_challenge(sent, ground, path, N)
    assert len(rows) > 3
    with pytest.raises(FileExistsError, match="challenged only once"):
        challenge(sent, exchange.public, *data, path)
    assert read_json(path) == asked


def test_a_statement_that_was_planted_in_the_output_folder_is_not_continued(exchange, tmp_path):
    """It could name pads of an earlier verdict, or a chunk that was not proven here."""
    statement, ledger = read_json(exchange.audit("bins") / STATED), exchange.ledger.read_bytes()
    for name, planted in (
        (STATED, {**statement, "pads": [0]}),
        (CHUNK, {"outputs": ["0"], "proof": ""}),
        (REPORTED, {"label": [0] * N, "confidence": [9000] * N}),
    ):
        out = tmp_path / name.replace("/", "-")
        (out / name).parent.mkdir(parents=True)
        write_json(out / name, planted)
        with pytest.raises(ValueError, match="holds another audit"):
            prove(exchange.public, exchange.X, exchange.y, out, **ASKED)
        assert read_json(out / name) == planted
    assert exchange.ledger.read_bytes() == ledger


def test_an_audit_that_was_proven_is_handed_out_again_without_a_proof(exchange, tmp_path, no_proof):
    first = exchange.audit("bins")
    again = prove(exchange.public, exchange.X, exchange.y, tmp_path / "again", **ASKED)
    for path in first.rglob("*.json"):
        assert (again.folder / path.relative_to(first)).read_bytes() == path.read_bytes()


def test_an_attestation_that_the_ledger_does_not_count_is_noticed(exchange, tmp_path, no_proof):
    statement = {"commitment_digest": load_commitment(exchange.public).digest, "number": 4}
    write_json(tmp_path / "a.json", {"statement": statement, "proof": ""})
    with pytest.raises(RuntimeError, match="older"):
        attest(exchange.public, exchange.X[0], tmp_path / "a.json", nonce="1")


def test_two_attestations_at_once_do_not_mix(exchange, tmp_path, monkeypatch):
    """The second one runs a circuit between the first one's run and its proof."""
    original, begun = backend.prove, []
    given = [(exchange.X[k], tmp_path / f"{k}.json", f"nonce {k}") for k in range(2)]

    def attested(x, path, nonce):
        return attest(exchange.public, x, path, nonce=nonce)

    def prove_after_another(*arguments, **settings):
        begun.append(arguments)
        if len(begun) == 1:
            attested(*given[1])
        return original(*arguments, **settings)

    monkeypatch.setattr(backend, "prove", prove_after_another)
    attested(*given[0])
    for x, path, nonce in given:
        check(path, exchange.public, x=x, nonce=nonce, keys=exchange.keys, **TEST)
    numbers = [read_json(path)["statement"]["number"] for _, path, _ in given]
    assert numbers[1] == numbers[0] + 1
    assert {path.name for path in exchange.ledger.parent.iterdir() if path.is_dir()} <= {"audits"}


def test_a_cached_key_is_that_of_the_circuit_which_is_built_now(exchange, monkeypatch):
    """An older version may have had a circuit that was not sound."""
    exchange.verify("bins")
    monkeypatch.setattr(keys, "make_keys", never)
    exchange.verify("bins")
    monkeypatch.setattr(circuits.fixed, "EXP_BASE", 1.5 * circuits.fixed.EXP_BASE)
    with pytest.raises(AssertionError, match="a key or a proof was made"):
        exchange.verify("bins")


def test_the_commitment_is_that_of_its_definition(exchange):
    committed = load_commitment(exchange.public)
    with np.load(exchange.folder / "private" / "constants.npz") as arrays:
        constants = [arrays[name] for name in arrays.files]
    assert commitment_point(committed.shape, constants, committed.srs) == committed.point
    constants[0] = constants[0][::-1]
    assert commitment_point(committed.shape, constants, committed.srs) != committed.point
    # Numbers to compare orders with are all different.
    numbers = np.concatenate([part.ravel() for part in sample_constants(committed.shape)])
    assert len(set(numbers)) == len(numbers) == committed.shape.n_committed


def small_circuit(exchange, *widths):
    rows = {"predictions": 2, "bins": 2, "padded_bins": 2}
    columns = {"predictions": 1, "padded_bins": 2, "verdict": 1}
    bits = 8 + (len(widths) - 1) * 9 - 1
    shape = Architecture(widths, bits, 3, 12, 2, 3, 13, rows, columns)
    constants, srs = sample_constants(shape), load_commitment(exchange.public).srs
    return shape, constants, srs, commitment_point(shape, constants, srs)


@pytest.mark.parametrize("circuit", ["padded_bins", "verdict"])  # of weights and pads, and of pads
def test_circuits_commit_to_all_of_their_numbers_in_the_same_order(exchange, tmp_path, circuit):
    shape, constants, srs, point = small_circuit(exchange, 2, 3, 2, 3)
    keys.make_keys(tmp_path, circuit, shape, constants, srs, point)
    # Proofs of a circuit with another order would be about other weights.
    turned = commitment_point(shape, [constants[0][::-1], *constants[1:]], srs)
    assert turned != point
    (tmp_path / "again").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        reuse_keys(patch, tmp_path)
        with pytest.raises(ProofSystemError, match="in the common order"):
            keys.make_keys(tmp_path / "again", circuit, shape, constants, srs, turned)

    def free(graph, circuit, constants):
        """With any weights, its proofs would hold under the published commitment."""
        joined = np.concatenate([part.ravel() for part in constants])[None].astype(np.float32)
        listed = graph.op("Concat", graph.constant(joined), graph.one, axis=1)  # a single use
        column = graph.reshape(listed, graph.shape.n_committed + 1, 1)
        return [
            graph.reshape(graph.columns(column, part.start, part.stop, axis=0), *size)
            for part, size in graph.shape.parts_of(circuit)
        ]

    shape, constants, srs, point = small_circuit(exchange, 2, 3, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(circuits, "_committed", free)
        patch.setattr(backend, "_not_laid_out", lambda *_: 0)
        with pytest.raises(ProofSystemError, match="does not bind its numbers"):
            keys.make_keys(tmp_path, circuit, shape, constants, srs, point)


def test_other_versions_of_the_proof_system_are_refused(exchange, tmp_path, monkeypatch):
    """Their circuits were not examined, even if both parties have the same one."""
    public = published(exchange, tmp_path, lambda record: record["versions"].update(ezkl="23.0.6"))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "23.0.6")
    with pytest.raises(ProofSystemError, match=r"require ezkl 23.0.5, the version"):
        load_commitment(public)


def test_an_audit_that_could_not_fail_is_refused(exchange):
    sums = exchange.verify("bins").sums
    for alpha, confidence_level in ((1.0, None), (1.0, 0.95), (0.2, 1 - 1e-9)):
        with pytest.raises(VerificationError, match="could not have failed"):
            result_of(exchange, sums, alpha=alpha, confidence_level=confidence_level)


def test_the_smallest_gap_that_could_be_found_is_reported(exchange):
    sums, gaps = exchange.verify("bins").sums, []
    kinds = ("underconfidence", "overconfidence")
    for times in (1, 50):
        added = ("count", "correct", "confidence")
        many = sums._replace(**{name: times * getattr(sums, name) for name in added})
        result = result_of(exchange, many, alpha=0.05, n_samples=times * N)
        assert all(any(f"Smallest {kind}" in note for note in result.notes) for kind in kinds)
        bins = result.as_record()["bins"]
        gaps.append([bins[f"detectable_{kind}"][1] for kind in kinds])
    for small, large in zip(*gaps, strict=True):
        assert small is None or small > large
        assert 0.05 < large < 0.2
