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

QUICK = {"max_epochs": 5, "hidden_sizes": (10,), "random_state": 0}


def noise(x):
    return 0.1 + 0.6 * (x > 0)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(400, 1))
    return X, 10 + np.sin(3 * X[:, 0]) + noise(X[:, 0]) * rng.normal(size=400)


@pytest.fixture(scope="module")
def fitted(data):
    return AnchoredQuantileRegressor(max_epochs=120, batch_size=100, random_state=0).fit(*data)


def test_mean_and_noise_are_learnt(fitted):
    X = np.array([-0.8, -0.4, 0.4, 0.8])[:, None]
    np.testing.assert_allclose(fitted.predict(X), 10 + np.sin(3 * X[:, 0]), atol=0.25)
    aleatoric = np.sqrt(fitted.predict_uncertainty(X).aleatoric)
    np.testing.assert_allclose(aleatoric, noise(X[:, 0]), rtol=0.4)


def test_epistemic_part_grows_away_from_the_data(fitted):
    epistemic = fitted.predict_uncertainty([[0.0], [0.5], [3.0], [-3.0]]).epistemic
    assert epistemic[2:].min() > 10 * epistemic[:2].max()


def test_intervals_cover_unseen_data_and_widen_where_networks_disagree(fitted):
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, size=(4000, 1))
    y = 10 + np.sin(3 * X[:, 0]) + noise(X[:, 0]) * rng.normal(size=4000)
    inner = fitted.predict_quantiles(X, [0.1, 0.9])
    assert 0.75 < ((inner[:, 0] <= y) & (y <= inner[:, 1])).mean() < 0.85
    lower, upper = fitted.predict_interval(X, 0.8)
    assert 0.76 < ((lower <= y) & (y <= upper)).mean() < 0.9
    assert (np.column_stack([inner[:, 0] - lower, upper - inner[:, 1]]) > 0).all()
    far = fitted.predict_interval([[3.0]], 0.8)
    widened = (upper - lower) / (inner[:, 1] - inner[:, 0])
    alone = np.ptp(fitted.predict_quantiles([[3.0]], [0.1, 0.9]))
    assert (far.upper - far.lower)[0] / alone > np.median(widened) + 0.1


def test_predictions_are_those_of_the_networks(fitted, data):
    X = data[0][:7]
    quantiles = fitted._quantiles(X)
    assert quantiles.shape == (2, 7, 50)
    np.testing.assert_allclose(fitted.predict(X), quantiles.mean(axis=(0, 2)))
    u = fitted.predict_uncertainty(X)
    np.testing.assert_allclose(u.epistemic, epistemic_variance(quantiles))
    np.testing.assert_allclose(u.aleatoric, np.maximum(aleatoric_variance(quantiles), 0))
    expected = np.sort(quantiles.mean(axis=0), axis=1)
    np.testing.assert_array_equal(fitted.predict_quantiles(X), expected)
    np.testing.assert_allclose(fitted.quantile_levels_, quantile_levels(50), rtol=1e-6)


def test_negative_covariance_is_reported_as_zero(data):
    model = AnchoredQuantileRegressor(**QUICK, n_quantiles=3).fit(*data)
    model._quantiles = lambda X: np.array([[[0.0, 1.0, 2.0]], [[2.0, 1.0, 0.0]]])
    assert model.predict_uncertainty([[0.0]]).aleatoric == [0.0]


def test_quantiles_between_levels_are_interpolated(fitted, data):
    X = data[0][:5]
    known, levels = fitted.predict_quantiles(X), fitted.quantile_levels_
    asked = np.concatenate([levels[[0, 10, -1]], [0.033, 0.5, 0.871]])
    expected = [np.interp(asked, levels, row) for row in known]
    np.testing.assert_allclose(fitted.predict_quantiles(X, asked), expected, rtol=1e-12)


def test_levels_and_coverages_beyond_the_quantiles_are_refused(fitted):
    for level in (0.0, 0.001, 0.995, 1.0, np.nan):
        with pytest.raises(ValueError, match="n_quantiles"):
            fitted.predict_quantiles([[0.0]], [0.5, level])
    with pytest.raises(ValueError, match="coverage"):
        fitted.predict_interval([[0.0]], 1.0)


def test_units_of_data_do_not_matter(data):
    X, y = data
    first = AnchoredQuantileRegressor(**QUICK).fit(X, y)
    scaled = AnchoredQuantileRegressor(**QUICK).fit(1000 * X - 5, 7 + 100 * (y - 7))
    np.testing.assert_allclose(
        scaled.predict(1000 * X - 5), 7 + 100 * (first.predict(X) - 7), rtol=1e-6
    )
    np.testing.assert_allclose(
        scaled.predict_uncertainty(1000 * X - 5).total,
        1e4 * first.predict_uncertainty(X).total,
        rtol=1e-5,
    )


def with_constants(X, count, value=1.0):
    return np.column_stack([X, np.full((len(X), count), value)])


@pytest.mark.parametrize("value", [0.0, 0.1, 1e140])
def test_constant_columns_change_the_features_scale_and_the_anchors_not_at_all(data, value):
    X, y = data
    weight = np.random.default_rng(0).uniform(size=len(y))  # the mean of .1 is not .1
    plain, padded = (
        AnchoredQuantileRegressor(**QUICK).fit(each, y, weight)
        for each in (X, with_constants(X, 3, value))
    )
    for one, other in zip(plain._X_scaling, padded._X_scaling, strict=True):
        assert other[0] == pytest.approx(one[0], rel=1e-12)
    assert (padded._X_scaling[0][1:] == value).all()


def test_constant_columns_change_little():
    rng = np.random.default_rng(0)
    X, new = rng.uniform(-1, 1, (200, 1)), np.append(np.linspace(-1, 1, 50), 3)[:, None]
    y = np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=200)
    settings = {"max_epochs": 60, "hidden_sizes": (50,), "random_state": 0}
    plain, padded = (
        AnchoredQuantileRegressor(**settings).fit(with_constants(X, count), y) for count in (0, 9)
    )
    expected = plain.predict_uncertainty(new)
    found = padded.predict_uncertainty(with_constants(new, 9))
    aleatoric = np.sqrt(found.aleatoric[:-1] / expected.aleatoric[:-1])
    assert aleatoric.mean() == pytest.approx(1, abs=0.1)
    assert found.epistemic[-1] > 4 * found.epistemic[:-1].mean()
    error = padded.predict(with_constants(new, 9)) - plain.predict(new)
    assert np.abs(error[:-1]).max() < 0.15


def test_rows_with_another_value_of_a_constant_column_were_never_seen(data):
    model = AnchoredQuantileRegressor(random_state=0, max_epochs=10, hidden_sizes=(50,))
    model.fit(with_constants(data[0], 1), data[1])
    seen, changed = (with_constants(data[0][:50], 1, value) for value in (1.0, 4.0))
    ratio = model.predict_uncertainty(changed).epistemic / model.predict_uncertainty(seen).epistemic
    assert np.median(ratio) > 10


@pytest.mark.parametrize(("n_features", "n_varying"), [(5, 2), (40, 2), (40, 30), (40, 40)])
def test_inputs_that_do_not_vary_take_no_share_of_the_gain(n_features, n_varying):
    networks = QuantileNetworks(3, [n_features, 20, 5], 2.0, "tanh", n_varying=n_varying)
    alone = QuantileNetworks(3, [n_varying, 20, 5], 2.0, "tanh")
    sizes = [each.networks[0].weight.square().mean((1, 2)).detach() for each in (networks, alone)]
    torch.testing.assert_close(*sizes)


def test_only_constant_columns_are_learnt_from_like_one(data):
    y = data[1]
    model = AnchoredQuantileRegressor(**{**QUICK, "max_epochs": 20}).fit(np.ones((400, 5)), y)
    assert model.predict(np.ones((1, 5))) == pytest.approx(y.mean(), abs=0.1)


def test_loss_is_the_quantile_loss_and_the_pull_to_the_start():
    networks = QuantileNetworks(2, [3, 8, 5], 2.0, "tanh")
    anchors = [p.detach().clone() for p in networks.parameters()]
    scales = prior_scale([w.detach() for w in weights_of(networks)])
    loss = AnchoredLoss(networks, noise_scale=0.5, n_samples=40)
    with torch.no_grad():
        for p in networks.parameters():
            p += torch.rand(p.shape, dtype=p.dtype)
    X, y = torch.rand(6, 3, dtype=torch.float64), torch.rand(6, 1, dtype=torch.float64)
    weight = torch.tensor([1.0, 2.0, 1.0, 3.0, 0.5, 1.0], dtype=torch.float64)
    quantiles = networks(X)
    expected = 0.0
    for k in range(2):
        one = quantile_loss(quantiles[None, :, k], y, quantile_levels(5, dtype=torch.float64))[0]
        expected += (one * weight).mean()
        moved = sum(
            ((p[k] - a[k]) ** 2).sum() for p, a in zip(networks.parameters(), anchors, strict=True)
        )
        expected += 0.5**2 / (scales[k] ** 2 * 40) * moved
    torch.testing.assert_close(loss(quantiles, y, {"weight": weight}), expected)


def test_strong_anchors_keep_the_networks_where_they_started(data):
    spread = []
    for noise_scale in (0.1, 20.0):
        model = AnchoredQuantileRegressor(**QUICK | {"max_epochs": 15, "noise_scale": noise_scale})
        spread.append(model.fit(*data).predict_uncertainty(data[0][:50]).epistemic.mean())
    assert spread[1] > 3 * spread[0]


@pytest.mark.parametrize("batch_size", [64, -1])
def test_weights_equal_repetition_in_one_batch(data, batch_size):
    X, y = data[0][:20], data[1][:20]
    weight = np.arange(20) % 3
    params = {**QUICK, "batch_size": batch_size}
    weighted = AnchoredQuantileRegressor(**params).fit(X, y, weight)
    repeated = AnchoredQuantileRegressor(**params).fit(X.repeat(weight, 0), y.repeat(weight))
    np.testing.assert_allclose(weighted.predict(X), repeated.predict(X), rtol=1e-9)
    np.testing.assert_allclose(
        weighted.predict_uncertainty(X).epistemic,
        repeated.predict_uncertainty(X).epistemic,
        rtol=1e-6,
    )


def test_wrong_parameters_are_refused(data):
    for params in (
        *[{"n_quantiles": 1}, {"n_members": 1}, {"noise_scale": -0.1}, {"prior_gain": 0.0}],
        *[{"learning_rate": 0.0}, {"learning_rate": 1e300}, {"max_epochs": 0}, {"batch_size": 0}],
        *[{"activation": "sigmoid"}, {"device": "abacus"}, {"hidden_sizes": 10}],
        *[{"hidden_sizes": (10, 0)}, {"hidden_sizes": (2.5,)}],
    ):
        with pytest.raises(ValueError, match=next(iter(params))):
            AnchoredQuantileRegressor(**{**QUICK, **params}).fit(*data)


def test_an_activation_without_hidden_layers_is_refused(data):
    linear = AnchoredQuantileRegressor(hidden_sizes=(), max_epochs=1, random_state=0)
    linear.fit(*data)
    with pytest.raises(ValueError, match="activation='relu' has no effect without hidden layers"):
        linear.set_params(activation="relu").fit(*data)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e-200, 1e140])
def test_constant_target_is_predicted_exactly_and_without_doubt(data, value):
    weight = np.random.default_rng(0).uniform(size=400)  # the mean of .1 is not .1
    model = AnchoredQuantileRegressor(**QUICK).fit(data[0], np.full(400, value), weight)
    X = np.r_[data[0], [[100.0]]]
    np.testing.assert_allclose(model.predict(X), value, rtol=1e-14)
    np.testing.assert_allclose(model.predict_quantiles(X), value, rtol=1e-14)
    u = model.predict_uncertainty(X)
    assert u.total.max() <= (1e-14 * value) ** 2


def test_loss_goes_down(fitted):
    losses = fitted.history_[:, "train_loss"]
    assert len(losses) == fitted.max_epochs
    assert losses[-1] < 0.5 * losses[0]


def test_the_noise_grows_with_the_root_of_the_number_of_varying_features(data, monkeypatch):
    seen = []
    loss = _regressor.AnchoredLoss
    monkeypatch.setattr(_regressor, "AnchoredLoss", lambda *args: seen.append(args) or loss(*args))
    X = np.column_stack([data[0], data[0] ** 2, data[0] ** 3, data[0] ** 4, np.ones(400)])
    AnchoredQuantileRegressor(**QUICK | {"max_epochs": 1, "noise_scale": 0.5}).fit(X, data[1])
    ((_, noise_scale, n_samples),) = seen
    assert (noise_scale, n_samples) == (1.0, 400)
