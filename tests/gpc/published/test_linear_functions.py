"""Extremes of linear functions of the covariances against sampling and the primal programme."""

import numpy as np
import pytest
from scipy.optimize import linprog

from skuq.gpc.published._linear_functions import mean_bounds, minimise_linear

from .oracles import KERNELS, ROUNDING, random_box, relaxed, sample


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
