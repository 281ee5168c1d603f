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
from skuq.zk._statements import AuditStatement, encoded
from tests.zk.exchange import ASKED, TEST, N, reuse_keys
from tests.zk.tampering import CHUNK, changed, edit_outputs, edit_proof


@pytest.fixture
def no_proof(monkeypatch):
    def never(*_, **__):
        raise AssertionError("a proof was made")

    monkeypatch.setattr(backend, "prove", never)


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
    digest_now = digest(read_json(public / "commitment.json"))
    changed(bundle / "statement.json", commitment_digest=digest_now)
    write_manifest(bundle)
    return bundle


def test_a_reference_string_of_unknown_origin_is_not_trusted(exchange, tmp_path):
    with pytest.raises(VerificationError, match="not that of the public ceremony"):
        exchange.verify("bins", allow_test_string=False)
    assert exchange.verify("bins").reference_string == "test"
    supplied = tmp_path / "string"
    shutil.copyfile(exchange.public / "srs", supplied)
    found = exchange.verify("bins", allow_test_string=False, srs=supplied)
    assert found.reference_string == "supplied"
    assert found.as_record()["reference_string"] == "supplied"
    sentence = "NOT the public ceremony's string: trusted because you supplied it"
    assert found.as_record()["reference_string_is"] == sentence
    assert f"The reference string is {sentence}." in found.notes
    given = {"x": exchange.X[0], "nonce": "1", "keys": exchange.keys, "srs": supplied}
    assert check(exchange.attestation, exchange.public, **given).reference_string == "supplied"


@pytest.fixture
def ways(exchange, tmp_path):
    """Names of a file of the provider's: its own, a link to it, and one more on the disk."""
    public = exchange.public
    link, hard, folder = tmp_path / "link", tmp_path / "hard", tmp_path / "folder"
    link.symlink_to(public / "srs")
    os.link(public / "srs", hard)
    folder.symlink_to(public)
    return [public / "srs", link, hard, folder / "srs", public / ".." / "public" / "srs"]


def test_what_decides_whether_to_believe_never_comes_from_the_provider(exchange, tmp_path, ways):
    """Whose string, key, challenge or list it is would be the provider's choice."""
    bundle = shutil.copytree(exchange.audit("bins"), tmp_path / "bundle")
    given = {"x": exchange.X[0], "nonce": "1", **TEST}

    def refused(call, names, paths):
        for name in names:
            for path in paths:
                with pytest.raises(ValueError, match=f"`{name}` must not be in"):
                    call(**{name: path})

    refused(
        lambda **theirs: exchange.verify("bins", bundle, **theirs),
        ["srs", "keys", "challenge"],
        [*ways, bundle / "statement.json", bundle],
    )
    refused(
        lambda **theirs: check(exchange.attestation, exchange.public, **{**given, **theirs}),
        ["srs", "keys"],
        [*ways, exchange.attestation],
    )
    for out in (bundle / "challenge.json", exchange.public / "challenge.json"):
        with pytest.raises(ValueError, match="`out` must not be in"):
            challenge(bundle, exchange.public, exchange.X, exchange.y, out)
        assert not out.exists()


@pytest.mark.parametrize("n_bytes", [1, 30_000])
def test_what_follows_a_proof_is_refused_before_any_work(exchange, tmp_path, monkeypatch, n_bytes):
    """Many files would pass for one proof, and 30 MB of noise took 8 s."""
    bundle = shutil.copytree(exchange.audit("bins"), tmp_path / "bundle")
    edit_proof(bundle / CHUNK, lambda proof: proof + bytes(n_bytes))
    write_manifest(bundle)

    def never(*_):
        raise AssertionError("a proof was verified")

    monkeypatch.setattr(backend, "verify", never)
    with pytest.raises(VerificationError, match="longer than its verifying key allows"):
        exchange.verify("bins", bundle)


def test_the_proof_system_that_reads_proofs_in_another_way_is_noticed(exchange, monkeypatch):
    monkeypatch.setattr(backend, "TOO_SHORT", ())
    with pytest.raises(ProofSystemError, match="reported an unknown error"):
        exchange.verify("bins")


@pytest.mark.parametrize("name", ["", "chunks", CHUNK, "statement.json", "manifest.json"])
def test_a_provider_does_not_write_through_links(exchange, tmp_path, no_proof, name):
    """The auditor, who can write to the folder, could choose where in the provider's folders."""
    out, target = tmp_path / "out", tmp_path / "target"
    target.mkdir()
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).symlink_to(target, target_is_directory=True)
    link = tmp_path / "link.json"
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
    edit_outputs(bundle / CHUNK, lambda out: [str(int(v) + 2) for v in out])
    write_manifest(bundle)
    with pytest.raises(VerificationError, match="wrong generators"):
        exchange.verify("bins", bundle, public=public)


def test_names_of_columns_are_committed(exchange):
    committed, X, y = load_commitment(exchange.public), exchange.X, exchange.y
    assert committed.encoding.names == ("a", "b")
    encoded(committed.encoding, committed.classes, pd.DataFrame(X, columns=["a", "b "]), y)
    with pytest.raises(ValueError, match="in this order: a, b; got b, a"):
        encoded(committed.encoding, committed.classes, pd.DataFrame(X, columns=["b", "a"]), y)


def test_no_text_of_the_provider_is_in_the_report(exchange, tmp_path, monkeypatch):
    forged = "a ceremony.\n- Compared with the published SHA-256: equal."
    for name, change, reason in (
        ("source", lambda r: r["reference_string"].update(source=forged), "unknown entry"),
        ("version", lambda r: r["versions"].update(skuq=forged), "versions.skuq"),
    ):
        (tmp_path / name).mkdir()
        with pytest.raises(VerificationError, match=reason):
            load_commitment(published(exchange, tmp_path / name, change))
    public = published(
        exchange, tmp_path, lambda record: record["versions"].update(skuq="ceremony")
    )
    bundle = stated_of(exchange, tmp_path, public)
    monkeypatch.setattr(backend, "verify", lambda *_: True)
    notes = exchange.verify("bins", bundle, public=public).notes
    assert all(note.isprintable() for note in notes)
    assert "ceremony" not in " ".join(notes)


def question(exchange, **entries):
    """The statement of the honest audit, with other entries."""
    record = read_json(exchange.audit("bins") / "statement.json")
    return AuditStatement.of({**record, **entries})


def result_of(exchange, sums, **entries):
    """The result of the honest audit, with other sums and another question."""
    committed = load_commitment(exchange.public)
    record = read_json(exchange.audit("bins") / "statement.json")
    statement = AuditStatement.of({**record, **entries})
    judgements = judged([sums], statement, committed.tolerance)
    region = np.zeros(statement.n_samples, np.int64)
    return audited(committed, statement, judgements, region, 1, [], [], "test")


def test_a_challenge_is_about_one_commitment_and_one_set_of_data(exchange, tmp_path):
    """Whoever could still choose either would try until no false report is to be proven."""
    data = exchange.X, exchange.y
    reports = {"label": [0] * N, "confidence": [9000] * N}
    sent = tmp_path / "sent"
    sent.mkdir()
    write_json(sent / REPORTED, reports)
    path = challenge(sent, exchange.public, *data, tmp_path / "challenge.json")
    asked, rows = read_json(path), set()
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
    statement = read_json(exchange.audit("bins") / "statement.json")
    ledger = exchange.ledger.read_bytes()
    for name, planted in (
        ("statement.json", {**statement, "pads": [0]}),
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
    digest_now = load_commitment(exchange.public).digest
    statement = {"commitment_digest": digest_now, "number": 4}
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

    def made(*_, **__):
        raise AssertionError("a key was made")

    exchange.verify("bins")
    monkeypatch.setattr(keys, "make_keys", made)
    exchange.verify("bins")
    monkeypatch.setattr(circuits.fixed, "EXP_BASE", 1.5 * circuits.fixed.EXP_BASE)
    with pytest.raises(AssertionError, match="a key was made"):
        exchange.verify("bins")


def test_the_commitment_is_that_of_its_definition(exchange):
    committed = load_commitment(exchange.public)
    with np.load(exchange.folder / "private" / "constants.npz") as arrays:
        constants = [arrays[name] for name in arrays.files]
    found = commitment_point(committed.shape, constants, committed.srs)
    assert found == committed.point
    constants[0] = constants[0][::-1]
    assert commitment_point(committed.shape, constants, committed.srs) != committed.point


def test_numbers_to_compare_orders_with_are_all_different(exchange):
    shape = load_commitment(exchange.public).shape
    numbers = np.concatenate([part.ravel() for part in sample_constants(shape)])
    assert len(set(numbers)) == len(numbers) == shape.n_committed


CIRCUITS = ["padded_bins", "verdict"]  # of weights and pads, and of pads


def small_circuit(exchange, *widths):
    rows = {"predictions": 2, "bins": 2, "padded_bins": 2}
    columns = {"predictions": 1, "padded_bins": 2, "verdict": 1}
    bits = 8 + (len(widths) - 1) * 9 - 1
    shape = Architecture(widths, bits, 3, 12, 2, 3, 13, rows, columns)
    constants, srs = sample_constants(shape), load_commitment(exchange.public).srs
    return shape, constants, srs, commitment_point(shape, constants, srs)


@pytest.mark.parametrize("circuit", CIRCUITS)
def test_circuits_of_deeper_networks_commit_in_the_same_order(exchange, tmp_path, circuit):
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


@pytest.mark.parametrize("circuit", CIRCUITS)
def test_a_circuit_whose_numbers_are_not_tied_to_the_commitment_is_refused(
    exchange, tmp_path, monkeypatch, circuit
):
    """With any weights, its proofs would hold under the published commitment."""

    def free(graph, circuit, constants):
        joined = np.concatenate([part.ravel() for part in constants])[None].astype(np.float32)
        listed = graph.op("Concat", graph.constant(joined), graph.one, axis=1)  # a single use
        column = graph.reshape(listed, graph.shape.n_committed + 1, 1)
        return [
            graph.reshape(graph.columns(column, part.start, part.stop, axis=0), *size)
            for part, size in graph.shape.parts_of(circuit)
        ]

    monkeypatch.setattr(circuits, "_committed", free)
    monkeypatch.setattr(backend, "_not_laid_out", lambda *_: 0)
    shape, constants, srs, point = small_circuit(exchange, 2, 3, 2)
    with pytest.raises(ProofSystemError, match="does not bind its numbers"):
        keys.make_keys(tmp_path, circuit, shape, constants, srs, point)


def test_more_layers_than_the_unit_of_the_logits_allows_are_refused(exchange, tmp_path):
    """The scale would leave single precision, and become one more private number."""

    def deepen(record):
        widths, bits = [2] + [1] * 11 + [2], record["encoding"]["bits"]
        record["architecture"].update(widths=widths, logit_bits=bits + 12 * 7 - 1)

    with pytest.raises(VerificationError, match="too many layers"):
        load_commitment(published(exchange, tmp_path, deepen))


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
