"""One small commitment, honest proofs of it, and attacks on what a verifier takes from them.

What the form of a file tells is in ``alterations.json``.
"""

import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from skuq import zk
from skuq.zk import ProofSystemError, VerificationError, attest, check, load_commitment, prove
from skuq.zk import _circuits as circuits
from skuq.zk import _ezkl as backend
from skuq.zk import _keys as keys
from skuq.zk import _reference_string as strings
from skuq.zk._files import digest, read_json, write_json, write_manifest
from skuq.zk._fixed_point import Architecture
from skuq.zk._results import audited, judged
from skuq.zk._spot_check import check_challenge
from skuq.zk._statements import AuditStatement
from tests.zk import tampering as t
from tests.zk.exchange import reuse_keys

REPORTED, NO_TEST = "reported.json", {"allow_test_string": False}


def test_a_fresh_audit_verifies(exchange, tmp_path):
    """Its proofs are made here, whatever the cache of the tests holds."""
    asked = {**exchange.question, "tolerance": 0.25}
    prove(exchange.public, *exchange.data, tmp_path / "fresh", **asked)
    found = t.verified(exchange, "bins", tmp_path / "fresh", **asked)
    labels, confidence = zk.reported_predictions(exchange.public, exchange.X_ref)
    for each in (found, t.verified(exchange, "bins"), t.verified(exchange, "predictions")):
        assert each.n_proofs == 1
        assert each.sums.count.sum() == len(exchange.X_ref)
        assert each.sums.correct.sum() == (labels == exchange.y_ref).sum()
        assert each.sums.confidence.sum() / each.sums.scale == pytest.approx(confidence.sum())
    # Circuits of these proofs overflow a block of columns.
    assert 2**13 < read_json(exchange.private / "bins.settings")["num_rows"] <= 2 * 2**13


def test_a_reference_string_of_unknown_origin_is_not_trusted(exchange, tmp_path):
    with pytest.raises(VerificationError, match="not that of the public ceremony"):
        t.verified(exchange, "bins", allow_test_string=False)
    own = {"srs": shutil.copyfile(exchange.public / "srs", tmp_path / "string"), **NO_TEST}
    found = t.verified(exchange, "bins", **own)
    record = found.as_record()
    sentence = "NOT the public ceremony's string: trusted because you supplied it"
    assert (record["reference_string"], record["reference_string_is"]) == ("supplied", sentence)
    assert f"The reference string is {sentence}." in found.notes
    given = {"x": exchange.X_ref[0], "nonce": "1", "keys": exchange.keys, **own}
    assert check(exchange.attestation, exchange.public, **given).reference_string == "supplied"


def test_what_decides_whether_to_believe_never_comes_from_the_provider(exchange, tmp_path):
    """Whose string, key, challenge or list it is would be the provider's choice."""
    public, bundle = exchange.public, shutil.copytree(exchange.bins, tmp_path / "bundle")
    link, mine = tmp_path / "link", exchange.attestation
    link.symlink_to(public / "srs")
    given = {"x": exchange.X_ref[0], "nonce": "1", **t.TEST}
    for path in (public / "srs", link, bundle / t.STATED, bundle, exchange.attestation):
        for name in ("srs", "keys", "challenge"):
            if path != mine:
                with pytest.raises(ValueError, match=f"`{name}` must not be in"):
                    t.verified(exchange, "bins", bundle, **{name: path})
            if name != "challenge" and not path.is_relative_to(bundle):
                with pytest.raises(ValueError, match=f"`{name}` must not be in"):
                    check(mine, public, **given, **{name: path})
    for out in (bundle / "challenge.json", public / "challenge.json"):
        with pytest.raises(ValueError, match="`out` must not be in"):
            zk.challenge(bundle, public, *exchange.data, out)
        assert not out.exists()


def test_what_follows_a_proof_is_refused_before_any_work(exchange, tmp_path, monkeypatch):
    """Many files would pass for one proof, and 30 MB of noise took 8 s."""
    bundle = shutil.copytree(exchange.bins, tmp_path / "bundle")
    t.edit_proof(bundle / t.CHUNK, lambda proof: proof + bytes(30_000))
    write_manifest(bundle)
    monkeypatch.setattr(backend, "verify", t.never)
    with pytest.raises(VerificationError, match="longer than its verifying key allows"):
        t.verified(exchange, "bins", bundle)


def test_the_proof_system_that_reads_proofs_in_another_way_is_noticed(exchange, monkeypatch):
    monkeypatch.setattr(backend, "TOO_SHORT", ())
    with pytest.raises(ProofSystemError, match="reported an unknown error"):
        t.verified(exchange, "bins")


@pytest.mark.parametrize("name", ["", "chunks", t.CHUNK, t.STATED, "manifest.json"])
def test_a_provider_does_not_write_through_links(exchange, tmp_path, no_proof, name):
    """The auditor, who can write to the folder, could choose where in the provider's folders."""
    out, target, link = tmp_path / "out", tmp_path / "target", tmp_path / "link.json"
    target.mkdir()
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).symlink_to(target, target_is_directory=True)
    link.symlink_to(target / "target.json")
    given, ledger = (exchange.public, *exchange.data), exchange.ledger.read_bytes()
    for write in (
        lambda: prove(*given, out, **exchange.question),
        lambda: prove(*given, out, **exchange.question, level="predictions"),
        lambda: zk.commit(None, exchange.X, out),
        lambda: attest(exchange.public, exchange.X_ref[0], link, nonce="1"),
        lambda: zk.challenge(exchange.predictions, *given, link),
    ):
        with pytest.raises(OSError, match="is a symbolic link"):
            write()
    assert not list(target.iterdir())
    assert exchange.ledger.read_bytes() == ledger


def test_forged_sums_under_a_degenerate_reference_string_do_not_verify(exchange, tmp_path):
    """With both points of G2 at infinity, the proof system accepts any proof."""
    public, bundle = t.altered(exchange, tmp_path, string=lambda data: data[:-256] + bytes(256))
    t.edit_outputs(bundle / t.CHUNK, lambda out: [v + 2 for v in out])
    write_manifest(bundle)
    with pytest.raises(VerificationError, match="wrong generators"):
        t.verified(exchange, "bins", bundle, commitment=public)


def test_no_text_of_the_provider_is_in_the_report(exchange, tmp_path, monkeypatch):
    forged, bundle = t.altered(exchange, tmp_path, lambda r: r["versions"].update(skuq="ceremony"))
    monkeypatch.setattr(backend, "verify", lambda *_: True)
    notes = t.verified(exchange, "bins", bundle, commitment=forged).notes
    assert all(note.isprintable() for note in notes)
    assert "ceremony" not in " ".join(notes)


def test_a_challenge_is_about_one_commitment_and_one_set_of_data(exchange, tmp_path):
    """Whoever could still choose either would try until no false report is to be proven."""
    sent, n = tmp_path / "sent", len(exchange.X_ref)
    sent.mkdir()
    write_json(sent / REPORTED, {"label": [0] * n, "confidence": [9000] * n})
    arguments = sent, exchange.public, *exchange.data, tmp_path / "challenge.json"
    path = zk.challenge(*arguments)
    asked = read_json(path)
    check_challenge(sent, SimpleNamespace(**asked), path, n)
    for name in ("commitment_digest", "reference_digest"):
        with pytest.raises(VerificationError, match="none of these may change"):
            check_challenge(sent, SimpleNamespace(**{**asked, name: digest("other")}), path, n)
    with pytest.raises(FileExistsError, match="challenged only once"):
        zk.challenge(*arguments)
    assert read_json(path) == asked


def test_a_planted_statement_or_attestation_is_noticed(exchange, tmp_path, no_proof):
    """It could name pads of an earlier verdict, or a chunk that was not proven here."""
    statement, ledger = read_json(exchange.bins / t.STATED), exchange.ledger.read_bytes()
    for name, planted in (
        (t.STATED, {**statement, "pads": [0]}),
        (t.CHUNK, {"outputs": ["0"], "proof": ""}),
        (REPORTED, {"label": [0], "confidence": [9000]}),
    ):
        out = tmp_path / name.replace("/", "-")
        (out / name).parent.mkdir(parents=True)
        write_json(out / name, planted)
        with pytest.raises(ValueError, match="holds another audit"):
            prove(exchange.public, *exchange.data, out, **exchange.question)
        assert read_json(out / name) == planted
    assert exchange.ledger.read_bytes() == ledger
    statement = {"commitment_digest": load_commitment(exchange.public).digest, "number": 4}
    write_json(tmp_path / "a.json", {"statement": statement, "proof": ""})
    with pytest.raises(RuntimeError, match="older"):
        attest(exchange.public, exchange.X_ref[0], tmp_path / "a.json", nonce="1")


def test_two_attestations_at_once_do_not_mix(exchange, tmp_path, monkeypatch):
    """The second one runs a circuit between the first one's run and its proof."""
    original, begun, numbers = backend.prove, [], []

    def attested(k):
        return attest(exchange.public, exchange.X_ref[k], tmp_path / f"{k}.json", nonce=f"{k}")

    def prove_after_another(*arguments, **settings):
        begun.append(arguments)
        if len(begun) == 1:
            attested(1)
        return original(*arguments, **settings)

    monkeypatch.setattr(backend, "prove", prove_after_another)
    attested(0)
    for k in range(2):
        given = {"x": exchange.X_ref[k], "nonce": f"{k}", "keys": exchange.keys, **t.TEST}
        found = check(tmp_path / f"{k}.json", exchange.public, **given)
        numbers.append(found.statement["number"])
    assert numbers[1] == numbers[0] + 1
    assert {path.name for path in exchange.private.iterdir() if path.is_dir()} <= {"audits"}


def test_the_commitment_is_that_of_its_definition_and_of_names_of_columns(exchange):
    committed = load_commitment(exchange.public)
    with np.load(exchange.private / "constants.npz") as arrays:
        constants = [arrays[name] for name in arrays.files]
    assert strings.commitment_point(committed.shape, constants, committed.srs) == committed.point
    constants[0] = constants[0][::-1]
    assert strings.commitment_point(committed.shape, constants, committed.srs) != committed.point
    # Numbers to compare orders with are all different.
    numbers = np.concatenate([part.ravel() for part in strings.sample_constants(committed.shape)])
    assert len(set(numbers)) == len(numbers) == committed.shape.n_committed
    encoding = committed.encoding
    assert encoding.names == ("a", "b")
    encoding.encode(pd.DataFrame(exchange.X_ref, columns=["a", "b "]))
    with pytest.raises(ValueError, match="in this order: a, b; got b, a"):
        encoding.encode(pd.DataFrame(exchange.X_ref, columns=["b", "a"]))


def small_circuit(exchange, *widths):
    rows = {"predictions": 2, "bins": 2, "padded_bins": 2}
    columns = {"predictions": 1, "padded_bins": 2, "verdict": 1}
    bits = 8 + (len(widths) - 1) * 9 - 1
    shape = Architecture(widths, bits, 3, 12, 2, 3, 13, rows, columns)
    constants, srs = strings.sample_constants(shape), exchange.public / "srs"
    return shape, constants, srs, strings.commitment_point(shape, constants, srs)


@pytest.mark.parametrize("circuit", ["padded_bins", "verdict"])  # of weights and pads, and of pads
def test_circuits_commit_to_all_of_their_numbers_in_the_same_order(exchange, tmp_path, circuit):
    shape, constants, srs, point = small_circuit(exchange, 2, 3, 2, 3)
    keys.make_keys(tmp_path, circuit, shape, constants, srs, point)
    # Proofs of a circuit with another order would be about other weights.
    turned = strings.commitment_point(shape, [constants[0][::-1], *constants[1:]], srs)
    assert turned != point
    (tmp_path / "again").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        reuse_keys(patch, tmp_path)
        with pytest.raises(ProofSystemError, match="in the order of all circuits"):
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
    public, _ = t.altered(exchange, tmp_path, lambda r: r["versions"].update(ezkl="23.0.6"))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "23.0.6")
    with pytest.raises(ProofSystemError, match=r"require ezkl 23.0.5, the version"):
        load_commitment(public)


def test_an_audit_that_could_not_fail_is_refused_and_the_smallest_gap_reported(exchange):
    sums, committed = t.verified(exchange, "bins").sums, load_commitment(exchange.public)
    record, gaps = read_json(exchange.bins / t.STATED), {}

    def result_of(times=1, **entries):
        """The result of the honest audit, with more samples and another question."""
        entries["n_samples"] = times * record["n_samples"]
        statement = AuditStatement.of({**record, **entries})
        many = {name: times * getattr(sums, name) for name in ("count", "correct", "confidence")}
        judgements = judged([sums._replace(**many)], statement, committed.max_error)
        region = np.zeros(statement.n_samples, np.int64)
        return audited(committed, statement, judgements, region, 1, [], [], "test")

    for tolerance, confidence_level in ((1.0, None), (1.0, 0.95), (0.2, 1 - 1e-9)):
        with pytest.raises(VerificationError, match="could not have failed"):
            result_of(alpha=tolerance, confidence_level=confidence_level)
    for times in (1, 50):
        result = result_of(times, alpha=0.05)
        for kind in ("underconfidence", "overconfidence"):
            assert any(f"Smallest {kind}" in note for note in result.notes)
            gaps[times, kind] = result.as_record()["bins"][f"detectable_{kind}"][1]
            assert times == 1 or 0.05 < gaps[50, kind] < min(0.2, gaps[1, kind] or 1)
