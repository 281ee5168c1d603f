"""One commitment, an honest proof at level "bins", and a handful of tamperings: the quick tier.

Level "predictions" and an attestation are proven when a slow test asks for them. Level "verdict"
and all other tamperings are in the tests that share the fixture ``run``.
"""

import json
import shutil
from functools import cached_property

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

pytest.importorskip("ezkl")
pytest.importorskip("onnx")

from skuq.zk import (
    VerificationError,
    attest,
    challenge,
    check,
    commit,
    prove,
    reported_predictions,
    verify,
)
from skuq.zk._files import read_json, write_json, write_manifest
from tests.zk.tampering import CHUNK, changed, edit_outputs, edit_proof

N, SAMPLE = 12, {"false_share": 0.3, "error": 0.1}
ASKED = {"alpha": 0.2, "n_bins": 2}
LEVELS = ["bins", pytest.param("predictions", marks=pytest.mark.slow)]


class Exchange:
    """A commitment, and the proofs that are asked for."""

    def __init__(self, folder):
        rng = np.random.default_rng(0)
        X = rng.normal(size=(60, 2))
        y = (X[:, 0] + rng.normal(size=60) > 0).astype(int)
        self.X, self.y, self.folder, self.keys = X[:N], y[:N], folder, folder / "keys"
        self.public = commit(
            LogisticRegression().fit(X, y), X, folder, n_bins=2, n_proofs=3, tolerance=0.02
        ).folder
        self.challenge = folder / "challenge.json"

    @cached_property
    def attestation(self):
        return attest(self.public, self.X[0], self.folder / "attestation.json", nonce="1")

    def audit(self, level):
        """The bundle of a level, made once."""
        bundle, data = self.folder / level, (self.X, self.y)
        if level == "bins" and not bundle.exists():
            prove(self.public, *data, bundle, level=level, **ASKED)
        if level == "predictions" and not bundle.exists():
            prove(self.public, *data, bundle, level=level, **ASKED, **SAMPLE)
            challenge(bundle, self.challenge)
            prove(
                self.public, *data, bundle, level=level, challenge=self.challenge, **ASKED, **SAMPLE
            )
        return bundle

    def verify(self, level, bundle=None, y=None):
        own = {} if level == "bins" else {"challenge": self.challenge, **SAMPLE}
        return verify(
            self.audit(level) if bundle is None else bundle,
            self.X,
            self.y if y is None else y,
            self.public,
            level=level,
            keys=self.keys,
            **ASKED,
            **own,
        )


@pytest.fixture(scope="module")
def exchange(tmp_path_factory):
    return Exchange(tmp_path_factory.mktemp("exchange"))


@pytest.mark.parametrize("level", LEVELS)
def test_an_honest_audit_verifies(exchange, level):
    found = exchange.verify(level)
    labels, confidence = reported_predictions(exchange.public, exchange.X)
    assert found.n_proofs == 1
    assert found.sums.count.sum() == N
    assert found.sums.correct.sum() == (labels == exchange.y).sum()
    assert found.sums.confidence.sum() / found.sums.scale == pytest.approx(confidence.sum())


@pytest.mark.slow
def test_an_honest_attestation_verifies(exchange):
    found = check(
        exchange.attestation, exchange.public, x=exchange.X[0], nonce="1", keys=exchange.keys
    )
    labels, confidence = reported_predictions(exchange.public, exchange.X[:1])
    assert (found.label, found.confidence) == (labels[0], confidence[0])


def one_bit(proof):
    middle = len(proof) // 2
    return proof[:middle] + bytes([proof[middle] ^ 1]) + proof[middle + 1 :]


TAMPERINGS = {
    "alpha": lambda bundle: changed(bundle / "statement.json", alpha=0.3),
    "commitment": lambda bundle: changed(bundle / "statement.json", commitment_digest="0" * 64),
    "outputs": lambda bundle: edit_outputs(bundle / CHUNK, lambda out: [out[0] + 2, *out[1:]]),
    "proof": lambda bundle: edit_proof(bundle / CHUNK, one_bit),
    "weights": lambda bundle: edit_proof(bundle / CHUNK, lambda proof: bytes(64) + proof[64:]),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_tampered_audit_does_not_verify(exchange, tmp_path, level, tampering):
    bundle = shutil.copytree(exchange.audit(level), tmp_path / "bundle")
    TAMPERINGS[tampering](bundle)
    with pytest.raises(VerificationError, match=r"was changed"):
        exchange.verify(level, bundle)
    write_manifest(bundle)
    with pytest.raises(VerificationError, match=r"."):
        exchange.verify(level, bundle)


@pytest.mark.parametrize("level", LEVELS)
def test_other_reference_data_do_not_verify(exchange, level):
    with pytest.raises(VerificationError, match="other reference data"):
        exchange.verify(level, y=1 - exchange.y)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["label", "confidence"])
def test_a_tampered_attestation_does_not_verify(exchange, tmp_path, name):
    record = read_json(exchange.attestation)
    record["statement"][name] = {"label": 1 - record["statement"]["label"], "confidence": 9000}[
        name
    ]
    write_json(tmp_path / "a.json", record)
    with pytest.raises(VerificationError, match="does not hold"):
        check(tmp_path / "a.json", exchange.public, keys=exchange.keys)
    assert json.loads(exchange.attestation.read_text()) != record
