"""The published procedure for several points at once."""

import numpy as np
from sklearn.gaussian_process.kernels import RBF

from skuq.gpc._neighbourhoods import around
from skuq.gpc.bounds._probability_model import Limits, ProbabilityModel
from skuq.gpc.published import _adapter

from ..bounds.oracles import fit_model


def test_the_time_limit_is_shared_by_all_points(monkeypatch):
    """Each point gets an equal share of the time that the points before it have left."""
    clock, limits = [100.0], []

    def search(posterior, lower, upper, *, likelihood, tol, max_regions, max_time):
        limits.append(max_time)
        clock[0] += max_time / 2  # each search uses up half of its time
        return original(posterior, lower, upper, likelihood=likelihood, tol=0.5)

    original = _adapter.branch_and_bound
    monkeypatch.setattr(_adapter, "branch_and_bound", search)
    monkeypatch.setattr(_adapter.time, "monotonic", lambda: clock[0])
    posterior = fit_model(np.random.default_rng(0), RBF(1.0), n=5).posterior_
    model, regions = ProbabilityModel(posterior, "probit", "cpu"), around(np.zeros((3, 2)), 0.1)
    _adapter.published_bounds(model, regions, np.array([1]), Limits(max_time=6.0))
    np.testing.assert_allclose(limits, [2.0, 2.5, 3.75])
