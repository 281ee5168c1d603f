"""Evidence and posterior of regression: against scikit-learn, differences, and repeated rows."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

from skuq.gpc.inference._kernels import check_noisy_kernel, latent_kernel, noise_level
from skuq.gpc.inference._priors import DensePrior, LowRankPrior
from skuq.gpc.inference._single_latent import NoisyPrior
from tests.gpc.inference.oracles import regression_evidence, regression_posterior

from .oracles import differences

KERNELS = {
    "noise last": 2.0 * RBF([1.0, 2.0]) + WhiteKernel(0.1),
    "noise first and last": WhiteKernel(0.05)
    + ConstantKernel(0.3) * Matern(1.0, nu=1.5)
    + RBF(2.0)
    + WhiteKernel(0.01),
    "fixed parts": ConstantKernel(2.0, "fixed") * RationalQuadratic(1.0, 0.7)
    + WhiteKernel(0.1, "fixed"),
    "known noise": Matern(1.5, nu=2.5) * RBF(3.0),
}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    return X, np.sin(X @ [1.0, 0.5]) + 0.1 * rng.normal(size=30), rng.uniform(0.01, 0.1, 30)


def noisy(kernel, X, alpha, inducing=None):
    prior = partial(DensePrior, X=X)
    if inducing is not None:
        prior = partial(LowRankPrior, X=X, inducing=inducing)
    return NoisyPrior.of(kernel, prior, alpha)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=list(KERNELS))
def test_evidence_and_gradient_are_those_of_scikit_learn(kernel, data):
    X, y, alpha = data
    theirs = GaussianProcessRegressor(kernel, alpha=alpha, optimizer=None).fit(X, y)
    value, gradient = theirs.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    found = regression_evidence(noisy(kernel, X, alpha), y, np.ones(30))
    assert_allclose(found.value, value, rtol=1e-10)
    assert_allclose(found.gradient, gradient, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=list(KERNELS))
@pytest.mark.parametrize("sparse", [False, True])
def test_gradient_is_that_of_the_evidence_with_weights(kernel, sparse, data):
    X, y, alpha = data
    weight = np.random.default_rng(1).uniform(0.5, 3.0, 30)

    def evidence(theta):
        prior = noisy(kernel.clone_with_theta(theta), X, alpha, X[:7] if sparse else None)
        return regression_evidence(prior, y, weight)

    expected = differences(lambda theta: evidence(theta).value, kernel.theta)
    assert_allclose(evidence(kernel.theta).gradient, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_weight_is_a_number_of_samples(sparse, data):
    X, y, alpha = data
    count = np.random.default_rng(2).integers(1, 4, 30)
    kernel, inducing = KERNELS["noise last"], X[:9] if sparse else None
    weighted = noisy(kernel, X, alpha, inducing), y, count.astype(float)
    rows = np.repeat(np.arange(30), count)
    repeated = noisy(kernel, X[rows], alpha[rows], inducing), y[rows], np.ones(len(rows))
    one, other = (regression_evidence(*each) for each in (weighted, repeated))
    assert_allclose(one.value, other.value, rtol=1e-9)
    assert_allclose(one.gradient, other.gradient, rtol=1e-7, atol=1e-7)
    Z = np.random.default_rng(3).normal(size=(10, 2))
    for ours, theirs in zip(
        regression_posterior(*weighted).moments(Z),
        regression_posterior(*repeated).moments(Z),
        strict=True,
    ):
        assert_allclose(ours, theirs, atol=1e-9)


def test_inducing_points_bound_the_evidence_and_are_exact_at_all_inputs(data):
    X, y, alpha = data
    kernel = KERNELS["noise last"]
    exact = regression_evidence(noisy(kernel, X, alpha), y, np.ones(30))
    values = [
        regression_evidence(noisy(kernel, X, alpha, X[:m]), y, np.ones(30)).value
        for m in (3, 10, 20, 30)
    ]
    assert np.all(np.diff([*values, exact.value + 1e-5]) > 0)
    assert_allclose(values[-1], exact.value, atol=1e-5)


def test_parts_of_a_kernel_and_refusals():
    kernel = KERNELS["noise first and last"]
    assert latent_kernel(kernel) == ConstantKernel(0.3) * Matern(1.0, nu=1.5) + RBF(2.0)
    assert noise_level(kernel) == pytest.approx(0.06)
    with pytest.raises(ValueError, match="may be added, but not multiplied"):
        check_noisy_kernel(RBF() + 2.0 * WhiteKernel(), 2)
    with pytest.raises(ValueError, match="noise alone"):
        check_noisy_kernel(WhiteKernel() + WhiteKernel(), 2)
    with pytest.raises(ValueError, match="2 features"):
        check_noisy_kernel(RBF([1.0, 1.0, 1.0]) + WhiteKernel(), 2)
