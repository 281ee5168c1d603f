"""Softmax averages over Gaussians against quadrature, draws and closed forms."""

import numpy as np
import pytest
import torch
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

from ..bounds.oracles import average


def three_moments(seed, deviation, n=4):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, 3, 3)) * deviation
    root[0, :, 1] = root[0, :, 2]  # singular
    root[1, :, 0] *= 0.01
    return rng.normal(size=(n, 3)) * max(deviation, 1.0), root @ root.swapaxes(1, 2)


@pytest.mark.parametrize("deviation", [0.0, 0.05, 0.5, 2.0, 6.0])
def test_probabilities_are_those_of_a_dense_rule(deviation):
    moments = three_moments(0, deviation, 3)
    expected = average("softmax", *moments)
    assert_allclose(three_class_probabilities(*moments), expected, atol=2e-10)


@pytest.mark.parametrize("deviation", [0.3, 3.0, 20.0, 300.0, 1e4])
def test_three_separate_integrals_add_up_to_one(deviation):
    moments = [torch.as_tensor(part) for part in three_moments(1, deviation, 8)]
    total = sum(_own_probability(*moments, own) for own in range(3))
    assert_allclose(total, 1.0, atol=1e-10)


@pytest.mark.parametrize("deviation", [1.0, 30.0, 1000.0])
def test_without_a_third_class_probabilities_are_logistic_averages(deviation):
    mean, covariance = three_moments(2, deviation)
    gone = np.array([0.0, 0.0, -1e9])
    covariance[:, 2] = covariance[:, :, 2] = 0.0
    three = class_probabilities("softmax", mean * [1, 1, 0] + gone, covariance)
    variance = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    two = class_probabilities("logit", (mean[:, 1] - mean[:, 0])[:, None], variance[:, None, None])
    assert_allclose(three[:, :2], two, atol=1e-10)


def test_results_for_three_classes_do_not_depend_on_other_points():
    mean, covariance = three_moments(3, 10.0)
    mean[1:], covariance[2:] = 5 * mean[1:], 100 * covariance[2:]
    whole = three_class_probabilities(mean, covariance)
    for i in range(len(mean)):
        alone = three_class_probabilities(mean[i : i + 1], covariance[i : i + 1])
        assert_allclose(alone[0], whole[i], rtol=1e-12, atol=1e-15)


def random_moments(seed, n_classes, deviation, n=6):
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(n, n_classes)) * max(deviation, 1.0)
    return mean, (deviation * rng.uniform(0.3, 1.3, size=(n, n_classes))) ** 2


def pairs_of(covariance):
    return torch.as_tensor(covariance[:, *np.triu_indices(covariance.shape[-1])])


@pytest.mark.parametrize("deviation", [0.0, 0.4, 1.3, 6.0, 300.0])
def test_three_independent_classes_are_those_of_another_integral(deviation):
    mean, variance = random_moments(0, 3, deviation)
    expected = three_class_probabilities(mean, variance[:, None] * np.eye(3))
    found = independent_averages(torch.as_tensor(mean), torch.as_tensor(variance))
    assert_allclose(found.proba, expected, atol=ACCURACY)


@pytest.mark.parametrize("deviation", [0.2, 1.3, 5.0])
def test_derivatives_are_those_of_differences(deviation):
    """By every moment: those off the diagonal by the three-class integral."""
    mean, variance = random_moments(3, 3, deviation, 4)
    found = independent_averages(torch.as_tensor(mean), torch.as_tensor(variance))
    covariance = variance[:, None] * np.eye(3)
    small, scale = 1e-3, min(1.0, deviation)
    for c in range(3):
        step = small * scale * np.eye(3)[c]
        ends = [three_class_probabilities(mean + s * step, covariance) for s in (1, -1)]
        expected = (ends[0] - ends[1]) / (2 * small * scale)
        assert_allclose(found.by_mean[:, :, c], expected, atol=1e-5 / scale**2)
    for pair, (j, k) in enumerate(zip(*np.triu_indices(3), strict=True)):
        step = np.zeros((3, 3))
        step[j, k] = step[k, j] = small * variance.min()
        ends = [three_class_probabilities(mean, covariance + s * step) for s in (1, -1)]
        expected = (ends[0] - ends[1]) / (2 * small * variance.min())
        assert_allclose(found.by_pair[:, :, pair], expected, atol=2e-5 / scale**4)


@pytest.mark.parametrize("deviation", [0.5, 3.0, 30.0])
@pytest.mark.parametrize("strength", [0.02, 0.1, 0.3])
def test_the_error_of_dependent_classes_is_bounded(deviation, strength):
    rng = np.random.default_rng(4)
    mean, variance = random_moments(5, 3, deviation, 40)
    root = rng.normal(size=(40, 3, 3)) * strength + np.eye(3)
    scale = np.sqrt(variance)
    shared = rng.normal(size=(40, 3)) * deviation**2  # which no probability depends on
    covariance = scale[:, :, None] * (root @ root.swapaxes(1, 2)) * scale[:, None]
    shifted = covariance + shared[:, None] + shared[..., None]
    parts = split(pairs_of(shifted), 3)
    found = corrected_probabilities(torch.as_tensor(mean), parts).numpy()
    error = np.abs(found - three_class_probabilities(mean, covariance)).max(axis=1)
    bound = correction_error(parts).numpy()
    assert (error <= bound).all()
    assert np.median(bound) < {0.02: 0.01, 0.1: 0.2, 0.3: np.inf}[strength]


def test_a_shift_that_all_classes_share_is_left_out():
    variance = np.array([[3.0, 1.0, 2.0, 5.0, 4.0]])
    shift = np.array([0.4, -0.2, 0.7, 0.1, 0.0])
    covariance = variance[..., None] * np.eye(5) - shift[:, None] - shift
    parts = split(pairs_of(covariance), 5)
    assert_allclose(parts.D, variance)
    assert float(parts.whitened) < 1e-12
    assert float(correction_error(parts)) < 1e-6


def test_results_of_independent_classes_do_not_depend_on_other_points():
    mean, variance = random_moments(6, 5, 2.0)
    mean[1:], variance[1:] = 20 * mean[1:], 300 * variance[1:]
    whole = independent_averages(torch.as_tensor(mean), torch.as_tensor(variance))
    for i in range(len(mean)):
        rows = slice(i, i + 1)
        alone = independent_averages(torch.as_tensor(mean[rows]), torch.as_tensor(variance[rows]))
        for part, one in zip(whole, alone, strict=True):
            assert_allclose(part[rows], one, rtol=1e-10, atol=1e-14)
