"""One run of the protocol as an auditor verifies it, and ways to alter its files."""

import base64
import importlib.util
import json
import shutil
from functools import cache
from pathlib import Path

import pytest

from skuq.zk import VerificationError, verify
from skuq.zk._files import read_json, write_json
from skuq.zk._fixed_point import CONFIDENCE_BITS

ONE = 1 << CONFIDENCE_BITS
N, N_BINS, ALPHA = 24, 4, 0.1
SAMPLE, PROVEN = {"false_share": 0.1, "error": 0.2}, 16  # predictions that are proven
COMMITTED = {"n_bins": N_BINS, "n_proofs": 12, "n_attestations": 4, "verdict_samples": 28}
COMMITTED["tolerance"] = 0.02
TEST = {"allow_test_string": True}
QUESTION = {"classes": ["x", "y", "z"], "alpha": ALPHA, "n_bins": N_BINS, "confidence_level": 0.95}
ASKED = {**QUESTION, **TEST}
# At level "verdict", where so few rows could not fail at 0.95 whatever their labels are.
VERDICT_LEVEL = 0.6
LEVELS = ["bins", "verdict", "predictions"]
FEW = 14  # rows that fit into one proof
STATED, CHUNK, NEXT = "statement.json", "chunks/00000.json", "chunks/00001.json"
# Reasons that most changes are refused for.
NOT_HELD, OTHER_WEIGHTS = "does not hold", "different weights"


def verified(run, level, bundle=None, *, X=None, y=None, commitment=None, **settings):
    """Verify an audit of the fixture, or an altered copy of it, as its auditor does."""
    data = run.X_ref if X is None else X, run.y_ref if y is None else y
    asked = {**ASKED, **run.settings[level], **settings, "keys": run.keys}
    return verify(bundle or getattr(run, level), *data, commitment or run.honest, **asked)


@cache
def second_verifier():
    path = Path(__file__).parents[2] / "docs" / "second_verifier.py"
    spec = importlib.util.spec_from_file_location("second_verifier", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def published_to_second(run, commitment=None, keys=None):
    """The commitment as the second verifier reads it, with the keys that skuq made."""
    own = run.folder / "own.srs"  # outside the provider's folder
    if not own.exists():
        shutil.copy(run.honest / "srs", own)
    return second_verifier().Commitment(commitment or run.honest, keys or run.keys, own)


def verified_again(run, level, bundle=None, *, commitment=None, y=None, **settings):
    """The same by the second verifier."""
    data = run.X_ref.tolist(), (run.y_ref if y is None else y).tolist()
    asked, bundle = {**QUESTION, **run.settings[level], **settings}, bundle or getattr(run, level)
    published = published_to_second(run, commitment)
    return second_verifier().verify_audit(bundle, published, *data, **asked)


def refused_by_second():
    second = second_verifier()
    return pytest.raises((second.Refused, *second.MALFORMED))


def assert_both_refuse(reason, run, level, bundle=None, **given):
    with pytest.raises(VerificationError, match=reason):
        verified(run, level, bundle, **given)
    with refused_by_second():
        verified_again(run, level, bundle, **given)


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
    """Change entries of a JSON object."""
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


def never(*_, **__):
    raise AssertionError("a key or a proof was made")
