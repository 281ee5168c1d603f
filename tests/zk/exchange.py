"""What tests share that takes long: commitments, keys and honest proofs, which are made once.

`made_once` returns a folder with the files that a function writes. They are kept between runs, in
`$SKUQ_TEST_CACHE` or else in `.tox/.proofs`, until skuq/zk, the sources named in the call, what
they share here or ezkl change. With `SKUQ_TEST_CACHE=off` each run makes them anew.
"""

import copy
import hashlib
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from skuq.datasets import make_gaussian_classes
from skuq.zk import _commit as sizes
from skuq.zk import _ezkl as backend
from skuq.zk import attest, challenge, check, commit, load_commitment, prove
from skuq.zk._files import read_json, write_json
from skuq.zk._private_commitment import Prover
from skuq.zk._statements import VerdictStatement, verdict_inputs
from tests.zk.tampering import COMMITTED, LEVELS, TEST, Exchange, N, verified

TWO_BLOCKS = 30  # more rows than fit into the first block of columns
ROOT = Path(__file__).parents[2]
SHARED = [Path(__file__).with_name(f"{name}.py") for name in ("exchange", "tampering")]
SOURCES = ROOT / "skuq" / "zk", *SHARED
KEPT = 2  # versions of each folder in the cache


def made_once(tmp_path_factory, name, make, *sources):
    """A copy, which the caller may change, of the folder that `make(folder)` fills.

    `name` is that of the folder in the cache. `sources` are the files, and the folders of modules,
    that `make` is written in, if it is not here.
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
    # Models of one version cannot be loaded by another.
    versions = [version(name) for name in ("ezkl", "numpy", "pandas", "scikit-learn", "torch")]
    hashed = hashlib.sha256(repr((versions, sys.version_info)).encode())
    for source in (*SOURCES, *map(Path, sources)):
        for path in sorted(source.rglob("*.py")) if source.is_dir() else [source]:
            hashed.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return hashed.hexdigest()[:16]


@cache
def string_of(log_rows, make=backend.make_reference_string):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "srs"
        make(path, log_rows)
        return path.read_bytes()


@contextmanager
def quick_commitments():
    """Circuits of one column, which is quicker for few rows, and one reference string for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "AUDIT_COLUMNS", 1)
        patch.setattr(backend, "make_reference_string", lambda p, n: p.write_bytes(string_of(n)))
        yield patch


def reuse_keys(patch, private):
    """Copy the keys of a commitment, which follow from the architecture alone."""

    def copied(circuit, verifying, proving, srs):
        for key in (verifying, proving):
            shutil.copyfile(private / key.name, key)

    patch.setattr(backend, "setup", copied)


def prove_and_verify(made, levels):
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
    made.question = {"tolerance": 0.2, "n_bins": 2, "confidence_level": 0.95}
    made.sample = {"false_share": 0.3, "error": 0.1}
    return made


def make_exchange(folder):
    made = small_exchange(folder)
    table = pd.DataFrame(made.X, columns=["a", "b"])
    with quick_commitments() as patch:
        patch.setattr(sizes, "MANY_ROWS", TWO_BLOCKS)
        allowed = {"n_bins": 2, "n_proofs": 3, "n_attestations": 3}
        commit(made.model, table, folder, max_error=0.02, **allowed)
    attest_and_check(made, "1")
    prove_and_verify(made, ["bins", "predictions"])


def run_in(folder):
    X, y = make_gaussian_classes((60, 60, 20), random_state=0)[:2]
    y, rows = np.array(["x", "y", "z"])[y], np.random.default_rng(0).permutation(len(X))[:N]
    made = Exchange(folder, LogisticRegression().fit(X, y), X, y, rows)
    made.question = {"tolerance": 0.1, "n_bins": 4, "confidence_level": 0.95}
    # So few rows could not fail at 0.95 whatever their labels are.
    made.settings["verdict"]["confidence_level"] = 0.6
    made.sample = {"false_share": 0.1, "error": 0.2}  # 16 predictions are proven
    # As many rows as fit into one proof.
    made.few, made.dishonest = (made.X_ref[:14], made.y_ref[:14]), folder / "dishonest" / "public"
    made.interrupted, made.shrunk = folder / "interrupted", folder / "shrunk"
    made.other_verdict = folder / "other_verdict.json"
    return made


def make_run(folder):
    made = run_in(folder)
    shrunk = copy.deepcopy(made.model)
    shrunk.coef_, shrunk.intercept_ = made.model.coef_ / 8, made.model.intercept_ / 8
    with quick_commitments() as patch:
        patch.setattr(sizes, "MANY_ROWS", 1)  # in two chunks
        commit(made.model, made.X, folder, **COMMITTED)
        reuse_keys(patch, made.private)
        commit(shrunk, made.X, made.dishonest.parent, **COMMITTED)
    original, proofs = backend.prove, count(1)

    def interrupted(*arguments, **settings):
        if next(proofs) == 2:
            raise KeyboardInterrupt("by the provider")
        return original(*arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "prove", interrupted)
        with pytest.raises(KeyboardInterrupt, match="by the provider"):
            prove(made.public, *made.data, made.bins, **made.question)
    shutil.copytree(made.bins, made.interrupted)
    prove_and_verify(made, LEVELS)
    write_json(made.other_verdict, verdict_at_another_alpha(made))
    attest_and_check(made, "mine")
    prove(made.dishonest, *made.few, made.shrunk, tolerance=0.1, n_bins=1)


def verdict_at_another_alpha(made):
    """A valid proof of the same commitment about the same sums, but for tolerance=0.2."""
    committed = load_commitment(made.public)
    statement = VerdictStatement.of({**read_json(made.verdict / "statement.json"), "alpha": 0.2})
    files = sorted((made.verdict / "chunks").iterdir())
    outputs = [[int(v) for v in read_json(path)["outputs"]] for path in files]
    about = committed.shape, committed.max_error, statement, outputs, range(len(outputs))
    return Prover(committed).prove(statement, "verdict", verdict_inputs(*about), "verdict")
