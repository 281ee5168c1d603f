"""Norms of Taylor polynomials and their rests, against the kernels' own inner products."""

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mpf
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from skuq.gpc.bounds import _latent_model as latent
from skuq.gpc.bounds._latent_model import Matern32, SquaredExponential, Term, from_sklearn

from .oracles import KERNELS, tensor

mpmath.mp.dps = 40
PROFILES = {
    "se": (SquaredExponential(), lambda s: mpmath.exp(-s / 2)),
    "rational": (latent.Rational(0.4), lambda s: (1 + s / mpf("0.8")) ** mpf("-0.4")),
    "nearly-se": (latent.Rational(30.0), lambda s: (1 + s / 60) ** -30),
    "matern52": (
        latent.Matern52(),
        lambda s: (1 + mpmath.sqrt(5 * s) + 5 * s / 3) * mpmath.exp(-mpmath.sqrt(5 * s)),
    ),
    "matern32": (Matern32(), lambda s: (1 + mpmath.sqrt(3 * s)) * mpmath.exp(-mpmath.sqrt(3 * s))),
}


def exact_norms(line, order):
    """Norms of linear part, quadratic part and rest at 1, for the kernel ``line(x - y)``. Inner
    products of derivatives of ``k(x, .)`` are derivatives of the line function. It is smooth on
    either side of zero, and there as far as the order needs."""
    degrees = range(order + 1)
    at_zero = [mpmath.diff(line, 0, n, direction=1) * (n % 2 == 0) for n in range(2 * order + 1)]
    at_one = [mpmath.diff(line, 1, n) for n in degrees]
    weight = [1 / mpmath.factorial(n) for n in degrees]
    parts = [mpmath.sqrt(abs(weight[n] ** 2 * at_zero[2 * n])) for n in degrees]
    pairs = [(i, j) for i in degrees for j in degrees]
    polynomial = mpmath.fsum(weight[i] * weight[j] * (-1) ** i * at_zero[i + j] for i, j in pairs)
    crossed = mpmath.fsum(weight[n] * (-1) ** n * at_one[n] for n in degrees)
    rest = mpmath.sqrt(at_zero[0] + polynomial - 2 * crossed)
    return float(parts[1]), float(parts[2]) if order == 2 else 0.0, float(rest)


@pytest.mark.parametrize(
    ("name", "order"), [(n, k) for n in PROFILES for k in (1, 2) if k <= PROFILES[n][0].order]
)
def test_norms_bound_what_a_taylor_polynomial_leaves_out(name, order):
    (profile, correlation), tightest = PROFILES[name], 0.0
    for q in (1e-3, 0.03, 0.5, 3.0, 30.0):
        first, second, rest = exact_norms(lambda t, q=q: correlation(q * t * t), order)
        found = profile.norms(tensor([q]), order)
        assert_allclose([found.a1, found.a2], [[first], [second]], rtol=1e-9)
        assert rest <= float(found.rho) * (1 + 1e-9)
        tightest = max(tightest, rest / float(found.rho))
    assert tightest > (0.8 if name.startswith("matern") else 0.99)


@pytest.mark.parametrize(
    ("names", "order"), [(("se", "matern52"), 1), (("rational", "nearly-se"), 2), (("se", "se"), 2)]
)
def test_norms_of_products_multiply_out(names, order):
    sizes = np.array([0.3, 0.7])
    profiles, (first, second) = zip(*(PROFILES[name] for name in names), strict=True)
    term = Term(1.0, profiles, tensor(sizes[:, None]))
    for half_width in (0.05, 0.5, 2.0):
        q = sizes * half_width**2
        exact = exact_norms(lambda t, q=q: first(q[0] * t * t) * second(q[1] * t * t), order)
        found = term.norms(tensor([[half_width]]), order)
        for norm, bound in zip(exact, found, strict=True):
            assert norm <= float(bound) * (1 + 1e-9)
        assert exact[2] > 0.3 * float(found.rho) or half_width > 0.05


@pytest.mark.parametrize("kinds", [("se", "rational"), ("matern52", "se")])
def test_norms_of_sums_add_as_squares(kinds):
    (one, other), (first, second) = zip(*(PROFILES[kind] for kind in kinds), strict=True)
    terms = Term(3.0, (one,), tensor([[0.5]])), Term(0.5, (other,), tensor([[2.0]]))
    kernel = latent.StationaryKernel(terms)
    assert kernel.variance == 3.5
    for h in (0.1, 0.6, 3.0):
        exact = exact_norms(
            lambda t, q=h * h: 3 * first(q * t * t / 2) + second(2 * q * t * t) / 2, 2
        )
        found = kernel.norms(tensor([[h]]))
        assert_allclose([float(p) for p in found[:2]], exact[:2], rtol=1e-9)
        assert exact[2] <= float(found.rho) * (1 + 1e-9)


def test_one_rough_term_limits_the_order_of_all_and_squared_exponentials_merge():
    smooth, rough = from_sklearn(RBF() + RBF(2.0), 1), from_sklearn(RBF() + Matern(nu=1.5), 1)
    assert (smooth.order, rough.order) == (2, 1)
    assert float(rough.norms(tensor([[1.0]])).a2) == 0
    assert from_sklearn(ConstantKernel(2.0), 1).order == 2
    for nu in (1.5, 2.5):  # without bounds on gradients where features vary
        norms = torch.stack(from_sklearn(Matern(nu=nu), 2).gradient_norms(tensor([[0.1, 0.0]])))
        assert_array_equal(norms[:, 0], [[np.inf, 0.0]] * 2)
    (term,) = from_sklearn(RBF(1.0) * RationalQuadratic() * RBF(0.5), 2).terms
    assert [type(profile) for profile in term.profiles] == [SquaredExponential, latent.Rational]
    assert_allclose(term.precisions, [[5.0, 5.0], [1.0, 1.0]])


@pytest.mark.parametrize("alpha", [None, 4.0])
def test_gradient_norms_bound_the_derivatives_of_features(alpha):
    """Features ``exp(i w x)`` of frequencies drawn from the spectral measure."""
    rng, precision = np.random.default_rng(0), np.array([1.5, 0.4])
    w = rng.normal(size=(200_000, 2)) * np.sqrt(precision)
    if alpha is not None:
        w *= np.sqrt(rng.gamma(alpha, 1 / alpha, len(w)))[:, None]
    profile = SquaredExponential() if alpha is None else latent.Rational(alpha)
    kernel = latent.StationaryKernel((Term(2.5, (profile,), tensor(precision[None])),))
    for half in np.array([[0.2, 0.1], [0.6, 1.0]]):
        linear, rest = kernel.gradient_norms(tensor(half[None]))
        slope = 2.5 * (half * w) ** 2
        for sign in (1, -1):
            phase = (w @ (half * [1, sign]))[:, None]
            beyond = np.abs(np.exp(1j * phase) - 1 - 1j * phase)
            for bound, part in ((linear, phase), (rest, beyond)):
                assert (np.sqrt((slope * part**2).mean(axis=0)) <= 1.01 * bound[0].numpy()).all()
    # along a single feature, Hoelder's inequality loses little
    linear, rest = kernel.gradient_norms(tensor([[0.05, 0.0]]))
    phase = 0.05 * w[:, 0]
    assert np.sqrt((2.5 * phase**4).mean()) > 0.6 * float(linear[0, 0])
    assert np.sqrt((2.5 * phase**6).mean()) / 2 > 0.8 * float(rest[0, 0])
    assert float(linear[0, 1]) == float(rest[0, 1]) == 0


@pytest.mark.parametrize("copies", [1, 2])
def test_gradient_norms_of_products_and_sums(copies):
    """Roots of moments add up in a product, squares of norms in a sum."""
    term = Term(2.0, (SquaredExponential(),) * 2, tensor([[4.0], [1.0]]))
    linear, rest = latent.StationaryKernel((term,) * copies).gradient_norms(tensor([[0.3]]))
    root = (2 + 1) * 0.3
    assert_allclose(linear, [[(copies * 2) ** 0.5 * 15 ** (1 / 3) * root**2]])
    assert_allclose(rest, [[(copies * 2 * 15) ** 0.5 * root**3 / 2]])


def test_norms_within_a_distance_are_those_along_the_shortest_length_scale():
    kernel = from_sklearn(3.0 * RBF([0.5, 2.0]) + Matern(nu=2.5), 2)
    within = kernel.norms(tensor([[9.0, 7.0], [0.1, 0.2]]), tensor([0.3, 5.0]))
    for i, box in enumerate([[0.3, 0.0], [0.1, 0.2]]):
        expected = torch.cat(kernel.norms(tensor([box])))
        assert_allclose([part[i] for part in within], expected)


def test_conditions_and_reach_of_products_and_sums():
    X = np.random.default_rng(0).normal(size=(5, 2))
    kernel = 2.0 * RBF([0.5, 1.5]) * RationalQuadratic(2.0)
    total, squares = from_sklearn(kernel + 0.5, 2), (1 / 0.25 + 1 / 4, 1 / 2.25 + 1 / 4)
    found = total(tensor(X), tensor(X), sensitivity=True)
    assert_allclose(found, kernel(X) * (1 + (X[:, None] - X) ** 2 @ squares) + 0.5)
    assert_allclose(total.reach(tensor(X)), 4 * (X**2 @ squares).max())
    assert from_sklearn(ConstantKernel(2.0), 2).reach(tensor(X)) == 0


@pytest.mark.parametrize("name", KERNELS)
def test_values_and_slopes_are_those_of_scikit_learn(name):
    rng, kernel = np.random.default_rng(0), KERNELS[name](3)
    X, Z, ours = rng.normal(size=(5, 3)), rng.normal(size=(4, 3)), from_sklearn(kernel, 3)
    assert_allclose(ours(tensor(X), tensor(Z)), kernel(X, Z))
    assert_allclose(ours.variance, kernel.diag(X[:1])[0])
    # Var f'(x) = 2 (k(0) - k(h)) / h^2
    drop = kernel.diag(X[:1])[0] - kernel(np.zeros((1, 3)), 1e-4 * np.eye(3))[0]
    assert_allclose(ours.slopes(), 2 * drop / 1e-8, rtol=1e-3)


def test_far_from_the_origin_small_distances_keep_their_digits():
    far = np.round(np.random.default_rng(0).normal(size=(40, 2)) * 2**20) / 2**20 + 2.0**17
    kernel = 2.0 * RBF([0.5, 2.0])
    ours = from_sklearn(kernel, 2)(tensor(far), tensor(far))
    assert_allclose(ours, kernel(far - 2.0**17), rtol=1e-12)
