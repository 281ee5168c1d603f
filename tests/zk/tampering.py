"""What parties exchange, as an auditor verifies it, and ways to alter the files."""

import base64
import importlib.util
import json
import shutil
from functools import cache
from pathlib import Path

import pytest

from skuq.zk import VerificationError, verify
from skuq.zk._files import digest, digest_file, read_json, write_json, write_manifest
from skuq.zk._fixed_point import CONFIDENCE_BITS

ONE = 1 << CONFIDENCE_BITS
TEST = {"allow_test_string": True}
LEVELS = ["bins", "verdict", "predictions"]
STATED, CHUNK, NEXT = "statement.json", "chunks/00000.json", "chunks/00001.json"
N, PROVEN = 24, 16  # reference data of the run, and predictions of them that are proven
COMMITTED = {"n_bins": 4, "n_proofs": 12, "n_attestations": 4, "verdict_samples": 28}
COMMITTED["max_error"] = 0.02
# Reasons that most changes are refused for.
NOT_HELD, OTHER_WEIGHTS = "does not hold", "different weights"


class Exchange:
    """A model, and the files in a folder that its provider and its auditor exchange about it."""

    def __init__(self, folder, model, X, y, reference):
        self.folder, self.model, self.X, self.y = folder, model, X, y
        self.data = self.X_ref, self.y_ref = X[reference], y[reference]
        self.public, self.keys = folder / "public", folder / "keys"
        self.private, self.ledger = folder / "private", folder / "private" / "ledger.json"
        self.challenge, self.attestation = folder / "challenge.json", folder / "attestation.json"
        self.bins, self.verdict, self.predictions = (folder / level for level in LEVELS)
        # What is asked at all levels, and at each.
        self.question, self.sample = {}, {}
        self.settings = {level: {"level": level} for level in LEVELS}
        self.settings["predictions"]["challenge"] = self.challenge

    def asked(self, level, **settings):
        classes = self.model.classes_.tolist()
        return {"classes": classes, **self.question, **self.settings[level], **settings}


def verified(made, level, bundle=None, *, X=None, y=None, commitment=None, **settings):
    data = made.X_ref if X is None else X, made.y_ref if y is None else y
    asked = {"keys": made.keys, **TEST, **made.asked(level, **settings)}
    return verify(bundle or made.folder / level, *data, commitment or made.public, **asked)


@cache
def second_verifier():
    path = Path(__file__).parents[2] / "docs" / "second_verifier.py"
    spec = importlib.util.spec_from_file_location("second_verifier", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def published_to_second(made, commitment=None, keys=None):
    """The commitment as the second verifier reads it, with the keys that skuq made."""
    own = made.folder / "own.srs"  # outside the provider's folder
    if not own.exists():
        shutil.copy(made.public / "srs", own)
    return second_verifier().Commitment(commitment or made.public, keys or made.keys, own)


def verified_again(made, level, bundle=None, *, commitment=None, y=None, **settings):
    data = made.X_ref.tolist(), (made.y_ref if y is None else y).tolist()
    asked, published = made.asked(level, **settings), published_to_second(made, commitment)
    return second_verifier().verify_audit(bundle or made.folder / level, published, *data, **asked)


def refused_by_second():
    second = second_verifier()
    return pytest.raises((second.Refused, *second.MALFORMED))


def assert_both_refuse(reason, made, level, bundle=None, **given):
    with pytest.raises(VerificationError, match=reason):
        verified(made, level, bundle, **given)
    with refused_by_second():
        verified_again(made, level, bundle, **given)


def assert_both_refuse_refitted(reason, made, level, bundle, **given):
    """The same for an altered bundle whose manifest fits."""
    write_manifest(bundle)
    assert_both_refuse(reason, made, level, bundle, **given)


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def contents_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in files_of(folder)}


def flipped(data, position):
    data = bytearray(data)
    data[position] ^= 1
    return bytes(data)


def flip(path, position):
    path.write_bytes(flipped(path.read_bytes(), position))


def changed(path, **entries):
    record = read_json(path)
    assert any(record.get(name) != value for name, value in entries.items())
    path.write_text(json.dumps({**record, **entries}), encoding="utf-8")


def edit_proof(path, change):
    proof = change(base64.b64decode(read_json(path)["proof"]))
    changed(path, proof=base64.b64encode(proof).decode())


def edit_outputs(path, change):
    record = read_json(path)
    found = change([int(v) for v in record["outputs"]])
    write_json(path, {**record, "outputs": [str(value) for value in found]})


def altered(made, folder, change=None, string=None, fitted=True):
    """A changed commitment whose hashes fit, and an audit that states it or does not."""
    public = shutil.copytree(made.public, folder / f"public {fitted}")
    bundle = shutil.copytree(made.bins, folder / f"bins {fitted}")
    record = read_json(public / "commitment.json")
    if string is not None:
        (public / "srs").write_bytes(string((public / "srs").read_bytes()))
        record["reference_string"]["sha256"] = digest_file(public / "srs")
    if change is not None:
        change(record)
    changed(public / "commitment.json", **record)
    write_manifest(public)
    if fitted:
        changed(bundle / STATED, commitment_digest=digest(record))
        write_manifest(bundle)
    return public, bundle


def never(*_, **__):
    raise AssertionError("a key or a proof was made")
