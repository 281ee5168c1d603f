"""Bounds of probabilities over ranges of moments against brute force and quadrature."""

import itertools

import numpy as np
import pytest
from scipy.special import expit, ndtr, softmax
from scipy.stats import multivariate_normal, norm

from skuq.gpc.published._integrals import (
    Partition,
    discretised_bounds,
    mass_bounds,
    probit_bounds,
    uniform_partition,
)
from skuq.gpc.published._softmax_integrals import box_mass_bounds, softmax_bounds, softmax_range

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()


def expectation(sigma, mean, variance):
    return sigma(mean + np.sqrt(variance) * NODES) @ NODE_WEIGHTS


@pytest.mark.parametrize(
    ("a", "b"), [(-1.0, 0.5), (-np.inf, 0.0), (0.3, np.inf), (2.0, 2.1), (-5.0, -4.0)]
)
@pytest.mark.parametrize("mean", [(-1.0, 1.0), (0.5, 0.5), (0.3, 2.0), (3.0, 4.0), (-1.0, -1.0)])
@pytest.mark.parametrize("variance", [(0.1, 3.0), (0.5, 0.5), (1e-4, 1e-2)])
def test_masses_are_the_extremes_over_moments(a, b, mean, variance):
    mu, sigma = np.meshgrid(np.linspace(*mean, 101), np.sqrt(np.linspace(*variance, 401)))
    masses = norm.cdf(b, mu, sigma) - norm.cdf(a, mu, sigma)
    least, most = mass_bounds(a, b, mean, variance)
    assert least <= masses.min() + 1e-12
    assert masses.max() <= most + 1e-12
    np.testing.assert_allclose([least, most], [masses.min(), masses.max()], atol=2e-3)


@pytest.mark.parametrize("end", [-1.0, 0.5])
def test_masses_at_an_end_of_the_interval(end):
    least, most = mass_bounds(-1.0, 0.5, (end, end), (0.2, 2.0))
    masses = norm.cdf(0.5, end, np.sqrt([0.2, 2.0])) - norm.cdf(-1.0, end, np.sqrt([0.2, 2.0]))
    np.testing.assert_allclose([most, least], masses, rtol=1e-12)


def test_far_tails_keep_their_digits():
    least, most = mass_bounds(10.0, 11.0, (0.0, 0.0), (1.0, 1.0))
    np.testing.assert_allclose([least, most], norm.sf(10.0) - norm.sf(11.0), rtol=1e-10)


@pytest.mark.parametrize(("name", "sigma"), [("probit", ndtr), ("logit", expit)])
@pytest.mark.parametrize("mean", [(-0.5, -0.3), (0.0, 2.0), (1.0, 1.0)])
@pytest.mark.parametrize("variance", [(0.0, 0.3), (0.5, 2.0), (1.0, 1.0)])
def test_discretised_bounds_enclose_quadrature(name, sigma, mean, variance):
    low, high = discretised_bounds(uniform_partition(name, 200), mean, variance)
    for m, v in itertools.product(np.linspace(*mean, 7), np.linspace(*variance, 7)):
        assert low <= expectation(sigma, m, v) <= high


@pytest.mark.parametrize("name", ["probit", "logit"])
def test_discretisation_costs_one_interval(name):
    low, high = discretised_bounds(uniform_partition(name, 50), (0.4, 0.4), (1.5, 1.5))
    np.testing.assert_allclose(high - low, 1 / 50, rtol=1e-6)


def test_any_monotone_likelihood_can_be_discretised():
    edges = np.array([-np.inf, -1.0, 0.0, 1.0, np.inf])
    partition = Partition(edges, np.array([0.0, 0.0, 0.5, 1.0, 1.0]))
    low, high = discretised_bounds(partition, (0.1, 0.2), (0.4, 0.5))
    truth = expectation(lambda f: np.clip((f + 1) / 2, 0, 1), 0.15, 0.45)
    assert low < truth < high


def test_one_interval_says_nothing():
    assert discretised_bounds(uniform_partition("logit", 1), (0.0, 1.0), (1.0, 2.0)) == (0.0, 1.0)


@pytest.mark.parametrize("mean", [(-2.0, -1.0), (-1.0, 2.0), (0.0, 0.5)])
@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_probit_bounds_are_attained(mean, scale):
    variance = (0.2, 4.0)
    corners = [
        ndtr(m / np.sqrt(scale**-2 + v)) for m, v in itertools.product(mean, np.linspace(*variance))
    ]
    bounds = probit_bounds(mean, variance, scale)
    np.testing.assert_allclose(bounds, [min(corners), max(corners)], rtol=1e-12)


def random_moments(rng, n_classes, spread):
    """Ranges of moments and a function that draws moments from them."""
    root = rng.normal(size=(n_classes, n_classes))
    covariance = root @ root.T / n_classes + 0.3 * np.eye(n_classes)
    mean = rng.normal(size=n_classes)

    def draw():
        noise = rng.uniform(-1, 1, (n_classes, n_classes)) * spread
        symmetric = (noise + noise.T) / 2
        return mean + rng.uniform(-spread, spread, n_classes), covariance + symmetric

    ranges = (mean - spread, mean + spread), (covariance - spread, covariance + spread)
    return ranges, draw


def expected_softmax(mean, covariance):
    n_classes = len(mean)
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    points = np.stack(np.meshgrid(*[nodes] * n_classes), -1).reshape(-1, n_classes)
    grid = np.stack(np.meshgrid(*[weights / weights.sum()] * n_classes), -1).reshape(-1, n_classes)
    values = softmax(mean + points @ np.linalg.cholesky(covariance).T, axis=1)
    return grid.prod(1) @ values


def as_boxes(start, stop):
    return [np.array([a]) for a in start], [np.array([b]) for b in stop]


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_masses_of_boxes_enclose_cubature(n_classes, seed):
    rng = np.random.default_rng(seed)
    ranges, draw = random_moments(rng, n_classes, 0.05)
    start = rng.normal(size=n_classes)
    stop = start + rng.uniform(0.2, 1.0, n_classes)
    least, most = box_mass_bounds(*as_boxes(start, stop), *ranges)
    for _ in range(10):
        truth = multivariate_normal.cdf(stop, *draw(), lower_limit=start)
        assert least - 1e-5 <= truth <= most + 1e-5


@pytest.mark.parametrize("start", [-0.1, 1.0])
def test_masses_of_boxes_hold_for_a_range_of_correlations(start):
    zero, boxes = np.zeros(2), as_boxes([start] * 2, [start + 0.2] * 2)
    ends = [np.array([[1.0, rho], [rho, 1.0]]) for rho in (0.2, 0.8)]
    least, most = box_mass_bounds(*boxes, (zero, zero), (ends[0], ends[1]))
    for rho in np.linspace(0.2, 0.8, 13):
        law = multivariate_normal(zero, [[1.0, rho], [rho, 1.0]])
        assert least <= law.cdf([start + 0.2] * 2, lower_limit=[start] * 2) <= most


def test_masses_of_boxes_hold_for_a_range_of_means():
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]])
    mean = np.array([0.0, 0.0]), np.array([0.0, 0.8])
    least, most = box_mass_bounds(*as_boxes([0.9] * 2, [1.1] * 2), mean, (covariance, covariance))
    for second in np.linspace(0.0, 0.8, 9):
        law = multivariate_normal([0.0, second], covariance)
        assert least <= law.cdf([1.1] * 2, lower_limit=[0.9] * 2) <= most


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_small_boxes_have_the_density(n_classes, seed):
    (mean, _), (covariance, _) = random_moments(np.random.default_rng(seed), n_classes, 0.0)[0]
    side = 1e-4
    start = mean + np.linspace(-0.5, 0.4, n_classes)
    boxes = as_boxes(start, start + side)
    density = multivariate_normal.pdf(start + side / 2, mean, covariance)
    bounds = box_mass_bounds(*boxes, (mean, mean), (covariance, covariance))
    np.testing.assert_allclose(np.ravel(bounds) / side**n_classes, density, rtol=5e-3)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_softmax_bounds_enclose_quadrature(n_classes, seed):
    ranges, draw = random_moments(np.random.default_rng(seed), n_classes, 0.02)
    low, high = softmax_bounds(*ranges, n_intervals=24)
    for _ in range(10):
        truth = expected_softmax(*draw())
        assert (low <= truth).all()
        assert (truth <= high).all()


@pytest.mark.parametrize("correlation", [-0.9, 0.0, 0.9])
def test_softmax_bounds_converge_at_known_moments(correlation):
    mean = np.array([0.3, -0.4])
    covariance = np.array([[1.0, correlation], [correlation, 1.5]])
    truth = expected_softmax(mean, covariance)
    gaps = []
    for n_intervals in (100, 200, 400):
        low, high = softmax_bounds((mean, mean), (covariance, covariance), n_intervals=n_intervals)
        assert (low <= truth).all()
        assert (truth <= high).all()
        gaps.append((high - low).max())
    assert gaps[0] > 1.6 * gaps[1] > 2.5 * gaps[2]
    assert gaps[2] < 0.04


def test_softmax_bounds_of_three_classes_tighten():
    (mean, _), (covariance, _) = random_moments(np.random.default_rng(1), 3, 0.0)[0]
    gaps = []
    for n_intervals in (20, 80):
        low, high = softmax_bounds((mean, mean), (covariance, covariance), n_intervals=n_intervals)
        gaps.append((high - low).max())
    assert gaps[1] < 0.5 * gaps[0]


def test_indefinite_ranges_still_give_bounds():
    wide = np.full((3, 3), -1.0), np.full((3, 3), 1.0)
    low, high = softmax_bounds((np.zeros(3), np.zeros(3)), wide, n_intervals=6)
    assert (low >= 0).all()
    assert (high == 1).all()


def test_softmax_is_extreme_at_two_vertices():
    rng = np.random.default_rng(0)
    start = rng.normal(size=3)
    stop = start + rng.uniform(0.1, 2.0, 3)
    values = softmax(rng.uniform(start, stop, (1000, 3)), axis=1)
    vertices = softmax(list(itertools.product(*zip(start, stop, strict=True))), axis=1)
    for c in range(3):
        smallest, largest = softmax_range(start, stop, c)
        np.testing.assert_allclose(smallest, vertices[:, c].min())
        np.testing.assert_allclose(largest, vertices[:, c].max())
        assert smallest <= values[:, c].min()
        assert values[:, c].max() <= largest


@pytest.mark.parametrize("n_classes", [1, 4])
def test_other_numbers_of_classes_are_refused(n_classes):
    mean, covariance = np.zeros(n_classes), np.eye(n_classes)
    with pytest.raises(ValueError, match=rf"n_intervals \*\* n_classes.*got {n_classes}"):
        softmax_bounds((mean, mean), (covariance, covariance))


def test_a_single_interval_is_refused():
    with pytest.raises(ValueError, match="n_intervals must be at least 2"):
        softmax_bounds((np.zeros(2),) * 2, (np.eye(2),) * 2, n_intervals=1)
