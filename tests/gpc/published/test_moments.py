"""Bounds of latent moments as published: envelopes, linear programmes and the variance."""

import numpy as np
import pytest
from scipy.optimize import linprog
from sklearn.gaussian_process.kernels import RBF

from benchmarks.published_gpc.linear_programmes import (
    mean_bounds,
    minimise_linear,
    quadratic_bounds,
    spectrum,
    variance_bounds,
)
from skuq.gpc.bounds._latent_model import from_sklearn

from .oracles import KERNELS, ROUNDING, random_box, random_form, relaxed, sample


def evaluate(envelope, t):
    constant, linear, quadratic = envelope
    return constant + t @ linear.T + t**2 @ quadratic.T


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("half_width", [0.05, 0.5, 3.0])
def test_envelopes_enclose_covariances(name, half_width):
    for d in (1, 3):
        rng, kernel = np.random.default_rng(d), KERNELS[name](d)
        inputs, (lower, upper) = rng.normal(size=(12, d)), random_box(rng, d, half_width)
        inputs[0] = (lower + upper) / 2  # the covariance is not smooth there for some kernels
        box = relaxed(kernel, inputs, lower, upper)
        X = sample(rng, lower, upper)
        values, t = kernel(X, inputs), X - box.centre
        (low, low_slope), (high, high_slope) = box.lines_below(), box.lines_above()
        for bound in (box.floor, evaluate(box.below, t), low + t @ low_slope.T):
            assert (bound <= values + ROUNDING).all()
        for bound in (box.ceiling, evaluate(box.above, t), high + t @ high_slope.T):
            assert (bound >= values - ROUNDING).all()


@pytest.mark.parametrize("name", KERNELS)
def test_floor_and_ceiling_are_attained(name):
    rng, kernel = np.random.default_rng(0), KERNELS[name](2)
    inputs, (lower, upper) = rng.normal(size=(6, 2)), random_box(rng, 2, 0.6)
    box = relaxed(kernel, inputs, lower, upper)
    near = np.clip(inputs, lower, upper)
    far = np.where(inputs > box.centre, lower, upper)
    for i, z in enumerate(inputs):
        ends = kernel(np.stack([near[i], far[i]]), z[None])[:, 0]
        np.testing.assert_allclose([box.ceiling[i], box.floor[i]], ends, rtol=1e-12)


@pytest.mark.parametrize("upper", [-1.0, np.inf, np.nan])
def test_boxes_must_be_boxes(upper):
    with pytest.raises(ValueError, match="finite corners with lower <= upper"):
        relaxed(RBF(), np.zeros((1, 1)), np.zeros(1), np.array([upper]))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("half_width", [0.05, 1.0])
def test_means_stay_within_bounds(name, half_width):
    for d in (1, 3):
        rng, kernel = np.random.default_rng(10 + d), KERNELS[name](d)
        inputs, (lower, upper) = rng.normal(size=(15, d)), random_box(rng, d, half_width)
        weights = rng.normal(size=15)
        means = kernel(sample(rng, lower, upper), inputs) @ weights
        found = mean_bounds(relaxed(kernel, inputs, lower, upper), weights)
        assert found.lower <= means.min() + ROUNDING
        assert means.max() <= found.upper + ROUNDING
        for x in (found.at_lower, found.at_upper):
            assert ((lower - ROUNDING <= x) & (x <= upper + ROUNDING)).all()


@pytest.mark.parametrize("name", KERNELS)
def test_linear_minimum_is_that_of_the_primal_programme(name):
    for d in (1, 3):
        rng, kernel = np.random.default_rng(6), KERNELS[name](d)
        inputs, (lower, upper) = rng.normal(size=(9, d)), random_box(rng, d, 0.7)
        box = relaxed(kernel, inputs, lower, upper)
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


def test_excess_of_the_mean_shrinks_with_the_square_of_the_box():
    rng = np.random.default_rng(5)
    inputs, kernel, weights = rng.normal(size=(15, 2)), KERNELS["ard"](2), rng.normal(size=15)
    excess = []
    for half_width in (0.2, 0.1, 0.05):
        lower, upper = np.full(2, -half_width), np.full(2, half_width)
        found = mean_bounds(relaxed(kernel, inputs, lower, upper), weights)
        means = kernel(sample(rng, lower, upper), inputs) @ weights
        excess.append((found.upper - found.lower) - np.ptp(means))
    assert (np.array(excess[:-1]) > 3.3 * np.array(excess[1:])).all()


def test_the_mean_of_a_point_and_constant_features():
    rng, kernel = np.random.default_rng(9), KERNELS["product"](3)
    inputs, x, weights = rng.normal(size=(10, 3)), rng.normal(size=3), rng.normal(size=10)
    point = mean_bounds(relaxed(kernel, inputs, x, x), weights)
    mean = kernel(x[None], inputs)[0] @ weights
    np.testing.assert_allclose(point[:2], [mean, mean], rtol=1e-10)
    line = mean_bounds(relaxed(kernel, inputs, x, x + [0.0, 0.3, 0.0]), weights)
    np.testing.assert_array_equal(line.at_lower[[0, 2]], x[[0, 2]])


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("half_width", [0.05, 1.0])
def test_variances_stay_within_bounds(name, half_width):
    for d in (1, 3):
        rng, kernel = np.random.default_rng(10 + d), KERNELS[name](d)
        inputs, (lower, upper) = rng.normal(size=(15, d)), random_box(rng, d, half_width)
        matrix, prior = random_form(rng, kernel, inputs), from_sklearn(kernel, d).variance
        r = kernel(sample(rng, lower, upper), inputs)
        variances = prior - np.einsum("ni,ij,nj->n", r, matrix, r)
        found = variance_bounds(relaxed(kernel, inputs, lower, upper), spectrum(matrix), prior)
        assert found.lower <= variances.min() + ROUNDING
        assert variances.max() <= found.upper + ROUNDING
        for x in (found.at_lower, found.at_upper):
            assert ((lower - ROUNDING <= x) & (x <= upper + ROUNDING)).all()


@pytest.mark.parametrize("name", ["matern32", "sum", "product"])
def test_forms_of_mixed_sign_stay_within_bounds(name):
    rng, kernel = np.random.default_rng(4), KERNELS[name](2)
    inputs, (lower, upper) = rng.normal(size=(10, 2)), random_box(rng, 2, 0.4)
    matrix = rng.normal(size=(10, 10))
    matrix = matrix + matrix.T
    r = kernel(sample(rng, lower, upper), inputs)
    values = np.einsum("ni,ij,nj->n", r, matrix, r)
    found = quadratic_bounds(relaxed(kernel, inputs, lower, upper), spectrum(matrix))
    assert found.lower <= values.min() + ROUNDING
    assert values.max() <= found.upper + ROUNDING


def test_a_negative_form_is_bounded_like_a_positive_one():
    rng = np.random.default_rng(3)
    kernel, inputs = KERNELS["ard"](2), rng.normal(size=(10, 2))
    matrix = random_form(rng, kernel, inputs)
    box = relaxed(kernel, inputs, *random_box(rng, 2, 0.4))
    positive, negative = (quadratic_bounds(box, spectrum(sign * matrix)) for sign in (1, -1))
    # The programme of chords is the same; Frank-Wolfe's method and tangents differ.
    np.testing.assert_allclose(negative.lower, -positive.upper, rtol=1e-7)
    assert negative.upper >= -positive.lower - ROUNDING


def test_excess_of_the_form_shrinks_with_the_square_of_the_box():
    rng = np.random.default_rng(5)
    inputs, kernel = rng.normal(size=(15, 2)), KERNELS["ard"](2)
    form = spectrum(random_form(rng, kernel, inputs))
    excess = []
    for half_width in (0.2, 0.1, 0.05):
        lower, upper = np.full(2, -half_width), np.full(2, half_width)
        r = kernel(sample(rng, lower, upper), inputs)
        found = quadratic_bounds(relaxed(kernel, inputs, lower, upper), form)
        excess.append((found.upper - found.lower) - np.ptp((r @ form.vectors) ** 2 @ form.values))
    assert (np.array(excess[:-1]) > 3.3 * np.array(excess[1:])).all()


def test_convex_minimum_is_close_to_its_relaxation():
    rng = np.random.default_rng(7)
    kernel, inputs = KERNELS["rbf"](1), rng.normal(size=(8, 1))
    matrix = random_form(rng, kernel, inputs)
    box = relaxed(kernel, inputs, np.array([-0.5]), np.array([0.5]))
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


@pytest.mark.parametrize("name", ["sum", "product"])
def test_constant_features_are_constants(name):
    rng, kernel = np.random.default_rng(8), KERNELS[name](3)
    inputs, x = rng.normal(size=(10, 3)), rng.normal(size=3)
    form = spectrum(random_form(rng, kernel, inputs))
    found = quadratic_bounds(relaxed(kernel, inputs, x, x + [0.0, 0.3, 0.0]), form)
    np.testing.assert_array_equal(found.at_lower[[0, 2]], x[[0, 2]])
    line = quadratic_bounds(relaxed(kernel, inputs, x, x + [1e-13, 0.3, 1e-13]), form)
    np.testing.assert_allclose(found[:2], line[:2], atol=1e-3)


@pytest.mark.parametrize("name", ["sum", "product"])
def test_the_form_at_a_point_is_evaluated(name):
    rng, kernel = np.random.default_rng(9), KERNELS[name](2)
    inputs, x = rng.normal(size=(10, 2)), rng.normal(size=2)
    matrix = random_form(rng, kernel, inputs)
    found = quadratic_bounds(relaxed(kernel, inputs, x, x), spectrum(matrix))
    r = kernel(x[None], inputs)[0]
    np.testing.assert_allclose(found[:2], [r @ matrix @ r] * 2, rtol=1e-8)
