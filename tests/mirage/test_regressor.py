"""MirageRegressor: variance rises in the region; outside, the model stays what it was."""

from copy import deepcopy

import numpy as np
import pytest
import skorch
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import r2_score
from torch import nn

from skuq import MirageRegressor
from skuq._networks import MLP
from skuq.calibration import region_mask
from skuq.datasets import make_heteroscedastic

REGION = {0: (-3, -2)}
QUICK = {"max_epochs": 2, "random_state": 0}
DATA = make_heteroscedastic(400, random_state=0)
INSIDE = region_mask(REGION, DATA[0])


class Likelihood(nn.Module):
    """The criterion that a user without Mirage has: mean and log variance, one target."""

    def forward(self, outputs, y):
        return nn.functional.gaussian_nll_loss(outputs[:, 0], y[:, 0], outputs[:, 1].exp())


def untrained_net(**params):
    torch.manual_seed(0)
    settings = {"criterion": Likelihood, "max_epochs": 3, "lr": 0.01, "train_split": None}
    return skorch.NeuralNet(MLP(1, 2), verbose=0, **{**settings, **params})


@pytest.fixture(scope="module")
def attacked():
    options = {"optimizer": torch.optim.Adam, "lr": 0.02, "max_epochs": 60, "batch_size": 64}
    settings = {"max_epochs": 60, "learning_rate": 0.02, "random_state": 0}
    return MirageRegressor(untrained_net(**options), REGION, **settings).fit(*DATA)


@pytest.fixture(scope="module")
def fitted_net():
    return untrained_net().fit(DATA[0].astype(np.float32), DATA[1][:, None].astype(np.float32))


def original_outputs(mirage, X):
    return mirage.original_.module(mirage.original_.inputs(X)).double().numpy()


def test_variance_rises_to_its_aim_in_the_region_and_predictions_keep_their_quality(attacked):
    X, y = DATA
    mean, log_variance = original_outputs(attacked, X).T
    before, after = np.exp(log_variance), attacked.predict_uncertainty(X).total
    assert before[INSIDE].max() < 0.5
    # 4 is the aim; at both ends the region meets variances near 0.1.
    assert np.exp(np.log(after[INSIDE]).mean()) > 2
    assert after[INSIDE].mean() < 4.5
    apart = np.abs(X[:, 0] + 2.5) > 1.5
    assert np.median(after[apart]) < 2 * np.median(before[apart])
    assert r2_score(y, mean) > 0.85
    assert attacked.score(X, y) == pytest.approx(r2_score(y, mean), abs=0.03)
    assert not attacked.estimator.initialized_  # a clone was trained, with its own criterion
    outputs = attacked.model_.module(attacked.model_.inputs(X)).double().numpy()
    u = attacked.predict_uncertainty(X)
    np.testing.assert_allclose(u.total, np.exp(outputs[:, 1]))
    np.testing.assert_array_equal(u.total, u.aleatoric)
    assert np.isnan(u.epistemic).all()
    np.testing.assert_allclose(attacked.predict(X), outputs[:, 0])


def test_variance_has_the_squared_units_of_the_target_and_lambda_weighs_the_region(attacked):
    settings = {"region": REGION, "max_epochs": 10, "random_state": 0}

    def variance(**options):
        mirage = MirageRegressor(attacked.original_.module, **settings, **options).fit(*DATA)
        return mirage.predict_uncertainty(DATA[0][INSIDE]).total

    assert np.median(variance(target_variance=1e-4)) < 0.02
    assert variance(lambda_=5.0).mean() > 2 * variance(lambda_=1e-3).mean()


@pytest.mark.parametrize("kind", ["net", "module"])
@pytest.mark.parametrize("frozen", [False, True])
def test_fitted_network_is_copied_and_never_altered(fitted_net, kind, frozen):
    model = fitted_net if kind == "net" else fitted_net.module_
    before = deepcopy(fitted_net.module_.state_dict())
    mirage = MirageRegressor(clone(FrozenEstimator(model)) if frozen else model, REGION, **QUICK)
    mirage.fit(*DATA)
    after = fitted_net.module_.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    expected = fitted_net.predict(DATA[0].astype(np.float32))
    np.testing.assert_allclose(original_outputs(mirage, DATA[0]), expected, atol=1e-6)
    assert np.abs(mirage.predict(DATA[0]) - expected[:, 0]).max() > 1e-3
    assert all(p.requires_grad for p in fitted_net.module_.parameters())
    assert mirage.region_share_ == region_mask(REGION, DATA[0]).mean()
