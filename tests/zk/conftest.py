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
from tests.zk.exchange import Exchange, made_once, make_exchange, quick_commitments, reuse_keys
from tests.zk.tampering import (
    ALPHA,
    COMMITTED,
    FEW,
    LEVELS,
    N_BINS,
    SAMPLE,
    VERDICT_LEVEL,
    N,
    verified,
)

CONSTANTS = Path(__file__).with_name("tampering.py")


@pytest.fixture(scope="session")
def exchange(tmp_path_factory):
    """One small commitment, and proofs of it."""
    return Exchange(made_once(tmp_path_factory, "exchange", make_exchange))


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Run of the protocol: two commitments, an audit at each level, an attestation."""
    made = run_in(made_once(tmp_path_factory, "run", make_run, CONSTANTS))
    made.committed = load_commitment(made.honest)
    return made


def run_in(folder):
    """Data of the run, and the names of its files."""
    X, y = make_gaussian_classes((60, 60, 20), random_state=0)[:2]
    names = np.array(["x", "y", "z"])
    rows = np.random.default_rng(0).permutation(len(X))[:N]
    made = SimpleNamespace(folder=folder, X=X, y=names[y], X_ref=X[rows], y_ref=names[y][rows])
    made.model = LogisticRegression().fit(X, made.y)
    made.few = made.X_ref[:FEW], made.y_ref[:FEW]
    made.honest, made.dishonest = folder / "honest" / "public", folder / "dishonest" / "public"
    for name in ("keys", "interrupted", "bins", "verdict", "predictions", "shrunk"):
        setattr(made, name, folder / name)
    made.challenge, made.attestation = folder / "challenge.json", folder / "attestation.json"
    made.other_verdict = folder / "other_verdict.json"
    made.settings = {
        "bins": {},
        "verdict": {"confidence_level": VERDICT_LEVEL},
        "predictions": {"challenge": made.challenge},
    }
    return made


def make_run(folder):
    made = run_in(folder)
    shrunk = copy.deepcopy(made.model)
    shrunk.coef_, shrunk.intercept_ = made.model.coef_ / 8, made.model.intercept_ / 8
    with quick_commitments() as patch:
        patch.setattr(sizes, "MANY_ROWS", 1)  # in two chunks
        commit(made.model, made.X, made.honest.parent, **COMMITTED)
        reuse_keys(patch, made.honest.parent / "private")
        commit(shrunk, made.X, made.dishonest.parent, **COMMITTED)
    data = made.X_ref, made.y_ref
    asked = {"alpha": ALPHA, "n_bins": N_BINS}

    with pytest.MonkeyPatch.context() as patch:
        interrupt_the_second(patch)
        with pytest.raises(KeyboardInterrupt, match="by the provider"):
            prove(made.honest, *data, made.bins, **asked)
    shutil.copytree(made.bins, made.interrupted)
    assert prove(made.honest, *data, made.bins, **asked) == (made.bins, 2, True)

    at_level = {"level": "verdict", "confidence_level": VERDICT_LEVEL}
    prove(made.honest, *data, made.verdict, **at_level, **asked)
    write_json(made.other_verdict, verdict_at_another_alpha(made))

    arguments = {"level": "predictions", **asked}
    waiting = prove(made.honest, *data, made.predictions, **arguments)
    assert waiting == (made.predictions, 0, False)
    challenge(made.predictions, made.honest, *data, made.challenge, **SAMPLE)
    prove(made.honest, *data, made.predictions, challenge=made.challenge, **arguments)

    attest(made.honest, made.X_ref[0], made.attestation, nonce="mine")
    prove(made.dishonest, *made.few, made.shrunk, alpha=ALPHA, n_bins=1)
    for level in LEVELS:
        verified(made, level)
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
    record = read_json(made.verdict / "statement.json")
    statement = VerdictStatement.of({**record, "alpha": 0.2})
    outputs = [
        [int(v) for v in read_json(path)["outputs"]]
        for path in sorted((made.verdict / "chunks").iterdir())
    ]
    values = verdict_inputs(
        committed.shape, committed.tolerance, statement, outputs, range(len(outputs))
    )
    return Prover(committed).prove(statement, "verdict", values, "verdict")
