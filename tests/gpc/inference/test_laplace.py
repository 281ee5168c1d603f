"""Laplace's method against scikit-learn, differences and general optimisers."""

import pickle

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_expit, log_ndtr
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from skuq.gpc.inference._likelihoods import LIKELIHOODS, tilted_moments
from skuq.gpc.inference._priors import DensePrior, cholesky_with_jitter
from tests.gpc.inference.oracles import differences, laplace_evidence, laplace_posterior

KERNELS = [
    2.0 * RBF(1.3),
    30.0 * RBF([0.5, 2.0, 1.0]),
    Matern(0.7, nu=2.5) + ConstantKernel(0.3),
    2.0 * RationalQuadratic(0.5, 2.0) * Matern([3.0, 1.0, 2.0], nu=1.5),
]
LOG_DENSITY = {"probit": log_ndtr, "logit": log_expit}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3))
    return X, np.where(X[:, 0] + 0.5 * rng.normal(size=50) > 0, 1.0, -1.0)


def evidence_at(kernel, X, y, likelihood, **kwargs):
    def value(theta):
        prior = DensePrior(kernel.clone_with_theta(theta), X)
        return laplace_evidence(prior, y, likelihood, eval_gradient=False, **kwargs).value

    return value


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_logit_agrees_with_scikit_learn(kernel, data):
    X, y = data
    reference = GaussianProcessClassifier(kernel, optimizer=None).fit(X, y).base_estimator_
    value, gradient = reference.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    prior = DensePrior(kernel, X)
    evidence = laplace_evidence(prior, y, "logit")
    # scikit-learn stops its Newton iteration once the objective gains less than 1e-10.
    np.testing.assert_allclose(evidence.value, value, rtol=1e-7)
    np.testing.assert_allclose(evidence.gradient, gradient, rtol=2e-6, atol=2e-6)
    mean, _ = laplace_posterior(prior, y, "logit").moments(X)
    np.testing.assert_allclose(np.exp(log_expit(mean[:, 0])), reference.pi_, atol=1e-5)
    assert evidence.converged


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_gradient_is_that_of_differences(kernel, likelihood, data):
    X, y = data
    evidence = laplace_evidence(DensePrior(kernel, X), y, likelihood)
    expected = differences(evidence_at(kernel, X, y, likelihood), kernel.theta, step=1e-3)
    np.testing.assert_allclose(evidence.gradient, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_mode_and_determinant_are_those_of_the_definition(likelihood, data):
    X, y = data[0][:15], data[1][:15]
    kernel = 4.0 * RBF(0.8)
    K = kernel(X)
    factor = np.linalg.cholesky(K)

    def loss(z):  # in whitened coordinates
        return 0.5 * z @ z - LOG_DENSITY[likelihood](y * (factor @ z)).sum()

    f = factor @ minimize(loss, np.zeros(15), options={"gtol": 1e-9}).x
    step = 1e-3
    log_density = LOG_DENSITY[likelihood]
    second = log_density(y * (f + step)) + log_density(y * (f - step)) - 2 * log_density(y * f)
    W = np.diag(-second / step**2)
    covariance = np.linalg.inv(np.linalg.inv(K) + W)
    log_det = np.linalg.slogdet(np.eye(15) + K @ W)[1]
    expected = -loss(np.linalg.solve(factor, f)) - 0.5 * log_det
    prior = DensePrior(kernel, X)
    mean, variance = laplace_posterior(prior, y, likelihood).moments(X)
    np.testing.assert_allclose(mean[:, 0], f, atol=2e-5)
    np.testing.assert_allclose(variance[:, 0, 0], np.diag(covariance), atol=1e-5)
    np.testing.assert_allclose(laplace_evidence(prior, y, likelihood).value, expected, atol=1e-5)


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_weights_count_points(likelihood, data):
    X, y = data
    weight = np.random.default_rng(1).integers(0, 4, len(y)).astype(float)
    repeated = np.repeat(np.arange(len(y)), weight.astype(int))
    kernel = 2.0 * RBF([1.0, 2.0, 3.0])
    weighted = laplace_evidence(DensePrior(kernel, X), y, likelihood, sample_weight=weight)
    plain = laplace_evidence(DensePrior(kernel, X[repeated]), y[repeated], likelihood)
    np.testing.assert_allclose(weighted.value, plain.value, rtol=1e-10)
    np.testing.assert_allclose(weighted.gradient, plain.gradient, rtol=1e-7)
    one = laplace_posterior(DensePrior(kernel, X), y, likelihood, sample_weight=weight)
    other = laplace_posterior(DensePrior(kernel, X[repeated]), y[repeated], likelihood)
    for a, b in zip(one.moments(X + 0.1), other.moments(X + 0.1), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


def test_a_warm_start_leads_to_the_same_place(data):
    X, y = data
    start = laplace_evidence(DensePrior(300.0 * RBF(0.3), X), y, "probit").state
    cold = laplace_evidence(DensePrior(2.0 * RBF(1.3), X), y, "probit")
    warm = laplace_evidence(DensePrior(2.0 * RBF(1.3), X), y, "probit", state=start)
    np.testing.assert_allclose(warm.value, cold.value, rtol=1e-9)
    np.testing.assert_allclose(warm.gradient, cold.gradient, rtol=1e-7)


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
@pytest.mark.parametrize(
    ("X", "y", "kernel"),
    [
        (np.zeros((1, 1)), np.ones(1), RBF()),
        (np.zeros((6, 2)), np.array([1.0, 1, 1, -1, 1, 1]), RBF()),
        (np.arange(8.0)[:, None], np.repeat([1.0, -1.0], 4), 1e8 * RBF(0.1)),
        (np.arange(8.0)[:, None], np.repeat([1.0, -1.0], 4), 1e10 * RBF(30.0)),
        (np.arange(8.0)[:, None], np.array([1.0, 1, 1, -1, 1, 1, 1, 1]), 1e5 * RBF(30.0)),
        (np.arange(8.0)[:, None], np.ones(8), 1e-8 * RBF(1e-5)),
    ],
    ids=["one point", "duplicates", "large", "large and smooth", "outlier", "tiny"],
)
def test_degenerate_problems_stay_finite(X, y, kernel, likelihood):
    prior = DensePrior(kernel, X)
    evidence = laplace_evidence(prior, y, likelihood)
    mean, variance = laplace_posterior(prior, y, likelihood).moments(np.vstack([X, X + 0.3]))
    assert evidence.converged
    assert np.isfinite(evidence.value)
    assert np.isfinite(evidence.gradient).all()
    assert np.isfinite(mean).all()
    assert (variance >= 0).all()
    assert (np.sign(mean[: len(y), 0]) == y).mean() >= 0.8


def test_posterior_is_what_its_matrix_says_and_can_be_pickled(data):
    X, y = data
    posterior = pickle.loads(pickle.dumps(laplace_posterior(DensePrior(KERNELS[1], X), y, "logit")))
    Z = np.random.default_rng(2).normal(size=(6, 3))
    r = KERNELS[1](Z, X)
    mean, variance = posterior.moments(Z)
    np.testing.assert_allclose(mean, r @ posterior.weights.T, rtol=1e-10)
    (R,) = posterior.reduction()
    np.testing.assert_array_equal(R, R.T)
    np.testing.assert_allclose(variance[:, 0, 0], 30.0 - np.diag(r @ R @ r.T), rtol=1e-9)


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_derivatives_of_likelihoods_are_consistent(likelihood):
    f = np.linspace(-45.0, 8.0, 400)
    y, step = np.where(np.arange(400) % 2, 1.0, -1.0), 1e-4
    f = y * f
    at = LIKELIHOODS[likelihood](y, f)
    up, down = LIKELIHOODS[likelihood](y, f + step), LIKELIHOODS[likelihood](y, f - step)
    np.testing.assert_allclose(at.value, LOG_DENSITY[likelihood](y * f), rtol=1e-14)
    for lower, higher in ((0, 1), (1, 2), (2, 3)):
        expected = (up[lower] - down[lower]) / (2 * step)
        np.testing.assert_allclose(at[higher], expected, rtol=1e-6, atol=2e-8)


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_likelihoods_stay_finite_far_out(likelihood):
    for values in LIKELIHOODS[likelihood](np.ones(4), np.array([-1e3, -50.0, 50.0, 1e3])):
        assert np.isfinite(values).all()
    assert (LIKELIHOODS[likelihood](np.ones(2), np.array([-1e3, 1e3])).second <= 0).all()


@pytest.mark.parametrize("power", [1.0, 0.3, 2.5])
@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_tilted_moments_are_those_of_a_fine_sum(likelihood, power):
    grid = np.linspace(-14, 14, 40_001)
    for y, m, v in [(1, 0.0, 1.0), (-1, 2.0, 9.0), (1, -6.0, 25.0), (1, 30.0, 400.0)]:

        def log_mean(mean, y=y, v=v):
            log_density = power * LOG_DENSITY[likelihood](y * (mean + np.sqrt(v) * grid))
            weight = np.exp(log_density - 0.5 * grid**2) / np.sqrt(2 * np.pi)
            return np.log(weight.sum() * (grid[1] - grid[0]))

        step = 1e-3 * np.sqrt(v)
        values = [log_mean(m + k * step) for k in (-1, 0, 1)]
        got = tilted_moments(likelihood, *(np.array([x], float) for x in (y, m, v, power)))
        np.testing.assert_allclose(got.log_mean[0], values[1], rtol=1e-9)
        np.testing.assert_allclose(got.first[0], (values[2] - values[0]) / (2 * step), rtol=1e-4)
        second = (values[2] - 2 * values[1] + values[0]) / step**2
        np.testing.assert_allclose(got.second[0], second, rtol=1e-3, atol=1e-9)


def test_jitter_is_reported_and_limited():
    assert cholesky_with_jitter(np.eye(2))[1] == 0.0
    singular = np.ones((3, 3)) - 1e-12 * np.eye(3)
    factor, jitter = cholesky_with_jitter(singular)
    assert 1e-12 <= jitter <= 1e-10
    np.testing.assert_allclose(factor @ factor.T, singular, atol=2e-10)
    with pytest.raises(np.linalg.LinAlgError, match=r"not positive definite.*Scale the features"):
        cholesky_with_jitter(np.ones((3, 3)) - 1e-2 * np.eye(3))
    with pytest.raises(np.linalg.LinAlgError, match="not finite"):
        cholesky_with_jitter(np.full((2, 2), np.nan))
