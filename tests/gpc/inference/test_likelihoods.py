"""Likelihoods, their tilted moments, and the trapezoidal rule within its proven error."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import expit

from skuq.gpc.inference._likelihoods import LIKELIHOODS, node_count, normal_nodes, tilted_moments

from .oracles import LOG_DENSITY, gaussian_average

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
@given(
    st.tuples(st.floats(0.05, 4.0), st.floats(0.05, 4.0)),
    st.tuples(st.floats(-8.0, 8.0), st.floats(-8.0, 8.0)),
)
def test_softmax_averages_are_as_close_as_stated(scales, means):
    """To a rule of Gauss and Hermite where that converges, to a far finer grid else."""

    def average(points, weights):
        latent = torch.as_tensor(points) * torch.tensor(scales) + torch.tensor(means)
        latent = torch.cat([latent, torch.zeros(len(latent), 1)], -1)
        return torch.as_tensor(weights) @ torch.softmax(latent.double(), -1)

    rough, fine = (normal_nodes(scales, accuracy, LIKE) for accuracy in (1e-4, 1e-12))
    difference = average(*rough[:2]) - average(*fine[:2])
    assert float(difference.abs().max()) <= rough.error + 1e-12
    if max(scales) <= 1:
        z, w = np.polynomial.hermite_e.hermegauss(120)
        pairs, weights = np.stack(np.meshgrid(z, z), -1).reshape(-1, 2), np.outer(w, w).ravel()
        expected = average(pairs, weights / (2 * np.pi))
        assert_allclose(average(*fine[:2]), expected, atol=1e-10)


def test_stated_error_is_no_empty_claim():
    """At the accuracy asked for, a coarser grid would already break it."""
    nodes = normal_nodes([8.0], 1e-3, LIKE)
    coarse, weights = nodes.points[::4, 0], 4 * nodes.weights[::4]
    worst = max(
        abs(float(torch.sigmoid(m + 8.0 * coarse) @ weights) - gaussian_average(expit, m, 8.0))
        for m in np.linspace(-6, 6, 7)
    )
    assert worst > nodes.error


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
