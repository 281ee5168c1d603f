"""Published commitments that were tampered with, and audits made to fit them."""

import shutil

import pytest

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq.zk import (
    VerificationError,
    load_commitment,
    verify,
)
from skuq.zk import _ezkl as backend
from skuq.zk import _keys as verifier
from skuq.zk._files import (
    digest,
    read_json,
    write_json,
    write_manifest,
)
from tests.zk.tampering import (
    ASKED,
    NOT_HELD,
    OTHER_WEIGHTS,
    WRONG_TYPE,
    changed,
    edit,
    files_of,
    flip,
    no_setup,
    verified,
)

pytestmark = pytest.mark.slow  # they share one run of the protocol, which takes minutes


def test_a_flipped_byte_in_any_public_file_fails(run, tmp_path):
    for path in files_of(run.honest):
        public = shutil.copytree(run.honest, tmp_path / path.name)
        flip(public / path.name, 50)
        with pytest.raises(VerificationError, match=r"manifest|was changed|is missing"):
            verified(run, "bins", commitment=public)


COMMITMENTS = {
    "point": (OTHER_WEIGHTS, lambda r: edit(r, "commitment_point", value="0" * 64)),
    "classes": (
        "`classes` must be the classes of the commitment",
        lambda r: edit(r, "classes", value=["y", "x", "z"]),
    ),
    "fewer classes": ("are inconsistent", lambda r: edit(r, "classes", value=["x", "y"])),
    "nested classes": (
        "the classes must all be strings",
        lambda r: edit(r, "classes", value=[["x"], ["y"], ["z"]]),
    ),
    "key": (
        "does not follow from the public architecture",
        lambda r: edit(r, "keys", "bins", value="0" * 64),
    ),
    "no keys": ("lacks the entry 'keys'", lambda r: r.pop("keys")),
    "keys no record": (WRONG_TYPE, lambda r: edit(r, "keys", value=[])),
    "no key": ("lacks the entry 'bins'", lambda r: r["keys"].pop("bins")),
    "reference string": (
        "not the one that was committed to",
        lambda r: edit(r, "reference_string", "sha256", value="0" * 64),
    ),
    "no reference string": (
        "lacks the entry 'reference_string'",
        lambda r: r.pop("reference_string"),
    ),
    "centre": (
        "different reference data",
        lambda r: edit(r, "encoding", "columns", 0, 1, value=9.0),
    ),
    "bits": ("does not produce this precision", lambda r: edit(r, "encoding", "bits", value=7)),
    "no columns": (
        "The encoding of inputs is malformed",
        lambda r: edit(r, "encoding", "columns", value=[]),
    ),
    "negative scale": (
        "The encoding of inputs is malformed",
        lambda r: edit(r, "encoding", "columns", 0, 2, value=-1.0),
    ),
    "rows": (
        "the architecture is malformed",
        lambda r: edit(r, "architecture", "log_rows", value=40),
    ),
    "no rows per proof": (
        "the architecture is malformed",
        lambda r: edit(r, "architecture", "rows_per_proof", value={}),
    ),
    "rows per proof no record": (
        "the architecture is malformed",
        lambda r: edit(r, "architecture", "rows_per_proof", value=3),
    ),
    "unknown circuit": (
        "the architecture is malformed",
        lambda r: edit(r, "architecture", "rows_per_proof", "x", value=3),
    ),
    "columns": (
        "the architecture is malformed",
        lambda r: edit(r, "architecture", "columns", "bins", value=4),
    ),
    "no columns of a circuit": (
        "the architecture is malformed",
        lambda r: r["architecture"]["columns"].pop("verdict"),
    ),
    "no widths": (
        "the architecture is malformed",
        lambda r: edit(r, "architecture", "widths", value=[]),
    ),
    "widths no list": (
        "the architecture is malformed",
        lambda r: edit(r, "architecture", "widths", value=None),
    ),
    "words for numbers": (
        "the architecture is malformed",
        lambda r: edit(r, "architecture", "digits", value="three"),
    ),
    "no architecture": ("lacks the entry 'architecture'", lambda r: r.pop("architecture")),
    "tolerance": (NOT_HELD, lambda r: edit(r, "tolerance", value=0.5)),
    "tolerance no number": (WRONG_TYPE, lambda r: edit(r, "tolerance", value="0.02")),
    "format": ("has format 0", lambda r: edit(r, "format", value=0)),
    "version": ("not made with ezkl", lambda r: edit(r, "versions", "ezkl", value="0.0.1")),
    "no versions": (WRONG_TYPE, lambda r: edit(r, "versions", value=[])),
    "proofs": ("'n_proofs' is impossible", lambda r: edit(r, "n_proofs", value=10**6)),
    "attestations": (
        "'n_attestations' is impossible",
        lambda r: edit(r, "n_attestations", value=0),
    ),
    "agreement": (WRONG_TYPE, lambda r: edit(r, "agreement", value=None)),
    "source": (
        "has the unknown entry 'source'",
        lambda r: edit(r, "reference_string", "source", value="a ceremony"),
    ),
}
COSTLY = {  # another verifying key is made to find out
    "rows per proof": lambda r: r["architecture"]["rows_per_proof"].update(bins=13),
}


def altered(run, tmp_path, change, fitted):
    """A changed commitment and, if fitted, an audit that states it."""
    public = shutil.copytree(run.honest, tmp_path / "public")
    bundle = shutil.copytree(run.bins, tmp_path / "bundle")
    record = read_json(public / "commitment.json")
    change(record)
    assert record != run.committed.record
    write_json(public / "commitment.json", record)
    write_manifest(public)
    if fitted:
        changed(bundle / "statement.json", commitment_digest=digest(record))
        write_manifest(bundle)
    return public, bundle


@pytest.mark.parametrize("tampering", COMMITMENTS)
def test_a_changed_commitment_fails(run, tmp_path, tampering):
    reason, change = COMMITMENTS[tampering]
    public, bundle = altered(run, tmp_path, change, False)
    # If nothing else tells, the audit is about the commitment as it was.
    with pytest.raises(VerificationError, match=f"{reason}|statement.json is about a different"):
        verified(run, "bins", bundle, commitment=public)


@pytest.mark.parametrize("tampering", COMMITMENTS)
def test_a_changed_commitment_fails_also_with_an_audit_that_fits_it(run, tmp_path, tampering):
    reason, change = COMMITMENTS[tampering]
    public, bundle = altered(run, tmp_path, change, True)
    with pytest.raises(VerificationError, match=reason):
        verified(run, "bins", bundle, commitment=public)


@pytest.mark.parametrize("tampering", COSTLY)
def test_a_commitment_whose_circuit_is_another_fails(run, tmp_path, tampering):
    public, bundle = altered(run, tmp_path, COSTLY[tampering], True)
    with pytest.raises(VerificationError, match="does not follow from the public architecture"):
        verify(bundle, run.X_ref, run.y_ref, public, level="bins", **ASKED)


def test_a_commitment_of_another_version_fails_without_advice_from_it(run, tmp_path):
    public, _ = altered(run, tmp_path, COMMITMENTS["version"][1], True)
    with pytest.raises(VerificationError, match="not made with ezkl") as failure:
        load_commitment(public)
    assert "0.0.1" not in str(failure.value)
    assert "pip" not in str(failure.value)


def test_a_commitment_whose_circuit_needs_too_many_blocks_fails_before_a_key_is_made(
    run, tmp_path, monkeypatch
):
    def more_digits(record):
        edit(record, "architecture", "digits", value=3)

    monkeypatch.setattr(backend, "setup", no_setup)
    monkeypatch.setattr(verifier, "MAX_BLOCKS", 1)
    public, bundle = altered(run, tmp_path, more_digits, True)
    with pytest.raises(VerificationError, match="needs more rows than the committed size"):
        verify(bundle, run.X_ref, run.y_ref, public, level="bins", **ASKED)


@pytest.mark.parametrize("name", ["srs", "commitment.json"])
def test_a_commitment_that_lacks_a_file_fails(run, tmp_path, name):
    public = shutil.copytree(run.honest, tmp_path / "public")
    (public / name).unlink()
    write_manifest(public)
    with pytest.raises(VerificationError, match=f"{name} is missing"):
        load_commitment(public)


def test_another_reference_string_fails(run, tmp_path):
    public = shutil.copytree(run.honest, tmp_path / "public")
    flip(public / "srs", 1000)
    write_manifest(public)
    with pytest.raises(VerificationError, match="not the one that was committed to"):
        load_commitment(public)
