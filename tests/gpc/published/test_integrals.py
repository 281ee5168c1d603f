"""Bounds of probabilities over ranges of moments against brute force and quadrature."""

import itertools

import numpy as np
import pytest
from scipy.special import expit, ndtr
from scipy.stats import norm

from skuq.gpc.published._integrals import (
    Partition,
    discretised_bounds,
    mass_bounds,
    probit_bounds,
    uniform_partition,
)

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()


def expectation(sigma, mean, variance):
    return sigma(mean + np.sqrt(variance) * NODES) @ NODE_WEIGHTS


MEANS = [(-1.0, 1.0), (0.5, 0.5), (0.3, 2.0), (3.0, 4.0), (-1.0, -1.0)]
VARIANCES = [(0.1, 3.0), (0.5, 0.5), (1e-4, 1e-2)]


@pytest.mark.parametrize(
    ("a", "b"), [(-1.0, 0.5), (-np.inf, 0.0), (0.3, np.inf), (2.0, 2.1), (-5.0, -4.0)]
)
def test_masses_are_the_extremes_over_moments(a, b):
    for mean, variance in itertools.product(MEANS, VARIANCES):
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
def test_discretised_bounds_enclose_quadrature(name, sigma):
    partition = uniform_partition(name, 200)
    for mean in ((-0.5, -0.3), (0.0, 2.0), (1.0, 1.0)):
        for variance in ((0.0, 0.3), (0.5, 2.0), (1.0, 1.0)):
            low, high = discretised_bounds(partition, mean, variance)
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


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_probit_bounds_are_attained(scale):
    variance = (0.2, 4.0)
    for mean in ((-2.0, -1.0), (-1.0, 2.0), (0.0, 0.5)):
        pairs = itertools.product(mean, np.linspace(*variance))
        corners = [ndtr(m / np.sqrt(scale**-2 + v)) for m, v in pairs]
        bounds = probit_bounds(mean, variance, scale)
        np.testing.assert_allclose(bounds, [min(corners), max(corners)], rtol=1e-12)
