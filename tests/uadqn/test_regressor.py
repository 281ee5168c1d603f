"""AnchoredQuantileRegressor: what it learns, what it refuses, what it leaves alone."""

import numpy as np
import pytest
import torch

from skuq import AnchoredQuantileRegressor
from skuq.uadqn import _regressor
from skuq.uadqn._networks import AnchoredLoss, QuantileNetworks, weights_of
from skuq.uadqn._quantiles import (
    aleatoric_variance,
    epistemic_variance,
    prior_scale,
    quantile_levels,
    quantile_loss,
)


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
    np.testing.assert_allclose(
        scaled.predict(1000 * X - 5), 7 + 100 * (first.predict(X) - 7), rtol=1e-6
    )
    found, expected = (
        m.predict_uncertainty(x).total for m, x in [(scaled, 1000 * X - 5), (first, X)]
    )
    np.testing.assert_allclose(found, 1e4 * expected, rtol=1e-5)


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
