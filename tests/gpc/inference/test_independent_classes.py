"""Softmax averages over independent classes, and the correction for dependent ones."""

import numpy as np
import pytest
import torch
from scipy.special import softmax

from skuq.gpc.inference._independent_classes import (
    ACCURACY,
    corrected_probabilities,
    correction_error,
    independent_averages,
    split,
)
from skuq.gpc.inference._three_classes import three_class_probabilities


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
    np.testing.assert_allclose(found.proba, expected, atol=ACCURACY)


@pytest.mark.parametrize("deviation", [0.3, 8.0])
def test_ten_classes_agree_with_sampling(deviation):
    mean, variance = random_moments(1, 10, deviation, 2)
    latent = mean[:, None] + np.sqrt(variance)[:, None] * np.random.default_rng(2).normal(
        size=(200_000, 10)
    )
    found = independent_averages(torch.as_tensor(mean), torch.as_tensor(variance)).proba
    np.testing.assert_allclose(found, softmax(latent, -1).mean(1), atol=5e-3)


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
        np.testing.assert_allclose(found.by_mean[:, :, c], expected, atol=1e-5 / scale**2)
    for pair, (j, k) in enumerate(zip(*np.triu_indices(3), strict=True)):
        step = np.zeros((3, 3))
        step[j, k] = step[k, j] = small * variance.min()
        ends = [three_class_probabilities(mean, covariance + s * step) for s in (1, -1)]
        expected = (ends[0] - ends[1]) / (2 * small * variance.min())
        np.testing.assert_allclose(found.by_pair[:, :, pair], expected, atol=2e-5 / scale**4)


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
    np.testing.assert_allclose(parts.D, variance)
    assert float(parts.whitened) < 1e-12
    assert float(correction_error(parts)) < 1e-6


def test_points_do_not_depend_on_their_company():
    mean, variance = random_moments(6, 5, 2.0)
    mean[1:], variance[1:] = 20 * mean[1:], 300 * variance[1:]
    whole = independent_averages(torch.as_tensor(mean), torch.as_tensor(variance))
    for i in range(len(mean)):
        rows = slice(i, i + 1)
        alone = independent_averages(torch.as_tensor(mean[rows]), torch.as_tensor(variance[rows]))
        for part, one in zip(whole, alone, strict=True):
            np.testing.assert_allclose(part[rows], one, rtol=1e-10, atol=1e-14)


def test_no_points_give_no_rows():
    assert independent_averages(torch.zeros(0, 4), torch.zeros(0, 4)).proba.shape == (0, 4)
