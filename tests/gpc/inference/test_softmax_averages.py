"""Softmax averages over Gaussians against quadrature, draws and closed forms."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skuq.gpc.inference._posterior import class_probabilities
from skuq.gpc.inference._softmax_averages import (
    ACCURACY,
    _own_probability,
    corrected_probabilities,
    correction_error,
    independent_averages,
    split,
    three_class_probabilities,
)

from ..bounds.oracles import average, tensor


def three_moments(seed, deviation, n=4):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, 3, 3)) * deviation
    root[0, :, 1] = root[0, :, 2]  # singular
    root[1, :, 0] *= 0.01
    return rng.normal(size=(n, 3)) * max(deviation, 1.0), root @ root.swapaxes(1, 2)


@pytest.mark.parametrize("deviation", [0.0, 0.05, 0.5, 2.0, 6.0])
def test_probabilities_are_those_of_a_dense_rule(deviation):
    moments = three_moments(0, deviation, 3)
    assert_allclose(three_class_probabilities(*moments), average("softmax", *moments), atol=2e-10)


@pytest.mark.parametrize("deviation", [0.3, 3.0, 20.0, 300.0, 1e4])
def test_three_separate_integrals_add_up_to_one(deviation):
    mean, covariance = map(tensor, three_moments(1, deviation, 8))
    total = sum(_own_probability(mean, covariance, own) for own in range(3))
    assert_allclose(total, 1.0, atol=1e-10)


@pytest.mark.parametrize("deviation", [1.0, 30.0, 1000.0])
def test_without_a_third_class_probabilities_are_logistic_averages(deviation):
    mean, covariance = three_moments(2, deviation)
    covariance[:, 2] = covariance[:, :, 2] = 0.0
    three = class_probabilities("softmax", mean * [1, 1, 0] + [0, 0, -1e9], covariance)
    variance = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    two = class_probabilities("logit", (mean[:, 1] - mean[:, 0])[:, None], variance[:, None, None])
    assert_allclose(three[:, :2], two, atol=1e-10)


def random_moments(seed, n_classes, deviation, n=6):
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(n, n_classes)) * max(deviation, 1.0)
    return mean, (deviation * rng.uniform(0.3, 1.3, size=(n, n_classes))) ** 2


def split_of(covariance):
    n_classes = covariance.shape[-1]
    return split(tensor(covariance[:, *np.triu_indices(n_classes)]), n_classes)


@pytest.mark.parametrize("deviation", [0.0, 0.4, 1.3, 6.0, 300.0])
def test_three_independent_classes_are_those_of_another_integral(deviation):
    mean, variance = random_moments(0, 3, deviation)
    expected = three_class_probabilities(mean, variance[:, None] * np.eye(3))
    found = independent_averages(tensor(mean), tensor(variance))
    assert_allclose(found.proba, expected, atol=ACCURACY)


@pytest.mark.parametrize("deviation", [0.2, 1.3, 5.0])
def test_derivatives_are_those_of_differences(deviation):
    """By every moment: those off the diagonal by the three-class integral."""
    mean, variance = random_moments(3, 3, deviation, 4)
    found = independent_averages(tensor(mean), tensor(variance))
    covariance, scale = variance[:, None] * np.eye(3), min(1.0, deviation)

    def slope(by_mean, by_covariance):
        ends = (
            three_class_probabilities(mean + s * by_mean, covariance + s * by_covariance)
            for s in (1, -1)
        )
        return (next(ends) - next(ends)) / 2

    for c, step in enumerate(1e-3 * scale * np.eye(3)):
        expected = slope(step, 0) / step[c]
        assert_allclose(found.by_mean[:, :, c], expected, atol=1e-5 / scale**2)
    for pair, (j, k) in enumerate(zip(*np.triu_indices(3), strict=True)):
        step = np.zeros((3, 3))
        step[j, k] = step[k, j] = 1e-3 * variance.min()
        expected = slope(0, step) / step[j, k]
        assert_allclose(found.by_pair[:, :, pair], expected, atol=2e-5 / scale**4)


@pytest.mark.parametrize("deviation", [0.5, 3.0, 30.0])
@pytest.mark.parametrize("strength", [0.02, 0.1, 0.3])
def test_the_error_of_dependent_classes_is_bounded(deviation, strength):
    rng, (mean, variance) = np.random.default_rng(4), random_moments(5, 3, deviation, 40)
    root = (rng.normal(size=(40, 3, 3)) * strength + np.eye(3)) * np.sqrt(variance)[..., None]
    covariance = root @ root.swapaxes(1, 2)
    shared = rng.normal(size=(40, 3)) * deviation**2  # which no probability depends on
    parts = split_of(covariance + shared[:, None] + shared[..., None])
    found = corrected_probabilities(tensor(mean), parts).numpy()
    error = np.abs(found - three_class_probabilities(mean, covariance)).max(axis=1)
    bound = correction_error(parts).numpy()
    assert (error <= bound).all()
    assert np.median(bound) < {0.02: 0.01, 0.1: 0.2, 0.3: np.inf}[strength]


def test_a_shift_that_all_classes_share_is_left_out():
    variance, shift = np.array([[3.0, 1.0, 2.0, 5.0, 4.0]]), np.array([0.4, -0.2, 0.7, 0.1, 0.0])
    parts = split_of(variance[..., None] * np.eye(5) - shift[:, None] - shift)
    assert_allclose(parts.D, variance)
    assert float(parts.whitened) < 1e-12
    assert float(correction_error(parts)) < 1e-6


def test_results_of_independent_classes_do_not_depend_on_other_points():
    mean, variance = random_moments(6, 5, 2.0)
    mean[1:], variance[1:] = 20 * mean[1:], 300 * variance[1:]
    whole = independent_averages(tensor(mean), tensor(variance))
    for i in range(len(mean)):
        alone = independent_averages(tensor(mean[[i]]), tensor(variance[[i]]))
        for part, one in zip(whole, alone, strict=True):
            assert_allclose(part[[i]], one, rtol=1e-10, atol=1e-14)
