"""Averages of the softmax of three classes against a dense rule and averages of two classes."""

import numpy as np
import pytest
import torch

from skuq.gpc.inference._predictive import class_probabilities
from skuq.gpc.inference._three_classes import _own_probability, three_class_probabilities

from ..bounds.oracles import average


def random_moments(seed, deviation, n=4):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, 3, 3)) * deviation
    root[0, :, 1] = root[0, :, 2]  # singular
    root[1, :, 0] *= 0.01
    return rng.normal(size=(n, 3)) * max(deviation, 1.0), root @ root.swapaxes(1, 2)


@pytest.mark.parametrize("deviation", [0.0, 0.05, 0.5, 2.0, 6.0])
def test_probabilities_are_those_of_a_dense_rule(deviation):
    moments = random_moments(0, deviation, 3)
    expected = average("softmax", *moments)
    np.testing.assert_allclose(three_class_probabilities(*moments), expected, atol=2e-10)


@pytest.mark.parametrize("deviation", [0.3, 3.0, 20.0, 300.0, 1e4])
def test_three_separate_integrals_add_up_to_one(deviation):
    moments = [torch.as_tensor(part) for part in random_moments(1, deviation, 8)]
    total = sum(_own_probability(*moments, own) for own in range(3))
    np.testing.assert_allclose(total, 1.0, atol=1e-10)


@pytest.mark.parametrize("deviation", [1.0, 30.0, 1000.0])
def test_without_a_third_class_probabilities_are_logistic_averages(deviation):
    mean, covariance = random_moments(2, deviation)
    gone = np.array([0.0, 0.0, -1e9])
    covariance[:, 2] = covariance[:, :, 2] = 0.0
    three = class_probabilities("softmax", mean * [1, 1, 0] + gone, covariance)
    variance = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    two = class_probabilities("logit", (mean[:, 1] - mean[:, 0])[:, None], variance[:, None, None])
    np.testing.assert_allclose(three[:, :2], two, atol=1e-10)


def test_points_do_not_depend_on_their_company():
    mean, covariance = random_moments(3, 10.0)
    mean[1:], covariance[2:] = 5 * mean[1:], 100 * covariance[2:]
    whole = three_class_probabilities(mean, covariance)
    for i in range(len(mean)):
        alone = three_class_probabilities(mean[i : i + 1], covariance[i : i + 1])
        np.testing.assert_allclose(alone[0], whole[i], rtol=1e-12, atol=1e-15)
