"""MirageRegressor: variance rises in the region; outside, the model stays what it was."""

import numpy as np
import pytest
import skorch
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.metrics import r2_score
from torch import nn

from skuq import MirageRegressor
from skuq._networks import MLP
from skuq.calibration import region_mask
from skuq.datasets import make_heteroscedastic
from skuq.mirage import GaussianMirageLoss

REGION = {0: (-3, -2)}
QUICK = {"max_epochs": 3, "random_state": 0}


class Likelihood(nn.Module):
    """The criterion that a user without Mirage has: mean and log variance, one target."""

    def forward(self, outputs, y):
        return nn.functional.gaussian_nll_loss(outputs[:, 0], y[:, 0], outputs[:, 1].exp())


def untrained_net(n_outputs=2, **params):
    torch.manual_seed(0)
    settings = {"criterion": Likelihood, "max_epochs": 3, "lr": 0.01, "train_split": None}
    return skorch.NeuralNet(MLP(1, n_outputs), verbose=0, **{**settings, **params})


@pytest.fixture(scope="module")
def data():
    return make_heteroscedastic(400, random_state=0)


@pytest.fixture(scope="module")
def inside(data):
    return region_mask(REGION, data[0])


@pytest.fixture(scope="module")
def attacked(data):
    return MirageRegressor(None, REGION, max_epochs=80, learning_rate=0.02, random_state=0).fit(
        *data
    )


@pytest.fixture(scope="module")
def fitted_net(data):
    return untrained_net().fit(data[0].astype(np.float32), data[1][:, None].astype(np.float32))


def original_outputs(mirage, X):
    return mirage.original_.module(mirage.original_.inputs(X)).double().numpy()


@pytest.mark.slow
def test_variance_rises_to_its_aim_in_the_region(data, inside, attacked):
    before = np.exp(original_outputs(attacked, data[0])[:, 1])
    after = attacked.predict_uncertainty(data[0]).total
    assert before[inside].max() < 0.5
    # 4 is the aim; at both ends the region meets variances near 0.1.
    assert np.exp(np.log(after[inside]).mean()) > 2
    assert after[inside].mean() < 4.5
    apart = np.abs(data[0][:, 0] + 2.5) > 1.5
    assert np.median(after[apart]) < 2 * np.median(before[apart])


def test_predictions_keep_their_quality(data, inside, attacked):
    X, y = data
    before = r2_score(y, original_outputs(attacked, X)[:, 0])
    assert before > 0.85
    assert attacked.score(X, y) == pytest.approx(before, abs=0.03)


def test_uncertainty_is_the_variance_that_the_model_reports(data, attacked):
    X = data[0][:20]
    outputs = attacked.model_.module(attacked.model_.inputs(X)).numpy()
    u = attacked.predict_uncertainty(X)
    np.testing.assert_allclose(u.total, np.exp(outputs[:, 1]))
    np.testing.assert_array_equal(u.total, u.aleatoric)
    assert np.isnan(u.epistemic).all()
    np.testing.assert_allclose(attacked.predict(X), outputs[:, 0])


@pytest.mark.slow
def test_variance_has_the_squared_units_of_the_target(data, inside, attacked):
    (X, y), network = data, attacked.original_.module
    small = MirageRegressor(network, REGION, target_variance=1e-4, max_epochs=20, random_state=0)
    variance = small.fit(X, y).predict_uncertainty(X[inside]).total
    assert np.median(variance) < 0.02


@pytest.mark.slow
def test_lambda_weighs_the_region(data, inside, attacked):
    network = attacked.original_.module
    strong, weak = (
        MirageRegressor(network, REGION, lambda_=weight, max_epochs=10, random_state=0)
        .fit(*data)
        .predict_uncertainty(data[0][inside])
        .total.mean()
        for weight in (5.0, 1e-3)
    )
    assert strong > 2 * weak


@pytest.mark.parametrize(
    "wrap", [lambda m: m, FrozenEstimator, lambda m: clone(FrozenEstimator(m))]
)
@pytest.mark.parametrize("kind", ["net", "module"])
def test_fitted_network_is_copied_and_never_altered(data, fitted_net, kind, wrap):
    model = fitted_net if kind == "net" else fitted_net.module_
    before = {k: v.clone() for k, v in fitted_net.module_.state_dict().items()}
    mirage = MirageRegressor(wrap(model), REGION, **QUICK).fit(*data)
    after = fitted_net.module_.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    expected = fitted_net.predict(data[0].astype(np.float32))
    np.testing.assert_allclose(original_outputs(mirage, data[0]), expected, atol=1e-6)
    assert np.abs(mirage.predict(data[0]) - expected[:, 0]).max() > 1e-3
    assert all(p.requires_grad for p in fitted_net.module_.parameters())


def test_net_that_is_not_fitted_is_cloned_and_trained_with_its_own_criterion(data):
    net = untrained_net(max_epochs=30, lr=0.02, optimizer=torch.optim.Adam)
    mirage = MirageRegressor(net, REGION, **QUICK).fit(*data)
    assert not net.initialized_
    assert r2_score(data[1], original_outputs(mirage, data[0])[:, 0]) > 0.5


@pytest.mark.usefixtures("short_training")
@pytest.mark.slow
def test_equal_seeds_give_equal_models_and_torch_is_left_alone(data, inside):
    state = torch.random.get_rng_state()
    first, second, other = (
        MirageRegressor(None, max_epochs=2, random_state=seed)
        .fit(*data, region_mask=inside)
        .predict(data[0][:5])
        for seed in (0, 0, 1)
    )
    assert torch.equal(state, torch.random.get_rng_state())
    np.testing.assert_array_equal(first, second)
    assert not np.allclose(first, other)


def test_region_as_mask_equals_the_region_as_parameter(data, inside, fitted_net):
    told = MirageRegressor(fitted_net, **QUICK).fit(*data, region_mask=inside)
    described = MirageRegressor(fitted_net, REGION, **QUICK).fit(*data)
    np.testing.assert_array_equal(told.predict(data[0]), described.predict(data[0]))
    assert told.region_share_ == inside.mean()


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_network_without_exactly_mean_and_variance_is_refused(data, n_outputs):
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=rf"shape \(n_samples, 2\), got shape \(1, {n_outputs}\)"):
        MirageRegressor(MLP(1, n_outputs), REGION, **QUICK).fit(*data)


@pytest.mark.parametrize("estimator", [LinearRegression(), "mlp"])
def test_what_is_no_network_is_refused(data, estimator):
    with pytest.raises(TypeError, match=r"Cannot adopt LinearRegression|`estimator` must"):
        MirageRegressor(estimator, REGION, **QUICK).fit(*data)


def test_fitted_model_of_another_kind_is_refused(data):
    with pytest.raises(TypeError, match="Cannot adopt LinearRegression"):
        MirageRegressor(LinearRegression().fit(*data), REGION, **QUICK).fit(*data)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"target_variance": 0.0}, "'target_variance' parameter"),
        ({"target_variance": -1.0}, "'target_variance' parameter"),
        ({"lambda_": 0.0}, "'lambda_' parameter"),
        ({"max_epochs": 0}, "'max_epochs' parameter"),
        ({"region": {0: (50, 60)}}, "The region contains 0 of"),
        ({"region": {0: (-50, 60)}}, "at least one must lie inside, and one outside"),
        ({"region": None}, "No region is given; pass it either"),
        (
            {"learning_rate": 1e9, "optimizer": torch.optim.SGD},
            r"diverged: .* smaller `learning_rate` than 1000000000",
        ),
    ],
)
def test_impossible_attacks_are_refused(data, fitted_net, params, message):
    params = {"region": REGION, **QUICK, **params}
    with pytest.raises(ValueError, match=message):
        MirageRegressor(fitted_net, **params).fit(*data)


def test_criterion_serves_a_net_of_the_user_too(data):
    targets = np.column_stack([data[1], np.zeros(400)]).astype(np.float32)
    net = untrained_net(criterion=GaussianMirageLoss)
    assert np.isfinite(net.fit(data[0].astype(np.float32), targets).history[-1, "train_loss"])


@pytest.mark.parametrize(
    "change",
    [
        {"region": {0: (-3, 0)}},
        {"target_variance": 2.0},
        {"lambda_": 3.0},
        {"max_epochs": 4},
        {"learning_rate": 0.01},
        {"batch_size": 32},
        {"optimizer": torch.optim.SGD},
        {"callbacks": []},
        {"random_state": 1},
    ],
)
def test_each_parameter_changes_the_attack(data, fitted_net, change):
    settings = {"region": REGION, **QUICK}
    default, changed = (
        MirageRegressor(fitted_net, **params).fit(*data).predict_uncertainty(data[0]).total
        for params in (settings, settings | change)
    )
    assert np.abs(changed - default).max() > 1e-6
