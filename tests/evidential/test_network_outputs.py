"""Hidden representations are read, and the network stays as it is."""

import copy

import numpy as np
import pytest
import torch
from sklearn.neural_network import MLPClassifier
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.nn.utils.parametrize import register_parametrization

from skuq._networks import MLP, LeNet
from skuq.evidential._outputs import read_layer
from skuq.models import adopt


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)
    ).eval()


@pytest.fixture
def x():
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def read(network, x, layer):
    with torch.no_grad():
        return read_layer(network, lambda: network(x), layer)


@pytest.mark.parametrize(
    ("layer", "n_modules"), [(-1, 6), (-2, 5), (-3, 3), (-4, 0), ("0", 1), ("1", 2), ("4", 5)]
)
def test_layers_hold_what_the_modules_before_them_compute(net, x, layer, n_modules):
    logits, hidden = read(net, x, layer)
    with torch.no_grad():
        torch.testing.assert_close(logits, net(x))
        torch.testing.assert_close(hidden, net[:n_modules](x))


@pytest.mark.parametrize("layer", [-2, "0"])
def test_hooks_are_removed(net, x, layer):
    read(net, x, layer)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


@pytest.mark.parametrize("layer", [-2, "0"])
def test_hooks_are_removed_after_an_error(net, layer):
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        read(net, torch.zeros(5, 3), layer)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


@pytest.mark.parametrize("layer", [-1, -2, "0"])
def test_network_stays_as_it_is(x, layer):
    network = MLP(4, 3, hidden_sizes=(8,), dropout=0.5).train()
    before = copy.deepcopy(network.state_dict())
    read(network, x, layer)
    assert all(m.training for m in network.modules())
    assert all(p.requires_grad for p in network.parameters())
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])


def test_layer_beyond_the_first_is_refused(net, x):
    with pytest.raises(ValueError, match="only 3 of them; pass the name of a module instead"):
        read(net, x, -5)


@pytest.mark.parametrize("name", ["nope", "", "0.weight"])
def test_unknown_name_is_refused_with_those_there_are(net, x, name):
    with pytest.raises(ValueError, match=f"has no module `layer`='{name}'; .* 5"):
        read(net, x, name)


def test_module_that_does_not_run_is_refused(x):
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.used(x)

    with pytest.raises(ValueError, match="evaluated only 0"):
        read(Idle(), x, "unused")


def test_layer_that_does_not_hold_samples_is_refused(x):
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.last = nn.Linear(4, 2), nn.Linear(2, 3)

        def forward(self, x):
            return self.last(self.mean(x.mean(dim=0)).expand(len(x), 2))

    with pytest.raises(ValueError, match=r"tensor with 5 rows, one for each sample, got \(2,\)"):
        read(Pooled(), x, "mean")


def test_module_that_runs_twice_counts_as_two_layers(x):
    shared = nn.Linear(4, 4)
    network = nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(4, 3))
    with torch.no_grad():
        torch.testing.assert_close(read(network, x, -3)[1], network[:2](x))
        torch.testing.assert_close(read(network, x, "0")[1], network[:3](x))


def test_activation_in_place_does_not_spoil_what_is_read(x):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
    with torch.no_grad():
        torch.testing.assert_close(read(network, x, "0")[1], network[0](x))


def test_module_called_with_names_is_read(x):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 2), nn.Linear(2, 3)

        def forward(self, x):
            return self.last(input=self.first(x))

    network = Named()
    with torch.no_grad():
        torch.testing.assert_close(read(network, x, -2)[1], network.first(x))


@pytest.mark.parametrize(("layer", "width"), [(-1, 10), (-2, 84), (-3, 120)])
def test_lenet(layer, width):
    network = LeNet().eval()
    logits, hidden = read(network, torch.zeros(2, 1, 28, 28), layer)
    assert (logits.shape, hidden.shape) == ((2, 10), (2, width))


def test_channels_are_flattened():
    network = LeNet().eval()
    first = next(name for name, m in network.named_modules() if isinstance(m, nn.Conv2d))
    _, hidden = read(network, torch.zeros(2, 1, 28, 28), first)
    assert hidden.ndim == 2
    assert len(hidden) == 2


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n_classes", [2, 3])
def test_hidden_layer_of_scikit_learn_networks(n_classes):
    X = np.random.default_rng(0).normal(size=(30, 4))
    model = MLPClassifier((7, 5), max_iter=3, random_state=0).fit(X, np.arange(30) % n_classes)
    adopted = adopt(model)
    _, hidden = read(adopted.module, adopted.inputs(X), -2)
    manual = X
    for weight, bias in zip(model.coefs_[:2], model.intercepts_[:2], strict=True):
        manual = np.maximum(manual @ weight + bias, 0)
    np.testing.assert_allclose(hidden.numpy(), manual, atol=1e-5)


def test_last_layer_of_a_gcn_is_given_its_hidden_units(gcn):
    _, hidden = read(gcn.network_, gcn.graph_, -2)
    adjacency = gcn.graph_.adjacency.toarray() + np.eye(gcn.graph_.n_nodes)
    root = np.diag(adjacency.sum(axis=1) ** -0.5)
    layer = gcn.network_.layers[0]
    manual = root @ adjacency @ root @ gcn.graph_.features.numpy() @ layer.linear.weight.numpy().T
    manual = np.maximum(manual + layer.bias.numpy(), 0)
    assert hidden.shape == (gcn.graph_.n_nodes, 8)
    np.testing.assert_allclose(hidden.numpy(), manual, atol=1e-5)


def test_layers_with_parametrised_weights_count(x):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), spectral_norm(nn.Linear(8, 3))).eval()
    _, hidden = read(network, x, -2)
    with torch.no_grad():
        torch.testing.assert_close(hidden, network[:2](x))


def test_layers_inside_a_parametrisation_do_not_count(x):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)).eval()
    register_parametrization(network[1], "weight", nn.Linear(8, 8))
    _, hidden = read(network, x, -2)
    with torch.no_grad():
        torch.testing.assert_close(hidden, network[0](x))
