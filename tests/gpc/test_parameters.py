"""Each argument of a query of RobustGPC has an effect; `tests/test_parameters.py` has the fit's."""

import inspect

import numpy as np
import pytest
from sklearn.datasets import make_moons
from sklearn.gaussian_process.kernels import RBF

from skuq import RobustGPC
from skuq.gpc import _estimator
from skuq.gpc._estimator import Around

X, Y = make_moons(24, noise=0.2, random_state=0)
POINTS, LABELS = X[[4, 7]] + 0.01, Y[[4, 7]]  # whose decisions take more than one box


@pytest.fixture
def gpc():
    return RobustGPC(4.0 * RBF(0.7), optimizer=None, random_state=0, device="cpu").fit(X, Y)


def test_workers_devices_and_progress_are_those_that_were_asked_for(gpc, capsys, monkeypatch):
    asked, parallel = [], _estimator.Parallel

    def spy(n_jobs, **options):
        asked.append(n_jobs)
        return parallel(n_jobs=1, **options)

    monkeypatch.setattr(_estimator, "Parallel", spy)
    monkeypatch.setattr(_estimator, "_BATCH", 1)
    for changed in ({}, {"n_jobs": 2}, {"n_jobs": None, "verbose": 1}, {"device": "cpu:0"}):
        assert capsys.readouterr().err == ""
        gpc.set_params(**changed).predict_proba_bounds(POINTS, radius=0.05, tol=0.5)
        if "verbose" in changed:
            assert "2/2" in capsys.readouterr().err
            gpc.set_params(verbose=0)
    assert list(gpc._region_models) == ["cpu", "cpu:0"]
    assert asked == [1, 2, 1, 1]


SHAPES = {"norm": "l1", "features": [0], "domain": (POINTS - 0.1, None)}
BALLS = {"radius": 0.1, "region": (POINTS - 0.2, POINTS + 0.1), **SHAPES}
LIMITS = {"max_time": 0.0, "max_regions": 1}
OTHER = {"y": 1 - LABELS}
BASE = {
    "predict_proba_bounds": {"radius": 0.3, "tol": 0.2, "max_regions": 30},
    "certify": {"radius": 0.4, "max_regions": 30},
    "certified_radius": {"max_radius": 1.0, "precision": 0.1, "max_regions": 20},
    "attack": {"radius": 0.4},
    "explain": {"gamma": 0.3, "tol": 0.01, "max_regions": 20},
}
NEAR = {"domain": (POINTS - 0.02, POINTS + 0.02)}
CHANGED = {
    "predict_proba_bounds": {**BALLS, **LIMITS, "class_": 1, "tol": 0.01},
    "certify": {**OTHER, **BALLS, **LIMITS, "delta": 0.3, "tol": 0.5},
    "certified_radius": {**OTHER, **SHAPES, **LIMITS, "max_radius": 0.1, "precision": 0.01, **NEAR},
    "attack": {**OTHER, **BALLS, "method": "fgsm", "n_restarts": 3},
    "explain": {**SHAPES, **LIMITS, "gamma": 0.1, "class_": 0, "tol": 0.001},
}
del CHANGED["explain"]["norm"]


@pytest.mark.parametrize("method", BASE)
def test_arguments_of_queries_have_an_effect(gpc, method):
    own = set(inspect.signature(getattr(RobustGPC, method)).parameters) - {"self", "X", "around"}
    without = {"certified_radius": {"region"}, "explain": {"region", "norm"}, "attack": {*LIMITS}}
    base, changes = BASE[method], CHANGED[method]
    assert set(changes) == own | set(Around.__annotations__) - without.get(method, set())
    before = getattr(gpc, method)(POINTS, **base)
    for name, value in changes.items():
        changed = {**base, name: value}
        if name == "region":
            del changed["radius"]
        after = getattr(gpc, method)(POINTS, **changed)
        assert not all(
            np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f")
            for a, b in zip(before, after, strict=True)
        ), name
