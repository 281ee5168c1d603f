"""MC dropout against loops in training mode."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

from skuq.baselines import MCDropoutClassifier
from skuq.baselines._mc_dropout import _dropout_modules, _masked_outputs
from skuq.models import adopt
from skuq.networks import LeNet
from tests.baselines.oracles import by_hand, seeded_module


def test_mean_over_dropout_is_that_of_a_loop_in_training_mode(iris, dropped):
    model = MCDropoutClassifier(FrozenEstimator(dropped), n_samples=3000, random_state=0)
    x = iris[0][70:71]
    u = model.set_params(setting="expected").fit(*iris).predict_uncertainty(x)
    network = adopt(dropped).module.train()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        looped = torch.stack([network(torch.as_tensor(x)).softmax(-1) for _ in range(3000)], dim=1)
    aleatoric, epistemic = by_hand(None, looped.numpy(), "expected")
    assert u.aleatoric == pytest.approx(aleatoric, rel=0.05)
    assert u.epistemic == pytest.approx(epistemic, rel=0.1)


@pytest.mark.parametrize("setting", ["selected", "expected", "max-score"])
def test_masked_networks_are_compared_as_the_equations_say(iris, dropped, setting):
    model = MCDropoutClassifier(
        FrozenEstimator(dropped), n_samples=5, setting=setting, random_state=0
    ).fit(*iris)
    X = torch.as_tensor(iris[0][:9])
    outputs = _masked_outputs(adopt(dropped), X, n_samples=5, seed=model._sampling_seed).softmax(-1)
    u = model.predict_uncertainty(iris[0][:9])
    reference = dropped(X).softmax(-1).detach().numpy()
    aleatoric, epistemic = by_hand(reference, outputs.numpy(), setting)
    np.testing.assert_allclose(u.aleatoric, aleatoric)
    np.testing.assert_allclose(u.epistemic, epistemic, atol=1e-12)


def test_default_network_has_dropout_of_the_rate_asked_for(iris):
    model = MCDropoutClassifier(dropout=0.4, n_samples=5, random_state=0).fit(*iris)
    assert [module.p for module in _dropout_modules(model.model_.module)] == [0.4]
    with pytest.raises(ValueError, match="one class only"):
        MCDropoutClassifier().fit(iris[0], np.zeros(150))


def test_model_without_dropout_is_refused_with_the_ways_out(iris):
    model = MCDropoutClassifier(LogisticRegression())
    with pytest.raises(ValueError, match=r"no dropout module .* estimator=None"):
        model.fit(*iris)
    with pytest.raises(NotFittedError):
        model.predict(iris[0])


def test_lenet_has_dropout_of_its_own():
    X = np.random.default_rng(0).random((12, 1, 16, 16)).astype(np.float32)
    lenet = seeded_module(lambda: LeNet(3, image_shape=(1, 16, 16)))
    model = MCDropoutClassifier(FrozenEstimator(lenet), n_samples=20, random_state=0)
    u = model.fit(X, np.arange(12) % 3).predict_uncertainty(X[:2])
    assert (u.epistemic > 0).all()
