"""The trapezoidal rule: its proven error is kept, and reached with few nodes."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from skuq.gpc.inference._likelihoods import node_count, normal_nodes

LIKE = torch.empty(0, dtype=torch.float64)
SCALES = st.floats(1e-3, 30.0)
SHIFTS = st.floats(-40.0, 40.0)


def exact_logistic(mean, sd):
    """Integrated in pieces that end where the logistic function bends."""
    edges = np.unique(np.clip([-12, (-40 - mean) / sd, -mean / sd, (40 - mean) / sd, 12], -12, 12))
    return sum(
        quad(lambda t: expit(mean + sd * t) * norm.pdf(t), a, b, epsabs=1e-14, limit=500)[0]
        for a, b in pairwise(edges)
    )


@settings(max_examples=40, derandomize=True)
@given(SCALES, SHIFTS, st.sampled_from([1e-3, 1e-6, 1e-11]))
def test_logistic_averages_are_as_close_as_stated(scale, shift, accuracy):
    nodes = normal_nodes([scale], accuracy, LIKE)
    got = float(torch.sigmoid(shift + scale * nodes.points[:, 0]) @ nodes.weights)
    assert abs(got - exact_logistic(shift, scale)) <= nodes.error + 1e-13
    assert nodes.error <= 2 * accuracy + 1e-12


@settings(max_examples=25, derandomize=True)
@given(
    st.tuples(st.floats(0.05, 4.0), st.floats(0.05, 4.0)),
    st.tuples(st.floats(-8.0, 8.0), st.floats(-8.0, 8.0)),
)
def test_softmax_averages_are_as_close_as_stated(scales, means):
    def average(accuracy):
        nodes = normal_nodes(scales, accuracy, LIKE)
        latent = nodes.points * torch.tensor(scales, dtype=torch.float64)
        latent += torch.tensor(means, dtype=torch.float64)
        latent = torch.cat([latent, torch.zeros(len(latent), 1)], -1)
        return nodes.weights @ torch.softmax(latent, -1), nodes.error

    # The reference is a rule of Gauss and Hermite where that converges, a far finer grid else.
    rough, error = average(1e-4)
    fine, _ = average(1e-13)
    assert float((rough - fine).abs().max()) <= error + 1e-12
    if max(scales) <= 1:
        z, w = np.polynomial.hermite_e.hermegauss(120)
        f = np.stack(
            np.broadcast_arrays(means[0] + scales[0] * z[:, None], means[1] + scales[1] * z, 0.0)
        )
        p = np.exp(f) / np.exp(f).sum(axis=0)
        expected = np.einsum("cij,i,j->c", p, w, w) / (2 * np.pi)
        np.testing.assert_allclose(fine, expected, atol=1e-10)


def test_stated_error_is_no_empty_claim():
    """At the accuracy asked for, a coarser grid would already break it."""
    nodes = normal_nodes([8.0], 1e-3, LIKE)
    coarse, weights = nodes.points[::4, 0], 4 * nodes.weights[::4]
    worst = max(
        abs(float(torch.sigmoid(m + 8.0 * coarse) @ weights) - exact_logistic(m, 8.0))
        for m in np.linspace(-6, 6, 13)
    )
    assert worst > nodes.error


@pytest.mark.parametrize("scales", [(1.0,), (0.1, 3.0), (1.0, 2.0, 0.3)])
def test_weights_are_a_normal_distribution(scales):
    nodes = normal_nodes(scales, 1e-9, LIKE)
    assert float(nodes.weights.sum()) == pytest.approx(1, abs=1e-8)
    moments = nodes.points.T @ (nodes.weights[:, None] * nodes.points)
    np.testing.assert_allclose(moments, np.eye(len(scales)), atol=1e-6)
    assert (nodes.weights > 0).all()
    assert len(nodes.weights) <= node_count(scales, 1e-9)


def test_number_of_nodes_grows_with_deviation_and_accuracy():
    counts = [node_count([scale], 1e-9) for scale in (1.0, 4.0, 16.0)]
    assert counts == sorted(counts)
    assert node_count([4.0], 1e-4) < node_count([4.0], 1e-9)
    assert node_count([2.0, 3.0], 1e-6) == node_count([2.0], 1e-6) * node_count([3.0], 1e-6)
