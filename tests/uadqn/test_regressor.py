"""AnchoredQuantileRegressor: what it learns, what it refuses, what it leaves alone."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from skuq import AnchoredQuantileRegressor
from skuq.uadqn._losses import (
    aleatoric_variance,
    epistemic_variance,
    prior_scale,
    quantile_levels,
    quantile_loss,
)
from skuq.uadqn._networks import weights_of
from skuq.uadqn._regressor import AnchoredLoss, QuantileNetworks

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
    return AnchoredQuantileRegressor(random_state=0).fit(*data)


def test_mean_and_noise_are_learnt(fitted):
    X = np.array([-0.8, -0.4, 0.4, 0.8])[:, None]
    np.testing.assert_allclose(fitted.predict(X), 10 + np.sin(3 * X[:, 0]), atol=0.25)
    aleatoric = np.sqrt(fitted.predict_uncertainty(X).aleatoric)
    np.testing.assert_allclose(aleatoric, noise(X[:, 0]), rtol=0.4)


def test_epistemic_part_grows_away_from_the_data(fitted):
    epistemic = fitted.predict_uncertainty([[0.0], [0.5], [3.0], [-3.0]]).epistemic
    assert epistemic[2:].min() > 10 * epistemic[:2].max()


def test_interval_on_unseen_data_covers_what_it_says(fitted):
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, size=(4000, 1))
    y = 10 + np.sin(3 * X[:, 0]) + noise(X[:, 0]) * rng.normal(size=4000)
    low, high = fitted.predict_quantiles(X, [0.1, 0.9]).T
    assert 0.75 < ((low <= y) & (y <= high)).mean() < 0.85


@pytest.mark.slow
def test_interval_on_diabetes_is_not_far_from_what_it_says():
    X, y = load_diabetes(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.4, random_state=0)
    model = AnchoredQuantileRegressor(random_state=0).fit(X_train, y_train)
    low, high = model.predict_quantiles(X_test, [0.1, 0.9]).T
    assert 0.65 < ((low <= y_test) & (y_test <= high)).mean() < 0.9
    assert model.score(X_test, y_test) > 0.3


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


@pytest.mark.parametrize("level", [0.0, 0.001, 0.995, 1.0, np.nan])
def test_levels_beyond_the_quantiles_are_refused(fitted, level):
    with pytest.raises(ValueError, match=r"between 0.01 and 0.99.*use more quantiles"):
        fitted.predict_quantiles([[0.0]], [0.5, level])


def test_a_single_level_must_come_as_a_list(fitted):
    with pytest.raises(ValueError, match="one-dimensional"):
        fitted.predict_quantiles([[0.0]], 0.5)


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
        expected += (one * weight).sum() / weight.sum()
        moved = sum(
            ((p[k] - a[k]) ** 2).sum() for p, a in zip(networks.parameters(), anchors, strict=True)
        )
        expected += 0.5**2 / (scales[k] ** 2 * 40) * moved
    torch.testing.assert_close(loss(quantiles, y, {"weight": weight}), expected)


@pytest.mark.slow
def test_strong_anchors_keep_the_networks_where_they_started(data):
    X = data[0][:50]
    spread = {
        noise_scale: AnchoredQuantileRegressor(
            **{**QUICK, "max_epochs": 30}, noise_scale=noise_scale
        )
        .fit(*data)
        .predict_uncertainty(X)
        .epistemic.mean()
        for noise_scale in (0.1, 20.0)
    }
    assert spread[20.0] > 3 * spread[0.1]


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


def test_weights_that_count_nothing_are_refused(data):
    with pytest.raises(ValueError, match=r"0 for all samples|at least one non-zero"):
        AnchoredQuantileRegressor(**QUICK).fit(*data, np.zeros(400))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_quantiles": 1}, "'n_quantiles' parameter .* must be an int in the range"),
        ({"n_members": 1}, "'n_members' parameter .* must be an int in the range"),
        ({"noise_scale": -0.1}, "'noise_scale' parameter .* must be a float in the range"),
        ({"prior_gain": 0.0}, "'prior_gain' parameter .* must be a float in the range"),
        ({"learning_rate": 0.0}, "'learning_rate' parameter .* must be a float in the range"),
        ({"max_epochs": 0}, "'max_epochs' parameter .* must be an int in the range"),
        ({"batch_size": 0}, "'batch_size' parameter"),
        ({"activation": "sigmoid"}, "'activation' parameter .* must be a str among"),
        ({"hidden_sizes": (10, 0)}, r"`hidden_sizes` must hold positive integers, got \(10, 0\)"),
        ({"hidden_sizes": (2.5,)}, "`hidden_sizes` must hold positive integers"),
        ({"hidden_sizes": 10}, "'hidden_sizes' parameter"),
        ({"device": "abacus"}, "`device`='abacus' cannot be used here"),
        ({"learning_rate": 1e300}, r"diverged: .* smaller `learning_rate`"),
    ],
)
def test_wrong_parameters_are_refused(data, params, message):
    with pytest.raises(ValueError, match=message):
        AnchoredQuantileRegressor(**{**QUICK, **params}).fit(*data)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ([[0.0], [np.nan]], [0.0, 1.0], "Input X contains NaN"),
        ([[0.0], [1.0]], [0.0, np.nan], "Input y contains NaN"),
        ([[0.0], [1.0]], [0.0, np.inf], "Input y contains infinity"),
        (np.empty((0, 1)), [], r"Found array with 0 sample\(s\)"),
        ([[0.0]], [1.0], "minimum of 2 is required"),
        ([[0.0], [1.0]], [0.0, 1.0, 2.0], "inconsistent numbers of samples"),
    ],
)
def test_wrong_data_are_refused(X, y, message):
    with pytest.raises(ValueError, match=message):
        AnchoredQuantileRegressor(**QUICK).fit(X, y)


@pytest.mark.parametrize("method", ["predict", "predict_quantiles", "predict_uncertainty"])
def test_wrong_width_is_refused(fitted, method):
    with pytest.raises(ValueError, match=r"X has 2 features, but .* is expecting 1"):
        getattr(fitted, method)([[0.0, 1.0]])


def test_random_state_decides(data):
    first, second, other = (
        AnchoredQuantileRegressor(**{**QUICK, "random_state": seed}).fit(*data).predict(data[0])
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, second)
    assert not np.allclose(first, other)


def test_global_random_states_are_left_alone(data):
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)
    AnchoredQuantileRegressor(**{**QUICK, "random_state": None}).fit(*data)
    torch_state = torch.get_rng_state()
    AnchoredQuantileRegressor(**QUICK).fit(*data).predict_uncertainty(data[0])
    assert torch.equal(torch_state, torch.get_rng_state())
    torch.manual_seed(5)
    assert torch.equal(torch_state, torch.get_rng_state())


def test_pickle_and_clone(data):
    model = AnchoredQuantileRegressor(**QUICK).fit(*data)
    restored = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(restored.predict(data[0]), model.predict(data[0]))
    assert not hasattr(clone(model), "networks_")


def test_data_frames_keep_their_names(data):
    X = pd.DataFrame(data[0], columns=["x"])
    model = AnchoredQuantileRegressor(**QUICK).fit(X, pd.Series(data[1]))
    assert model.feature_names_in_.tolist() == ["x"]
    expected = AnchoredQuantileRegressor(**QUICK).fit(*data).predict(data[0])
    np.testing.assert_array_equal(model.predict(X), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_results_are_float64(data, dtype):
    X = (100 * data[0]).astype(dtype)
    model = AnchoredQuantileRegressor(**QUICK).fit(X, (100 * data[1]).astype(dtype))
    results = [model.predict(X), model.predict_quantiles(X), *model.predict_uncertainty(X)]
    assert {r.dtype for r in results} == {np.dtype(np.float64)}


def test_constant_target_is_predicted_without_doubt_about_units(data):
    model = AnchoredQuantileRegressor(**QUICK).fit(data[0], np.full(400, 0.1))
    assert np.isfinite(model.predict_uncertainty(data[0]).total).all()


def test_loss_goes_down(fitted):
    losses = fitted.history_[:, "train_loss"]
    assert len(losses) == fitted.max_epochs
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_gpu_agrees_with_cpu(data):
    on_gpu, on_cpu = (
        AnchoredQuantileRegressor(**QUICK, device=device).fit(*data) for device in ("cuda", "cpu")
    )
    np.testing.assert_allclose(on_gpu.predict(data[0]), on_cpu.predict(data[0]), rtol=1e-6)
    assert next(on_gpu.networks_.parameters()).device.type == "cpu"
