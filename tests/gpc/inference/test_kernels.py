"""Covariances against scikit-learn's, gradients against its full arrays of derivatives."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from skuq.gpc.inference import _kernels as kernels
from skuq.gpc.inference._kernels import covariance, covariance_with_pullback

from .oracles import differences

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
    ConstantKernel(5.0, "fixed") * RBF(ARD) + 0.2,
    2.0 * RBF(ARD, "fixed") * Matern(2.0, nu=1.5) + 0.5 * RationalQuadratic(),
    (RBF(1.0) + 0.1) * (Matern(ARD, nu=2.5) + 0.3 * RBF(9.0)) * 4.0,
]
X, Z = np.split(np.random.default_rng(0).normal(size=(19, 3)), [12])
X[1] = X[0]


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_values_and_gradients_are_those_of_scikit_learn(kernel):
    kernels.check_kernel(kernel, n_features=3)
    for far in (0.0, 1e7, 1e10):  # also beside inputs that are far apart
        A, B = (np.vstack([part, far * np.eye(3)[[i]]]) for i, part in enumerate((X, Z)))
        assert_allclose(kernels.prior_variance(kernel), kernel.diag(A), rtol=1e-14)
        assert_allclose(covariance(kernel, A), kernel(A), rtol=1e-12, atol=1e-14)
        assert_allclose(covariance(kernel, A, B), kernel(A, B), rtol=1e-12, atol=1e-14)
    G, H = np.split(np.random.default_rng(1).normal(size=(12, 19)), [12], axis=1)
    expected = np.einsum("ab,abj->j", G, kernel(X, eval_gradient=True)[1])
    found = covariance_with_pullback(kernel, X)[1](G)
    assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    expected = differences(lambda t: np.vdot(H, kernel.clone_with_theta(t)(X, Z)), kernel.theta)
    found = covariance_with_pullback(kernel, X, Z)[1](H)
    assert_allclose(found, expected, rtol=1e-7, atol=1e-8)


def test_the_pullback_of_a_product_outlives_changes_of_its_matrix():
    K, pullback = covariance_with_pullback(2.0 * RBF(ARD), X)
    expected = pullback(K.copy())
    G, K[:] = K.copy(), np.nan
    assert_array_equal(pullback(G), expected)


def test_inputs_far_from_the_origin_lose_no_precision():
    # 2**20 and steps of 2**-20 are exact in sums, so that the differences stay what they were.
    A, B = (np.round(part * 2**20) / 2**20 for part in (X, Z))
    near, far = covariance(RBF(ARD), A, B), covariance(RBF(ARD), A + 2**20, B + 2**20)
    assert_allclose(far, near, rtol=1e-12)
