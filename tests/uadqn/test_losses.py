"""Quantile loss: value, gradient and minimiser against the usual way of writing it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skuq.uadqn._losses import prior_scale, quantile_levels, quantile_loss


def every_pair(quantiles, targets, levels):
    """Eq. 1 with every quantile against every target."""
    u = targets[None, :, None, :] - quantiles[..., None]
    return (u * (levels[:, None] - (u < 0).to(u.dtype))).mean(-1).sum(-1)


def draw(n_members, n_samples, n_quantiles, n_targets, seed=0):
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    quantiles = torch.randn(n_members, n_samples, n_quantiles, **options)
    targets = torch.randn(n_samples, n_targets, **options)
    return quantiles.requires_grad_(), targets, quantile_levels(n_quantiles).double()


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (2, 5, 7, 1), (3, 4, 50, 50), (2, 3, 4, 9), (2, 3, 7, 101)]
)
def test_value_and_gradient_are_those_of_all_pairs(shape):
    quantiles, targets, levels = draw(*shape)
    outer = torch.rand(shape[:2], dtype=torch.float64)
    loss, expected = (f(quantiles, targets, levels) for f in (quantile_loss, every_pair))
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad((outer * loss).sum(), quantiles)
    (expected_gradient,) = torch.autograd.grad((outer * expected).sum(), quantiles)
    torch.testing.assert_close(gradient, expected_gradient)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6), st.integers(0))
def test_value_is_that_of_all_pairs_with_ties(k, b, n, m, seed):
    rng = np.random.default_rng(seed)  # integers: many targets equal each other and quantiles
    quantiles, targets = (torch.tensor(rng.integers(-2, 3, s) * 1.0) for s in ((k, b, n), (b, m)))
    levels = quantile_levels(n).double()
    expected = every_pair(quantiles, targets, levels)
    torch.testing.assert_close(quantile_loss(quantiles, targets, levels), expected)


def test_gradient_passes_gradcheck():
    quantiles, targets, levels = draw(2, 3, 4, 5)
    assert torch.autograd.gradcheck(lambda q: quantile_loss(q, targets, levels), quantiles)


def test_no_gradient_flows_into_targets():
    quantiles, targets, levels = draw(2, 3, 4, 5)
    targets.requires_grad_()
    quantile_loss(quantiles, targets, levels).sum().backward()
    assert targets.grad is None


def test_gradient_at_a_tie_lies_between_the_slopes_beside_it():
    levels = torch.tensor([0.3])
    slopes = []
    for at in (-1e-3, 0.0, 1e-3):
        q = torch.full((1, 1, 1), at, requires_grad=True)
        quantile_loss(q, torch.zeros(1, 4), levels).sum().backward()
        slopes.append(q.grad.item())
    assert slopes[0] == pytest.approx(-0.3)
    assert slopes[2] == pytest.approx(0.7)
    assert slopes[0] <= slopes[1] <= slopes[2]


def test_equal_targets_are_matched_exactly():
    quantiles, levels = torch.full((2, 1, 5), 3.0), quantile_levels(5)
    assert quantile_loss(quantiles, torch.full((1, 8), 3.0), levels).tolist() == [[0.0], [0.0]]


def test_minimiser_is_the_empirical_quantile():
    """The best value for each level is the one of numpy's inverse distribution function."""
    targets = np.sort(np.random.default_rng(0).normal(size=30))
    levels = quantile_levels(6, "paper").double()
    # The loss is piecewise linear with corners at the targets: its least value lies there.
    corners = torch.tensor(targets)[None, :, None].expand(1, 30, 6)
    everywhere = torch.tensor(targets).expand(30, 30)
    losses = torch.stack(
        [quantile_loss(corners[..., [i]], everywhere, levels[[i]])[0] for i in range(6)]
    )
    best = targets[losses.argmin(dim=1)]
    expected = np.quantile(targets, levels.numpy(), method="inverted_cdf")
    np.testing.assert_array_equal(best, expected)


@pytest.mark.parametrize("kind", ["midpoint", "paper"])
def test_levels(kind):
    expected = {"midpoint": (np.arange(50) + 0.5) / 50, "paper": np.arange(1, 51) / 51}
    np.testing.assert_allclose(quantile_levels(50, kind), expected[kind], rtol=1e-6)


def test_unknown_kind_of_levels_is_refused():
    with pytest.raises(ValueError, match="must be 'midpoint' or 'paper', got 'middle'"):
        quantile_levels(3, "middle")


def test_prior_scale_is_the_deviation_of_all_weights_by_network():
    rng = np.random.default_rng(0)
    shapes = (2, 3, 4), (2, 5), (2, 1, 6, 2)
    arrays = [rng.normal(size=shape) for shape in shapes]
    flat = np.concatenate([a.reshape(2, -1) for a in arrays], axis=1)
    result = prior_scale([torch.tensor(a) for a in arrays])
    np.testing.assert_allclose(result, flat.std(axis=1, ddof=1))
