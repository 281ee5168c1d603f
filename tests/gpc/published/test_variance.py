"""Bounds of the latent variance against sampling and projected gradients."""

import numpy as np
import pytest

from skuq.gpc.bounds._stationary import from_sklearn
from skuq.gpc.published._variance import quadratic_bounds, spectrum, variance_bounds

from .oracles import KERNELS, ROUNDING, random_box, random_form, relaxed, sample


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
