"""Variances from quantiles: against loops over pairs, closed forms, and their propositions."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from skuq.uadqn._losses import (
    aleatoric_part,
    aleatoric_variance,
    epistemic_variance,
    quantile_variance,
)

ESTIMATES = (epistemic_variance, aleatoric_variance)
quantile_arrays = arrays(
    np.float64,
    st.tuples(st.integers(2, 5), st.integers(1, 3), st.integers(1, 6)),
    elements=st.floats(-100, 100),
)


def pairwise(quantiles):
    """Eq. 7 written out, averaged over all pairs of networks."""
    epistemic, aleatoric = [], []
    for a, b in combinations(quantiles, 2):
        epistemic.append(((a - b) ** 2).mean(-1) / 2)
        means = a.mean(-1, keepdims=True), b.mean(-1, keepdims=True)
        aleatoric.append(((a - means[0]) * (b - means[1])).mean(-1))
    return np.mean(epistemic, axis=0), np.mean(aleatoric, axis=0)


@pytest.mark.parametrize("n_members", [2, 3, 7])
def test_estimates_are_those_of_a_loop_over_pairs(n_members):
    quantiles = np.random.default_rng(0).normal(size=(n_members, 4, 3, 50))
    for estimate, expected in zip(ESTIMATES, pairwise(quantiles), strict=True):
        np.testing.assert_allclose(estimate(quantiles), expected, atol=1e-14)


@pytest.mark.parametrize("estimate", [*ESTIMATES, quantile_variance])
def test_torch_and_numpy_agree(estimate):
    quantiles = np.random.default_rng(0).normal(size=(3, 4, 2, 50))
    result = estimate(torch.tensor(quantiles))
    assert isinstance(result, torch.Tensor)
    np.testing.assert_allclose(result, estimate(quantiles), atol=1e-14)


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_one_network_is_refused(estimate):
    with pytest.raises(ValueError, match=r"at least two networks.*shape \(1, 5, 50\)"):
        estimate(np.zeros((1, 5, 50)))


@pytest.mark.parametrize("n_members", [2, 5])
def test_estimates_are_unbiased_and_one_network_is_not(n_members):
    rng = np.random.default_rng(1)
    means, sd = np.linspace(-1, 2, 10), 0.7  # a posterior that is known: N(means, sd^2)
    quantiles = means + sd * rng.normal(size=(n_members, 40_000, 10))
    for estimate, truth in zip(ESTIMATES, (sd**2, means.var()), strict=True):
        values = estimate(quantiles)
        standard_error = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - truth) < 4 * standard_error
    # Prop. 2.1: the spread of one network counts its own errors as risk.
    biased = quantile_variance(quantiles[0]).mean()
    assert biased == pytest.approx(means.var() + sd**2 * 9 / 10, rel=0.02)


def test_decomposition_is_exact_for_a_complete_set_of_networks():
    """Prop. 2.2 with the posterior uniform over all networks there are."""
    networks = np.random.default_rng(2).normal(size=(6, 20, 50))
    n = len(networks)
    epistemic = epistemic_variance(networks) * (n - 1) / n  # of a population, not a sample
    aleatoric = quantile_variance(networks.mean(axis=0))
    np.testing.assert_allclose(epistemic + aleatoric, networks.var(axis=(0, 2)), rtol=1e-12)


@pytest.mark.parametrize("n_members", [2, 4])
def test_estimates_sum_to_the_total_variance_of_pairs(n_members):
    networks = np.random.default_rng(3).normal(size=(n_members, 20, 50))
    both = epistemic_variance(networks) + aleatoric_variance(networks)
    # Around the products of means of two different networks instead of squared means.
    means = networks.mean(axis=-1)
    products = np.mean([a * b for a, b in combinations(means, 2)], axis=0)
    np.testing.assert_allclose(both, (networks**2).mean(axis=(0, 2)) - products, rtol=1e-10)


@pytest.mark.parametrize("distance", [0.0, 1.0, 5.0])
def test_distance_between_actions_is_no_risk(distance):
    rng = np.random.default_rng(4)
    levels = np.linspace(-1, 1, 50)
    quantiles = levels + 0.01 * rng.normal(size=(2, 3, 2, 50))
    apart = quantiles + np.array([0.0, distance])[:, None]
    np.testing.assert_allclose(aleatoric_variance(apart), aleatoric_variance(quantiles), atol=1e-12)
    np.testing.assert_allclose(aleatoric_variance(apart), levels.var(), rtol=0.05)


def test_covariance_can_be_negative():
    assert aleatoric_variance(np.array([[0.0, 1.0], [1.0, 0.0]])) == -0.25


@settings(deadline=None, max_examples=50)
@given(quantile_arrays, st.floats(-50, 50), st.floats(-5, 5))
def test_shift_changes_nothing_and_scale_goes_in_squared(quantiles, shift, scale):
    for estimate in ESTIMATES:
        expected = scale**2 * estimate(quantiles)
        np.testing.assert_allclose(estimate(scale * quantiles + shift), expected, atol=1e-6)


@settings(deadline=None, max_examples=50)
@given(quantile_arrays)
def test_identical_networks_have_no_epistemic_part(quantiles):
    same = np.repeat(quantiles[:1], 3, axis=0)
    np.testing.assert_allclose(epistemic_variance(same), 0, atol=1e-9)
    np.testing.assert_allclose(aleatoric_variance(same), quantile_variance(same[0]), atol=1e-8)


@settings(deadline=None, max_examples=50)
@given(quantile_arrays)
def test_networks_may_come_in_any_order_and_epistemic_is_never_negative(quantiles):
    for estimate in ESTIMATES:
        np.testing.assert_allclose(estimate(quantiles[::-1]), estimate(quantiles), atol=1e-8)
    assert (epistemic_variance(quantiles) >= 0).all()


def test_the_aleatoric_part_is_by_either_estimate_and_never_negative():
    # Auxiliary networks that disagree about the order of quantiles: their covariance is negative.
    value, first, second = [0.0, 2.0, 4.0], [0.0, 1.0, 2.0], [2.0, 1.0, 0.0]
    quantiles = np.array([value, first, second])
    assert aleatoric_part(quantiles, "covariance") == 0
    assert aleatoric_part(quantiles, "variance") == pytest.approx(8 / 3)
    agreeing = np.array([value, first, first])
    assert aleatoric_part(agreeing, "covariance") == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="aleatoric must be"):
        aleatoric_part(agreeing, "Covariance")
