"""Published bounds for several classes: in the integrals, and against many points of boxes."""

import itertools

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import RBF

from benchmarks.published_gpc import published_bounds
from benchmarks.published_gpc import softmax as multiclass
from benchmarks.published_gpc.branch_and_bound import multiclass_branch_and_bound
from benchmarks.published_gpc.softmax import (
    Interval,
    box_masses,
    conditionals,
    softmax_bounds,
    softmax_extremes,
)

from ..bounds.oracles import average, fit_model, grid, probabilities

MEAN = np.array([0.3, -0.4, 0.6])
COVARIANCE = np.array([[1.2, 0.5, 0.3], [0.5, 0.9, 0.4], [0.3, 0.4, 1.5]])


def exactly(value):
    return Interval(value, value)


def around(value, width):
    return Interval(value - width, value + width)


def random_covariance(rng, n_latent):
    factor = rng.normal(size=(n_latent, n_latent + 1))
    return factor @ factor.T / n_latent + 0.3 * np.eye(n_latent)


def drawn(rng, mean, covariance, n):
    """Moments within ranges: random ones whose covariance is positive semidefinite."""
    while n:
        mu = rng.uniform(mean.low, mean.high)
        upper = np.triu(rng.uniform(covariance.low, covariance.high))
        sigma = upper + np.triu(upper, 1).T
        if np.linalg.eigvalsh(sigma)[0] > 0:
            n -= 1
            yield mu, sigma


@pytest.mark.parametrize("n_latent", [2, 3, 4])
def test_conditional_moments_are_those_of_gaussians(n_latent):
    rng = np.random.default_rng(n_latent)
    sigma = random_covariance(rng, n_latent)
    wide = Interval(sigma - 0.02, sigma + 0.02)
    for moments, exact in ((exactly(sigma), True), (wide, False)):
        for _, inside in drawn(rng, exactly(np.zeros(n_latent)), moments, 1 if exact else 50):
            for i, (coefficients, variance) in enumerate(conditionals(moments)):
                after = slice(i + 1, None)
                regression = np.linalg.solve(inside[after, after], inside[after, i])
                left = inside[i, i] - regression @ inside[after, i]
                assert (coefficients.low <= regression + 1e-9).all()
                assert (regression <= coefficients.high + 1e-9).all()
                assert variance.low - 1e-9 <= left <= variance.high + 1e-9
                if exact:
                    np.testing.assert_allclose(coefficients.low, regression, atol=1e-9)
                    np.testing.assert_allclose([variance.low, variance.high], left, atol=1e-9)


def test_a_covariance_that_may_be_singular_says_nothing_about_others():
    (_, first), (_, second) = conditionals(around(np.ones((2, 2)), 0.1))
    assert (first.low, second.low) == (0.0, 0.9)
    assert first.high <= 1.1
    bounds = softmax_bounds(exactly(np.zeros(2)), around(np.ones((2, 2)), 1.0), 20)
    assert (bounds[:, 0] < 0.1).all()
    assert (bounds[:, 1] == 1).all()


def test_masses_of_boxes_enclose_those_of_gaussians():
    rng = np.random.default_rng(0)
    mean, covariance = MEAN[:2], COVARIANCE[:2, :2]
    edges = np.sort(rng.normal(0.0, 1.5, (2, 6)), axis=1)
    edges[:, 0], edges[:, -1] = -9.0, 9.0
    for width in (0.0, 0.1):
        ranges = around(mean, width), around(covariance, width)
        found = box_masses(edges, *ranges)
        assert found.low.sum() <= 1 <= found.high.sum()
        for mu, sigma in drawn(rng, *ranges, 3):
            gaussian = multivariate_normal(mu, sigma)
            for i, j in itertools.product(range(5), range(5)):
                lower, upper = edges[[0, 1], [i, j]], edges[[0, 1], [i + 1, j + 1]]
                mass = gaussian.cdf(upper, lower_limit=lower)
                assert found.low[i, j] - 1e-6 <= mass <= found.high[i, j] + 1e-6


def test_softmax_is_extreme_at_vertices():
    rng = np.random.default_rng(1)
    edges = np.sort(rng.normal(size=(3, 4)), axis=1)
    for class_ in range(3):
        found = softmax_extremes(edges, class_)
        for box in itertools.product(range(3), repeat=3):
            ends = [edges[k, b : b + 2] for k, b in enumerate(box)]
            vertices = softmax([*itertools.product(*ends)], axis=1)[:, class_]
            inside = softmax(rng.uniform(*np.transpose(ends), (50, 3)), axis=1)[:, class_]
            np.testing.assert_allclose(
                [found.low[box], found.high[box]], [vertices.min(), vertices.max()], rtol=1e-12
            )
            assert found.low[box] <= inside.min()
            assert inside.max() <= found.high[box]
    open_ends = softmax_extremes(np.array([[-np.inf, 0.0, np.inf]] * 2), 0)
    np.testing.assert_array_equal(open_ends.low, [[0, 0], [0.5, 0]])
    np.testing.assert_array_equal(open_ends.high, [[1, 0.5], [1, 1]])


def test_expected_softmax_lies_within_its_bounds():
    """By many draws at one point, and by quadrature for many moments within ranges."""
    draws = np.random.default_rng(2).multivariate_normal(MEAN, COVARIANCE, 200_000)
    sampled = softmax(draws, axis=1).mean(axis=0)
    widths = []
    for n in (12, 24, 48):
        low, high = softmax_bounds(exactly(MEAN), exactly(COVARIANCE), n).T
        assert (low < sampled).all()
        assert (sampled < high).all()
        widths.append((high - low).max())
    assert 1.6 < widths[0] / widths[1] < 4
    assert 1.6 < widths[1] / widths[2] < 2.6  # the slack of the partition is of first order
    ranges = around(MEAN, 0.2), around(COVARIANCE, 0.05)
    low, high = softmax_bounds(*ranges, 24).T
    moments = zip(*drawn(np.random.default_rng(3), *ranges, 200), strict=True)
    values = average("softmax", *map(np.array, moments))
    assert (low <= values).all()
    assert (values <= high).all()


def test_independent_functions_are_as_close_as_one_interval():
    low, high = softmax_bounds(exactly(MEAN), exactly(np.diag(COVARIANCE.diagonal())), 48).T
    correlated = np.subtract(*softmax_bounds(exactly(MEAN), exactly(COVARIANCE), 48).T[::-1])
    assert (high - low < 0.7 * correlated).all()
    interval = 2 * 5 * np.sqrt(1.5) / 46
    assert (high - low < interval).all()


def test_the_printed_sign_of_the_conditional_mean_is_not_sound(monkeypatch):
    mean, covariance = MEAN[:2], np.array([[1.0, 0.8], [0.8, 1.0]])
    truth = softmax(
        np.random.default_rng(0).multivariate_normal(mean, covariance, 10**5), axis=1
    ).mean(axis=0)
    low, high = softmax_bounds(exactly(mean), exactly(covariance), 400).T
    assert (low < truth).all()
    assert (truth < high).all()

    def printed(covariance):
        return [(Interval(-c.high, -c.low), v) for c, v in conditionals(covariance)]

    monkeypatch.setattr(multiclass, "conditionals", printed)
    low, high = softmax_bounds(exactly(mean), exactly(covariance), 400).T
    assert not ((low < truth) & (truth < high)).any()


@pytest.fixture(scope="module")
def model():
    return fit_model(np.random.default_rng(2), 2.0 * RBF(1.0), "softmax", n=8, n_classes=3)


def searched(model, radius, features, **limits):
    lower, upper = np.array([0.1, 0.2]), np.array([0.1, 0.2])
    lower[features] -= radius
    upper[features] += radius
    found = multiclass_branch_and_bound(model.posterior_, lower, upper, [0, 2], **limits)
    return lower, upper, found


@pytest.mark.slow
def test_no_point_of_a_box_is_outside(model):
    lower, upper, found = searched(model, 0.4, [0, 1], n_intervals=16, max_regions=2)
    proba = probabilities(model, grid(lower, upper, 21))
    for class_, one in zip((0, 2), found, strict=True):
        assert one.min_lower <= proba[:, class_].min()
        assert proba[:, class_].max() <= one.max_upper
        for x, value in ((one.argmin, one.min_upper), (one.argmax, one.max_lower)):
            np.testing.assert_allclose(probabilities(model, x[None])[0, class_], value, atol=1e-6)
            assert (lower <= x).all()
            assert (x <= upper).all()
        assert not one.converged
        assert one.n_regions == 3


@pytest.mark.slow
def test_searches_end_where_smaller_boxes_would_not_help(model):
    *_, found = searched(model, 0.2, [0], n_intervals=16, tol=0.06)
    *_, root = searched(model, 0.2, [0], n_intervals=16, max_regions=1)
    for one, first in zip(found, root, strict=True):
        assert 1 < one.n_regions < 40
        assert not one.converged
        assert one.max_upper - one.min_lower < first.max_upper - first.min_lower
    *_, points = searched(model, 0.0, [0], n_intervals=16)
    assert [one.n_regions for one in points] == [1, 1]


def test_they_enclose_the_bounds_of_the_estimator(model):
    X = np.array([[0.1, 0.2]])
    request = {"radius": 0.02, "tol": 0.2, "max_regions": 1}  # tol leaves ten intervals
    theirs = published_bounds(model, X, **request)
    ours = model.predict_proba_bounds(X, 0.02, tol=1e-3)
    assert (theirs.lower <= ours.min_lower).all()
    assert (ours.max_upper <= theirs.upper).all()
    last = published_bounds(model, X, **request, class_=model.classes_[2])
    np.testing.assert_allclose(last.upper[:, 0], theirs.upper[:, 2])
    four = fit_model(np.random.default_rng(0), RBF(1.0), "softmax", n=8, n_classes=4)
    with pytest.raises(ValueError, match="At most 3 classes"):
        published_bounds(four, X, **request)
