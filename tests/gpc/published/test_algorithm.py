"""Branch and bound as published: against grids, in the integrals, and for several points."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, ndtr
from scipy.stats import norm
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from benchmarks.published_gpc.branch_and_bound import branch_and_bound
from benchmarks.published_gpc.integrals import (
    Partition,
    discretised_bounds,
    mass_bounds,
    probit_bounds,
    uniform_partition,
)
from skuq.gpc.inference._posterior import JointPosterior

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
KERNELS = {
    "ard": ConstantKernel(4.0) * RBF([0.8, 1.5]),
    "matern32": ConstantKernel(2.0) * Matern(1.0, nu=1.5),
    "mixed": 2.0 * RBF([0.8, 1.5]) * RationalQuadratic(1.0, 2.0) + Matern(1.2, nu=2.5),
}


def make_posterior(kernel, d, n=8, seed=0):
    """Posterior as Laplace's method gives it, for a given curvature of the likelihood."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, d))
    curvature = rng.uniform(0.1, 0.6, n)
    matrix = np.linalg.inv(kernel(inputs) + np.diag(1 / curvature))
    weights = 3.0 * matrix @ np.where(np.sin(2 * inputs[:, 0]) > 0, 1.0, -1.0)
    return JointPosterior(kernel, inputs, weights[None], matrix[None])


def probability(posterior, X, likelihood):
    mean, covariance = posterior.moments(X)
    mean, variance = mean[:, 0], covariance[:, 0, 0]
    if likelihood == "probit":
        return ndtr(mean / np.sqrt(1 + variance))
    f = mean[:, None] + np.sqrt(variance)[:, None] * NODES
    return expit(f) @ (NODE_WEIGHTS / NODE_WEIGHTS.sum())


def grid(lower, upper, n):
    axes = [np.linspace(a, b, n if a < b else 1) for a, b in zip(lower, upper, strict=True)]
    return np.stack(np.meshgrid(*axes), -1).reshape(-1, len(lower))


def check(found, posterior, lower, upper, likelihood, tol):
    values = probability(posterior, grid(lower, upper, 41), likelihood)
    assert found.min_lower <= values.min() + 1e-9
    assert found.max_upper >= values.max() - 1e-9
    assert found.min_lower <= found.min_upper
    assert found.max_lower <= found.max_upper
    attained = probability(posterior, np.stack([found.argmin, found.argmax]), likelihood)
    np.testing.assert_allclose(attained, [found.min_upper, found.max_lower], atol=1e-8)
    for x in (found.argmin, found.argmax):
        assert ((lower <= x + 1e-12) & (x <= upper + 1e-12)).all()
    if found.converged:
        assert values.min() <= found.min_lower + tol + 1e-3
        assert values.max() >= found.max_upper - tol - 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "likelihood"), [*((name, "probit") for name in KERNELS), ("mixed", "logit")]
)
def test_bounds_converge_to_the_extremes(name, likelihood):
    posterior = make_posterior(KERNELS[name], 2)
    lower, upper = np.array([-0.3, 0.1]), np.array([0.2, 0.4])
    tol = 0.03 if likelihood == "probit" else 0.06  # half as many intervals, too
    found = branch_and_bound(
        posterior, lower, upper, likelihood=likelihood, tol=tol, max_regions=300
    )
    assert found.converged
    check(found, posterior, lower, upper, likelihood, tol)


@pytest.mark.slow
@pytest.mark.parametrize(("likelihood", "tol"), [("probit", 0.02), ("logit", 0.05)])
def test_a_wide_interval_with_several_extremes_is_resolved(likelihood, tol):
    posterior = make_posterior(RBF(0.5), 1)
    lower, upper = np.array([-2.0]), np.array([2.0])
    found = branch_and_bound(posterior, lower, upper, likelihood=likelihood, tol=tol)
    assert found.converged
    check(found, posterior, lower, upper, likelihood, tol)


@pytest.mark.slow
def test_unfinished_searches_give_valid_bounds():
    posterior = make_posterior(RBF(0.5), 2)
    lower, upper = np.full(2, -0.3), np.full(2, 0.3)
    widths = []
    for max_regions in (1, 5, 15):
        found = branch_and_bound(posterior, lower, upper, tol=1e-3, max_regions=max_regions)
        assert not found.converged
        assert found.n_regions == 2 * max_regions - 1
        check(found, posterior, lower, upper, "probit", 1e-3)
        widths.append(found.max_upper - found.min_lower)
    assert widths[0] > widths[1] > widths[2]


def test_the_time_limit_leaves_the_root():
    found = branch_and_bound(make_posterior(RBF(0.5), 2), [-1, -1], [1, 1], tol=1e-6, max_time=0)
    assert found.n_regions == 1
    assert not found.converged


@pytest.mark.parametrize("likelihood", ["probit", pytest.param("logit", marks=pytest.mark.slow)])
def test_constant_sides_are_never_split(likelihood):
    posterior = make_posterior(RBF(0.5), 2)
    lower, upper = np.array([-1.0, 0.3]), np.array([0.5, 0.3])
    found = branch_and_bound(posterior, lower, upper, likelihood=likelihood, tol=0.02)
    assert found.converged
    assert found.argmin[1] == found.argmax[1] == 0.3
    check(found, posterior, lower, upper, likelihood, 0.02)


@pytest.mark.parametrize(("likelihood", "gap"), [("probit", 1e-9), ("logit", 0.011)])
def test_a_point_is_one_region(likelihood, gap):
    posterior = make_posterior(RBF(0.5), 2)
    x = np.array([0.2, -0.1])
    found = branch_and_bound(posterior, x, x, likelihood=likelihood, tol=0.02)
    assert found.n_regions == 1
    assert found.converged
    truth = np.repeat(probability(posterior, x[None], likelihood), 4)
    np.testing.assert_allclose(found[:4], truth, atol=gap)


def test_a_coarse_latent_space_cannot_converge():
    posterior = make_posterior(RBF(0.5), 1)
    found = branch_and_bound(posterior, [0.2], [0.2], likelihood="logit", tol=1e-3, n_intervals=10)
    assert not found.converged
    assert found.n_regions == 1


@pytest.mark.slow
def test_the_authors_code_agrees():
    """Bounds that check-GPclass (MATLAB) gave at tolerance 0.01, to eight digits."""
    with np.load(Path(__file__).parent / "data" / "check_gpclass_n40.npz") as file:
        data = dict(file)
    kernel = ConstantKernel(float(data["variance"])) * RBF(data["length_scale"])
    posterior = JointPosterior(kernel, data["inputs"], data["weights"], data["matrix"][None])
    p = probability(posterior, data["centres"], "probit")
    np.testing.assert_allclose(p, data["figures"][:, 1], atol=1e-6)
    for case in (0, 6, 15):
        x, (radius, _, *theirs) = data["centres"][case], data["figures"][case]
        found = branch_and_bound(posterior, x - radius, x + radius, tol=0.01)
        assert found.converged
        for start, (low, high) in enumerate([theirs[:2], theirs[2:]]):
            assert found[2 * start] <= high + 1e-8
            assert low - 1e-8 <= found[2 * start + 1]


def test_input_is_checked():
    posterior = make_posterior(RBF(0.5), 1)
    two = JointPosterior(RBF(), np.zeros((1, 1)), np.zeros((2, 1)), np.zeros((3, 1, 1)))
    with pytest.raises(ValueError, match="one latent function, and this model has 2"):
        branch_and_bound(two, [0.0], [1.0])
    with pytest.raises(ValueError, match="likelihood must be 'probit' or 'logit', got 'softmax'"):
        branch_and_bound(posterior, [0.0], [1.0], likelihood="softmax")
    with pytest.raises(ValueError, match="tol must be positive"):
        branch_and_bound(posterior, [0.0], [1.0], tol=0.0)
    with pytest.raises(ValueError, match="finite corners with lower <= upper"):
        branch_and_bound(posterior, [1.0], [0.0])


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
