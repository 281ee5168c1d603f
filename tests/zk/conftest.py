"""One run of the protocol, by all parties, which the tests of its parts share."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from skuq.datasets import make_gaussian_classes
from skuq.zk import _commit as sizes
from skuq.zk import _ezkl as backend
from skuq.zk import attest, challenge, commit, prove
from skuq.zk._files import read_json
from skuq.zk._private_commitment import Prover
from skuq.zk._statements import VerdictStatement, verdict_inputs
from tests.zk.exchange import Exchange, quick_commitments, reuse_keys
from tests.zk.tampering import ALPHA, COMMITTED, FEW, N_BINS, SAMPLE, VERDICT_LEVEL, N


@pytest.fixture(scope="session")
def exchange(tmp_path_factory):
    """One small commitment, and proofs of it as tests ask for them."""
    return Exchange(tmp_path_factory.mktemp("exchange"))


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Run of the protocol: two commitments, an audit at each level, an attestation; made once."""
    folder = tmp_path_factory.mktemp("zk")
    X, y = make_gaussian_classes((60, 60, 20), random_state=0)[:2]
    names = np.array(["x", "y", "z"])
    model = LogisticRegression().fit(X, names[y])
    shrunk = copy.deepcopy(model)
    shrunk.coef_, shrunk.intercept_ = model.coef_ / 8, model.intercept_ / 8
    made = SimpleNamespace(folder=folder, keys=folder / "keys", model=model, X=X, y=names[y])
    made.honest, made.dishonest = folder / "honest" / "public", folder / "dishonest" / "public"
    with quick_commitments() as patch:
        patch.setattr(sizes, "MANY_ROWS", 1)  # in two chunks
        made.committed = commit(model, X, made.honest.parent, **COMMITTED)
        reuse_keys(patch, made.honest.parent / "private")
        commit(shrunk, X, made.dishonest.parent, **COMMITTED)
    made.rows = np.random.default_rng(0).permutation(len(X))[:N]
    made.X_ref, made.y_ref = X[made.rows], names[y][made.rows]
    data = made.X_ref, made.y_ref
    asked = {"alpha": ALPHA, "n_bins": N_BINS}

    made.bins = folder / "bins"
    with pytest.MonkeyPatch.context() as patch:
        made.calls = interrupt_the_second(patch)
        with pytest.raises(KeyboardInterrupt, match="by the provider"):
            prove(made.honest, *data, made.bins, **asked)
    made.left = {path.name: path.read_bytes() for path in made.bins.rglob("*") if path.is_file()}
    made.bundle = prove(made.honest, *data, made.bins, **asked)

    made.verdict = folder / "verdict"
    at_level = {"level": "verdict", "confidence_level": VERDICT_LEVEL}
    prove(made.honest, *data, made.verdict, **at_level, **asked)
    made.other_verdict = verdict_at_another_alpha(made)

    made.predictions, made.challenge = folder / "predictions", folder / "challenge.json"
    arguments = {"level": "predictions", **asked}
    made.waiting = prove(made.honest, *data, made.predictions, **arguments)
    challenge(made.predictions, made.honest, *data, made.challenge, **SAMPLE)
    prove(made.honest, *data, made.predictions, challenge=made.challenge, **arguments)

    made.attestation = attest(made.honest, made.X_ref[0], folder / "attestation.json", nonce="mine")
    made.shrunk = folder / "shrunk"
    made.few = made.X_ref[:FEW], made.y_ref[:FEW]
    prove(made.dishonest, *made.few, made.shrunk, alpha=ALPHA, n_bins=1)
    made.settings = {
        "bins": {},
        "verdict": {"confidence_level": VERDICT_LEVEL},
        "predictions": {"challenge": made.challenge},
    }
    return made


def interrupt_the_second(patch):
    """Interrupt the second proof."""
    original, calls = backend.prove, []

    def prove_once(*arguments, **settings):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt("by the provider")
        return original(*arguments, **settings)

    patch.setattr(backend, "prove", prove_once)
    return calls


def verdict_at_another_alpha(made):
    """A valid proof of the same commitment about the same sums, but for alpha=0.2."""
    prover, committed = Prover(made.committed), made.committed
    record = read_json(made.verdict / "statement.json")
    statement = VerdictStatement.of({**record, "alpha": 0.2})
    outputs = [
        [int(v) for v in read_json(path)["outputs"]]
        for path in sorted((made.verdict / "chunks").iterdir())
    ]
    values = verdict_inputs(
        committed.shape, committed.tolerance, statement, outputs, range(len(outputs))
    )
    return prover.prove(statement, "verdict", values, "verdict")
