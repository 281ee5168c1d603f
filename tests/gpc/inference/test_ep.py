"""Expectation propagation against exact integrals, a sequential loop and GPy."""

import numpy as np
import pytest
from scipy.special import expit, ndtr
from sklearn.gaussian_process.kernels import RBF, Matern

from skuq.gpc.inference._likelihoods import LIKELIHOODS, tilted_moments
from skuq.gpc.inference._priors import DensePrior, LowRankPrior
from tests.gpc.inference.oracles import (
    differences,
    ep_evidence,
    ep_posterior,
    exact_posterior,
    labelings,
)

DISTRIBUTION = {"probit": ndtr, "logit": expit}
KERNELS = [2.0 * RBF(1.3), 25.0 * RBF([0.5, 2.0]), 400.0 * Matern(2.0, nu=1.5)]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 2))
    return X, np.where(X[:, 0] + 0.5 * rng.normal(size=40) > 0, 1.0, -1.0)


def sequential(K, y, likelihood, n_sweeps=200):
    """Moments after updating one site at a time, with the posterior recomputed each time."""
    precision, shift = np.zeros(len(y)), np.zeros(len(y))
    for _ in range(n_sweeps):
        before = shift.copy()
        for i in range(len(y)):
            root = np.sqrt(precision)[:, None]
            B = np.eye(len(y)) + root * K * root.T
            covariance = K - K @ (root * np.linalg.solve(B, root * K))
            mean, variance = covariance @ shift, covariance[i, i]
            cavity = 1 / (1 / variance - precision[i])
            centre = cavity * (mean[i] / variance - shift[i])
            one = np.ones(1)
            got = tilted_moments(likelihood, y[i : i + 1], centre * one, cavity * one, one)
            new_variance = cavity + cavity**2 * got.second[0]
            precision[i] = 1 / new_variance - 1 / cavity
            shift[i] = (centre + cavity * got.first[0]) / new_variance - centre / cavity
        if np.abs(shift - before).max() < 1e-11:
            break
    return mean, np.diag(covariance)


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_marginals_are_nearly_exact_on_tiny_problems(n, likelihood):
    X = np.array([[0.0], [0.7], [2.0]])[:n]
    kernel = 4.0 * RBF(1.0)
    # The other half is these with all signs turned.
    for y in labelings(n)[: 2 ** (n - 1)]:

        def density(f, y=y):
            return DISTRIBUTION[likelihood]((y * f.T).T).prod(axis=0)

        value, mean, variance = exact_posterior(kernel(X), density)
        prior = DensePrior(kernel, X)
        got = ep_posterior(prior, y, likelihood).moments(X)
        np.testing.assert_allclose(ep_evidence(prior, y, likelihood).value, value, atol=1e-2)
        np.testing.assert_allclose(got[0][:, 0], mean, atol=2e-2)
        np.testing.assert_allclose(got[1][:, 0, 0], variance, rtol=3e-2)


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_one_point_is_exact(likelihood):
    X, kernel = np.zeros((1, 1)), 9.0 * RBF()
    value, mean, variance = exact_posterior(
        kernel(X), lambda f: DISTRIBUTION[likelihood](f[0]), n_nodes=4001, width=12.0
    )
    prior = DensePrior(kernel, X)
    got = ep_posterior(prior, np.ones(1), likelihood).moments(X)
    np.testing.assert_allclose(ep_evidence(prior, np.ones(1), likelihood).value, value, rtol=1e-9)
    np.testing.assert_allclose(got[0][0], mean, rtol=1e-7)
    np.testing.assert_allclose(got[1][0, 0], variance, rtol=1e-7)


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_fixed_point_is_that_of_sequential_updates(kernel, likelihood, data):
    X, y = data[0][:20], data[1][:20]
    mean, variance = sequential(kernel(X), y, likelihood)
    got = ep_posterior(DensePrior(kernel, X), y, likelihood).moments(X)
    scale = np.sqrt(variance)
    np.testing.assert_allclose(got[0][:, 0] / scale, mean / scale, atol=1e-6)
    np.testing.assert_allclose(got[1][:, 0, 0], variance, rtol=1e-6)


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_gradient_is_that_of_differences(kernel, likelihood, data):
    X, y = data

    def value(theta):
        prior = DensePrior(kernel.clone_with_theta(theta), X)
        return ep_evidence(prior, y, likelihood, eval_gradient=False).value

    evidence = ep_evidence(DensePrior(kernel, X), y, likelihood)
    assert evidence.converged
    expected = differences(value, kernel.theta, step=1e-2)
    np.testing.assert_allclose(evidence.gradient, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_whole_weights_count_points(likelihood, data):
    X, y = data
    weight = np.random.default_rng(1).integers(0, 4, len(y)).astype(float)
    repeated = np.repeat(np.arange(len(y)), weight.astype(int))
    kernel = KERNELS[0]
    weighted = ep_evidence(DensePrior(kernel, X), y, likelihood, sample_weight=weight)
    plain = ep_evidence(DensePrior(kernel, X[repeated]), y[repeated], likelihood)
    np.testing.assert_allclose(weighted.value, plain.value, rtol=1e-8)
    np.testing.assert_allclose(weighted.gradient, plain.gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_fractional_weights_are_powers_of_the_likelihood(likelihood):
    X, kernel = np.zeros((1, 1)), 9.0 * RBF()
    value, mean, _ = exact_posterior(
        kernel(X), lambda f: DISTRIBUTION[likelihood](f[0]) ** 0.3, n_nodes=4001, width=12.0
    )
    prior, weight = DensePrior(kernel, X), np.array([0.3])
    evidence = ep_evidence(prior, np.ones(1), likelihood, sample_weight=weight)
    posterior = ep_posterior(prior, np.ones(1), likelihood, sample_weight=weight)
    np.testing.assert_allclose(evidence.value, value, rtol=1e-8)
    np.testing.assert_allclose(posterior.moments(X)[0][0], mean, rtol=1e-6)


def test_a_warm_start_leads_to_the_same_place_sooner(data):
    X, y = data
    prior = DensePrior(KERNELS[1], X)
    cold = ep_evidence(prior, y, "probit")
    near = ep_evidence(DensePrior(30.0 * RBF([0.6, 1.9]), X), y, "probit")
    warm = ep_evidence(prior, y, "probit", state=near.state)
    np.testing.assert_allclose(warm.value, cold.value, rtol=1e-8)
    calls = []

    class Counted(DensePrior):
        def condition(self, precision):
            calls.append(precision)
            return super().condition(precision)

    ep_evidence(Counted(KERNELS[1], X), y, "probit", state=cold.state)
    assert len(calls) == 1


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
@pytest.mark.parametrize(
    ("X", "y", "kernel"),
    [
        (np.zeros((6, 2)), np.array([1.0, 1, 1, -1, 1, 1]), RBF()),
        (np.arange(8.0)[:, None], np.repeat([1.0, -1.0], 4), 1e6 * RBF(0.1)),
        (np.arange(8.0)[:, None], np.repeat([1.0, -1.0], 4), 1e6 * RBF(30.0)),
        (np.arange(8.0)[:, None], np.array([1.0, 1, 1, -1, 1, 1, 1, 1]), 1e5 * RBF(30.0)),
        (np.arange(8.0)[:, None], np.ones(8), 1e-8 * RBF(1e-5)),
    ],
    ids=["duplicates", "large", "large and smooth", "outlier", "tiny"],
)
def test_degenerate_problems_stay_finite(X, y, kernel, likelihood):
    prior = DensePrior(kernel, X)
    evidence = ep_evidence(prior, y, likelihood)
    mean, variance = ep_posterior(prior, y, likelihood).moments(np.vstack([X, X + 0.3]))
    assert evidence.converged
    assert np.isfinite(evidence.value)
    assert np.isfinite(evidence.gradient).all()
    assert np.isfinite(mean).all()
    assert (variance >= 0).all()
    assert (np.sign(mean[: len(y), 0]) == y).mean() >= 0.8


def test_probit_agrees_with_gpy(data):
    gpy = pytest.importorskip("GPy")
    X, y = data
    kernel = gpy.kern.RBF(2, variance=25.0, lengthscale=[0.5, 2.0], ARD=True)
    model = gpy.models.GPClassification(X, (y[:, None] + 1) / 2, kernel=kernel)
    prior = DensePrior(KERNELS[1], X)
    Z = np.random.default_rng(3).normal(size=(20, 2))
    mean, variance = ep_posterior(prior, y, "probit").moments(Z)
    proba = ndtr(mean[:, 0] / np.sqrt(1 + variance[:, 0, 0]))
    np.testing.assert_allclose(proba, model.predict(Z)[0][:, 0], atol=1e-4)
    np.testing.assert_allclose(
        ep_evidence(prior, y, "probit").value, model.log_likelihood(), atol=1e-3
    )


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
@pytest.mark.parametrize("power", [1.0, 0.3])
@pytest.mark.parametrize("mean", [-50.0, 0.0, 10.0, 40.0])
def test_tilted_moments_of_no_variance_are_the_likelihood(likelihood, power, mean):
    one = np.ones(1)
    at = LIKELIHOODS[likelihood](one, mean * one)
    for variance in (0.0, 1e-300, 1e-20):
        got = tilted_moments(likelihood, one, mean * one, variance * one, power * one)
        np.testing.assert_allclose(got.log_mean, power * at.value, rtol=1e-9, atol=1e-13)
        np.testing.assert_allclose(got.first, power * at.first, rtol=1e-9)
        np.testing.assert_allclose(got.second, power * at.second, rtol=1e-6, atol=1e-15)


@pytest.mark.parametrize("likelihood", ["probit", "logit"])
def test_points_that_no_inducing_point_reaches_are_at_the_prior_mean(likelihood):
    X = np.array([[0.0], [0.1], [1e3]])
    prior = LowRankPrior(4.0 * RBF(0.5), X, X[:2])
    evidence = ep_evidence(prior, np.array([1.0, 1.0, -1.0]), likelihood)
    near = LowRankPrior(4.0 * RBF(0.5), X[:2], X[:2])
    expected = ep_evidence(near, np.ones(2), likelihood).value + np.log(0.5)
    assert evidence.converged
    np.testing.assert_allclose(evidence.value, expected, rtol=1e-8)
    assert np.isfinite(evidence.gradient).all()
