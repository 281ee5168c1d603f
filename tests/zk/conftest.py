"""One run of the protocol, by all parties, which the tests of its parts share."""

import copy
import shutil
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from skuq.datasets import make_gaussian_classes
from skuq.zk import _commit as sizes
from skuq.zk import _ezkl as backend
from skuq.zk import commit, load_commitment, prove
from skuq.zk._files import read_json, write_json
from skuq.zk._private_commitment import Prover
from skuq.zk._statements import VerdictStatement, verdict_inputs
from tests.zk.exchange import (
    attest_and_check,
    made_once,
    make_exchange,
    prove_and_verify,
    quick_commitments,
    reuse_keys,
    small_exchange,
)
from tests.zk.tampering import COMMITTED, LEVELS, Exchange, N, never, second_verifier

if not (find_spec("ezkl") and find_spec("onnx")):  # which some processors and Pythons lack
    others = ("test_files.py", "test_fixed_point.py", "test_quantisation.py")
    folder = Path(__file__).parent.glob("test_*.py")
    collect_ignore = [path.name for path in folder if path.name not in others]


@pytest.fixture
def second():
    return second_verifier()


@pytest.fixture
def no_proof(monkeypatch):
    monkeypatch.setattr(backend, "prove", never)


@pytest.fixture(scope="session")
def exchange(tmp_path_factory):
    """One small commitment, and proofs of it."""
    return small_exchange(made_once(tmp_path_factory, "exchange", make_exchange))


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Run of the protocol: two commitments, an audit at each level, an attestation."""
    made = run_in(made_once(tmp_path_factory, "run", make_run))
    made.committed = load_commitment(made.public)
    return made


def run_in(folder):
    """Data of the run, and the names of its files."""
    X, y = make_gaussian_classes((60, 60, 20), random_state=0)[:2]
    y, rows = np.array(["x", "y", "z"])[y], np.random.default_rng(0).permutation(len(X))[:N]
    made = Exchange(folder, LogisticRegression().fit(X, y), X, y, rows)
    made.question = {"alpha": 0.1, "n_bins": 4, "confidence_level": 0.95}
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
    prove(made.dishonest, *made.few, made.shrunk, alpha=0.1, n_bins=1)


def verdict_at_another_alpha(made):
    """A valid proof of the same commitment about the same sums, but for alpha=0.2."""
    committed = load_commitment(made.public)
    statement = VerdictStatement.of({**read_json(made.verdict / "statement.json"), "alpha": 0.2})
    files = sorted((made.verdict / "chunks").iterdir())
    outputs = [[int(v) for v in read_json(path)["outputs"]] for path in files]
    about = committed.shape, committed.tolerance, statement, outputs, range(len(outputs))
    return Prover(committed).prove(statement, "verdict", verdict_inputs(*about), "verdict")
