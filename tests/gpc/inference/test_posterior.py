"""Predictive probabilities and entropies against numerical integration."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import log_softmax, softmax

from skuq.gpc.inference._posterior import class_probabilities, expected_entropy

from .oracles import DISTRIBUTION, LOG_DENSITY, gaussian_average

LINKS = pytest.mark.parametrize("likelihood", LOG_DENSITY)


@LINKS
@settings(max_examples=15, derandomize=True)
@given(mean=st.floats(-30, 30), sd=st.floats(1e-3, 50.0))
def test_two_classes_are_exact(likelihood, mean, sd):
    moments = np.array([[mean]]), np.array([[[sd**2]]])
    proba, cdf = class_probabilities(likelihood, *moments), DISTRIBUTION[likelihood]
    assert proba[0, 1] == pytest.approx(gaussian_average(cdf, mean, sd), abs=1e-9)
    assert proba.sum() == pytest.approx(1)
    log, (mean, sd) = LOG_DENSITY[likelihood], (0.6 * mean, 0.6 * sd)
    got = expected_entropy(likelihood, np.array([[mean]]), np.array([[[sd**2]]]))
    halves = (gaussian_average(lambda f: -np.exp(log(f)) * log(f), m, sd) for m in (mean, -mean))
    # The entropy of a probit output varies faster than the rule was made for.
    assert got[0] == pytest.approx(sum(halves), abs=1e-5)


@settings(max_examples=20, derandomize=True)
@given(st.floats(-10, 10), st.floats(0.0, 20.0), st.floats(0.0, 20.0), st.floats(-0.9, 0.9))
def test_softmax_of_two_classes_is_logit_of_the_difference(mean, first, second, share):
    cross = share * np.sqrt(first * second)
    covariance = np.array([[[first, cross], [cross, second]]])
    two = class_probabilities("softmax", np.array([[0.0, mean]]), covariance)
    variance = np.array([[[first + second - 2 * cross]]])
    assert_allclose(two, class_probabilities("logit", np.array([[mean]]), variance), atol=1e-9)


def test_three_classes_agree_with_a_rule_of_gauss_and_hermite():
    z, w = np.polynomial.hermite_e.hermegauss(60)
    f = np.stack(np.broadcast_arrays(0.3 + 1.1 * z[:, None], -0.5 + 0.7 * z, 1.0))
    p, log_p, weights = softmax(f, 0), log_softmax(f, 0), np.outer(w, w) / (2 * np.pi)
    moments = np.array([[0.3, -0.5, 1.0]]), np.diag([1.1**2, 0.7**2, 0.0])[None]
    found = class_probabilities("softmax", *moments)[0]
    assert_allclose(found, (p * weights).sum((1, 2)), atol=1e-8)
    entropy = -(p * log_p * weights).sum()
    assert expected_entropy("softmax", *moments)[0] == pytest.approx(entropy, abs=1e-6)


def random_moments(n_classes, deviation, n=4):
    rng = np.random.default_rng(n_classes)
    root = rng.normal(size=(n, n_classes, n_classes)) * deviation / np.sqrt(n_classes)
    return rng.normal(size=(n, n_classes)) * deviation, root


@pytest.mark.parametrize(
    ("n_classes", "deviation", "tolerance"),
    [(3, 1.0, 2e-3), (3, 300.0, 5e-3), (4, 3.0, 5e-3), (10, 1.0, 3e-3), (10, 100.0, 1e-2)],
)
def test_many_classes_agree_with_sampling(n_classes, deviation, tolerance):
    mean, root = random_moments(n_classes, deviation)
    z = np.random.default_rng(0).normal(size=(100_000, n_classes))
    log_p = log_softmax(mean[:, None] + z @ root.swapaxes(1, 2), -1)
    moments = mean, root @ root.swapaxes(1, 2)
    proba, got = class_probabilities("softmax", *moments), expected_entropy("softmax", *moments)
    assert_allclose(proba, np.exp(log_p).mean(1), atol=tolerance)
    assert_allclose(proba.sum(axis=1), 1)
    assert_allclose(got, -(np.exp(log_p) * log_p).sum(-1).mean(1), atol=3 * tolerance)


@pytest.mark.parametrize("n_classes", [3, 4, 10])
@pytest.mark.parametrize("deviation", [0.3, 20.0])
def test_results_of_a_point_do_not_depend_on_other_points(n_classes, deviation):
    mean, root = random_moments(n_classes, deviation)
    mean[1:], root[1:] = 50 * mean[1:], 50 * root[1:]
    covariance = root @ root.swapaxes(1, 2)
    whole = class_probabilities("softmax", mean, covariance)
    for i in range(len(mean)):
        one = class_probabilities("softmax", mean[i : i + 1], covariance[i : i + 1])
        assert_allclose(one[0], whole[i], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("variance", [1.0, 1e4])
def test_equivalent_directions_are_told_apart_by_nothing(variance):
    """Far from data, covariances are multiples of the identity but for rounding."""
    mean, eye = np.array([[0.5, 0.0, -0.5]]) * np.sqrt(variance), np.eye(3)
    expected = class_probabilities("softmax", mean, variance * eye[None])
    for seed in range(5):
        noise = np.random.default_rng(seed).normal(size=(3, 3)) * 1e-13
        got = class_probabilities("softmax", mean, variance * (eye + noise + noise.T)[None])
        assert_allclose(got, expected, atol=1e-9)


def test_certain_latent_functions_are_the_likelihood_itself():
    mean = np.random.default_rng(0).normal(size=(3, 5))
    proba = class_probabilities("softmax", mean, np.zeros((3, 5, 5)))
    assert_allclose(proba, softmax(mean, -1), rtol=1e-9)
    for likelihood, cdf in DISTRIBUTION.items():
        proba = class_probabilities(likelihood, 2 * mean[:, :1], np.zeros((3, 1, 1)))
        assert_allclose(proba[:, 1], cdf(2 * mean[:, 0]), rtol=1e-9)
