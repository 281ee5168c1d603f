"""Norms of Taylor polynomials and their rests, against the kernels' own inner products."""

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mpf
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Matern,
    RationalQuadratic,
)

from skuq.gpc.bounds._latent_model import (
    Matern32,
    Matern52,
    Rational,
    SquaredExponential,
    StationaryKernel,
    Term,
    from_sklearn,
)

from .oracles import KERNELS

mpmath.mp.dps = 40
SIZES = [1e-3, 0.03, 0.5, 3.0, 30.0]
PROFILES = {
    "se": (SquaredExponential(), lambda s: mpmath.exp(-s / 2)),
    "rational": (Rational(0.4), lambda s: (1 + s / mpf("0.8")) ** mpf("-0.4")),
    "nearly-se": (Rational(30.0), lambda s: (1 + s / 60) ** -30),
    "matern52": (
        Matern52(),
        lambda s: (1 + mpmath.sqrt(5 * s) + 5 * s / 3) * mpmath.exp(-mpmath.sqrt(5 * s)),
    ),
    "matern32": (Matern32(), lambda s: (1 + mpmath.sqrt(3 * s)) * mpmath.exp(-mpmath.sqrt(3 * s))),
}


def exact_norms(line, order):
    """Norms of linear part, quadratic part and rest at 1, for the kernel ``line(x - y)``.

    Inner products of derivatives of ``k(x, .)`` are derivatives of the line function. It is
    smooth on either side of zero, and there as far as the order needs.
    """
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


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("order", [1, 2])
def test_norms_bound_what_a_taylor_polynomial_leaves_out(name, order):
    profile, correlation = PROFILES[name]
    if order > profile.order:
        return
    tightest = 0.0
    for q in SIZES:
        first, second, rest = exact_norms(lambda t, q=q: correlation(q * t * t), order)
        found = profile.norms(torch.tensor([q], dtype=torch.float64), order)
        assert_allclose([found.a1, found.a2], [[first], [second]], rtol=1e-9)
        assert rest <= float(found.rho) * (1 + 1e-9)
        tightest = max(tightest, rest / float(found.rho))
    assert tightest > (0.8 if name.startswith("matern") else 0.99)


@pytest.mark.parametrize(
    ("names", "order"), [(("se", "matern52"), 1), (("rational", "nearly-se"), 2), (("se", "se"), 2)]
)
def test_norms_of_products_multiply_out(names, order):
    sizes = np.array([0.3, 0.7])
    profiles, correlations = zip(*(PROFILES[name] for name in names), strict=True)
    term = Term(1.0, profiles, torch.as_tensor(sizes[:, None]))
    for half_width in (0.05, 0.5, 2.0):
        q = sizes * half_width**2
        exact = exact_norms(
            lambda t, q=q: correlations[0](q[0] * t * t) * correlations[1](q[1] * t * t), order
        )
        found = term.norms(torch.full((1, 1), half_width, dtype=torch.float64), order)
        for norm, bound in zip(exact, found, strict=True):
            assert norm <= float(bound) * (1 + 1e-9)
        assert exact[2] > 0.3 * float(found.rho) or half_width > 0.05
        # the two polynomials' product beyond the order, and each remainder times what it meets
        (a1, a2, rho), (b1, b2, sigma) = (
            profile.norms(torch.as_tensor([size]), order)
            for profile, size in zip(profiles, q, strict=True)
        )
        beyond = a1 * b2 + a2 * b1 + a2 * b2 + (a1 * b1 if order == 1 else 0)
        assert_allclose(found.rho, beyond + rho + (1 + a1 + a2) * sigma)


@pytest.mark.parametrize("kinds", [("se", "rational"), ("matern52", "se")])
def test_norms_of_sums_add_as_squares(kinds):
    profiles, correlations = zip(*(PROFILES[kind] for kind in kinds), strict=True)
    sizes, variances = torch.tensor([0.5, 2.0]).double(), (3.0, 0.5)
    parts = zip(variances, profiles, sizes.view(2, 1, 1), strict=True)
    kernel = StationaryKernel(tuple(Term(v, (p,), s) for v, p, s in parts))
    assert kernel.variance == 3.5
    for h in (0.1, 0.6, 3.0):
        exact = exact_norms(
            lambda t, h=h: sum(
                v * c(float(s) * h * h * t * t)
                for v, c, s in zip(variances, correlations, sizes, strict=True)
            ),
            2,
        )
        found = kernel.norms(torch.full((1, 1), h, dtype=torch.float64))
        assert_allclose([float(p) for p in found[:2]], exact[:2], rtol=1e-9)
        assert exact[2] <= float(found.rho) * (1 + 1e-9)


def test_one_rough_term_limits_the_order_of_all():
    smooth, rough = from_sklearn(RBF() + RBF(2.0), 1), from_sklearn(RBF() + Matern(nu=1.5), 1)
    assert (smooth.order, rough.order) == (2, 1)
    assert float(rough.norms(torch.ones(1, 1).double()).a2) == 0
    assert from_sklearn(ConstantKernel(2.0), 1).order == 2


@pytest.mark.parametrize("alpha", [None, 4.0])
def test_gradient_norms_bound_the_derivatives_of_features(alpha):
    """Features ``exp(i w x)`` of frequencies drawn from the spectral measure."""
    rng = np.random.default_rng(0)
    precision, variance = np.array([1.5, 0.4]), 2.5
    w = rng.normal(size=(200_000, 2)) * np.sqrt(precision)
    if alpha is not None:
        w *= np.sqrt(rng.gamma(alpha, 1 / alpha, len(w)))[:, None]
    profile = SquaredExponential() if alpha is None else Rational(alpha)
    kernel = StationaryKernel((Term(variance, (profile,), torch.as_tensor(precision[None])),))
    for half in np.array([[0.2, 0.1], [0.6, 1.0]]):
        linear, rest = kernel.gradient_norms(torch.as_tensor(half[None]))
        exact_linear, exact_rest = np.zeros(2), np.zeros(2)
        for sign in (1, -1):
            phase = w @ (half * [1, sign])
            beyond = np.exp(1j * phase) - 1 - 1j * phase
            for j in range(2):
                slope = (half[j] * w[:, j]) ** 2 * variance
                exact_linear[j] = max(exact_linear[j], np.sqrt((slope * phase**2).mean()))
                exact_rest[j] = max(exact_rest[j], np.sqrt((slope * abs(beyond) ** 2).mean()))
        assert (exact_linear <= 1.01 * linear[0].numpy()).all()
        assert (exact_rest <= 1.01 * rest[0].numpy()).all()
    # along a single feature, Hoelder's inequality loses little
    linear, rest = kernel.gradient_norms(torch.tensor([[0.05, 0.0]]).double())
    slope = variance * (0.05 * w[:, 0]) ** 2
    phase = 0.05 * w[:, 0]
    assert np.sqrt((slope * phase**2).mean()) > 0.6 * float(linear[0, 0])
    assert np.sqrt((slope * phase**4).mean()) / 2 > 0.8 * float(rest[0, 0])
    assert float(linear[0, 1]) == float(rest[0, 1]) == 0


@pytest.mark.parametrize("copies", [1, 2])
def test_gradient_norms_of_products_and_sums(copies):
    """Roots of moments add up in a product, squares of norms in a sum."""
    profiles, precisions = (SquaredExponential(),) * 2, torch.tensor([[4.0], [1.0]]).double()
    kernel = StationaryKernel((Term(2.0, profiles, precisions),) * copies)
    linear, rest = kernel.gradient_norms(torch.tensor([[0.3]], dtype=torch.float64))
    root = (2 + 1) * 0.3
    assert_allclose(linear, [[(copies * 2) ** 0.5 * 15 ** (1 / 3) * root**2]])
    assert_allclose(rest, [[(copies * 2 * 15) ** 0.5 * root**3 / 2]])


def test_gradient_norms_of_rough_kernels_are_infinite_where_features_vary():
    for nu in (1.5, 2.5):
        kernel = from_sklearn(Matern(nu=nu), 2)
        norms = torch.stack(kernel.gradient_norms(torch.tensor([[0.1, 0.0]]).double()))
        assert_array_equal(norms[:, 0], [[np.inf, 0.0]] * 2)


def test_norms_within_a_distance_are_those_along_the_shortest_length_scale():
    kernel = from_sklearn(3.0 * RBF([0.5, 2.0]) + Matern(nu=2.5), 2)
    boxes = torch.tensor([[9.0, 7.0], [0.1, 0.2]], dtype=torch.float64)
    within = kernel.norms(boxes, torch.tensor([0.3, 5.0], dtype=torch.float64))
    boxes[0, 0], boxes[0, 1] = 0.3, 0.0
    for i, box in enumerate(boxes):
        expected = kernel.norms(box[None])
        assert_allclose([part[i] for part in within], torch.cat(expected))


def test_conditions_and_reach_of_products_and_sums():
    X = np.random.default_rng(0).normal(size=(5, 2))
    kernel = 2.0 * RBF([0.5, 1.5]) * RationalQuadratic(2.0)
    total = from_sklearn(kernel + 0.5, 2)
    squares = (1 / 0.25 + 1 / 4, 1 / 2.25 + 1 / 4)
    s = (X[:, None] - X) ** 2 @ squares
    assert_allclose(total(*[torch.as_tensor(X)] * 2, sensitivity=True), kernel(X) * (1 + s) + 0.5)
    assert_allclose(total.reach(torch.as_tensor(X)), 4 * (X**2 @ squares).max())
    assert from_sklearn(ConstantKernel(2.0), 2).reach(torch.as_tensor(X)) == 0


@pytest.mark.parametrize("name", KERNELS)
def test_values_and_slopes_are_those_of_scikit_learn(name):
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(5, 3)), rng.normal(size=(4, 3))
    kernel = KERNELS[name](3)
    ours = from_sklearn(kernel, 3)
    assert_allclose(ours(torch.as_tensor(X), torch.as_tensor(Z)), kernel(X, Z))
    assert_allclose(ours.variance, kernel.diag(X[:1])[0])
    step = 1e-4 * np.eye(3)  # Var f'(x) = 2 (k(0) - k(h)) / h^2
    drop = kernel.diag(X[:1])[0] - kernel(np.zeros((1, 3)), step)[0]
    assert_allclose(ours.slopes(), 2 * drop / 1e-8, rtol=1e-3)


@pytest.mark.parametrize("profile", [entry[0] for entry in PROFILES.values()])
def test_derivatives_by_the_squared_distance(profile):
    s = torch.linspace(0.01, 6, 50, dtype=torch.float64)
    found = profile.derivatives(s, profile.order)
    step = 1e-5
    for n in range(profile.order):
        up, down = (profile.derivatives(s + h, profile.order)[n] for h in (step, -step))
        assert_allclose(found[n + 1], (up - down) / (2 * step), rtol=1e-4, atol=1e-9)
    assert float(profile.derivatives(torch.zeros(1).double(), 0)[0]) == 1


def test_far_from_the_origin_small_distances_keep_their_digits():
    X = np.random.default_rng(0).normal(size=(40, 2))
    far = np.round(X * 2**20) / 2**20 + 2.0**17
    kernel = 2.0 * RBF([0.5, 2.0])
    ours = from_sklearn(kernel, 2)(torch.as_tensor(far), torch.as_tensor(far))
    assert_allclose(ours, kernel(far - 2.0**17), rtol=1e-12)


@pytest.mark.parametrize("kernel", [DotProduct(), Matern(nu=0.5), RBF() + DotProduct()])
def test_other_kernels_are_refused(kernel):
    with pytest.raises(ValueError, match="Bounds are not known for the kernel"):
        from_sklearn(kernel, 2)


def test_products_of_squared_exponentials_merge():
    merged = from_sklearn(RBF(1.0) * RationalQuadratic() * RBF(0.5), 2)
    (term,) = merged.terms
    assert [type(profile) for profile in term.profiles] == [SquaredExponential, Rational]
    assert_allclose(term.precisions, [[5.0, 5.0], [1.0, 1.0]])
