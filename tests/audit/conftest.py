"""A fitted model and a reference set for it."""

import pytest
from sklearn.datasets import make_moons
from sklearn.linear_model import LogisticRegression

from skuq.calibration import _scan as scan
from tests.reporter import drawn_audit


@pytest.fixture(scope="module")
def moons():
    X, y = make_moons(600, noise=0.35, random_state=0)
    return X, y


@pytest.fixture(scope="module")
def model(moons):
    return LogisticRegression().fit(moons[0][:200], moons[1][:200])


@pytest.fixture(scope="module")
def reference(moons):
    return moons[0][200:], moons[1][200:]


@pytest.fixture(scope="module")
def faked():
    return drawn_audit("third")


@pytest.fixture
def simulated_once(monkeypatch):
    """Simulations are kept for further audits of equal sizes and confidences: nothing else changes.

    They have a fixed seed, so an audit would repeat them.
    """
    kept, simulate = {}, scan.simulated_evidence

    def simulated_evidence(count, edge, sign, rng):
        key = count.tobytes(), edge.tobytes(), sign
        if key not in kept:
            kept[key] = simulate(count, edge, sign, rng)
        return kept[key]

    monkeypatch.setattr(scan, "simulated_evidence", simulated_evidence)
