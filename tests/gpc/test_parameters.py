"""Each parameter of RobustGPC has an effect where it can, and is refused where it cannot."""

import inspect

import numpy as np
import pytest
from sklearn.datasets import make_moons
from sklearn.gaussian_process.kernels import RBF

from skuq import RobustGPC
from skuq.gpc import _estimator
from skuq.gpc._neighbourhoods import Around

KERNEL = 4.0 * RBF(0.7)
X, Y = make_moons(24, noise=0.2, random_state=0)
POINTS, LABELS = X[[4, 7]] + 0.01, Y[[4, 7]]  # whose decisions take more than one box


def estimator(**parameters):
    return RobustGPC(KERNEL, **{"optimizer": None, "random_state": 0, **parameters})


@pytest.fixture(scope="module")
def fitted():
    return estimator().fit(X, Y)


@pytest.fixture(scope="module")
def answers(fitted):
    """Results of each method for the arguments that the others are compared with."""
    return {method: getattr(fitted, method)(POINTS, **EFFECTIVE[method][0]) for method in EFFECTIVE}


def fitted_state(gpc):
    gpc.fit(X, Y)
    return [gpc.n_iter_, gpc.log_marginal_likelihood_, gpc.posterior_.inputs.tolist()]


@pytest.mark.parametrize(
    ("base", "changed"),
    [
        ({}, {"kernel": RBF(2.0)}),
        ({}, {"likelihood": "logit"}),
        ({}, {"inference": "ep"}),
        ({"max_iter": 3, "optimizer": "lbfgs"}, {"max_iter": 4}),
        ({"max_iter": 2, "optimizer": "lbfgs"}, {"n_restarts": 1}),
        ({}, {"optimizer": "lbfgs"}),
        ({}, {"n_inducing": 5}),
        ({"n_inducing": 5}, {"random_state": 1}),
    ],
    ids=lambda parameters: "-".join(parameters),
)
def test_parameters_of_the_fit_have_an_effect(base, changed):
    gpc = estimator(**base)
    before = fitted_state(gpc)
    assert fitted_state(gpc.set_params(**changed)) != before


def test_parameters_of_queries_have_an_effect(capsys, monkeypatch):
    asked = []
    parallel = _estimator.Parallel

    def spy(n_jobs, **options):
        asked.append(n_jobs)
        return parallel(n_jobs=1, **options)

    monkeypatch.setattr(_estimator, "Parallel", spy)
    monkeypatch.setattr(_estimator, "_BATCH", 1)
    gpc = estimator(device="cpu").fit(X, Y)
    request = {"radius": 0.05, "tol": 0.5}
    gpc.predict_proba_bounds(POINTS, **request)
    assert list(gpc._region_models) == ["cpu"]
    assert capsys.readouterr().err == ""
    gpc.set_params(n_jobs=2).predict_proba_bounds(POINTS, **request)
    gpc.set_params(n_jobs=None, verbose=1).predict_proba_bounds(POINTS, **request)
    assert "2/2" in capsys.readouterr().err
    gpc.set_params(device="cpu:0", verbose=0).predict_proba_bounds(POINTS, **request)
    assert list(gpc._region_models) == ["cpu", "cpu:0"]
    assert asked == [1, 2, 1, 1]


def test_all_parameters_of_the_constructor_are_tried_here():
    tried = {"kernel", "likelihood", "inference", "optimizer", "max_iter", "n_restarts"}
    tried |= {"n_inducing", "random_state", "device", "n_jobs", "verbose"}
    assert set(RobustGPC().get_params()) == tried


EFFECTIVE = {
    "predict_proba_bounds": (
        {"radius": 0.3, "tol": 0.2, "max_regions": 30},
        {
            "radius": 0.1,
            "region": (POINTS - 0.2, POINTS + 0.1),
            "norm": "l1",
            "features": [0],
            "domain": (POINTS - 0.1, None),
            "class_": 1,
            "tol": 0.01,
            "max_time": 0.0,
            "max_regions": 1,
        },
    ),
    "certify": (
        {"radius": 0.4, "max_regions": 30},
        {
            "y": 1 - LABELS,
            "radius": 0.1,
            "region": (POINTS - 0.2, POINTS + 0.1),
            "norm": "l1",
            "features": [0],
            "domain": (POINTS - 0.1, None),
            "delta": 0.3,
            "tol": 0.5,
            "max_time": 0.0,
            "max_regions": 1,
        },
    ),
    "certified_radius": (
        {"max_radius": 1.0, "precision": 0.1, "max_regions": 20},
        {
            "y": 1 - LABELS,
            "max_radius": 0.1,
            "precision": 0.01,
            "norm": "l1",
            "features": [0],
            "domain": (POINTS - 0.02, POINTS + 0.02),
            "max_time": 0.0,
            "max_regions": 1,
        },
    ),
    "attack": (
        {"radius": 0.4},
        {
            "y": 1 - LABELS,
            "radius": 0.1,
            "region": (POINTS - 0.2, POINTS + 0.1),
            "norm": "l1",
            "features": [0],
            "domain": (POINTS - 0.1, None),
            "method": "fgsm",
            "n_restarts": 3,
        },
    ),
    "explain": (
        {"gamma": 0.3, "tol": 0.01, "max_regions": 20},
        {
            "gamma": 0.1,
            "class_": 0,
            "features": [0],
            "domain": (POINTS - 0.1, None),
            "tol": 0.001,
            "max_time": 0.0,
            "max_regions": 1,
        },
    ),
}


@pytest.mark.parametrize("method", EFFECTIVE)
def test_all_parameters_of_queries_are_tried_here(method):
    own = set(inspect.signature(getattr(RobustGPC, method)).parameters) - {"self", "X", "around"}
    shared = set(Around.__annotations__)
    if method in ("certified_radius", "attack", "explain"):
        shared -= {"certified_radius": {"region"}, "explain": {"region", "norm"}}.get(
            method, {"max_time", "max_regions"}
        )
    assert set(EFFECTIVE[method][1]) == own | shared


@pytest.mark.parametrize(
    ("method", "name"), [(method, name) for method in EFFECTIVE for name in EFFECTIVE[method][1]]
)
def test_arguments_of_queries_have_an_effect(fitted, answers, method, name):
    base, changes = EFFECTIVE[method]
    changed = {**base, name: changes[name]}
    if name == "region":
        del changed["radius"]
    after = getattr(fitted, method)(POINTS, **changed)
    assert not all(
        np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f")
        for a, b in zip(answers[method], after, strict=True)
    )
