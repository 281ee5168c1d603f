"""Evidence and posterior of regression: against scikit-learn, differences, and repeated rows."""

from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from sklearn.gaussian_process.kernels import RBF, Matern, RationalQuadratic, WhiteKernel

from skuq.gpc.inference._kernels import latent_kernel, noise_level
from skuq.gpc.inference._priors import DensePrior, LowRankPrior
from skuq.gpc.inference._single_latent import NoisyPrior

from .oracles import REGRESSION, differences

SIMPLE = 2.0 * RBF([1.0, 2.0]) + WhiteKernel(0.1)
SMOOTH = 0.3 * Matern(1.0, nu=1.5)
KERNELS = {
    "noise last": SIMPLE,
    "noise first and last": WhiteKernel(0.05) + SMOOTH + RBF(2.0) + WhiteKernel(0.01),
    "fixed parts": kernels.ConstantKernel(2.0, "fixed") * RationalQuadratic(1.0, 0.7)
    + WhiteKernel(0.1, "fixed"),
    "known noise": Matern(1.5, nu=2.5) * RBF(3.0),
}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
Y, ALPHA = np.sin(X @ [1.0, 0.5]) + 0.1 * RNG.normal(size=30), RNG.uniform(0.01, 0.1, 30)


def noisy(kernel, X=X, alpha=ALPHA, inducing=None):
    if inducing is None:
        return NoisyPrior.of(kernel, partial(DensePrior, X=X), alpha)
    return NoisyPrior.of(kernel, partial(LowRankPrior, X=X, inducing=inducing), alpha)


@pytest.mark.parametrize("name", KERNELS)
def test_evidence_and_gradient_are_those_of_scikit_learn_and_of_differences(name):
    kernel, weight = KERNELS[name], np.random.default_rng(1).uniform(0.5, 3.0, 30)
    theirs = GaussianProcessRegressor(kernel, alpha=ALPHA, optimizer=None).fit(X, Y)
    value, gradient = theirs.log_marginal_likelihood(kernel.theta, eval_gradient=True)
    found = REGRESSION.evidence(noisy(kernel), Y, np.ones(30))
    assert_allclose(found.value, value, rtol=1e-10)
    assert_allclose(found.gradient, gradient, rtol=1e-8, atol=1e-9)
    for inducing in (None, X[:7]):

        def evidence(theta, inducing=inducing):
            prior = noisy(kernel.clone_with_theta(theta), inducing=inducing)
            return REGRESSION.evidence(prior, Y, weight)

        expected = differences(lambda theta: evidence(theta).value, kernel.theta)
        assert_allclose(evidence(kernel.theta).gradient, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("inducing", [None, X[:9]], ids=["exact", "sparse"])
def test_a_weight_is_a_number_of_samples(inducing):
    count = np.random.default_rng(2).integers(1, 4, 30)
    rows, Z = np.repeat(np.arange(30), count), np.random.default_rng(3).normal(size=(10, 2))
    weighted = noisy(SIMPLE, inducing=inducing), Y, count.astype(float)
    repeated = noisy(SIMPLE, X[rows], ALPHA[rows], inducing), Y[rows], np.ones(len(rows))
    one, other = (REGRESSION.evidence(*each) for each in (weighted, repeated))
    assert_allclose(one.value, other.value, rtol=1e-9)
    assert_allclose(one.gradient, other.gradient, rtol=1e-7, atol=1e-7)
    one, other = (REGRESSION.posterior(*each).moments(Z) for each in (weighted, repeated))
    for ours, theirs in zip(one, other, strict=True):
        assert_allclose(ours, theirs, atol=1e-9)


def test_inducing_points_bound_the_evidence_and_are_exact_at_all_inputs():
    priors = (noisy(SIMPLE, inducing=each) for each in (X[:3], X[:10], X[:20], X, None))
    *values, last, exact = (REGRESSION.evidence(each, Y, np.ones(30)).value for each in priors)
    assert np.all(np.diff([*values, last, exact + 1e-5]) > 0)
    assert_allclose(last, exact, atol=1e-5)


def test_kernels_are_split_into_function_and_noise():
    kernel = KERNELS["noise first and last"]
    assert latent_kernel(kernel) == SMOOTH + RBF(2.0)
    assert noise_level(kernel) == pytest.approx(0.06)
