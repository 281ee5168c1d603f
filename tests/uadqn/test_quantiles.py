"""Quantile loss and the variances from quantiles, against the usual way of writing them."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skuq.uadqn._quantiles import (
    aleatoric_part,
    aleatoric_variance,
    epistemic_variance,
    prior_scale,
    quantile_levels,
    quantile_loss,
    quantile_loss_gradient,
    quantile_variance,
)
from tests.uadqn.plain import every_pair, pairwise


def draw(n_members, n_samples, n_quantiles, n_targets, seed=0):
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    quantiles = torch.randn(n_members, n_samples, n_quantiles, **options)
    targets = torch.randn(n_samples, n_targets, **options)
    return quantiles.requires_grad_(), targets, quantile_levels(n_quantiles).double()


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 7, 1), (3, 4, 50, 50), (2, 3, 4, 9)])
def test_value_and_gradient_are_those_of_all_pairs(shape):
    quantiles, targets, levels = draw(*shape)
    outer = torch.rand(shape[:2], dtype=torch.float64)
    loss, expected = (f(quantiles, targets, levels) for f in (quantile_loss, every_pair))
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad((outer * loss).sum(), quantiles)
    (expected_gradient,) = torch.autograd.grad((outer * expected).sum(), quantiles)
    torch.testing.assert_close(gradient, expected_gradient)


@settings(max_examples=50, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6), st.integers(0))
def test_value_is_that_of_all_pairs_with_ties(k, b, n, m, seed):
    rng = np.random.default_rng(seed)  # integers: many targets equal each other and quantiles
    quantiles, targets = (torch.tensor(rng.integers(-2, 3, s) * 1.0) for s in ((k, b, n), (b, m)))
    levels = quantile_levels(n).double()
    expected = every_pair(quantiles, targets, levels)
    torch.testing.assert_close(quantile_loss(quantiles, targets, levels), expected)


def test_no_gradient_flows_into_targets():
    quantiles, targets, levels = draw(2, 3, 4, 5)
    targets.requires_grad_()
    quantile_loss(quantiles, targets, levels).sum().backward()
    assert targets.grad is None


def test_gradient_at_a_tie_lies_between_the_slopes_beside_it():
    q = torch.tensor([[[-1e-3]], [[0.0]], [[1e-3]]], requires_grad=True)
    quantile_loss(q, torch.zeros(1, 4), torch.tensor([0.3])).sum().backward()
    below, at, above = q.grad.flatten().tolist()
    assert (below, above) == pytest.approx((-0.3, 0.7))
    assert below <= at <= above


def test_levels():
    expected = {"midpoint": (np.arange(50) + 0.5) / 50, "paper": np.arange(1, 51) / 51}
    for kind, levels in expected.items():
        np.testing.assert_allclose(quantile_levels(50, kind), levels, rtol=1e-6)


def test_prior_scale_is_the_deviation_of_all_weights_by_network():
    rng = np.random.default_rng(0)
    shapes = (2, 3, 4), (2, 5), (2, 1, 6, 2)
    arrays = [rng.normal(size=shape) for shape in shapes]
    flat = np.concatenate([a.reshape(2, -1) for a in arrays], axis=1)
    result = prior_scale([torch.tensor(a) for a in arrays])
    np.testing.assert_allclose(result, flat.std(axis=1, ddof=1))


ESTIMATES = (epistemic_variance, aleatoric_variance)


@pytest.mark.parametrize("n_members", [2, 3, 7])
def test_estimates_are_those_of_a_loop_over_pairs(n_members):
    quantiles = np.random.default_rng(0).normal(size=(n_members, 4, 3, 50))
    for estimate, expected in zip(ESTIMATES, pairwise(quantiles), strict=True):
        np.testing.assert_allclose(estimate(quantiles), expected, atol=1e-14)
    for estimate in (*ESTIMATES, quantile_variance):
        result = estimate(torch.tensor(quantiles))
        assert isinstance(result, torch.Tensor)
        np.testing.assert_allclose(result, estimate(quantiles), atol=1e-14)


def test_one_network_and_unknown_names_are_refused():
    for call, word in [
        *((partial(estimate, np.zeros((1, 5, 50))), "two networks") for estimate in ESTIMATES),
        (partial(aleatoric_part, np.zeros((3, 5)), "Covariance"), "Covariance"),
        (partial(quantile_levels, 3, "middle"), "middle"),
    ]:
        with pytest.raises(ValueError, match=word):
            call()


@pytest.mark.parametrize("n_members", [2, 5])
def test_estimates_are_unbiased_and_one_network_is_not(n_members):
    rng = np.random.default_rng(1)
    means, sd = np.linspace(-1, 2, 10), 0.7  # a posterior that is known: N(means, sd^2)
    quantiles = means + sd * rng.normal(size=(n_members, 20_000, 10))
    for estimate, truth in zip(ESTIMATES, (sd**2, means.var()), strict=True):
        values = estimate(quantiles)
        standard_error = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - truth) < 4 * standard_error
    # Prop. 2.1: the spread of one network counts its own errors as risk.
    biased = quantile_variance(quantiles[0]).mean()
    assert biased == pytest.approx(means.var() + sd**2 * 9 / 10, rel=0.02)


def test_the_aleatoric_part_is_by_either_estimate_and_never_negative():
    # Auxiliary networks that disagree about the order of quantiles: their covariance is negative.
    value, first, second = [0.0, 2.0, 4.0], [0.0, 1.0, 2.0], [2.0, 1.0, 0.0]
    quantiles = np.array([value, first, second])
    assert aleatoric_part(quantiles, "covariance") == 0
    assert aleatoric_part(quantiles, "variance") == pytest.approx(8 / 3)
    agreeing = np.array([value, first, first])
    assert aleatoric_part(agreeing, "covariance") == pytest.approx(2 / 3)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_samples_whose_targets_are_not_finite_have_no_gradient(wrong):
    torch.manual_seed(0)
    quantiles, targets = torch.randn(2, 3, 5, requires_grad=True), torch.randn(3, 4)
    targets[1, 2] = wrong
    slope = quantile_loss_gradient(quantiles, targets, quantile_levels(5))
    quantile_loss(quantiles, targets, quantile_levels(5)).sum().backward()
    for gradient in (slope, quantiles.grad):
        assert gradient[:, 1].isnan().all()
        assert gradient[:, [0, 2]].isfinite().all()
