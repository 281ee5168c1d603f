"""Hidden representations are read, and the network stays as it is."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import register_parametrization

from skuq._networks import MLP, LeNet
from skuq.evidential._outputs import read_layer

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def net():
    torch.manual_seed(0)
    layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(6, 3)).eval()


def read(network, layer, x=X):
    with torch.no_grad():
        return read_layer(network, lambda: network(x), layer)


def check_hidden(network, layer, expected):
    with torch.no_grad():
        logits, hidden = read(network, layer)
        torch.testing.assert_close(logits, network(X))
        torch.testing.assert_close(hidden, expected(X))


@pytest.mark.parametrize(
    ("layer", "n_modules"), [(-1, 6), (-2, 5), (-3, 3), (-4, 0), ("0", 1), ("1", 2), ("4", 5)]
)
def test_layers_hold_what_the_modules_before_them_compute(net, layer, n_modules):
    check_hidden(net, layer, net[:n_modules])


@pytest.mark.parametrize("layer", [-2, "0"])
def test_hooks_are_removed_even_after_an_error(layer):
    network = MLP(4, 3, hidden_sizes=(8,), dropout=0.5).train()
    read(network, layer)
    with pytest.raises(RuntimeError):
        read(network, layer, torch.zeros(5, 3))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in network.modules())
    assert all(m.training for m in network.modules())


class Two(nn.Module):
    def __init__(self, call, width=2):
        super().__init__()
        self.call, self.first, self.last = call, nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.call(self, x)


POOLED = Two(lambda self, x: self.last(self.first(x.mean(dim=0)).expand(len(x), 2)))
IDLE = Two(lambda self, x: self.first(x), width=3)


@pytest.mark.parametrize(
    ("network", "layer", "word"),
    [
        (MLP(4, 3, hidden_sizes=(8, 6)), -5, "only 3"),
        *((MLP(4, 3), name, f"`layer`='{name}'.*only 0.* 2") for name in ["nope", "", "0.weight"]),
        (IDLE, "last", "only 0"),
        (POOLED, "first", r"5 rows.*got \(2,\)"),
    ],
)
def test_layer_that_does_not_hold_samples_is_refused(network, layer, word):
    with pytest.raises(ValueError, match=word):
        read(network, layer)


def test_modules_that_run_twice_activations_in_place_and_inputs_with_names_are_read():
    shared = nn.Linear(4, 4)
    network = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(4, 3))
    check_hidden(network, -3, network[:2])
    check_hidden(network, "0", network[:3])
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    check_hidden(network, "0", network[0])
    network = Two(lambda self, x: self.last(input=self.first(x)))
    check_hidden(network, -2, network.first)


def test_layers_with_parametrised_weights_count_but_not_those_inside():
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), spectral_norm(nn.Linear(8, 3))).eval()
    check_hidden(network, -2, network[:2])
    network = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)).eval()
    register_parametrization(network[1], "weight", nn.Linear(8, 8))
    check_hidden(network, -2, network[0])


@pytest.mark.parametrize(("layer", "width"), [(-2, 84), (-3, 120), ("features.0", 6 * 24 * 24)])
def test_lenet_with_its_channels_flattened(layer, width):
    _, hidden = read(LeNet().eval(), layer, torch.zeros(2, 1, 28, 28))
    assert hidden.shape == (2, width)


def test_last_layer_of_a_gcn_is_given_its_hidden_units(gcn):
    network, graph = gcn.network_, gcn.graph_
    _, hidden = read(network, -2, graph)
    torch.testing.assert_close(hidden, network.layers[0](graph.edges, graph.features).relu())
