"""Networks cut in front of their first linear layer."""

import pickle

import pytest
import torch
from torch import nn

from skuq.networks import MLP, LayerInput, LeNet, TabularNet, cut_network


def convolutional():
    return nn.Sequential(nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 4), nn.Tanh())


CUT = {
    "lenet": (LeNet(3, image_shape=(1, 16, 16)), (256,), 6),
    "tabular": (TabularNet(3, 2, categories={0: 5}), (3,), 6),
    "nested": (nn.Sequential(convolutional(), nn.ReLU(), nn.Linear(4, 2)), (1, 4), 4),
    "in place": (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)), (4,), 2),
}


@pytest.mark.parametrize("name", CUT)
def test_layers_from_the_first_linear_one_on_equal_the_network(name):
    network, shape, n_parameters = CUT[name]
    network = network.double().eval()
    X = torch.rand(6, *shape, dtype=torch.float64) - 0.2
    before = X.clone()
    body, module, _ = cut_network(network, "linear", X[:2])
    features = body(X.clone())
    torch.testing.assert_close(module(features), network(X.clone()))
    torch.testing.assert_close(X, before)
    assert not body.training
    assert not module.training
    assert len(list(module.named_parameters())) == n_parameters
    assert not any(part._forward_pre_hooks for part in network.modules())
    torch.testing.assert_close(pickle.loads(pickle.dumps(body))(X.clone()), features)


@pytest.mark.parametrize("network", [MLP(4, 3), nn.Linear(4, 3), nn.Sequential(MLP(4, 3))])
def test_network_that_starts_with_a_linear_layer_stays_whole(network):
    body, module, _ = cut_network(network.eval(), "linear", torch.ones(2, 4))
    assert body is None
    assert module is network


class Functional(nn.Module):
    """Layers in a forward pass of its own, as many networks have them."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(1, 3, 2)
        self.first = nn.Linear(9, 5)
        self.second = nn.Linear(5, 4)

    def features(self, X):
        return self.convolution(X).relu().flatten(1)

    def forward(self, X):
        return self.second(self.first(self.features(X)).relu())


class Residual(nn.Sequential):
    """Its outputs have the shape that its last layers alone would return."""

    def __init__(self):
        super().__init__(nn.ReLU(), nn.Linear(4, 4))

    def forward(self, X):
        return X + super().forward(X)


class Gate(nn.Module):
    """Squeeze and excitation of 3 channels, with linear layers inside."""

    def __init__(self):
        super().__init__()
        self.squeeze, self.excite = nn.Linear(3, 2), nn.Linear(2, 3)

    def forward(self, X):
        return X * self.excite(self.squeeze(X.mean(2)).relu()).sigmoid()[..., None]


def with_linear_layers_inside(block):
    return nn.Sequential(nn.Conv1d(1, 3, 2), nn.ReLU(), block, nn.Flatten(), nn.Linear(9, 4))


ENCODER = nn.TransformerEncoderLayer(3, 1, 8, batch_first=True)


@pytest.mark.parametrize(
    ("network", "X"),
    [
        (Functional(), torch.randn(3, 1, 4)),
        (with_linear_layers_inside(Gate()), torch.randn(3, 1, 4)),
        (with_linear_layers_inside(ENCODER), torch.randn(3, 1, 4)),
        (Residual(), torch.randn(3, 4)),
    ],
)
def test_network_that_is_not_a_chain_stays_whole(network, X):
    body, module, _ = cut_network(network.eval(), "linear", X)
    assert body is None
    assert module is network


def test_a_network_without_parameters_has_none_that_could_move():
    with pytest.raises(ValueError, match="no parameters of kind 'all'"):
        cut_network(nn.Sequential(nn.Flatten(), nn.ReLU()), "linear", torch.randn(3, 2, 2))


def test_features_of_any_network_can_be_read_off():
    network = Functional().eval()
    X = torch.randn(3, 1, 4)
    features = LayerInput.of_first_linear(network, X)
    torch.testing.assert_close(features(X), network.features(X))
    features = LayerInput.of_last_layer(network, X)
    torch.testing.assert_close(network.second(features(X)), network(X))


def test_networks_that_need_several_rows_can_be_cut():
    norm = nn.BatchNorm1d(4, track_running_stats=False)
    network = nn.Sequential(norm, nn.Linear(4, 3)).eval()
    X = torch.randn(6, 4)
    body, module, _ = cut_network(network, "linear", X)
    torch.testing.assert_close(module(body(X)), network(X))


def test_network_without_linear_layers_has_no_features_before_them():
    assert LayerInput.of_first_linear(nn.Sequential(nn.ReLU()), torch.ones(1, 2)) is None
