"""Several classes, against general optimisation and dense linear algebra."""

import pickle

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from skuq.gpc.inference._posterior import JointPosterior
from skuq.gpc.inference._priors import DensePrior
from tests.gpc.inference.oracles import (
    differences,
    laplace_evidence,
    laplace_posterior,
    softmax_evidence,
    softmax_posterior,
)

KERNELS = [
    2.0 * RBF(1.3),
    300.0 * RBF([0.5, 2.0]),
    3.0 * Matern(1.0, nu=1.5) + ConstantKernel(0.5),
]
TEST_POINTS = np.random.default_rng(5).normal(size=(6, 2))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    return X, np.digitize(X[:, 0] + 0.3 * rng.normal(size=30), [-0.5, 0.5])


def brute_force(kernel, X, labels, n_classes, weight):
    """Evidence, and the moments at test points, from arrays of all classes and points."""
    n, K = len(X), kernel(X)
    factor = np.linalg.cholesky(K + 1e-12 * np.eye(n))

    def loss(z):
        f = z.reshape(n_classes, n) @ factor.T
        gradient = (
            weight * (softmax(f, axis=0) - (labels == np.arange(n_classes)[:, None]))
        ) @ factor
        value = -(weight * log_softmax(f, axis=0)[labels, range(n)]).sum()
        return 0.5 * z @ z + value, z + gradient.ravel()

    options = {"maxiter": 20_000, "maxfun": 50_000, "gtol": 1e-10, "ftol": 1e-16}
    found = minimize(loss, np.zeros(n_classes * n), jac=True, method="L-BFGS-B", options=options)
    f = found.x.reshape(n_classes, n) @ factor.T
    p = softmax(f, axis=0)
    W = np.einsum("ci,cd,ij->cidj", weight * p, np.eye(n_classes), np.eye(n))
    W -= np.einsum("ci,di,ij->cidj", weight * p, p, np.eye(n))
    W, whole = W.reshape(n_classes * n, -1), np.kron(np.eye(n_classes), K)
    B = np.eye(n_classes * n) + whole @ W
    r = kernel(TEST_POINTS, X)
    R = (W @ np.linalg.inv(B)).reshape(n_classes, n, n_classes, n)
    prior = np.eye(n_classes) * kernel.diag(X[:1])[0]
    mean = np.linalg.solve(K + 1e-12 * np.eye(n), f.T)
    value = -found.fun - 0.5 * np.linalg.slogdet(B)[1]
    return value, r @ mean, prior - np.einsum("ti,cidj,tj->tcd", r, R, r)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kernel", [KERNELS[0], KERNELS[2]], ids=str)
@pytest.mark.parametrize("n_classes", [3, 4])
def test_mode_evidence_and_moments_are_those_of_the_definition(kernel, n_classes, weighted, data):
    X, labels = data
    weight = np.linspace(0.1, 3.0, len(X)) if weighted else np.ones(len(X))
    value, mean, covariance = brute_force(kernel, X, labels, n_classes, weight)
    prior, given = DensePrior(kernel, X), weight if weighted else None
    evidence = softmax_evidence(prior, labels, n_classes, sample_weight=given)
    got = softmax_posterior(prior, labels, n_classes, sample_weight=given).moments(TEST_POINTS)
    np.testing.assert_allclose(evidence.value, value, rtol=1e-6)
    np.testing.assert_allclose(got[0], mean, atol=1e-4)
    np.testing.assert_allclose(got[1], covariance, atol=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3, 4])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_gradient_is_that_of_differences(kernel, n_classes, data):
    X, labels = data[0], np.minimum(data[1], n_classes - 1)
    weight = np.linspace(0.0, 3.0, len(X))

    def value(theta):
        prior = DensePrior(kernel.clone_with_theta(theta), X)
        return softmax_evidence(
            prior, labels, n_classes, sample_weight=weight, eval_gradient=False
        ).value

    prior = DensePrior(kernel, X)
    evidence = softmax_evidence(prior, labels, n_classes, sample_weight=weight)
    assert evidence.converged
    expected = differences(value, kernel.theta, step=1e-3)
    np.testing.assert_allclose(evidence.gradient, expected, rtol=1e-6, atol=1e-6)


def test_two_classes_are_binary_with_twice_the_variance(data):
    # The difference of two independent functions has the sum of their covariances.
    X, labels = data[0], np.minimum(data[1], 1)
    y = 2.0 * labels - 1
    two = softmax_posterior(DensePrior(KERNELS[0], X), labels, 2).moments(TEST_POINTS)
    one = laplace_posterior(DensePrior(2.0 * KERNELS[0], X), y, "logit").moments(TEST_POINTS)
    np.testing.assert_allclose(two[0] @ [-1, 1], one[0][:, 0], atol=1e-7)
    variance = np.einsum("tcd,c,d->t", two[1], [-1, 1], [-1, 1])
    np.testing.assert_allclose(variance, one[1][:, 0, 0], rtol=1e-7)
    evidence = softmax_evidence(DensePrior(KERNELS[0], X), labels, 2)
    binary = laplace_evidence(DensePrior(2.0 * KERNELS[0], X), y, "logit")
    np.testing.assert_allclose(evidence.value, binary.value, rtol=1e-8)


def test_whole_weights_count_points(data):
    X, labels = data
    weight = np.random.default_rng(1).integers(0, 4, len(X)).astype(float)
    repeated = np.repeat(np.arange(len(X)), weight.astype(int))
    weighted = softmax_evidence(DensePrior(KERNELS[0], X), labels, 3, sample_weight=weight)
    plain = softmax_evidence(DensePrior(KERNELS[0], X[repeated]), labels[repeated], 3)
    np.testing.assert_allclose(weighted.value, plain.value, rtol=1e-9)
    np.testing.assert_allclose(weighted.gradient, plain.gradient, rtol=1e-7)


def test_reduction_and_factors_agree_and_can_be_pickled(data):
    X, labels = data
    posterior = softmax_posterior(DensePrior(KERNELS[2], X), labels, 3)
    posterior = pickle.loads(pickle.dumps(posterior))
    matrices = posterior.reduction()
    assert matrices.shape == (6, 30, 30)
    own = matrices[[0, 3, 5]]
    np.testing.assert_allclose(own, own.swapaxes(1, 2), atol=1e-15)
    joint = JointPosterior(posterior.kernel, X, posterior.weights, matrices)
    for a, b in zip(posterior.moments(TEST_POINTS), joint.moments(TEST_POINTS), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


def test_batches_do_not_show(data, monkeypatch):
    X, labels = data
    posterior = softmax_posterior(DensePrior(KERNELS[0], X), labels, 3)
    whole = posterior.moments(TEST_POINTS)
    monkeypatch.setattr("skuq.gpc.inference._posterior._BATCH_ENTRIES", 200)
    for a, b in zip(whole, posterior.moments(TEST_POINTS), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_a_warm_start_leads_to_the_same_place(data):
    X, labels = data
    start = softmax_evidence(DensePrior(KERNELS[1], X), labels, 3).state
    cold = softmax_evidence(DensePrior(KERNELS[0], X), labels, 3)
    warm = softmax_evidence(DensePrior(KERNELS[0], X), labels, 3, state=start)
    np.testing.assert_allclose(warm.value, cold.value, rtol=1e-8)


@pytest.mark.parametrize(
    ("X", "labels", "kernel"),
    [
        (np.zeros((1, 1)), np.array([1]), RBF()),
        (np.zeros((6, 2)), np.array([0, 1, 2, 1, 1, 1]), RBF()),
        (np.arange(9.0)[:, None], np.repeat([0, 1, 2], 3), 1e6 * RBF(0.1)),
        (np.arange(9.0)[:, None], np.repeat([0, 1, 2], 3), 1e6 * RBF(30.0)),
        (np.arange(9.0)[:, None], np.zeros(9, int), 1e-8 * RBF(1e-5)),
    ],
    ids=["one point", "duplicates", "large", "large and smooth", "tiny"],
)
def test_degenerate_problems_stay_finite(X, labels, kernel):
    prior = DensePrior(kernel, X)
    evidence = softmax_evidence(prior, labels, 3)
    mean, covariance = softmax_posterior(prior, labels, 3).moments(np.vstack([X, X + 0.3]))
    assert evidence.converged
    assert np.isfinite(evidence.value)
    assert np.isfinite(evidence.gradient).all()
    assert (np.linalg.eigvalsh(covariance) >= -1e-9 * kernel.diag(X[:1])[0]).all()
    assert (mean[: len(X)].argmax(axis=1) == labels).mean() >= 0.6
