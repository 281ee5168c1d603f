"""MC dropout against loops in training mode; its masks are the same for all inputs."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.frozen import FrozenEstimator
from torch import nn

from skuq._networks import LeNet
from skuq.baselines import MCDropoutClassifier
from skuq.baselines._single_model import MaskedNetworks, _dropout_modules
from skuq.models import NetworkModel, adopt
from tests.baselines.oracles import assert_as_by_hand, seeded_module


def _masked_outputs(module, X, *, n_samples, seed=0):
    return MaskedNetworks(adopt(module), n_samples, seed).outputs(X)


def test_masked_networks_are_compared_as_the_equations_say(iris, dropped):
    options = {"n_samples": 5, "setting": "selected", "random_state": 0}
    model = MCDropoutClassifier(FrozenEstimator(dropped), **options).fit(*iris)
    X = torch.as_tensor(iris[0][:9])
    outputs = _masked_outputs(dropped, X, n_samples=5, seed=model._sampling_seed).softmax(-1)
    reference = dropped(X).softmax(-1).detach().numpy()
    u = model.predict_uncertainty(iris[0][:9])
    assert_as_by_hand(u, reference, outputs.numpy(), "selected", atol=1e-12)


def test_default_network_has_dropout_of_the_rate_asked_for(iris):
    model = MCDropoutClassifier(dropout=0.4, n_samples=5, random_state=0).fit(*iris)
    assert [module.p for module in _dropout_modules(model.model_.module)] == [0.4]


def test_lenet_has_dropout_of_its_own():
    X = np.random.default_rng(0).random((12, 1, 16, 16)).astype(np.float32)
    lenet = seeded_module(lambda: LeNet(3, image_shape=(1, 16, 16)))
    model = MCDropoutClassifier(FrozenEstimator(lenet), n_samples=20, random_state=0)
    u = model.fit(X, np.arange(12) % 3).predict_uncertainty(X[:2])
    assert (u.epistemic > 0).all()


def tiny(rate=0.3):
    def layers():
        return nn.Linear(2, 3), nn.Tanh(), nn.Dropout(rate), nn.Linear(3, 2)

    return seeded_module(lambda: nn.Sequential(*layers()).double())


def test_masked_networks_are_those_of_a_network_in_training_mode():
    # Three hidden units: the eight networks can be listed, each with its probability.
    network, rate = tiny(), 0.3
    X = torch.tensor([[1.0, -0.5], [0.3, 2.0]], dtype=torch.float64)
    found = _masked_outputs(network, X, n_samples=2000)
    hidden = torch.tanh(network[0](X)).detach()
    for kept in itertools.product([0.0, 1.0], repeat=3):
        mask = torch.tensor(kept, dtype=torch.float64) / (1 - rate)
        expected = network[3](hidden * mask).detach()
        share = torch.isclose(found, expected[:, None]).all(-1)
        assert torch.equal(share[0], share[1])  # the same networks for both points
        p = rate ** kept.count(0.0) * (1 - rate) ** kept.count(1.0)
        assert float(share[0].double().mean()) == pytest.approx(p, abs=5 * (p / 2000) ** 0.5)


def test_whole_channels_are_dropped_where_the_layer_drops_channels():
    network = nn.Sequential(nn.Dropout2d(0.5), nn.Flatten()).eval()
    X = torch.ones(2, 8, 3, 3)
    found = MaskedNetworks(NetworkModel(module=network), 20, 0).outputs(X)
    by_channel = found.reshape(2, 20, 8, 9)
    assert torch.equal(by_channel, by_channel[..., :1].expand_as(by_channel))
    assert set(found.unique().tolist()) == {0.0, 2.0}


def test_more_samples_extend_fewer():
    network, X = tiny(), torch.ones(1, 2, dtype=torch.float64)
    few, many = (_masked_outputs(network, X, n_samples=n) for n in (3, 8))
    assert torch.equal(few, many[:, :3])


def test_outputs_do_not_depend_on_company():
    norm = seeded_module(lambda: nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16)))
    network = nn.Sequential(norm, nn.Dropout(0.5)).eval()
    X = torch.randn(3000, 4, generator=torch.Generator().manual_seed(0))
    together = _masked_outputs(network, X, n_samples=3)  # several batches
    for rows in (slice(0, 5), slice(-5, None), slice(1022, 1026)):
        torch.testing.assert_close(together[rows], _masked_outputs(network, X[rows], n_samples=3))


def test_a_module_that_is_called_twice_has_two_masks():
    dropout = nn.Dropout(0.5)
    network = nn.Sequential(dropout, dropout).eval()
    found = MaskedNetworks(NetworkModel(module=network), 1, 0).outputs(torch.ones(1, 4000))
    share = float((found > 0).float().mean())
    assert share == pytest.approx(0.25, abs=5 * (0.25 * 0.75 / 4000) ** 0.5)


def test_only_modules_that_drop_are_found():
    layers = nn.Dropout(0.0), nn.Dropout2d(0.1), nn.AlphaDropout(0.5)
    found = _dropout_modules(nn.Sequential(*layers))
    assert [type(module) for module in found] == [nn.Dropout2d]
