"""The low-rank prior: exact where it should be, and consistent where it approximates."""

import pickle
import time

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from skuq.gpc.inference._priors import DensePrior, LowRankPrior, choose_inducing
from tests.gpc.inference.oracles import (
    differences,
    ep_evidence,
    ep_posterior,
    laplace_evidence,
    laplace_posterior,
    softmax_evidence,
    softmax_posterior,
)

KERNELS = [
    2.0 * RBF(1.3),
    30.0 * RBF([0.5, 2.0]),
    3.0 * Matern(1.0, nu=1.5) + ConstantKernel(0.5),
]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
LABELS = np.digitize(X[:, 0] + 0.3 * RNG.normal(size=40), [-0.5, 0.5])
Y = np.where(LABELS > 0, 1.0, -1.0)
TEST_POINTS = RNG.normal(size=(7, 2))
METHODS = {
    "Laplace probit": (laplace_evidence, laplace_posterior, (Y, "probit")),
    "Laplace logit": (laplace_evidence, laplace_posterior, (Y, "logit")),
    "EP probit": (ep_evidence, ep_posterior, (Y, "probit")),
    "EP logit": (ep_evidence, ep_posterior, (Y, "logit")),
    "softmax": (softmax_evidence, softmax_posterior, (LABELS, 3)),
}
WEIGHT = np.linspace(0.0, 2.0, 40)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_inducing_points_at_all_inputs_are_exact(kernel, method):
    evidence, posterior, target = METHODS[method]
    low_rank, dense = LowRankPrior(kernel, X, X), DensePrior(kernel, X)
    got = evidence(low_rank, *target, sample_weight=WEIGHT)
    expected = evidence(dense, *target, sample_weight=WEIGHT)
    np.testing.assert_allclose(got.value, expected.value, rtol=1e-6)
    np.testing.assert_allclose(got.gradient, expected.gradient, rtol=1e-5, atol=1e-5)
    assert 0 < got.jitter < 1e-8
    one = posterior(low_rank, *target, sample_weight=WEIGHT).moments(TEST_POINTS)
    other = posterior(dense, *target, sample_weight=WEIGHT).moments(TEST_POINTS)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_gradient_is_that_of_differences(kernel, method):
    evidence, _, target = METHODS[method]

    def value(theta):
        prior = LowRankPrior(kernel.clone_with_theta(theta), X, X[:10] + 0.1)
        return evidence(prior, *target, sample_weight=WEIGHT, eval_gradient=False).value

    prior = LowRankPrior(kernel, X, X[:10] + 0.1)
    got = evidence(prior, *target, sample_weight=WEIGHT)
    expected = differences(value, kernel.theta, step=1e-2)
    np.testing.assert_allclose(got.gradient, expected, rtol=1e-5, atol=1e-5)


class Reduced(DensePrior):
    """The dense prior of covariance ``K_nm K_mm^-1 K_mn``, as a matrix."""

    def __init__(self, kernel, X, inducing):
        super().__init__(kernel, X)
        cross = kernel(X, inducing)
        own = kernel(inducing) + 1e-9 * kernel.diag(inducing[:1])[0] * np.eye(len(inducing))
        self.matrix = cross @ np.linalg.solve(own, cross.T)
        self.matrix = 0.5 * (self.matrix + self.matrix.T)


@pytest.mark.parametrize("method", METHODS)
def test_evidence_is_that_of_the_reduced_covariance(method):
    evidence, _, target = METHODS[method]
    got = evidence(LowRankPrior(KERNELS[0], X, X[:10] + 0.1), *target)
    expected = evidence(Reduced(KERNELS[0], X, X[:10] + 0.1), *target, eval_gradient=False)
    np.testing.assert_allclose(got.value, expected.value, rtol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_far_from_the_inducing_points_the_prior_returns(method):
    _, posterior, target = METHODS[method]
    found = posterior(LowRankPrior(KERNELS[0], X, X[:10]), *target)
    found = pickle.loads(pickle.dumps(found))
    mean, covariance = found.moments(np.array([[50.0, 0.0]]))
    np.testing.assert_allclose(mean[0], 0, atol=1e-12)
    np.testing.assert_allclose(covariance[0], 2.0 * np.eye(len(mean[0])), atol=1e-12)
    matrices = found.reduction()
    own = matrices[np.equal(*np.triu_indices(len(mean[0])))]
    np.testing.assert_allclose(own, own.swapaxes(1, 2))


def test_duplicate_inducing_points_are_regularised():
    prior = LowRankPrior(KERNELS[0], X, np.vstack([X[:5], X[:5]]))
    once = LowRankPrior(KERNELS[0], X, X[:5])
    got = laplace_evidence(prior, Y, "logit")
    np.testing.assert_allclose(got.value, laplace_evidence(once, Y, "logit").value, rtol=1e-6)
    assert np.isfinite(got.gradient).all()


def test_inducing_points_are_distinct_reproducible_and_spread():
    many = np.random.default_rng(1).uniform(size=(2000, 2))
    points = choose_inducing(many, 16, random_state=0)
    np.testing.assert_array_equal(points, choose_inducing(many, 16, random_state=0))
    assert len(np.unique(points, axis=0)) == len(points) <= 16
    distance = np.linalg.norm(many[:, None] - points, axis=2).min(axis=1)
    assert distance.max() < 0.45  # half the diagonal of four by four cells is 0.18
    np.testing.assert_array_equal(
        choose_inducing(np.repeat(X, 3, axis=0), 40), np.unique(X, axis=0)
    )


def test_many_points_take_seconds():
    rng = np.random.default_rng(0)
    many = rng.normal(size=(10_000, 5))
    y = np.where(many[:, 0] > 0, 1.0, -1.0)
    started = time.perf_counter()
    prior = LowRankPrior(2.0 * RBF(2.0), many, choose_inducing(many, 100, random_state=0))
    for evidence in (laplace_evidence, ep_evidence):
        assert evidence(prior, y, "probit").converged
    assert time.perf_counter() - started < 30
