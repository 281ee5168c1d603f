"""Certificates are never contradicted, have witnesses, and stand beside attacks by gradients."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_iris
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skuq import RobustGPC
from skuq.gpc import _certificates as certificates
from skuq.gpc.bounds import _branch_and_bound
from skuq.gpc.bounds._region_models import Limits, Minima

from .bounds.oracles import ORDERS, around, fit_model, probabilities, sample, within

CASES = {"logit": {"inference": "ep"}, "probit": {}, "softmax": {"n_classes": 3}}
NORM = {"probit": "linf", "logit": "l1", "softmax": "l2"}
POINTS, ROWS = np.random.default_rng(5).normal(size=(6, 2)), np.arange(6)
FOUND = np.ones((1, 2), int), np.ones((1, 2), bool)


@pytest.fixture(scope="module", params=CASES)
def model(request):
    return fit_model(1, "rbf", request.param, n=20, **CASES[request.param])


def test_safe_regions_hold_no_other_prediction_and_unsafe_ones_do(model):
    """In one norm for each likelihood; the search is the same for all."""
    X, norm, rng = POINTS, NORM[model.likelihood_], np.random.default_rng(0)
    found = model.certify(X, radius=0.25, norm=norm, max_regions=60)
    predicted, attack = model.predict(X), model.attack(X, radius=0.25, norm=norm)
    assert set(found.status) >= {"safe", "unsafe"}
    for i, status in enumerate(found.status):
        inside = sample(rng, X[i], X[i] - 0.25, X[i] + 0.25, 20, 0.25, norm)
        proba, label = probabilities(model, inside), model.predict_proba(X[i : i + 1]).argmax()
        margin = (proba[:, label] - np.delete(proba, label, axis=1).max(axis=1)).min()
        assert found.margin_lower[i] <= margin + 1e-9
        if status == "safe":
            assert (model.predict(inside) == predicted[i]).all()
            assert not attack.success[i]
            assert found.margin_lower[i] > 0
            assert np.isnan(found.counterexample[i]).all()
        elif status == "unsafe":
            example = found.counterexample[i]
            assert np.linalg.norm(example - X[i], ORDERS[norm]) <= 0.25 * (1 + 1e-12)
            assert model.predict(example[None])[0] != predicted[i]
            assert found.margin_upper[i] < 0
    assert (found.margin_lower <= found.margin_upper).all()


def test_wrong_labels_are_unsafe_at_the_point_itself(model):
    wrong = np.roll(model.classes_, 1)[model.predict_proba(POINTS).argmax(axis=1)]
    found = model.certify(POINTS, y=wrong, radius=1e-3)
    unsafe = found.status == "unsafe"
    assert unsafe.sum() >= len(POINTS) - 1
    assert (np.abs(found.counterexample - POINTS)[unsafe] <= 1e-3 * (1 + 1e-9)).all()
    radii = model.certified_radius(POINTS[:3], y=wrong[:3], precision=0.1, max_regions=10)
    assert_array_equal(radii.lower, 0)
    assert (radii.upper <= 0.1).all()
    if len(model.classes_) == 2:
        assert_array_equal(found.counterexample[unsafe], POINTS[unsafe])
        assert_array_equal(radii.upper[unsafe[:3]], 0)


def test_allowed_changes_agree_with_the_ranges(model):
    X, radius = POINTS[:2], 0.1
    ranges, proba = model.predict_proba_bounds(X, radius, tol=0.03), model.predict_proba(X)
    # Bounds on the largest change of any class probability: the delta of Definition 1
    lower = np.maximum(proba - ranges.min_upper, ranges.max_lower - proba).max(axis=1).clip(min=0)
    upper = np.maximum(proba - ranges.min_lower, ranges.max_upper - proba).max(axis=1)
    assert (lower <= upper).all()
    assert_array_equal((ranges.lower, ranges.upper), (ranges.min_lower, ranges.max_upper))
    for delta in (0.05, 0.2):
        found = model.certify(X, radius=radius, delta=delta, max_regions=40)
        assert (found.status[upper < delta] != "unsafe").all()
        assert (found.status[lower > delta] != "safe").all()
        unsafe = found.status == "unsafe"
        if unsafe.any():
            moved = model.predict_proba(found.counterexample[unsafe]) - proba[unsafe]
            assert (np.abs(moved).max(axis=1) > delta - 1e-6).all()
            assert np.abs(found.counterexample - X)[unsafe].max() <= radius * (1 + 1e-12)
    assert (model.certify(X, radius=radius, delta=1.0).status == "safe").all()


def test_safe_radii_lie_below_the_nearest_counterexample(model):
    X, norm = POINTS[:2], NORM[model.likelihood_]
    found = model.certified_radius(X, norm=norm, max_radius=0.6, precision=0.1, max_regions=30)
    assert (found.lower <= found.upper).all()
    proven = found.lower > 0
    assert proven.any()
    smaller = found.lower[proven] * 0.9
    assert not model.attack(X[proven], radius=smaller, norm=norm).success.any()
    certificate = model.certify(X[proven], radius=smaller, norm=norm, max_regions=100)
    assert (certificate.status == "safe").all()


def test_each_point_may_have_a_domain_of_its_own(model):
    X, options = POINTS[:2], {"max_radius": 0.6, "precision": 0.2, "max_regions": 30}
    domain = X - 0.05, X + np.array([[0.05], [0.6]])
    found = model.certified_radius(X, domain=domain, **options)
    for i, ends in enumerate(zip(*domain, strict=True)):
        alone = model.certified_radius(X[i : i + 1], domain=ends, **options)
        assert (found.lower[i], found.upper[i]) == (alone.lower[0], alone.upper[0])


def test_searches_that_run_out_and_ties_prove_nothing(model):
    found = model.certify(POINTS[:3], radius=2.0, max_time=0)
    assert set(found.status) <= {"undecided", "unsafe"}
    assert (found.margin_lower < 0).all()
    assert_array_equal(model.certified_radius(POINTS[:3], max_time=0).lower, 0)
    tied = fit_model(0, RBF(1.0), d=1).fit([[-1.0], [1.0]], [0, 1])
    assert tied.certify(np.zeros((1, 1)), radius=[0.0]).status[0] != "safe"


def test_the_witness_is_of_the_objective_that_its_band_decides():
    class Known:
        def minima(self, regions, objectives, limits, threshold, band):
            upper, point = np.array([[-0.02, -0.01]]), np.array([[[1.0], [2.0]]])
            return Minima(upper - 0.1, upper, point, *FOUND)

    error = np.array([[0.05, 1e-9]])  # the first is not below its error, the second is
    given = around(np.zeros((1, 1)), 3.0), np.zeros((1, 2, 2)), np.zeros((1, 2)), error, 0.0
    found = certificates.certificate(Known(), *given, Limits())
    assert found.status[0] == "unsafe"
    assert_array_equal(found.counterexample, [[2.0]])


def test_what_is_left_of_an_allowed_change_counts_that_the_point_is_known_up_to_an_error():
    """A class of probability .3 + x, whose rival's probability is rounded up by .02."""

    class Known:
        n_classes = 2

        def values(self, points, objective):
            proba = np.column_stack([0.3 + points[:, 0], 0.7 - points[:, 0]])
            return (proba * objective).sum(axis=1) + 0.02 * objective[:, 1]

        def minima(self, regions, objectives, limits, threshold, band):
            least, point = np.array([[0.1, 0.5]]), np.array([[[-0.2], [0.2]]])  # x from -.2 to .2
            return Minima(least, least, point, *FOUND)

    found = certificates.robustness(Known(), around(np.zeros((1, 1)), 0.2), 0.5, Limits())
    assert found.margin_lower[0] <= 0.3 <= found.margin_upper[0]
    assert found.margin_upper[0] - found.margin_lower[0] == pytest.approx(0.02)
    assert found.status[0] == "safe"


def test_a_safe_radius_is_as_close_to_a_counterexample_as_was_asked_for():
    model = fit_model(1, 4.0 * RBF(0.8), n=25)
    found = model.certified_radius(POINTS, max_radius=1.0, precision=0.01)
    near = np.isfinite(found.upper)
    assert near.sum() >= 3
    assert (found.upper - found.lower <= 0.01)[near].all()
    assert (found.lower[~near] == 1.0).all()
    distance = np.abs(found.counterexample - POINTS).max(axis=1)
    assert_array_equal(distance[near], found.upper[near])
    assert (model.predict(found.counterexample[near]) != model.predict(POINTS[near])).all()
    assert np.isnan(found.counterexample[~near]).all()


def test_safe_is_never_said_where_predict_disagrees():
    X, y = (part[::3] for part in load_iris(return_X_y=True))
    gpc = RobustGPC(ConstantKernel(2500.0) * RBF(1.0), optimizer=None, device="cpu").fit(X, y)
    classes = gpc.predict(X)
    near, far = X[classes == 1][:2], X[classes == 2][:2]
    for _ in range(45):  # to within a few float64 numbers of the decision
        middle = (near + far) / 2
        same = (gpc.predict(middle) == 1)[:, None]
        near, far = np.where(same, middle, near), np.where(same, far, middle)
    points = np.concatenate([near, far, X[:1]])
    labels = gpc.predict(points)
    tried = points + 1e-9 * np.random.default_rng(0).uniform(-1, 1, (10, *points.shape))
    changed = gpc.predict(tried.reshape(-1, 4)).reshape(10, -1) != labels
    found = gpc.certify(points, radius=1e-9, max_regions=1)
    assert not (changed.any(axis=0) & (found.status == "safe")).any()
    assert found.status[-1] == "safe"
    for i in np.flatnonzero(found.status == "unsafe"):
        assert gpc.predict(found.counterexample[i : i + 1]) != labels[i]


@pytest.mark.parametrize(
    ("likelihood", "n_classes", "norm"),
    [("logit", 2, "linf"), ("softmax", 3, "linf"), ("softmax", 4, "l2")],
)
def test_other_points_neither_widen_a_bound_nor_change_a_decision(likelihood, n_classes, norm):
    """Also not that of points far from all data, whose latent functions are the widest."""
    model = fit_model(5, ConstantKernel(25.0) * RBF(0.8), likelihood, n=15, n_classes=n_classes)
    X = np.concatenate([model.posterior_.inputs[:1], [[9.0, -9.0]]])
    request = {"radius": 0.3, "norm": norm, "max_regions": 3}
    of_one = {"tol": 1e-3, "class_": model.classes_[1]}
    together = model.predict_proba_bounds(X, **of_one, **request)
    decided = model.certify(X, **request)
    for i in range(len(X)):
        alone = model.predict_proba_bounds(X[i : i + 1], **of_one, **request)
        assert alone.n_regions[0] == together.n_regions[i]
        for mine, whole in zip(alone[:4], together[:4], strict=True):
            assert_allclose(mine[0], whole[i], atol=1e-9)
        assert model.certify(X[i : i + 1], **request).status[0] == decided.status[i]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_rounds_that_are_divided_or_end_midway_forget_no_box(monkeypatch, norm):
    """Each part of a round holds two boxes, and each look at the clock takes a second."""
    model = fit_model(5, 9.0 * RBF(0.7), "logit", n=20)
    request = {"radius": 0.5, "norm": norm, "tol": 1e-3}
    exact = model.predict_proba_bounds(POINTS[:1], **request)
    at_once = model.predict_proba_bounds(POINTS[:3], **request, max_regions=8)
    monkeypatch.setattr(_branch_and_bound, "_BATCH", 2)
    if norm == "linf":  # some parts hold the most promising box of no point
        in_parts = model.predict_proba_bounds(POINTS[:3], **request, max_regions=8)
        assert (at_once.n_regions > 3).all()
        assert_allclose(in_parts.min_lower, at_once.min_lower, atol=1e-6)
        assert_allclose(in_parts.max_upper, at_once.max_upper, atol=1e-6)
    n_regions = []
    for max_time in range(1, 16, 2):
        clock = SimpleNamespace(monotonic=iter(range(1000)).__next__)
        monkeypatch.setattr(_branch_and_bound, "time", clock)
        found = model.predict_proba_bounds(POINTS[:1], **request, max_time=float(max_time))
        assert (found.min_lower <= exact.min_upper).all()
        assert (found.max_upper >= exact.max_lower).all()
        n_regions.append(int(found.n_regions[0]))
    assert n_regions == sorted(n_regions)
    assert len(set(n_regions)) > 3


def by_grid(model, X, gamma, k, domain=(-np.inf, np.inf)):
    """Largest plus smallest probability to the right, minus those to the left."""
    effects = np.zeros(X.shape)
    for i, j in np.ndindex(X.shape):
        for sign in (1, -1):
            line = np.tile(X[i], (101, 1))
            line[:, j] = np.clip(line[:, j] + sign * gamma * np.linspace(0, 1, 101), *domain)
            p = probabilities(model, line)[:, k]
            effects[i, j] += sign * (p.max() + p.min())
    return effects


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_effects_are_those_of_a_dense_grid(likelihood):
    rng = np.random.default_rng(0)
    model = fit_model(rng, "ard", likelihood)
    X = rng.normal(size=(2, 2))
    for k, label in enumerate(model.classes_):
        found = model.explain(X, 0.5, class_=label, tol=1e-3)
        assert (np.abs(found.local - by_grid(model, X, 0.5, k)) <= found.error + 1e-4).all()
        assert (found.error <= 4 * 1e-3 / 2 + 1e-9).all()
        assert_allclose(found.overall, found.local.mean(axis=0))
    assert_allclose(model.explain(X, 0.5, tol=1e-3).local, found.local, atol=1e-9)
    X = np.array([[0.0, 0.1], [-0.2, 0.1]])  # the second lies on the border of the domain
    found = model.explain(X, 0.5, features=[0], domain=(-0.2, 0.3))
    assert_array_equal(found.local[:, 1], 0)
    exact = by_grid(model, X, 0.5, 1, domain=(-0.2, 0.3))
    assert (np.abs(found.local - exact)[:, 0] <= found.error[:, 0] + 1e-4).all()


def test_of_several_classes_the_predicted_one_is_meant():
    model = fit_model(0, "rbf", "softmax", n_classes=3)
    X = np.random.default_rng(1).normal(size=(2, 2))
    found = model.explain(X, 0.1, tol=0.05)
    for i, label in enumerate(model.predict(X)):
        classes = label, (label + 1) % 3
        one, other = (model.explain(X[i : i + 1], 0.1, class_=c, tol=0.05) for c in classes)
        assert (np.abs(found.local[i] - one.local[0]) <= found.error[i] + one.error[0]).all()
        assert (np.abs(found.local[i] - other.local[0]) > found.error[i] + other.error[0]).any()


def learned(search, status, example):
    """What a bisection learns of a single trial."""
    one = np.array([status]), np.zeros(1), np.zeros(1), np.array([[example]]), np.ones(1, int)
    search.learn(certificates.Certificate(*one))


@pytest.mark.parametrize("max_radius", [0.6, 1.0, 1.7])
def test_an_open_trial_hides_no_nearer_counterexample(max_radius):
    precision, open_from, unsafe_from = 0.01, 0.49, 0.53
    search = certificates.Bisection(np.zeros((1, 1)), np.inf, max_radius, precision)
    n_trials = 0
    while len(search.open):
        radius, n_trials = search.trial[0], n_trials + 1
        status = "safe" if radius < open_from else "undecided"
        unsafe = radius > unsafe_from
        learned(search, "unsafe" if unsafe else status, radius if unsafe else np.nan)
    found = search.result()
    assert open_from - precision <= found.lower[0] < open_from
    assert unsafe_from < found.upper[0] <= unsafe_from + precision
    assert found.counterexample[0, 0] == found.upper[0]
    assert n_trials < 20
    search = certificates.Bisection(np.zeros((1, 1)), np.inf, max_radius, precision)
    learned(search, "unsafe", 0.2)
    assert search.trial[0] == pytest.approx(0.1)  # no radius beyond a counterexample


@pytest.mark.parametrize(
    ("method", "norm"), [("pgd", "linf"), ("fgsm", "l1"), ("pgd", "l1"), ("fgsm", "l2")]
)
def test_attacks_stay_in_the_region_and_lower_the_probability(model, method, norm):
    limits = POINTS.min(axis=0), POINTS.max(axis=0)
    found = model.attack(POINTS, radius=0.05, norm=norm, method=method, features=[0], domain=limits)
    assert (np.linalg.norm(found.points - POINTS, ORDERS[norm], axis=1) <= 0.05 * (1 + 1e-12)).all()
    assert within(limits[0], found.points, limits[1])
    assert_array_equal(found.points[:, 1], POINTS[:, 1])
    labels = model.predict_proba(POINTS).argmax(axis=1)
    both = POINTS, found.points
    before, after = (probabilities(model, points)[ROWS, labels] for points in both)
    assert_allclose(after, found.proba, atol=1e-7)
    assert (after < before + 1e-4).mean() > 0.8
    assert (after < before - 1e-4).mean() > 0.5
    assert_array_equal(found.success, model.predict(found.points) != model.predict(POINTS))


def test_many_steps_are_no_worse_than_none_and_one_step_of_the_sign_ends_in_a_corner(model):
    proba = model.predict_proba(POINTS)
    labels = proba.argmax(axis=1)
    many, one = (model.attack(POINTS, radius=0.8, method=method) for method in ("pgd", "fgsm"))
    assert (many.proba <= proba[ROWS, labels] + 1e-4).all()
    assert many.proba.mean() <= one.proba.mean() + 1e-4
    assert_allclose(np.abs(one.points - POINTS), 0.8)
    direction = np.sign(model.attack(POINTS, radius=1e-5, method="fgsm").points - POINTS)
    assert_array_equal(np.sign(one.points - POINTS), direction)
    for j, step in enumerate(1e-4 * np.eye(2)):
        ends = probabilities(model, POINTS + step), probabilities(model, POINTS - step)
        slope = (ends[0] - ends[1])[ROWS, labels]
        assert (np.sign(slope) == -direction[:, j])[np.abs(slope) > 1e-8].all()


def test_the_attacked_class_can_be_chosen(model):
    for k, label in enumerate(model.classes_):
        found = model.attack(np.zeros((1, 2)), y=[label], radius=0.3)
        assert found.proba[0] <= model.predict_proba(np.zeros((1, 2)))[0, k] + 1e-4
        assert_allclose(found.proba[0], model.predict_proba(found.points)[0, k])


def test_restarts_never_find_less_and_are_reproducible(model):
    norm = "l2" if model.likelihood_ == "logit" else "linf"
    at = POINTS if model.likelihood_ == "softmax" else POINTS[:4]
    alone = model.attack(at, radius=1.5, norm=norm)
    more, again = (model.attack(at, radius=1.5, norm=norm, n_restarts=2) for _ in range(2))
    assert (more.proba <= alone.proba + 1e-9).all()
    assert (more.proba < alone.proba - 1e-4).any()
    assert (np.linalg.norm(more.points - at, ORDERS[norm], axis=1) <= 1.5 * (1 + 1e-12)).all()
    assert_array_equal(more.points, again.points)
