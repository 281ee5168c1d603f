"""Averages of likelihoods over Gaussians: tilted moments, predictions, and what rules claim."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import expit, log_softmax, softmax

from skuq.gpc.inference import _softmax_averages as averages
from skuq.gpc.inference._likelihoods import LIKELIHOODS, node_count, normal_nodes, tilted_moments
from skuq.gpc.inference._posterior import class_probabilities, expected_entropy
from skuq.gpc.inference._softmax_averages import independent_averages, three_class_probabilities

from ..bounds.oracles import average, pairs_of, tensor
from .oracles import DISTRIBUTION, LOG_DENSITY, gaussian_average

LIKE = torch.empty(0, dtype=torch.float64)
LINKS = pytest.mark.parametrize("likelihood", LOG_DENSITY)


@LINKS
def test_derivatives_of_likelihoods_are_consistent_and_finite_far_out(likelihood):
    f = np.linspace(-45.0, 8.0, 400)
    y, step = np.where(np.arange(400) % 2, 1.0, -1.0), 1e-4
    at, up, down = (LIKELIHOODS[likelihood](y, y * f + s) for s in (0, step, -step))
    assert_allclose(at.value, LOG_DENSITY[likelihood](f), rtol=1e-14)
    for k in range(3):
        assert_allclose(at[k + 1], (up[k] - down[k]) / (2 * step), rtol=1e-6, atol=2e-8)
    far = LIKELIHOODS[likelihood](np.ones(4), np.array([-1e3, -50.0, 50.0, 1e3]))
    assert np.isfinite(far).all()
    assert (far.second <= 0).all()


@LINKS
@pytest.mark.parametrize("power", [1.0, 0.3, 2.5])
def test_tilted_moments_are_those_of_a_fine_sum(likelihood, power):
    grid = np.linspace(-14, 14, 4_001)
    for y, m, v in [(1, 0.0, 1.0), (-1, 2.0, 9.0), (1, -6.0, 25.0), (1, 30.0, 400.0)]:
        step = 1e-3 * np.sqrt(v)
        means = m + step * np.array([[-1], [0], [1]])
        log_density = power * LOG_DENSITY[likelihood](y * (means + np.sqrt(v) * grid))
        weight = np.exp(log_density - 0.5 * grid**2) / np.sqrt(2 * np.pi)
        before, here, after = np.log(weight.sum(axis=1) * (grid[1] - grid[0]))
        got = tilted_moments(likelihood, *(np.array([x], float) for x in (y, m, v, power)))
        assert_allclose(got.log_mean, here, rtol=1e-9)
        assert_allclose(got.first, (after - before) / (2 * step), rtol=1e-4)
        assert_allclose(got.second, (after - 2 * here + before) / step**2, rtol=1e-3, atol=1e-9)


@LINKS
def test_tilted_moments_of_no_variance_are_the_likelihood(likelihood):
    mean, power = np.array([-50.0, 0.0, 10.0, 40.0] * 2), np.repeat([1.0, 0.3], 4)
    one, at = np.ones(8), LIKELIHOODS[likelihood](np.ones(8), mean)
    for variance in (0.0, 1e-300, 1e-20):
        got = tilted_moments(likelihood, one, mean, variance * one, power)
        assert_allclose(got.log_mean, power * at.value, rtol=1e-9, atol=1e-13)
        assert_allclose(got.first, power * at.first, rtol=1e-9)
        assert_allclose(got.second, power * at.second, rtol=1e-6, atol=1e-15)


@settings(max_examples=25, derandomize=True)
@given(st.floats(1e-3, 30.0), st.floats(-40.0, 40.0), st.sampled_from([1e-3, 1e-6, 1e-11]))
def test_logistic_averages_are_as_close_as_stated(scale, shift, accuracy):
    nodes = normal_nodes([scale], accuracy, LIKE)
    got = float(torch.sigmoid(shift + scale * nodes.points[:, 0]) @ nodes.weights)
    assert abs(got - gaussian_average(expit, shift, scale)) <= nodes.error + 1e-13
    assert nodes.error <= 2 * accuracy + 1e-12


@settings(max_examples=15, derandomize=True)
@given(st.tuples(*[st.floats(0.05, 4.0)] * 2), st.tuples(*[st.floats(-8.0, 8.0)] * 2))
def test_softmax_averages_are_as_close_as_stated(scales, means):
    """To a rule of Gauss and Hermite where that converges, to a far finer grid else."""

    def average(points, weights):
        latent = tensor(points) * tensor(scales) + tensor(means)
        latent = torch.cat([latent, torch.zeros(len(latent), 1)], -1)
        return tensor(weights) @ torch.softmax(latent, -1)

    rough, fine = (normal_nodes(scales, accuracy, LIKE) for accuracy in (1e-4, 1e-12))
    difference = average(*rough[:2]) - average(*fine[:2])
    assert float(difference.abs().max()) <= rough.error + 1e-12
    if max(scales) <= 1:
        z, w = np.polynomial.hermite_e.hermegauss(120)
        pairs, weights = np.stack(np.meshgrid(z, z), -1).reshape(-1, 2), np.outer(w, w).ravel()
        expected = average(pairs, weights / (2 * np.pi))
        assert_allclose(average(*fine[:2]), expected, atol=1e-10)


@pytest.mark.parametrize("scales", [(1.0,), (0.1, 3.0), (1.0, 2.0, 0.3)])
def test_nodes_are_a_normal_distribution_and_as_many_as_counted(scales):
    nodes = normal_nodes(scales, 1e-9, LIKE)
    assert float(nodes.weights.sum()) == pytest.approx(1, abs=1e-8)
    moments = nodes.points.T @ (nodes.weights[:, None] * nodes.points)
    assert_allclose(moments, np.eye(len(scales)), atol=1e-6)
    assert (nodes.weights > 0).all()
    assert len(nodes.weights) <= node_count(scales, 1e-9)
    assert node_count(scales, 1e-9) == np.prod([node_count([scale], 1e-9) for scale in scales])
    assert node_count(scales, 1e-4) < node_count(scales, 1e-9) < node_count([16.0, 9.0], 1e-9)


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


@pytest.mark.parametrize("deviation", [1.0, 30.0, 1000.0])
def test_without_a_third_class_probabilities_are_logistic_averages(deviation):
    mean, covariance = three_moments(2, deviation)
    covariance[:, 2] = covariance[:, :, 2] = 0.0
    three = class_probabilities("softmax", mean * [1, 1, 0] + [0, 0, -1e9], covariance)
    variance = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
    two = class_probabilities("logit", (mean[:, 1] - mean[:, 0])[:, None], variance[:, None, None])
    assert_allclose(three[:, :2], two, atol=1e-10)


def independent_moments(seed, n_classes, deviation, n=6):
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(n, n_classes)) * max(deviation, 1.0)
    return mean, (deviation * rng.uniform(0.3, 1.3, size=(n, n_classes))) ** 2


def split_of(covariance):
    return averages.split(tensor(pairs_of(covariance)), covariance.shape[-1])


@pytest.mark.parametrize("deviation", [0.0, 0.4, 1.3, 6.0, 300.0])
def test_three_independent_classes_are_those_of_another_integral(deviation):
    mean, variance = independent_moments(0, 3, deviation)
    expected = three_class_probabilities(mean, variance[:, None] * np.eye(3))
    found = independent_averages(tensor(mean), tensor(variance))
    assert_allclose(found.proba, expected, atol=averages.ACCURACY)


@pytest.mark.parametrize("deviation", [0.2, 1.3, 5.0])
def test_derivatives_are_those_of_differences(deviation):
    """By every moment: those off the diagonal by the three-class integral."""
    mean, variance = independent_moments(3, 3, deviation, 4)
    found = independent_averages(tensor(mean), tensor(variance))
    covariance, scale = variance[:, None] * np.eye(3), min(1.0, deviation)

    def slope(by_mean, by_covariance):
        up = three_class_probabilities(mean + by_mean, covariance + by_covariance)
        return (up - three_class_probabilities(mean - by_mean, covariance - by_covariance)) / 2

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
    rng, (mean, variance) = np.random.default_rng(4), independent_moments(5, 3, deviation, 40)
    root = (rng.normal(size=(40, 3, 3)) * strength + np.eye(3)) * np.sqrt(variance)[..., None]
    covariance = root @ root.swapaxes(1, 2)
    shared = rng.normal(size=(40, 3)) * deviation**2  # which no probability depends on
    parts = split_of(covariance + shared[:, None] + shared[..., None])
    found = averages.corrected_probabilities(tensor(mean), parts).numpy()
    error = np.abs(found - three_class_probabilities(mean, covariance)).max(axis=1)
    bound = averages.correction_error(parts).numpy()
    assert (error <= bound).all()
    assert np.median(bound) < {0.02: 0.01, 0.1: 0.2, 0.3: np.inf}[strength]


def test_a_shift_that_all_classes_share_is_left_out():
    variance, shift = np.array([[3.0, 1.0, 2.0, 5.0, 4.0]]), np.array([0.4, -0.2, 0.7, 0.1, 0.0])
    parts = split_of(variance[..., None] * np.eye(5) - shift[:, None] - shift)
    assert_allclose(parts.D, variance)
    assert float(parts.whitened) < 1e-12
    assert float(averages.correction_error(parts)) < 1e-6
