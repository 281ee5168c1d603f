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
COMMITTED = {
    "n_bins": N_BINS,
    "n_proofs": 12,
    "n_attestations": 4,
    "verdict_samples": 28,
    "tolerance": 0.02,
}
ASKED = {
    "classes": ["x", "y", "z"],
    "alpha": ALPHA,
    "n_bins": N_BINS,
    "confidence_level": 0.95,
    "allow_test_string": True,
}
# At level "verdict", where so few rows could not fail at 0.95 whatever their labels are.
VERDICT_LEVEL = 0.6
LEVELS = ["bins", "verdict", "predictions"]
FEW = 14  # rows that fit into one proof
CHUNK, NEXT = "chunks/00000.json", "chunks/00001.json"
# Reasons that most changes are refused for.
NOT_HELD = "does not hold"
OTHER_WEIGHTS = "different weights"
WRONG_TYPE = "right type"


def verified(run, level, bundle=None, *, X=None, y=None, commitment=None, **settings):
    """Verify an audit of the fixture, or an altered copy of it, as its auditor does."""
    return verify(
        getattr(run, level) if bundle is None else bundle,
        run.X_ref if X is None else X,
        run.y_ref if y is None else y,
        run.honest if commitment is None else commitment,
        keys=run.keys,
        **{**ASKED, "level": level, **run.settings[level], **settings},
    )


@cache
def second_verifier():
    path = Path(__file__).parents[2] / "docs" / "second_verifier.py"
    spec = importlib.util.spec_from_file_location("second_verifier", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def own_string(run):
    """A copy of the reference string outside the provider's folder."""
    copy = run.folder / "own.srs"
    if not copy.exists():
        shutil.copy(run.honest / "srs", copy)
    return copy


def verified_again(run, level, bundle=None, *, commitment=None, y=None, **settings):
    """The same by the second verifier, with the keys that skuq made."""
    second = second_verifier()
    published = second.Commitment(commitment or run.honest, run.keys, own_string(run))
    asked = {name: value for name, value in ASKED.items() if name != "allow_test_string"}
    return second.verify_audit(
        bundle or getattr(run, level),
        published,
        run.X_ref.tolist(),
        (run.y_ref if y is None else y).tolist(),
        **{**asked, "level": level, **run.settings[level], **settings},
    )


def assert_both_refuse(reason, run, level, bundle, **given):
    second = second_verifier()
    with pytest.raises(VerificationError, match=reason):
        verified(run, level, bundle, **given)
    with pytest.raises((second.Refused, *second.MALFORMED)):
        verified_again(run, level, bundle, **given)


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def changed(path, *parents, **entries):
    """Change entries of a JSON object, or of one within it."""
    record = read_json(path)
    target = record
    for name in parents:
        target = target[name]
    assert any(target.get(name) != value for name, value in entries.items())
    target.update(entries)
    path.write_text(json.dumps(record), encoding="utf-8")


def without(path, name):
    record = read_json(path)
    del record[name]
    path.write_text(json.dumps(record), encoding="utf-8")


def edit_proof(path, change):
    record = read_json(path)
    proof = change(base64.b64decode(record["proof"]))
    write_json(path, {**record, "proof": base64.b64encode(proof).decode()})


def edit_outputs(path, change):
    record = read_json(path)
    found = change([int(v) for v in record["outputs"]])
    texts = [str(value) if type(value) is int else value for value in found]
    write_json(path, {**record, "outputs": texts})


def no_setup(*_):
    raise AssertionError("a key was made")
