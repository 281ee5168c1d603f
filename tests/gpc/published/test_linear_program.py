"""Bounds of covariances, means and variances over boxes against sampling and other solvers."""

import numpy as np
import pytest
from scipy.optimize import linprog
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, RationalQuadratic

from skuq.gpc.bounds._stationary import from_sklearn
from skuq.gpc.published._linear_functions import mean_bounds, minimise_linear
from skuq.gpc.published._relaxation import relax
from skuq.gpc.published._variance import quadratic_bounds, spectrum, variance_bounds

SCALES = [0.7, 1.9, 1.1]
KERNELS = {
    "rbf": lambda d: RBF(1.2),
    "ard": lambda d: ConstantKernel(2.0) * RBF(SCALES[:d]),
    "matern32": lambda d: Matern(0.9, nu=1.5),
    "matern52": lambda d: Matern(SCALES[:d], nu=2.5),
    "rational": lambda d: RationalQuadratic(1.0, alpha=0.6),
    "sum": lambda d: 0.5 * RBF(SCALES[:d]) + Matern(0.5, nu=1.5) + ConstantKernel(0.3),
    "product": lambda d: RBF(SCALES[:d]) * RationalQuadratic(0.8, 1.5) * Matern(2.0, nu=2.5),
}
SLACK = 1e-9


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


def random_box(rng, d, half_width):
    centre = rng.normal(size=d)
    sides = half_width * rng.uniform(0.5, 1.0, d)
    return centre - sides, centre + sides


def sample(rng, lower, upper, n=400):
    corners = np.stack(np.meshgrid(*zip(lower, upper, strict=True)), -1).reshape(-1, len(lower))
    return np.vstack([rng.uniform(lower, upper, (n, len(lower))), corners])


def random_form(rng, kernel, inputs):
    """Inverse of a covariance with noise, as the posteriors have it."""
    return np.linalg.inv(kernel(inputs) + np.diag(rng.uniform(0.5, 3.0, len(inputs))))


def evaluate(envelope, t):
    constant, linear, quadratic = envelope
    return constant + t @ linear.T + t**2 @ quadratic.T


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("half_width", [0.05, 0.5, 3.0])
def test_envelopes_enclose_covariances(kernel, d, half_width):
    rng = np.random.default_rng(d)
    inputs, (lower, upper) = rng.normal(size=(12, d)), random_box(rng, d, half_width)
    inputs[0] = (lower + upper) / 2  # the covariance is not smooth there for some kernels
    box = relax(from_sklearn(kernel(d), d), inputs, lower, upper)
    X = sample(rng, lower, upper)
    values, t = kernel(d)(X, inputs), X - box.centre
    (low, low_slope), (high, high_slope) = box.lines_below(), box.lines_above()
    for bound in (box.floor, evaluate(box.below, t), low + t @ low_slope.T):
        assert (bound <= values + SLACK).all()
    for bound in (box.ceiling, evaluate(box.above, t), high + t @ high_slope.T):
        assert (bound >= values - SLACK).all()


def test_floor_and_ceiling_are_attained(kernel):
    rng = np.random.default_rng(0)
    inputs, (lower, upper) = rng.normal(size=(6, 2)), random_box(rng, 2, 0.6)
    box = relax(from_sklearn(kernel(2), 2), inputs, lower, upper)
    near = np.clip(inputs, lower, upper)
    far = np.where(inputs > box.centre, lower, upper)
    for i, z in enumerate(inputs):
        ends = kernel(2)(np.stack([near[i], far[i]]), z[None])[:, 0]
        np.testing.assert_allclose([box.ceiling[i], box.floor[i]], ends, rtol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("half_width", [0.05, 1.0])
def test_mean_and_variance_stay_within_bounds(kernel, d, half_width):
    rng = np.random.default_rng(10 + d)
    inputs, (lower, upper) = rng.normal(size=(15, d)), random_box(rng, d, half_width)
    weights, matrix = rng.normal(size=15), random_form(rng, kernel(d), inputs)
    stationary = from_sklearn(kernel(d), d)
    box = relax(stationary, inputs, lower, upper)
    covariances = kernel(d)(sample(rng, lower, upper), inputs)
    mean = mean_bounds(box, weights)
    variance = variance_bounds(box, spectrum(matrix), stationary.variance)
    truth = stationary.variance - np.einsum("ni,ij,nj->n", covariances, matrix, covariances)
    for found, values in ((mean, covariances @ weights), (variance, truth)):
        assert found.lower <= values.min() + SLACK
        assert values.max() <= found.upper + SLACK
        for x in (found.at_lower, found.at_upper):
            assert ((lower - SLACK <= x) & (x <= upper + SLACK)).all()


def test_forms_of_mixed_sign_stay_within_bounds(kernel):
    rng = np.random.default_rng(4)
    inputs, (lower, upper) = rng.normal(size=(10, 2)), random_box(rng, 2, 0.4)
    matrix = rng.normal(size=(10, 10))
    matrix = matrix + matrix.T
    box = relax(from_sklearn(kernel(2), 2), inputs, lower, upper)
    covariances = kernel(2)(sample(rng, lower, upper), inputs)
    values = np.einsum("ni,ij,nj->n", covariances, matrix, covariances)
    found = quadratic_bounds(box, spectrum(matrix))
    assert found.lower <= values.min() + SLACK
    assert values.max() <= found.upper + SLACK


def test_a_negative_form_is_bounded_like_a_positive_one():
    rng = np.random.default_rng(3)
    kernel, inputs = KERNELS["ard"](2), rng.normal(size=(10, 2))
    matrix = random_form(rng, kernel, inputs)
    box = relax(from_sklearn(kernel, 2), inputs, *random_box(rng, 2, 0.4))
    positive, negative = (quadratic_bounds(box, spectrum(sign * matrix)) for sign in (1, -1))
    # The programme of chords is the same; Frank-Wolfe's method and tangents differ.
    np.testing.assert_allclose(negative.lower, -positive.upper, rtol=1e-7)
    assert negative.upper >= -positive.lower - SLACK


def test_excess_shrinks_with_the_square_of_the_box():
    rng = np.random.default_rng(5)
    inputs, kernel = rng.normal(size=(15, 2)), KERNELS["ard"](2)
    weights, form = rng.normal(size=15), spectrum(random_form(rng, kernel, inputs))
    excess = []
    for half_width in (0.2, 0.1, 0.05):
        box = relax(
            from_sklearn(kernel, 2), inputs, np.full(2, -half_width), np.full(2, half_width)
        )
        covariances = kernel(sample(rng, np.full(2, -half_width), np.full(2, half_width)), inputs)
        forms = (covariances @ form.vectors) ** 2 @ form.values
        pairs = (
            (mean_bounds(box, weights), covariances @ weights),
            (quadratic_bounds(box, form), forms),
        )
        excess.append([(b.upper - b.lower) - np.ptp(values) for b, values in pairs])
    assert (np.array(excess[:-1]) > 3.3 * np.array(excess[1:])).all()


@pytest.mark.parametrize("d", [1, 3])
def test_linear_minimum_is_that_of_the_primal_programme(kernel, d):
    rng = np.random.default_rng(6)
    inputs, (lower, upper) = rng.normal(size=(9, d)), random_box(rng, d, 0.7)
    box = relax(from_sklearn(kernel(d), d), inputs, lower, upper)
    coefficients = rng.normal(size=9)
    (low, low_slope), (high, high_slope) = box.lines_below(), box.lines_above()
    primal = linprog(
        np.concatenate([np.zeros(d), coefficients]),
        A_ub=np.block([[low_slope, -np.eye(9)], [-high_slope, np.eye(9)]]),
        b_ub=np.concatenate([-low, high]),
        bounds=[*zip(-box.half_widths, box.half_widths, strict=True)]
        + [*zip(box.floor, box.ceiling, strict=True)],
    )
    found = minimise_linear(box, coefficients)
    np.testing.assert_allclose(found.value, primal.fun, atol=1e-7)
    np.testing.assert_allclose(coefficients @ found.covariances, primal.fun, atol=1e-7)


def test_convex_minimum_is_close_to_its_relaxation():
    rng = np.random.default_rng(7)
    kernel, inputs = KERNELS["rbf"](1), rng.normal(size=(8, 1))
    matrix = random_form(rng, kernel, inputs)
    box = relax(from_sklearn(kernel, 1), inputs, np.array([-0.5]), np.array([0.5]))
    found = quadratic_bounds(box, spectrum(matrix))
    # Any admissible point lies above; projected gradients get near the least one.
    (low, low_slope), (high, high_slope) = box.lines_below(), box.lines_above()
    least = np.inf
    for t in np.linspace(-0.5, 0.5, 41)[:, None]:
        floor = np.maximum(box.floor, low + low_slope @ t)
        ceiling = np.minimum(box.ceiling, high + high_slope @ t)
        r = (floor + ceiling) / 2
        for _ in range(500):
            r = np.clip(r - matrix @ r, floor, ceiling)
        least = min(least, r @ matrix @ r)
    assert found.lower <= least <= found.lower + 0.03 * (found.upper - found.lower)


def test_constant_features_are_constants(kernel):
    rng = np.random.default_rng(8)
    inputs, x = rng.normal(size=(10, 3)), rng.normal(size=3)
    weights, matrix = rng.normal(size=10), random_form(rng, kernel(3), inputs)
    upper = x + [0.0, 0.3, 0.0]
    box = relax(from_sklearn(kernel(3), 3), inputs, x, upper)
    line = relax(from_sklearn(kernel(3), 3), inputs, x, x + [1e-13, 0.3, 1e-13])
    for bounds in (mean_bounds(box, weights), quadratic_bounds(box, spectrum(matrix))):
        np.testing.assert_array_equal(bounds.at_lower[[0, 2]], x[[0, 2]])
    np.testing.assert_allclose(
        quadratic_bounds(box, spectrum(matrix))[:2],
        quadratic_bounds(line, spectrum(matrix))[:2],
        atol=1e-3,
    )


def test_point_is_evaluated(kernel):
    rng = np.random.default_rng(9)
    inputs, x = rng.normal(size=(10, 2)), rng.normal(size=2)
    weights, matrix = rng.normal(size=10), random_form(rng, kernel(2), inputs)
    box, r = relax(from_sklearn(kernel(2), 2), inputs, x, x), kernel(2)(x[None], inputs)[0]
    np.testing.assert_allclose(mean_bounds(box, weights)[:2], [r @ weights] * 2, rtol=1e-10)
    found = quadratic_bounds(box, spectrum(matrix))
    np.testing.assert_allclose(found[:2], [r @ matrix @ r] * 2, rtol=1e-8)


@pytest.mark.parametrize("upper", [-1.0, np.inf, np.nan])
def test_boxes_must_be_boxes(upper):
    with pytest.raises(ValueError, match="finite corners with lower <= upper"):
        relax(from_sklearn(RBF(), 1), np.zeros((1, 1)), np.zeros(1), np.array([upper]))
