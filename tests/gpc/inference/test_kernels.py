"""Covariances against scikit-learn's, gradients against its full arrays of derivatives."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

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
def test_values_are_those_of_scikit_learn(kernel, inputs):
    X, Z = inputs
    np.testing.assert_allclose(covariance(kernel, X), kernel(X), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(covariance(kernel, X, Z), kernel(X, Z), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(prior_variance(kernel), kernel.diag(X), rtol=1e-14)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_gradient_contracts_the_derivatives_of_scikit_learn(kernel, inputs):
    X, _ = inputs
    G = np.random.default_rng(1).normal(size=(12, 12))
    expected = np.einsum("ab,abj->j", G, kernel(X, eval_gradient=True)[1])
    np.testing.assert_allclose(
        covariance_with_pullback(kernel, X)[1](G), expected, rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_gradient_between_two_sets_of_inputs_is_that_of_differences(kernel, inputs):
    X, Z = inputs
    G, step = np.random.default_rng(1).normal(size=(12, 7)), 1e-5

    def inner(theta):
        return np.vdot(G, kernel.clone_with_theta(theta)(X, Z))

    shifts = step * np.eye(len(kernel.theta))
    expected = [(inner(kernel.theta + s) - inner(kernel.theta - s)) / (2 * step) for s in shifts]
    np.testing.assert_allclose(
        covariance_with_pullback(kernel, X, Z)[1](G), expected, rtol=1e-7, atol=1e-8
    )


def test_inputs_far_from_the_origin_lose_no_precision(inputs):
    X, Z = inputs
    # 2**20 and steps of 2**-20 are exact in sums, so that the differences stay what they were.
    X, Z = (np.round(A * 2**20) / 2**20 for A in (X, Z))
    near, far = covariance(RBF(ARD), X, Z), covariance(RBF(ARD), X + 2**20, Z + 2**20)
    np.testing.assert_allclose(far, near, rtol=1e-12)


@pytest.mark.parametrize("far", [1e7, 1e10])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_inputs_far_apart_leave_near_ones_their_precision(kernel, inputs, far):
    X, Z = inputs
    X, Z = np.vstack([X, [[far, 0.0, 0.0]]]), np.vstack([Z, [[0.0, far, 0.0]]])
    np.testing.assert_allclose(covariance(kernel, X), kernel(X), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(covariance(kernel, X, Z), kernel(X, Z), rtol=1e-12, atol=1e-14)


def test_pullback_outlives_changes_of_its_matrix(inputs):
    X, _ = inputs
    kernel, G = 2.0 * RBF(ARD), np.random.default_rng(1).normal(size=(12, 12))
    K, pullback = covariance_with_pullback(kernel, X)
    K[:] = np.nan
    np.testing.assert_array_equal(pullback(G), covariance_with_pullback(kernel, X)[1](G))


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_supported_kernels_pass_the_check(kernel):
    check_kernel(kernel, n_features=3)


class Derived(RBF):
    """Might compute anything."""


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (WhiteKernel() + RBF(), "WhiteKernel.*Replace"),
        (2.0 * ExpSineSquared(), "ExpSineSquared"),
        (RBF() ** 2, r"RBF.*\*\* 2"),
        (Derived(), "Derived"),
        (Matern(nu=0.5), "nu=0.5"),
        (2.0 * Matern(nu=np.inf), "nu=inf"),
        (2.0 * RBF([1.0, 2.0]), "2 length scales.*3 features"),
        ("rbf", "str object"),
        (None, "NoneType object"),
    ],
)
def test_other_kernels_are_refused_by_name(kernel, message):
    with pytest.raises(ValueError, match=message):
        check_kernel(kernel, n_features=3)
