"""Bounds for many classes, against brute force and against the integral for three."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, softmax
from scipy.stats import norm, qmc
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skuq.gpc.bounds._latent_bounds import Expander, Expansion
from skuq.gpc.bounds._many_classes import LEAST, ManyClassesLink, Pairs
from skuq.gpc.bounds._regions import BallParts, Moments, Region
from skuq.gpc.bounds._softmax_link import Reach
from skuq.gpc.inference._softmax_averages import ACCURACY, three_class_probabilities

from .oracles import ORDERS, average, fit_model, grid, moments, pairs_of, sample, tensor, within

SOBOL = norm.ppf(qmc.Sobol(6, seed=1).random_base2(12))
KINDS = ("margin", "smallest", "largest")
OF_KIND = pytest.mark.parametrize("kind", KINDS)


def values_of(kind, own, proba):
    rivals = np.delete(proba, own, axis=1).max(axis=1)
    smallest, largest = proba[:, own] - 1, -proba[:, own]
    return {"margin": proba[:, own] - rivals, "smallest": smallest, "largest": largest}[kind]


def sampled(mean, covariance):
    """Probabilities by many quasi-random points, for any number of classes."""
    root = np.linalg.cholesky(covariance + 1e-12 * np.eye(covariance.shape[-1]))
    return softmax(mean[:, None] + SOBOL[:, : mean.shape[1]] @ root.swapaxes(1, 2), -1).mean(1)


def objectives(own, n_classes):
    return LEAST * torch.eye(n_classes).double()[own]


@pytest.fixture(scope="module", params=[(4, {}), (5, {"n_inducing": 8})], ids=["exact", "sparse"])
def model(request):
    n_classes, parameters = request.param
    return fit_model(n_classes, "rbf", "softmax", n=20, n_classes=n_classes, **parameters)


@pytest.fixture(scope="module", params=[0.3, 2.0, 30.0], ids="deviation {}".format)
def three(request):
    """Three classes, for which there is another integral; the link takes any number."""
    return fit_model(3, ConstantKernel(request.param**2) * RBF(0.7), "softmax", n=15, n_classes=3)


def bounds_and_values(model, half, oracle):
    """Bounds over boxes of each kind, values in them by other means, by the link and its error."""
    rng = np.random.default_rng(0)
    latent, n_classes = model._region_model().latent, len(model.classes_)
    variance = latent.kernel.variance
    limits = variance * (1 + latent.varsigma), variance * latent.varsigma
    centers = model.posterior_.inputs[:5] + 0.2 * rng.normal(size=(5, 2))
    base = tensor(centers)
    region = Region(base, base - half, base + half)
    expansion = Expander(latent, base, torch.arange(2)).expand(region, torch.arange(5))
    steps = np.concatenate([np.zeros((5, 1, 2)), rng.uniform(-1, 1, (5, 8, 2))], axis=1)
    tried = (centers[:, None] + half * steps).reshape(-1, 2)
    proba = oracle(*moments(model.posterior_, tried)).reshape(5, 9, n_classes)
    at = Expander(latent, tensor(tried), torch.arange(2)).evaluate(tensor(tried), torch.arange(45))
    for kind in KINDS:
        own = model.predict(centers).astype(int) if kind == "margin" else np.arange(5) % n_classes
        objective = objectives(own, n_classes)
        link = ManyClassesLink(kind, n_classes, *limits, "cpu")
        bound = link.minimum(objective, expansion, tensor([0.0] * 5)).bound.numpy()
        found = link.evaluate(objective.repeat_interleave(9, 0), at.mean, at.covariance)
        values = np.stack([values_of(kind, *each) for each in zip(own, proba, strict=True)])
        yield bound, values, found.value.view(5, 9).numpy(), found.error.view(5, 9).numpy()


@pytest.mark.parametrize(("half", "most"), [(0.0, 0.06), (0.01, 0.1), (0.2, 1.5)])
def test_no_value_in_a_box_is_below_its_bound(three, half, most):
    for bound, values, found, error in bounds_and_values(three, half, three_class_probabilities):
        gaps = values.min(axis=1) - bound
        assert (gaps >= -1e-9).all()
        assert (np.abs(found - values) <= error + 1e-9).all()
        assert np.median(gaps) < most


def test_bounds_of_more_classes_hold_at_sampled_values(model):
    for bound, values, found, error in bounds_and_values(model, 0.02, sampled):
        assert (bound <= values.min(axis=1) + 2e-3).all()
        assert (np.abs(found - values) <= error + 2e-3).all()


@OF_KIND
def test_values_of_independent_classes_are_exact(kind):
    """So are their derivatives, and the bounds of boxes so small that all is all but linear."""
    rng, zeros = np.random.default_rng(0), tensor([0.0] * 4)
    mean, gradient = rng.normal(size=(4, 5)), 1e-3 * rng.normal(size=(4, 5, 2))
    covariance = np.stack([np.diag(d) for d in rng.uniform(0.3, 2, (4, 5))])
    slope = 1e-3 * rng.normal(size=(4, 15, 2))
    link = ManyClassesLink(kind, 5, 5.0, 1e-6, "cpu")
    own = mean.argmax(axis=1) if kind == "margin" else np.arange(4)
    objective, box = objectives(own, 5), boxes(mean, covariance, gradient, (1e-4, 2e-4), slope)
    found = link.evaluate(objective, box.mean.value, box.covariance.value)
    proba = sampled(mean, covariance)
    exact = [values_of(kind, c, p[None])[0] for c, p in zip(own, proba, strict=True)]
    assert_allclose(found.value, exact, atol=1e-3)
    size = 2 if kind == "margin" else 1
    error = size * (ACCURACY + 25 * 1e-6 / 8)
    assert_allclose(found.error, error, rtol=1e-6)
    reach = Reach(*(tensor([part] * 4) for part in (2, 3, 0, 0, 0)))
    inexact = link._inexact(reach) - link._inexact(Reach(*(0 * part for part in reach)))
    assert_allclose(inexact, size * 5 * ACCURACY, rtol=1e-6)  # of slopes, times 2 and 3
    t = tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    along = found.mean_slope[:, None] @ box.mean.gradient
    along = (along + found.covariance_slope[:, None] @ box.covariance.gradient)[:, 0]
    corners = ([part.value + part.gradient @ c for part in box[:2]] for c in t)
    moved = torch.stack([link.evaluate(objective, *corner).value for corner in corners])
    assert_allclose(moved - found.value, t @ along.T, atol=2e-5)
    least, where = moved.min(0)
    minimum = link.minimum(objective, box, zeros)
    slopes = found.mean_slope.abs().sum(1), found.covariance_slope.abs().sum(1)
    assert_allclose(minimum.rest, 1e-4 * slopes[0] + 2e-4 * slopes[1], rtol=1e-9)
    loss = least - minimum.bound - error - minimum.rest
    assert bool(((loss > 0) & (loss < 1e-3)).all())
    assert_array_equal(minimum.point, t[where])
    # Within a ball, the slope counts by its length.
    ball = BallParts(tensor([[0, 0]] * 4), tensor([[1, 1]] * 4), zeros + 0.1, 2)
    ball = Expansion(*(part._replace(ball=ball, rest=0 * part.rest) for part in box[:2]))
    inner = link.minimum(objective, ball, zeros).bound
    reached = found.value - 0.1 * torch.linalg.vector_norm(along, dim=-1) - error
    assert_allclose(inner, reached, atol=3e-5)


@OF_KIND
def test_no_value_is_above_one_however_large_the_error(kind):
    """As that of classes that exclude each other is."""
    covariance = np.full((1, 4, 4), -3.0) + 9.99 * np.eye(4)
    covariance[0, :2, :2] = [[50.0, -49.0], [-49.0, 50.0]]
    box, link = boxes(np.ones((1, 4)), covariance), ManyClassesLink(kind, 4, 50.0, 0.0, "cpu")
    found = link.evaluate(objectives([0], 4), box.mean.value, box.covariance.value)
    assert_allclose(found.value + found.error, 1.0)


def test_bounds_by_pairs_are_below_what_they_stand_for():
    """At single points, also where classes depend on each other so much that nothing else holds."""
    rng = np.random.default_rng(1)
    for deviation in (0.3, 2.0, 10.0):
        root = rng.normal(size=(6, 5, 5)) * deviation / 2 + deviation * np.eye(5)
        mean = (rng.normal(size=(6, 5)) + [2, 0, 0, 0, 0]) * deviation
        covariance = root @ root.swapaxes(1, 2)
        proba = sampled(mean, covariance)
        for own, kind in np.ndindex(5, 3):
            bound = pairs_at(KINDS[kind], own, mean, covariance).bound.numpy()
            assert (bound <= values_of(KINDS[kind], own, proba) + 6e-3).all()


def test_bounds_by_pairs_are_those_of_their_formula_and_not_below_the_least_value():
    """With functions that are all but known: a product only if all leads are associated."""
    mean = np.array([[4.0, 0.0, 1.0, -1.0], [3.0, -2.0, 0.5, 0.0]] * 2)
    # All is known of the first class; two of the others vary inversely, but not in the last row.
    shared = np.full((4, 3, 3), 0.2) + 0.8 * np.eye(3)
    for row, j, k in ((0, 0, 1), (1, 0, 2), (2, 1, 2)):
        shared[row, [j, k], [k, j]] = -0.2
    covariance = np.zeros((4, 4, 4))
    covariance[:, 1:, 1:] = 1e-14 * shared
    gradient = 0.1 * np.random.default_rng(0).normal(size=(4, 4, 2))
    middle, change = mean[:, :1] - mean[:, 1:], gradient[:, :1] - gradient[:, 1:]
    s, largest = (expit(middle + sign * np.abs(change).sum(axis=2)) for sign in (-1, 1))
    P = np.where(np.arange(4) == 3, s.prod(axis=1), 1 - (1 - s).sum(axis=1))
    assert (P[:3] < s[:3].prod(axis=1) - 1e-3).all()
    known = pairs_at("smallest", 0, mean, np.zeros((4, 4, 4)), gradient).bound
    assert_allclose(known, s.prod(axis=1) - 1, atol=1e-9)
    bounds = P - (1 - s).max(axis=1), P - 1, -largest.min(axis=1)
    for kind, values in zip(KINDS, bounds, strict=True):
        found = pairs_at(kind, 0, mean, covariance, gradient)
        assert_allclose(found.bound, values, atol=1e-9)
        decisive = (largest if kind == "largest" else s).argmin(axis=1)
        direction = 1 if kind == "largest" else -1
        assert_array_equal(found.point, direction * np.sign(change[np.arange(4), decisive]))
        assert not any(part.any() for part in (found.curvature, *found.slopes[::2]))
        assert {float(radius.min()) for radius in found.slopes[1::2]} == {1e300}
    mean, inverse = np.array([[9.0, 0.0, 1.0, -1.0]]), np.zeros((1, 4, 4))
    inverse[0, [0, 2], [2, 0]], inverse[0, [0, 2], [0, 2]] = -1e-14, 1e-14
    for kind, exact in zip(KINDS, (LEAST, LEAST, -expit(-9.0)), strict=True):
        assert_allclose(pairs_at(kind, 1, mean, inverse).bound, exact, atol=1e-9)


@OF_KIND
def test_leads_vary_no_more_than_four_times_a_class(kind):
    """Of covariances nothing is known but that, and of means a rest."""
    mean, rest = np.array([[9.0, 0.0, 1.0, -1.0]]), 0.5
    sign, variance = (-1, 0.0) if kind == "largest" else (1, 4 * 5.0)
    leads = sign * (mean[:, :1] - mean[:, 1:]).reshape(-1, 1) - 2 * rest
    s = average("logit", leads, np.full((3, 1, 1), variance))[:, 1]
    P = 1 - (1 - s).sum()
    expected = {"margin": P - (1 - s).max(), "smallest": P - 1, "largest": s.max() - 1}[kind]
    found = pairs_at(kind, 0, mean, np.zeros((1, 4, 4)), rests=(rest, 1e3), most_variance=5.0)
    assert_allclose(found.bound, expected, atol=1e-9)
    assert_allclose(found.curvature, 0)
    assert float(found.rest) >= 1


def boxes(mean, covariance, gradient=None, rests=(0.0, 0.0), covariance_gradient=None):
    """Moments at centres of boxes of two features, means or covariances with gradients."""

    def linear(values, gradient, rest):
        values, zero = tensor(values), tensor(np.zeros((*values.shape, 2)))
        gradient = zero if gradient is None else tensor(gradient)
        return Moments(values, gradient, torch.stack([zero, zero], -1), 0 * values + rest, zero)

    covariance = linear(pairs_of(covariance), covariance_gradient, rests[1])
    return Expansion(linear(mean, gradient, rests[0]), covariance)


def pairs_at(kind, own, mean, covariance, gradient=None, most_variance=None, **parts):
    """Minima of `Pairs` over boxes, by default single points."""
    n, n_classes = mean.shape
    most_variance = float(covariance.max()) if most_variance is None else most_variance
    box = boxes(mean, covariance, gradient, **parts)
    link = Pairs(kind, n_classes, most_variance, "cpu")
    return link.minimum(objectives([own] * n, n_classes), box, tensor([0.0] * n))


def test_safe_regions_hold_no_other_prediction_and_unsafe_ones_do(model):
    rng, norm = np.random.default_rng(2), "linf" if len(model.classes_) == 4 else "l2"
    X = model.posterior_.inputs[:2]
    labels, seen = model.predict(X), set()
    for radius in (1e-3, 0.6):
        found = model.certify(X, radius=radius, norm=norm, max_regions=3)
        seen |= set(found.status)
        points = found.counterexample
        for status, x, label, point in zip(found.status, X, labels, points, strict=True):
            if status == "safe":
                tried = sample(rng, x, x - radius, x + radius, 20, radius, norm)
                assert (model.predict(tried) == label).all()
            if status == "unsafe":
                assert np.linalg.norm(point - x, ORDERS[norm]) <= radius * (1 + 1e-9)
                assert model.predict(point[None])[0] != label
    assert {"safe", "unsafe"} <= seen
    wrong = (labels + 1) % len(model.classes_)
    assert (model.certify(X, y=wrong, radius=1e-3, max_regions=1).status == "unsafe").all()
    radii = model.certified_radius(X, max_radius=0.02, precision=0.5, max_regions=1)
    assert (radii.lower <= radii.upper).all()
    assert (radii.lower > 0).any()


def test_ranges_hold_all_probabilities(model):
    X, radius = model.posterior_.inputs[:1], 0.02
    found = model.predict_proba_bounds(X, radius, tol=0.05, max_regions=3)
    proba = model.predict_proba(grid(X[0] - radius, X[0] + radius, 5))
    assert within(found.min_lower[0], proba, found.max_upper[0], 5e-3)
    assert (found.min_lower <= found.min_upper).all()
    assert (found.max_lower <= found.max_upper).all()
    assert (found.min_lower.max(axis=1) > 0).any()
    one = model.predict_proba_bounds(X, radius, class_=model.classes_[1], max_regions=2)
    assert_allclose(one.max_upper[:, 0], found.max_upper[:, 1], atol=0.06)
