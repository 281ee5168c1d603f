"""Simulations that are kept between audits."""

import pytest

from skuq.calibration import _scan as scan


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
