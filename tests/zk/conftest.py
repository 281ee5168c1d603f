"""One run of the protocol, by all parties, which the tests of its parts share."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from skuq.zk import _ezkl as backend
from skuq.zk import load_commitment
from tests.zk.exchange import made_once, make_exchange, make_run, run_in, small_exchange
from tests.zk.tampering import never, second_verifier

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
    return small_exchange(made_once(tmp_path_factory, "exchange", make_exchange))


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Run of the protocol: two commitments, an audit at each level, an attestation."""
    made = run_in(made_once(tmp_path_factory, "run", make_run))
    made.committed = load_commitment(made.public)
    return made
