"""What tests share that takes long: commitments, keys and honest proofs, which are made once.

`made_once` returns a folder with the files that a function writes. They are kept between runs, in
`$SKUQ_TEST_CACHE` or else in `.tox/.proofs`, until skuq/zk, the sources named in the call, what
they share here or ezkl change. With `SKUQ_TEST_CACHE=off` each run makes them anew.
"""

import hashlib
import os
import shutil
import tempfile
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from skuq.zk import _commit as sizes
from skuq.zk import _ezkl as backend
from skuq.zk import attest, challenge, check, commit, prove
from tests.zk.tampering import TEST, Exchange, verified

TWO_BLOCKS = 30  # more rows than fit into the first block of columns
ROOT = Path(__file__).parents[2]
SHARED = [Path(__file__).with_name(f"{name}.py") for name in ("exchange", "tampering", "conftest")]
SOURCES = ROOT / "skuq" / "zk", *SHARED
KEPT = 2  # versions of each folder in the cache


def made_once(tmp_path_factory, name, make, *sources):
    """A copy, which the caller may change, of the folder that `make(folder)` fills.

    `name` is that of the folder in the cache. `sources` are the files, and the folders of modules,
    that `make` is written in, if it is not in `conftest.py`.
    """
    from filelock import FileLock

    kept = os.environ.get("SKUQ_TEST_CACHE") or ROOT / ".tox" / ".proofs"
    if kept == "off":  # for this run, but for all of its workers
        here = tmp_path_factory.getbasetemp()
        kept = (here.parent if "PYTEST_XDIST_WORKER" in os.environ else here) / "proofs"
    versions = Path(kept) / name
    versions.mkdir(parents=True, exist_ok=True)
    made = versions / _key(sources)
    with FileLock(f"{versions}.lock"):
        if not made.exists():
            with tempfile.TemporaryDirectory(dir=kept) as temporary:
                unfinished = Path(temporary) / name
                unfinished.mkdir()
                make(unfinished)
                unfinished.rename(made)
        os.utime(made)
        for old in sorted(versions.iterdir(), key=os.path.getmtime)[:-KEPT]:
            shutil.rmtree(old)
        return Path(shutil.copytree(made, tmp_path_factory.mktemp(name) / name))


def _key(sources):
    hashed = hashlib.sha256(version("ezkl").encode())
    for source in (*SOURCES, *map(Path, sources)):
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            hashed.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return hashed.hexdigest()[:16]


@contextmanager
def quick_commitments():
    """Circuits of one column, which is quicker for few rows, and one reference string for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "AUDIT_COLUMNS", 1)
        patch.setattr(backend, "make_reference_string", copy_of_the_string)
        yield patch


make_reference_string = backend.make_reference_string


@cache
def string_of(log_rows):
    """The reference string of this size, which takes seconds to make."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "srs"
        make_reference_string(path, log_rows)
        return path.read_bytes()


def copy_of_the_string(path, log_rows):
    path.write_bytes(string_of(log_rows))


def reuse_keys(patch, private):
    """Copy the keys of a commitment, which follow from the architecture alone."""

    def copied(circuit, verifying, proving, srs):
        for key in (verifying, proving):
            shutil.copyfile(private / key.name, key)

    patch.setattr(backend, "setup", copied)


def prove_and_verify(made, levels):
    """Prove audits and verify them, whereby the auditor's keys are made, too."""
    for level in levels:
        bundle, asked = made.folder / level, {**made.question, **made.settings[level]}
        answer = asked.pop("challenge", None)
        proven = prove(made.public, *made.data, bundle, **asked)
        assert proven.complete == (answer is None)
        if answer is not None:
            challenge(bundle, made.public, *made.data, answer, **made.sample)
            prove(made.public, *made.data, bundle, challenge=answer, **asked)
        verified(made, level)


def attest_and_check(made, nonce):
    attest(made.public, made.X_ref[0], made.attestation, nonce=nonce)
    check(made.attestation, made.public, x=made.X_ref[0], nonce=nonce, keys=made.keys, **TEST)


def small_exchange(folder):
    """A commitment to a model of two classes, whose audits need a single proof."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = (X[:, 0] + rng.normal(size=60) > 0).astype(int)
    made = Exchange(folder, LogisticRegression().fit(X, y), X, y, slice(12))
    made.question = {"alpha": 0.2, "n_bins": 2, "confidence_level": 0.95}
    made.sample = {"false_share": 0.3, "error": 0.1}
    return made


def make_exchange(folder):
    made = small_exchange(folder)
    table = pd.DataFrame(made.X, columns=["a", "b"])
    with quick_commitments() as patch:
        patch.setattr(sizes, "MANY_ROWS", TWO_BLOCKS)
        allowed = {"n_bins": 2, "n_proofs": 3, "n_attestations": 3}
        commit(made.model, table, folder, tolerance=0.02, **allowed)
    attest_and_check(made, "1")
    prove_and_verify(made, ["bins", "predictions"])
