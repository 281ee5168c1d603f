"""Quantile loss and variances from quantiles as usually written; the regressor that learns them."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skuq import AnchoredQuantileRegressor
from skuq.uadqn import _regressor
from skuq.uadqn._networks import AnchoredLoss, QuantileNetworks, weights_of
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
    targets.requires_grad_()  # into which no gradient flows
    outer = torch.rand(shape[:2], dtype=torch.float64)
    loss, expected = (f(quantiles, targets, levels) for f in (quantile_loss, every_pair))
    torch.testing.assert_close(loss, expected)
    (outer * loss).sum().backward()
    (gradient,) = torch.autograd.grad((outer * expected).sum(), quantiles)
    torch.testing.assert_close(quantiles.grad, gradient)
    assert targets.grad is None


@settings(max_examples=50, derandomize=True)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(1, 6), st.integers(0))
def test_value_is_that_of_all_pairs_with_ties(k, b, n, m, seed):
    rng = np.random.default_rng(seed)  # integers: many targets equal each other and quantiles
    quantiles, targets = (torch.tensor(rng.integers(-2, 3, s) * 1.0) for s in ((k, b, n), (b, m)))
    levels = quantile_levels(n).double()
    expected = every_pair(quantiles, targets, levels)
    torch.testing.assert_close(quantile_loss(quantiles, targets, levels), expected)


def test_gradient_at_a_tie_lies_between_the_slopes_beside_it():
    q = torch.tensor([[[-1e-3]], [[0.0]], [[1e-3]]], requires_grad=True)
    quantile_loss(q, torch.zeros(1, 4), torch.tensor([0.3])).sum().backward()
    below, at, above = q.grad.flatten().tolist()
    assert (below, above) == pytest.approx((-0.3, 0.7))
    assert below <= at <= above


def test_levels_and_the_prior_scale_are_as_defined():
    expected = {"midpoint": (np.arange(50) + 0.5) / 50, "paper": np.arange(1, 51) / 51}
    for kind, levels in expected.items():
        np.testing.assert_allclose(quantile_levels(50, kind), levels, rtol=1e-6)
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


def noise(x):
    return 0.1 + 0.6 * (x > 0)


def drawn(seed, n):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=n)
    return x[:, None], 10 + np.sin(3 * x) + noise(x) * rng.normal(size=n)


X, Y = drawn(0, 400)


def regressor(**params):
    params = {"max_epochs": 5, "hidden_sizes": (10,), "random_state": 0} | params
    return AnchoredQuantileRegressor(**params)


@pytest.fixture(scope="module")
def fitted():
    return AnchoredQuantileRegressor(max_epochs=120, batch_size=100, random_state=0).fit(X, Y)


def test_mean_and_noise_are_learnt_and_doubt_grows_away_from_the_data(fitted):
    x = np.array([-0.8, -0.4, 0.4, 0.8, 3, -3])
    u = fitted.predict_uncertainty(x[:, None])
    np.testing.assert_allclose(fitted.predict(x[:4, None]), 10 + np.sin(3 * x[:4]), atol=0.25)
    np.testing.assert_allclose(np.sqrt(u.aleatoric[:4]), noise(x[:4]), rtol=0.4)
    assert u.epistemic[4:].min() > 10 * fitted.predict_uncertainty([[0.0], [0.5]]).epistemic.max()
    losses = fitted.history_[:, "train_loss"]
    assert len(losses) == fitted.max_epochs
    assert losses[-1] < 0.5 * losses[0]


def test_intervals_cover_unseen_data_and_widen_where_networks_disagree(fitted):
    new, y = drawn(1, 4000)
    inner = fitted.predict_quantiles(new, [0.1, 0.9])
    assert 0.75 < ((inner[:, 0] <= y) & (y <= inner[:, 1])).mean() < 0.85
    lower, upper = fitted.predict_interval(new, 0.8)
    assert 0.76 < ((lower <= y) & (y <= upper)).mean() < 0.9
    assert (np.column_stack([inner[:, 0] - lower, upper - inner[:, 1]]) > 0).all()
    far = fitted.predict_interval([[3.0]], 0.8)
    widened = (upper - lower) / (inner[:, 1] - inner[:, 0])
    alone = np.ptp(fitted.predict_quantiles([[3.0]], [0.1, 0.9]))
    assert (far.upper - far.lower)[0] / alone > np.median(widened) + 0.1


def test_predictions_are_those_of_the_networks(fitted, monkeypatch):
    quantiles = fitted._quantiles(X[:7])
    assert quantiles.shape == (2, 7, 50)
    np.testing.assert_allclose(fitted.predict(X[:7]), quantiles.mean(axis=(0, 2)))
    u = fitted.predict_uncertainty(X[:7])
    np.testing.assert_allclose(u.epistemic, epistemic_variance(quantiles))
    np.testing.assert_allclose(u.aleatoric, np.maximum(aleatoric_variance(quantiles), 0))
    known, levels = fitted.predict_quantiles(X[:7]), fitted.quantile_levels_
    np.testing.assert_array_equal(known, np.sort(quantiles.mean(axis=0), axis=1))
    np.testing.assert_allclose(levels, quantile_levels(50), rtol=1e-6)
    asked = np.concatenate([levels[[0, 10, -1]], [0.033, 0.5, 0.871]])
    expected = [np.interp(asked, levels, row) for row in known]
    np.testing.assert_allclose(fitted.predict_quantiles(X[:7], asked), expected, rtol=1e-12)
    disagreeing = np.array([[[0.0, 1.0, 2.0]], [[2.0, 1.0, 0.0]]])  # a negative covariance
    monkeypatch.setattr(fitted, "_quantiles", lambda X: disagreeing)
    assert fitted.predict_uncertainty([[0.0]]).aleatoric == [0.0]


def test_units_of_data_do_not_matter():
    first, scaled = regressor().fit(X, Y), regressor().fit(1000 * X - 5, 7 + 100 * (Y - 7))
    found, expected = scaled.predict(1000 * X - 5), 7 + 100 * (first.predict(X) - 7)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    found, expected = scaled.predict_uncertainty(1000 * X - 5), first.predict_uncertainty(X)
    np.testing.assert_allclose(found.total, 1e4 * expected.total, rtol=1e-5)


def with_constants(X, count, value=1.0):
    return np.column_stack([X, np.full((len(X), count), value)])


@pytest.mark.parametrize("value", [0.0, 0.1, 1e140])
def test_constant_columns_change_the_features_scale_not_at_all(value):
    weight = np.random.default_rng(0).uniform(size=len(Y))  # the mean of .1 is not .1
    both = X, with_constants(X, 3, value)
    plain, padded = (regressor().fit(each, Y, weight)._X_scaling for each in both)
    for one, other in zip(plain, padded, strict=True):
        assert other[0] == pytest.approx(one[0], rel=1e-12)
    assert (padded[0][1:] == value).all()


def test_rows_with_another_value_of_a_constant_column_were_never_seen():
    model = regressor(max_epochs=10, hidden_sizes=(50,)).fit(with_constants(X, 1), Y)
    seen, changed = (
        model.predict_uncertainty(with_constants(X[:50], 1, value)).epistemic
        for value in (1.0, 4.0)
    )
    assert np.median(changed / seen) > 10


@pytest.mark.parametrize(("n_features", "n_varying"), [(5, 2), (40, 2), (40, 30), (40, 40)])
def test_inputs_that_do_not_vary_take_no_share_of_the_gain(n_features, n_varying):
    networks = QuantileNetworks(3, [n_features, 20, 5], 2.0, "tanh", n_varying=n_varying)
    alone = QuantileNetworks(3, [n_varying, 20, 5], 2.0, "tanh")
    sizes = [each.networks[0].weight.square().mean((1, 2)).detach() for each in (networks, alone)]
    torch.testing.assert_close(*sizes)


def test_only_constant_columns_are_learnt_from_like_one():
    model = regressor(max_epochs=20).fit(np.ones((400, 5)), Y)
    assert model.predict(np.ones((1, 5))) == pytest.approx(Y.mean(), abs=0.1)


def test_the_noise_grows_with_the_root_of_the_number_of_varying_features(monkeypatch):
    seen, loss = [], _regressor.AnchoredLoss
    monkeypatch.setattr(_regressor, "AnchoredLoss", lambda *args: seen.append(args) or loss(*args))
    columns = np.column_stack([X, X**2, X**3, X**4, np.ones(400)])
    regressor(max_epochs=1, noise_scale=0.5).fit(columns, Y)
    assert seen[0][1:] == (1.0, 400)


def test_loss_is_the_quantile_loss_and_the_pull_to_the_start():
    networks = QuantileNetworks(2, [3, 8, 5], 2.0, "tanh")
    anchors = [p.detach().clone() for p in networks.parameters()]
    scales = prior_scale([w.detach() for w in weights_of(networks)])
    loss = AnchoredLoss(networks, noise_scale=0.5, n_samples=40)
    with torch.no_grad():
        for p in networks.parameters():
            p += torch.rand(p.shape, dtype=p.dtype)
    inputs, y = torch.rand(6, 3, dtype=torch.float64), torch.rand(6, 1, dtype=torch.float64)
    weight = torch.tensor([1.0, 2.0, 1.0, 3.0, 0.5, 1.0], dtype=torch.float64)
    quantiles, expected = networks(inputs), 0.0
    for k in range(2):
        one = quantile_loss(quantiles[None, :, k], y, quantile_levels(5, dtype=torch.float64))[0]
        pairs = zip(networks.parameters(), anchors, strict=True)
        moved = sum((p[k] - anchor[k]).square().sum() for p, anchor in pairs)
        expected += (one * weight).mean() + 0.5**2 / (scales[k] ** 2 * 40) * moved
    torch.testing.assert_close(loss(quantiles, y, {"weight": weight}), expected)


@pytest.mark.parametrize("batch_size", [64, -1])
def test_weights_equal_repetition_in_one_batch(batch_size):
    x, y, weight = X[:20], Y[:20], np.arange(20) % 3
    weighted = regressor(batch_size=batch_size).fit(x, y, weight)
    repeated = regressor(batch_size=batch_size).fit(x.repeat(weight, 0), y.repeat(weight))
    np.testing.assert_allclose(weighted.predict(x), repeated.predict(x), rtol=1e-9)
    parts = (model.predict_uncertainty(x).epistemic for model in (weighted, repeated))
    np.testing.assert_allclose(*parts, rtol=1e-6)


def test_wrong_parameters_levels_and_coverages_are_refused(fitted):
    for params in (
        *[{"n_quantiles": 1}, {"n_members": 1}, {"noise_scale": -0.1}, {"prior_gain": 0.0}],
        *[{"learning_rate": 0.0}, {"learning_rate": 1e300}, {"max_epochs": 0}, {"batch_size": 0}],
        *[{"activation": "sigmoid"}, {"device": "abacus"}, {"hidden_sizes": 10}],
        *[{"hidden_sizes": (10, 0)}, {"hidden_sizes": (2.5,)}],
    ):
        with pytest.raises(ValueError, match=next(iter(params))):
            regressor(**params).fit(X, Y)
    for level in (0.0, 0.001, 0.995, 1.0, np.nan):
        with pytest.raises(ValueError, match="n_quantiles"):
            fitted.predict_quantiles([[0.0]], [0.5, level])
    with pytest.raises(ValueError, match="coverage"):
        fitted.predict_interval([[0.0]], 1.0)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e-200, 1e140])
def test_constant_target_is_predicted_exactly_and_without_doubt(value):
    weight = np.random.default_rng(0).uniform(size=400)  # the mean of .1 is not .1
    model, new = regressor().fit(X, np.full(400, value), weight), np.r_[X, [[100.0]]]
    np.testing.assert_allclose(model.predict(new), value, rtol=1e-14)
    np.testing.assert_allclose(model.predict_quantiles(new), value, rtol=1e-14)
    assert model.predict_uncertainty(new).total.max() <= (1e-14 * value) ** 2
