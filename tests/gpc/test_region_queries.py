"""Ranges of class probabilities over regions: never wrong, and as close as was asked for."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skuq import RobustGPC
from skuq.gpc._certificates import probability_bounds
from skuq.gpc.bounds._region_models import Limits, ProbabilityModel
from skuq.gpc.inference._posterior import JointPosterior

from .bounds import oracles
from .bounds.oracles import ORDERS, around, fit_model, grid, probabilities, within

MODELS = {
    "probit": ("probit", {}),
    "logit": ("logit", {"inference": "ep"}),
    "sparse": ("logit", {"n_inducing": 7}),
    "softmax of two": ("softmax", {}),
    "softmax": ("softmax", {"n_classes": 3, "n_inducing": 8}),
}
ORIGIN = np.zeros((1, 2))


@pytest.fixture(scope="module")
def model():
    return fit_model(0, 4.0 * RBF(0.8), n=25)


def enclosed(found, proba, i=0):
    return within(found.min_lower[i], proba, found.max_upper[i], oracles.ROUNDING)


@pytest.mark.parametrize("seed", range(10))
def test_no_point_of_a_region_leaves_its_range(seed):
    rng, kind, norm = np.random.default_rng(seed), [*MODELS][seed % 5], [*ORDERS, "box"][seed % 4]
    likelihood, parameters = MODELS[kind]
    three = kind == "softmax"
    d, max_regions = 2 if three else 1 + seed % 4, 2 if three else (1, 20)[seed % 2]
    model = fit_model(rng, sorted(oracles.KERNELS)[seed % 8], likelihood, d=d, **parameters)
    X = rng.normal(size=(2, d))
    radius = np.array([0.05, 0.5]) * rng.uniform(0.5, 1.5)
    request, lower, upper = oracles.random_region(rng, X, norm, radius)
    if seed % 3 == 0:  # one point lies on the border of the domain
        request["domain"] = (X.min(axis=0), np.inf)
        lower = np.maximum(lower, X.min(axis=0))
    found = model.predict_proba_bounds(X, **request, tol=0.02, max_regions=max_regions)
    assert (found.min_lower <= found.min_upper).all()
    assert (found.max_lower <= found.max_upper).all()
    assert (found.n_regions <= 2 * len(model.classes_) * (max_regions + 63)).all()
    attacks = [model.attack(X, y=np.full(2, c), **request).points for c in model.classes_[:2]]
    for i in range(2):
        ball = (None, "linf") if norm == "box" else (radius[i], norm)
        points = oracles.sample(rng, X[i], lower[i], upper[i], 6 if three else 300, *ball)
        points = np.concatenate([points, X[i : i + 1], *(a[i : i + 1] for a in attacks)])
        assert enclosed(found, probabilities(model, points), i)
        sides = (found.argmin[i], found.min_upper), (found.argmax[i], found.max_lower)
        for ends, values in sides:
            assert within(lower[i], ends, upper[i])
            if norm in ("l1", "l2"):
                assert (np.linalg.norm(ends - X[i], ORDERS[norm], axis=1) <= radius[i]).all()
            attained = np.diagonal(probabilities(model, ends))
            assert_allclose(attained, values[i], atol=5e-5 if likelihood == "softmax" else 1e-8)
        if found.converged[i]:
            assert (found.min_upper - found.min_lower)[i].max() <= 0.02 + 1e-12
            assert (found.max_upper - found.max_lower)[i].max() <= 0.02 + 1e-12


@pytest.mark.parametrize(
    ("kind", "d", "norm", "tol"),
    [
        *(("probit", 1, "linf", 1e-2), ("probit", 2, "l2", 1e-2), ("logit", 2, "l1", 1e-5)),
        *(("probit", 2, "linf", 1e-5), ("sparse", 2, "linf", 1e-2)),
        *(("softmax of two", 2, "l1", 1e-2), ("softmax", 2, "l2", 2e-2)),
    ],
)
def test_ranges_converge_to_those_of_a_dense_grid(kind, d, norm, tol):
    rng, (likelihood, parameters) = np.random.default_rng(d), MODELS[kind]
    model = fit_model(rng, "rational" if d == 2 else "sum", likelihood, d=d, **parameters)
    x, radius = rng.normal(size=d) / 2, 0.1 if kind == "softmax" else 0.2
    found = model.predict_proba_bounds(x[None], radius, norm=norm, tol=tol)
    assert found.converged.all()
    assert (found.min_upper - found.min_lower <= tol).all()
    n, step = (7, 0.03) if kind == "softmax" else (61, 0.005)
    points = oracles.inside(x, grid(x - radius, x + radius, n), radius, norm)
    proba = probabilities(model, points)
    assert enclosed(found, proba)
    assert (proba.min(axis=0) <= found.min_lower[0] + tol + step).all()
    assert (proba.max(axis=0) >= found.max_upper[0] - tol - step).all()


def test_stopping_early_gives_valid_and_wider_ranges(model):
    X = np.array([[0.2, -0.3]])
    proba, widths = probabilities(model, grid(X[0] - 0.8, X[0] + 0.8, 41)), []
    for limits in ({"max_time": 0}, {"max_regions": 1}, {"max_regions": 40}, {}):
        found = model.predict_proba_bounds(X, 0.8, tol=1e-3, **limits)
        assert enclosed(found, proba)
        assert found.converged[0] == (not limits)
        assert found.n_regions[0] == 2 or "max_time" not in limits  # one for each extreme
        widths.append((found.max_upper - found.min_lower).max())
    assert widths[0] >= widths[1] > widths[2] > widths[3]


def test_a_region_of_one_point_is_that_point(model):
    X = np.random.default_rng(0).normal(size=(3, 2))
    for request in ({"radius": 0.0}, {"radius": 0.0, "norm": "l2"}, {"region": (X, X)}):
        found = model.predict_proba_bounds(X, **request)
        assert_allclose(found[:4], [model.predict_proba(X)] * 4, atol=0.01)
        assert found.converged.all()
        assert_array_equal(found.argmin, np.repeat(X[:, None], 2, axis=1))


def test_the_authors_code_encloses_the_same_probabilities():
    with np.load(Path(__file__).parent / "published/data/check_gpclass_n40.npz") as file:
        data = dict(file)
    kernel = ConstantKernel(float(data["variance"])) * RBF(data["length_scale"])
    posterior = JointPosterior(kernel, data["inputs"], data["weights"], data["matrix"][None])
    model = ProbabilityModel(posterior, "probit", "cpu")
    for x, (radius, _, *theirs) in zip(data["centres"], data["figures"], strict=True):
        region = around(x[None], radius=radius)
        found = probability_bounds(model, region, np.array([1]), Limits(tol=1e-4))
        mean, variance = posterior.moments(grid(x - radius, x + radius, 21))
        ours = [part.item() for part in found[:4]]
        assert within(ours[0], ndtr(mean[:, 0] / np.sqrt(1 + variance[:, 0, 0])), ours[3], 1e-9)
        for start in (0, 2):
            assert theirs[start] - 1e-7 <= ours[start + 1]
            assert ours[start] <= theirs[start + 1] + 1e-7
        assert ours[3] - ours[0] <= theirs[3] - theirs[0] + 2e-4


@pytest.mark.parametrize("likelihood", ["probit", "logit", "softmax"])
def test_a_tolerance_below_rounding_ends_the_search_without_convergence(likelihood):
    model = fit_model(0, 4.0 * RBF(0.8), likelihood, n=25)
    found = model.predict_proba_bounds(ORIGIN, 0.0, tol=1e-300)
    assert not found.converged[0]
    assert found.min_lower[0, 0] <= model.predict_proba(ORIGIN)[0, 0] + 1e-9


def test_ties_overflows_and_steps_of_float64_end_the_search_undecided(model):
    far = np.array([[0.0, 8.0]])
    assert np.abs(np.diff(model.predict_proba(far)[0]))[0] < 1e-9  # else the case is none
    assert model.certify(far, radius=1e-3, tol=1e-12, max_regions=50).status[0] == "undecided"
    found = model.predict_proba_bounds(ORIGIN, 1e200, max_regions=5)
    assert (found.min_lower == 0).all()
    assert (found.max_upper == 1).all()
    found = model.certified_radius(ORIGIN, precision=1e-17, max_regions=2)
    assert 0 <= found.lower[0] <= found.upper[0]


def test_a_reduction_above_the_prior_is_no_hole():
    inputs, weights = np.array([[0.0], [1.0], [-1.0]]), np.array([[-1, 2.5, 2.5]])
    posterior = JointPosterior(RBF(1.0), inputs, weights, np.diag([1.01, 0, 0])[None])
    model, region = ProbabilityModel(posterior, "probit", "cpu"), around(np.array([[0.05]]), 0.05)
    found = probability_bounds(model, region, np.array([1]), Limits(1e-5, 200))
    p = model.probabilities(np.linspace(0, 0.1, 2001)[:, None])[:, 1]
    assert within(found.min_lower[0, 0], p, found.max_upper[0, 0])


def test_features_may_be_named_and_later_changes_of_the_data_do_not_reach_the_model():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 3)), columns=["age", "dose", "size"])
    model = RobustGPC(RBF(), optimizer=None, device="cpu").fit(X, X["dose"] > 0)
    named = model.certify(X[:3], radius=0.5, features=["dose"])
    indexed = model.certify(X[:3], radius=0.5, features=[1])
    assert_array_equal(named.margin_lower, indexed.margin_lower)
    with pytest.raises(ValueError, match="height"):
        model.certify(X[:3], radius=0.5, features=["dose", "height"])
    rows = X.to_numpy(copy=True)
    model.fit(rows, X["dose"] > 0)
    before = model.predict_proba(X.to_numpy())
    rows += 5
    assert_array_equal(model.predict_proba(X.to_numpy()), before)
