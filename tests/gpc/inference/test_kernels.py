"""Covariances against scikit-learn's, gradients against its full arrays of derivatives."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from skuq.gpc.inference._kernels import (
    check_kernel,
    covariance,
    covariance_with_pullback,
    prior_variance,
)

ARD = [0.7, 2.0, 1.3]
KERNELS = [
    RBF(1.3),
    RBF(ARD),
    Matern(1.3, nu=1.5),
    Matern(ARD, nu=1.5),
    Matern(0.4, nu=2.5),
    Matern(ARD, nu=2.5),
    RationalQuadratic(length_scale=0.8, alpha=0.3),
    RationalQuadratic(alpha=2.0, alpha_bounds="fixed"),
    ConstantKernel(0.3),
    ConstantKernel(0.3) * ConstantKernel(2.0) + ConstantKernel(1.5),
    5.0 * RBF(ARD) + 0.2,
    ConstantKernel(5.0, "fixed") * RBF(ARD),
    2.0 * RBF(ARD, "fixed") * Matern(2.0, nu=1.5) + 0.5 * RationalQuadratic(),
    (RBF(1.0) + 0.1) * (Matern(ARD, nu=2.5) + 0.3 * RBF(9.0)) * 4.0,
]


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(12, 3)), rng.normal(size=(7, 3))
    X[1] = X[0]
    return X, Z


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_values_and_gradients_are_those_of_scikit_learn(kernel, inputs):
    check_kernel(kernel, n_features=3)
    for far in (0.0, 1e7, 1e10):  # also beside inputs that are far apart
        X, Z = (np.vstack([part, far * np.eye(3)[[i]]]) for i, part in enumerate(inputs))
        assert_allclose(prior_variance(kernel), kernel.diag(X), rtol=1e-14)
        assert_allclose(covariance(kernel, X), kernel(X), rtol=1e-12, atol=1e-14)
        assert_allclose(covariance(kernel, X, Z), kernel(X, Z), rtol=1e-12, atol=1e-14)
    (X, Z), rng, step = inputs, np.random.default_rng(1), 1e-5
    G, H = rng.normal(size=(12, 12)), rng.normal(size=(12, 7))
    expected = np.einsum("ab,abj->j", G, kernel(X, eval_gradient=True)[1])
    found = covariance_with_pullback(kernel, X)[1](G)
    assert_allclose(found, expected, rtol=1e-10, atol=1e-12)

    def inner(theta):
        return np.vdot(H, kernel.clone_with_theta(theta)(X, Z))

    shifts = step * np.eye(len(kernel.theta))
    expected = [(inner(kernel.theta + s) - inner(kernel.theta - s)) / (2 * step) for s in shifts]
    found = covariance_with_pullback(kernel, X, Z)[1](H)
    assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


def test_pullback_outlives_changes_of_its_matrix(inputs):
    kernel, G = 2.0 * RBF(ARD), np.random.default_rng(1).normal(size=(12, 12))
    K, pullback = covariance_with_pullback(kernel, inputs[0])
    K[:] = np.nan
    assert_array_equal(pullback(G), covariance_with_pullback(kernel, inputs[0])[1](G))


def test_inputs_far_from_the_origin_lose_no_precision(inputs):
    X, Z = inputs
    # 2**20 and steps of 2**-20 are exact in sums, so that the differences stay what they were.
    X, Z = (np.round(A * 2**20) / 2**20 for A in (X, Z))
    near, far = covariance(RBF(ARD), X, Z), covariance(RBF(ARD), X + 2**20, Z + 2**20)
    assert_allclose(far, near, rtol=1e-12)
