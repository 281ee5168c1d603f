"""One run of the protocol, by all parties, which the tests of its parts share."""

import copy
import shutil
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from skuq.datasets import make_gaussian_classes
from skuq.zk import _commit as sizes
from skuq.zk import _ezkl as backend
from skuq.zk import attest, challenge, check, commit, load_commitment, prove
from skuq.zk._files import read_json, write_json
from skuq.zk._private_commitment import Prover
from skuq.zk._statements import VerdictStatement, verdict_inputs
from tests.zk import tampering as t
from tests.zk.exchange import Exchange, made_once, make_exchange, quick_commitments, reuse_keys


@pytest.fixture
def second():
    return t.second_verifier()


@pytest.fixture
def no_proof(monkeypatch):
    monkeypatch.setattr(backend, "prove", t.never)


@pytest.fixture(scope="session")
def exchange(tmp_path_factory):
    """One small commitment, and proofs of it."""
    return Exchange(made_once(tmp_path_factory, "exchange", make_exchange))


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Run of the protocol: two commitments, an audit at each level, an attestation."""
    made = run_in(made_once(tmp_path_factory, "run", make_run, Path(t.__file__)))
    made.committed = load_commitment(made.honest)
    return made


def run_in(folder):
    """Data of the run, and the names of its files."""
    X, y = make_gaussian_classes((60, 60, 20), random_state=0)[:2]
    y, rows = np.array(["x", "y", "z"])[y], np.random.default_rng(0).permutation(len(X))[: t.N]
    made = SimpleNamespace(folder=folder, X=X, y=y, X_ref=X[rows], y_ref=y[rows])
    made.model, made.data = LogisticRegression().fit(X, y), (made.X_ref, made.y_ref)
    made.few = made.X_ref[: t.FEW], made.y_ref[: t.FEW]
    made.honest, made.dishonest = folder / "honest" / "public", folder / "dishonest" / "public"
    made.ledger = folder / "honest" / "private" / "ledger.json"
    for name in ("keys", "interrupted", "bins", "verdict", "predictions", "shrunk"):
        setattr(made, name, folder / name)
    for name in ("challenge", "attestation", "other_verdict"):
        setattr(made, name, folder / f"{name}.json")
    made.settings = {
        "bins": {"level": "bins"},
        "verdict": {"level": "verdict", "confidence_level": t.VERDICT_LEVEL},
        "predictions": {"level": "predictions", "challenge": made.challenge},
    }
    return made


def make_run(folder):
    made, asked = run_in(folder), {"alpha": t.ALPHA, "n_bins": t.N_BINS}
    shrunk = copy.deepcopy(made.model)
    shrunk.coef_, shrunk.intercept_ = made.model.coef_ / 8, made.model.intercept_ / 8
    with quick_commitments() as patch:
        patch.setattr(sizes, "MANY_ROWS", 1)  # in two chunks
        commit(made.model, made.X, made.honest.parent, **t.COMMITTED)
        reuse_keys(patch, made.honest.parent / "private")
        commit(shrunk, made.X, made.dishonest.parent, **t.COMMITTED)

    with pytest.MonkeyPatch.context() as patch:
        interrupt_the_second(patch)
        with pytest.raises(KeyboardInterrupt, match="by the provider"):
            prove(made.honest, *made.data, made.bins, **asked)
    shutil.copytree(made.bins, made.interrupted)
    assert prove(made.honest, *made.data, made.bins, **asked) == (made.bins, 2, True)

    prove(made.honest, *made.data, made.verdict, **made.settings["verdict"], **asked)
    write_json(made.other_verdict, verdict_at_another_alpha(made))

    arguments = made.honest, *made.data, made.predictions
    assert prove(*arguments, level="predictions", **asked) == (made.predictions, 0, False)
    challenge(made.predictions, made.honest, *made.data, made.challenge, **t.SAMPLE)
    prove(*arguments, **made.settings["predictions"], **asked)

    attest(made.honest, made.X_ref[0], made.attestation, nonce="mine")
    prove(made.dishonest, *made.few, made.shrunk, alpha=t.ALPHA, n_bins=1)
    for level in t.LEVELS:
        t.verified(made, level)
    given = {"keys": made.keys, "allow_test_string": True}
    check(made.attestation, made.honest, x=made.X_ref[0], nonce="mine", **given)


def interrupt_the_second(patch):
    """Interrupt the second proof."""
    original, calls = backend.prove, count(1)

    def prove_once(*arguments, **settings):
        if next(calls) == 2:
            raise KeyboardInterrupt("by the provider")
        return original(*arguments, **settings)

    patch.setattr(backend, "prove", prove_once)


def verdict_at_another_alpha(made):
    """A valid proof of the same commitment about the same sums, but for alpha=0.2."""
    committed = load_commitment(made.honest)
    statement = VerdictStatement.of({**read_json(made.verdict / "statement.json"), "alpha": 0.2})
    files = sorted((made.verdict / "chunks").iterdir())
    outputs = [[int(v) for v in read_json(path)["outputs"]] for path in files]
    about = committed.shape, committed.tolerance, statement, outputs, range(len(outputs))
    return Prover(committed).prove(statement, "verdict", verdict_inputs(*about), "verdict")
