"""One run of the protocol as an auditor verifies it, and ways to alter its files."""

import base64
import json

from skuq.zk import verify
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
NOT_HELD = "does not hold for this statement, these data and these results"
OTHER_WEIGHTS = "its commitment is not the published one"
WRONG_TYPE = "is not of the right type"


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


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def changed(path, **entries):
    record = read_json(path)
    assert any(record.get(name) != value for name, value in entries.items())
    write_json(path, {**record, **entries})


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


def edit(record, *path, value):
    for name in path[:-1]:
        record = record[name]
    record[path[-1]] = value


def no_setup(*_):
    raise AssertionError("a key was made")
