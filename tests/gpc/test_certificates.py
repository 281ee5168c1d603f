"""Certificates: what is proven safe is never contradicted, what is unsafe has a witness."""

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

from .bounds.oracles import KERNELS, around, deviation, fit_model, probabilities, sample

CASES = {
    "probit": ("probit", {}),
    "logit": ("logit", {"inference": "ep"}),
    "softmax": ("softmax", {"n_classes": 3}),
}
ORDERS = {"linf": np.inf, "l2": 2, "l1": 1}


@pytest.fixture(scope="module", params=sorted(CASES))
def model(request):
    likelihood, parameters = CASES[request.param]
    return fit_model(np.random.default_rng(1), KERNELS["rbf"](2), likelihood, n=20, **parameters)


def points(n=6):
    return np.random.default_rng(5).normal(size=(n, 2))


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_counterexamples_lie_in_balls_of_a_few_steps_of_float64(norm):
    rng, place = np.random.default_rng(0), 1.7e9
    X = place + rng.uniform(-2e-5, 2e-5, (30, 2))
    y = (X.sum(axis=1) > 2 * place).astype(int)
    model = RobustGPC(ConstantKernel(10.0) * RBF(1e-5), optimizer=None).fit(X, y)
    for radius in (5e-6, 1e-5):
        found = model.certify(X, radius=radius, norm=norm, max_regions=10)
        unsafe = found.status == "unsafe"
        distance = np.linalg.norm(found.counterexample - X, ORDERS[norm], axis=1)
        assert unsafe.sum() > 5
        assert (distance[unsafe] <= radius).all()


def test_safe_regions_hold_no_other_prediction_and_unsafe_ones_do(model):
    """In one norm for each likelihood; the search is the same for all."""
    norm = {"probit": "linf", "logit": "l1", "softmax": "l2"}[model.likelihood_]
    X, radius = points(), 0.25
    found = model.certify(X, radius=radius, norm=norm, max_regions=60)
    predicted = model.predict(X)
    attack = model.attack(X, radius=radius, norm=norm)
    assert set(found.status) >= {"safe", "unsafe"}
    rng = np.random.default_rng(0)
    for i, status in enumerate(found.status):
        inside = sample(rng, X[i], X[i] - radius, X[i] + radius, 20, radius, norm)
        proba = probabilities(model, inside)
        label = model.predict_proba(X[i : i + 1]).argmax()
        margin = (proba[:, label] - np.delete(proba, label, axis=1).max(axis=1)).min()
        assert found.margin_lower[i] <= margin + 1e-9
        if status == "safe":
            assert (model.predict(inside) == predicted[i]).all()
            assert not attack.success[i]
            assert found.margin_lower[i] > 0
            assert np.isnan(found.counterexample[i]).all()
        elif status == "unsafe":
            example = found.counterexample[i]
            assert np.linalg.norm(example - X[i], ORDERS[norm]) <= radius * (1 + 1e-12)
            assert model.predict(example[None])[0] != predicted[i]
            assert found.margin_upper[i] < 0
    assert (found.margin_lower <= found.margin_upper).all()


def test_wrong_labels_are_unsafe_at_the_point_itself(model):
    X = points()
    wrong = np.roll(model.classes_, 1)[model.predict_proba(X).argmax(axis=1)]
    found = model.certify(X, y=wrong, radius=1e-3)
    unsafe = found.status == "unsafe"
    assert unsafe.sum() >= len(X) - 1
    assert (np.abs(found.counterexample - X)[unsafe] <= 1e-3 * (1 + 1e-9)).all()
    radii = model.certified_radius(X[:3], y=wrong[:3], precision=0.1, max_regions=10)
    assert_array_equal(radii.lower, 0)
    assert (radii.upper <= 0.1).all()


def test_allowed_changes_agree_with_the_ranges(model):
    X, radius = points(2), 0.1
    ranges = model.predict_proba_bounds(X, radius, tol=0.03)
    lower, upper = deviation(ranges, model.predict_proba(X))
    assert (lower <= upper).all()
    assert_array_equal((ranges.lower, ranges.upper), (ranges.min_lower, ranges.max_upper))
    for delta in (0.05, 0.2):
        found = model.certify(X, radius=radius, delta=delta, max_regions=40)
        assert (found.status[upper < delta] != "unsafe").all()
        assert (found.status[lower > delta] != "safe").all()
        for i in np.flatnonzero(found.status == "unsafe"):
            moved = model.predict_proba(found.counterexample[i : i + 1]) - model.predict_proba(
                X[i : i + 1]
            )
            assert np.abs(moved).max() > delta - 1e-6
            assert np.abs(found.counterexample[i] - X[i]).max() <= radius * (1 + 1e-12)
    assert (model.certify(X, radius=radius, delta=1.0).status == "safe").all()


def test_safe_radii_lie_below_the_nearest_counterexample(model):
    """In one norm for each likelihood; `certify` is tested with each pair."""
    X, norm = points(2), {"probit": "linf", "logit": "l1", "softmax": "l2"}[model.likelihood_]
    found = model.certified_radius(X, norm=norm, max_radius=0.6, precision=0.1, max_regions=30)
    assert (found.lower <= found.upper).all()
    proven = found.lower > 0
    assert proven.any()
    smaller = found.lower[proven] * 0.9
    assert not model.attack(X[proven], radius=smaller, norm=norm).success.any()
    certificate = model.certify(X[proven], radius=smaller, norm=norm, max_regions=100)
    assert (certificate.status == "safe").all()


def test_each_point_may_have_a_domain_of_its_own(model):
    X = points(2)
    domain = X - 0.05, X + np.array([[0.05], [0.6]])
    options = {"max_radius": 0.6, "precision": 0.2, "max_regions": 30}
    found = model.certified_radius(X, domain=domain, **options)
    for i, x in enumerate(X):
        ends = domain[0][i], domain[1][i]
        alone = model.certified_radius(x[None], domain=ends, **options)
        assert (found.lower[i], found.upper[i]) == (alone.lower[0], alone.upper[0])


def test_searches_that_run_out_prove_nothing(model):
    X = points(3)
    found = model.certify(X, radius=2.0, max_time=0)
    assert set(found.status) <= {"undecided", "unsafe"}
    assert (found.margin_lower < 0).all()
    radii = model.certified_radius(X, max_time=0)
    assert_array_equal(radii.lower, 0)


def test_a_tie_is_undecided():
    X = np.array([[-1.0], [1.0]])
    model = fit_model(np.random.default_rng(0), RBF(1.0), d=1)
    model.fit(X, [0, 1])
    found = model.certify(np.zeros((1, 1)), radius=[0.0])
    assert found.status[0] != "safe"


def test_the_witness_is_of_the_objective_that_its_band_decides():
    class Known:
        def minima(self, regions, objectives, limits, threshold, band):
            upper = np.array([[-0.02, -0.01]])
            point = np.array([[[1.0], [2.0]]])
            return Minima(upper - 0.1, upper, point, np.ones((1, 2), int), np.ones((1, 2), bool))

    around_zero = around(np.zeros((1, 1)), 3.0)
    error = np.array([[0.05, 1e-9]])  # the first is not below its error, the second is
    found = certificates.certificate(
        Known(), around_zero, np.zeros((1, 2, 2)), np.zeros((1, 2)), error, 0.0, Limits()
    )
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
            least = np.array([[0.1, 0.5]])  # x from -.2 to .2
            point = np.array([[[-0.2], [0.2]]])
            return Minima(least, least, point, np.ones((1, 2), int), np.ones((1, 2), bool))

    found = certificates.robustness(Known(), around(np.zeros((1, 1)), 0.2), 0.5, Limits())
    assert found.margin_lower[0] <= 0.3 <= found.margin_upper[0]
    assert found.margin_upper[0] - found.margin_lower[0] == pytest.approx(0.02)
    assert found.status[0] == "safe"


def test_a_safe_radius_is_as_close_to_a_counterexample_as_was_asked_for():
    model = fit_model(np.random.default_rng(1), 4.0 * RBF(0.8), n=25)
    found = model.certified_radius(points(), max_radius=1.0, precision=0.01)
    near = np.isfinite(found.upper)
    assert near.sum() >= 3
    assert (found.upper - found.lower <= 0.01)[near].all()
    assert (found.lower[~near] == 1.0).all()
    distance = np.abs(found.counterexample - points()).max(axis=1)
    assert_array_equal(distance[near], found.upper[near])
    assert (model.predict(found.counterexample[near]) != model.predict(points()[near])).all()
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


def test_one_counterexample_ends_the_search_for_others():
    rng, kernel = np.random.default_rng(1), KERNELS["rbf"](2)
    model = fit_model(rng, kernel, "softmax", n=20, n_classes=3)
    X = points(6)
    proba = model.predict_proba(X)
    middle = proba.argsort(axis=1)[:, 1]  # the first class is a rival that decides at once
    found = model.certify(X, y=middle, radius=0.3)
    assert (found.status == "unsafe").all()
    assert (found.n_regions == 0).all()


@pytest.mark.parametrize(
    ("likelihood", "n_classes", "norm"),
    [("logit", 2, "linf"), ("softmax", 3, "linf"), ("softmax", 4, "l2")],
)
def test_other_points_neither_widen_a_bound_nor_change_a_decision(likelihood, n_classes, norm):
    """Also not that of points far from all data, whose latent functions are the widest."""
    rng = np.random.default_rng(5)
    kernel = ConstantKernel(25.0) * RBF(0.8)
    model = fit_model(rng, kernel, likelihood, n=15, n_classes=n_classes)
    X = np.concatenate([model.posterior_.inputs[:1], [[9.0, -9.0]]])
    request = {"radius": 0.3, "norm": norm, "max_regions": 3}
    of_one = {"tol": 1e-3, "class_": model.classes_[1]}
    together = model.predict_proba_bounds(X, **of_one, **request)
    decided = model.certify(X, **request)
    for i in range(len(X)):
        alone = model.predict_proba_bounds(X[i : i + 1], **of_one, **request)
        assert alone.n_regions[0] == together.n_regions[i]
        for name in ("min_lower", "min_upper", "max_lower", "max_upper"):
            mine, whole = getattr(alone, name)[0], getattr(together, name)[i]
            assert_allclose(mine, whole, atol=1e-9)
        assert model.certify(X[i : i + 1], **request).status[0] == decided.status[i]


def test_rounds_of_more_boxes_than_fit_at_once_are_divided(monkeypatch):
    """Into parts of which some hold the most promising box of no point."""
    model = fit_model(np.random.default_rng(5), 9.0 * RBF(0.7), "logit", n=20)
    X = points(3)
    request = {"radius": 0.5, "norm": "linf", "tol": 1e-3, "max_regions": 8}
    at_once = model.predict_proba_bounds(X, **request)
    monkeypatch.setattr(_branch_and_bound, "_BATCH", 2)
    in_parts = model.predict_proba_bounds(X, **request)
    assert (at_once.n_regions > 3).all()
    assert_allclose(in_parts.min_lower, at_once.min_lower, atol=1e-6)
    assert_allclose(in_parts.max_upper, at_once.max_upper, atol=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_search_that_ends_amid_a_round_forgets_no_box(monkeypatch, norm):
    """Each look at the clock takes a second, and each part of a round holds two boxes."""
    model = fit_model(np.random.default_rng(5), 9.0 * RBF(0.7), "logit", n=20, n_classes=2)
    request = {"radius": 0.5, "norm": norm, "tol": 1e-3}
    exact = model.predict_proba_bounds(points(1), **request)
    monkeypatch.setattr(_branch_and_bound, "_BATCH", 2)
    n_regions = []
    for max_time in range(1, 16, 2):
        clock = SimpleNamespace(monotonic=iter(range(1000)).__next__)
        monkeypatch.setattr(_branch_and_bound, "time", clock)
        found = model.predict_proba_bounds(points(1), **request, max_time=float(max_time))
        assert (found.min_lower <= exact.min_upper).all()
        assert (found.max_upper >= exact.max_lower).all()
        n_regions.append(int(found.n_regions[0]))
    assert n_regions == sorted(n_regions)
    assert len(set(n_regions)) > 3


def test_progress_counts_each_point_once(model):
    steps, X = [], points(3)
    prepared = model._region_model()
    prepared.prepare()
    limits = Limits(max_regions=5, progress=steps.append)
    certificates.probability_bounds(prepared, around(X, 0.3), np.arange(2), limits)
    assert min(steps) >= 0
    assert 0 < sum(steps) <= len(X)


def by_grid(model, X, gamma, k, domain=None):
    """Largest plus smallest probability to the right, minus those to the left."""
    effects = np.zeros(X.shape)
    for j in range(X.shape[1]):
        for i, x in enumerate(X):
            for sign in (1, -1):
                line = np.tile(x, (101, 1))
                line[:, j] += sign * gamma * np.linspace(0, 1, 101)
                if domain is not None:
                    line[:, j] = np.clip(line[:, j], *domain)
                p = probabilities(model, line)[:, k]
                effects[i, j] += sign * (p.max() + p.min())
    return effects


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_effects_are_those_of_a_dense_grid(likelihood):
    rng = np.random.default_rng(0)
    model = fit_model(rng, KERNELS["ard"](2), likelihood)
    X = rng.normal(size=(2, 2))
    for k, label in enumerate(model.classes_):
        found = model.explain(X, 0.5, class_=label, tol=1e-3)
        exact = by_grid(model, X, 0.5, k)
        assert (np.abs(found.local - exact) <= found.error + 1e-4).all()
        assert (found.error <= 4 * 1e-3 / 2 + 1e-9).all()
        assert_allclose(found.overall, found.local.mean(axis=0))
    assert_allclose(model.explain(X, 0.5, tol=1e-3).local, found.local, atol=1e-9)


def test_monotone_data_give_effects_of_the_gradients_sign():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (60, 3))
    y = (X @ [2.0, -1.0, 0.0] > 0).astype(int)
    model = RobustGPC(4.0 * RBF(3.0), optimizer=None, device="cpu").fit(X, y)
    found = model.explain(X[:5], 0.3)
    assert (found.local[:, 0] > 0).all()
    assert (found.local[:, 1] < 0).all()
    assert (np.abs(found.local[:, 2]) < np.abs(found.local[:, 1])).all()
    assert found.overall[0] > -found.overall[1] > 0


def test_domains_clip_and_other_features_have_no_effect():
    model = fit_model(np.random.default_rng(0), KERNELS["rbf"](2))
    X = np.array([[0.0, 0.1], [-0.2, 0.1]])  # the second lies on the border
    found = model.explain(X, 0.5, features=[0], domain=(-0.2, 0.3))
    assert_array_equal(found.local[:, 1], 0)
    exact = by_grid(model, X, 0.5, 1, domain=(-0.2, 0.3))
    assert (np.abs(found.local - exact)[:, 0] <= found.error[:, 0] + 1e-4).all()


def test_of_several_classes_the_predicted_one_is_meant():
    model = fit_model(np.random.default_rng(0), KERNELS["rbf"](2), "softmax", n_classes=3)
    X = np.random.default_rng(1).normal(size=(2, 2))
    found = model.explain(X, 0.1, tol=0.05)
    for i, label in enumerate(model.predict(X)):
        one = model.explain(X[i : i + 1], 0.1, class_=label, tol=0.05)
        assert (np.abs(found.local[i] - one.local[0]) <= found.error[i] + one.error[0]).all()
        other = model.explain(X[i : i + 1], 0.1, class_=(label + 1) % 3, tol=0.05)
        assert (np.abs(found.local[i] - other.local[0]) > found.error[i] + other.error[0]).any()


@pytest.mark.parametrize("max_radius", [0.6, 1.0, 1.7])
def test_an_open_trial_hides_no_nearer_counterexample(max_radius):
    precision, open_from, unsafe_from = 0.01, 0.49, 0.53
    search = certificates.Bisection(np.zeros((1, 1)), np.inf, max_radius, precision)
    trials = []
    while len(search.open):
        trials.append(radius := search.trial[0])
        status = "safe" if radius < open_from else "unsafe"
        status = "undecided" if open_from <= radius <= unsafe_from else status
        example = np.array([[radius if status == "unsafe" else np.nan]])
        margins = np.zeros(1), np.zeros(1)
        search.learn(
            certificates.Certificate(np.array([status]), *margins, example, np.ones(1, int))
        )
    found = search.result()
    assert open_from - precision <= found.lower[0] < open_from
    assert unsafe_from < found.upper[0] <= unsafe_from + precision
    assert found.counterexample[0, 0] == found.upper[0]
    assert len(trials) < 20


def test_no_radius_beyond_a_counterexample_is_tried():
    search = certificates.Bisection(np.zeros((1, 1)), np.inf, 1.0, 0.01)
    found = np.array(["unsafe"]), np.zeros(1), np.zeros(1), np.array([[0.2]]), np.ones(1, int)
    search.learn(certificates.Certificate(*found))
    assert search.trial[0] == pytest.approx(0.1)
