"""Variants of a network: what is cut off before weights that move, and many evaluated at once."""

import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call

from skuq._networks import (
    MLP,
    BinaryLogits,
    LayerInput,
    LeNet,
    TabularNet,
    cut_network,
    stack_parameters,
    stacked_forward,
)
from skuq._networks import _variants as module_under_test


class LastStep(nn.Module):
    """Logits of the last time step of a layer for sequences of 3 steps of 4 numbers."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.out = layer, nn.Linear(width, 2)

    def forward(self, X):
        hidden = self.layer(X.reshape(-1, 3, 4))
        return self.out((hidden[0] if isinstance(hidden, tuple) else hidden)[:, -1])


class DependsOnValues(nn.Sequential):
    def forward(self, X):
        return super().forward(X if (X > 2).any() else X + 1)


TWICE = {"num_layers": 2, "bidirectional": True, "batch_first": True}


ENCODER = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)


IN_TURN = {
    "lstm": (LastStep(nn.LSTM(4, 5, **TWICE), 10), (12,)),
    "gru": (LastStep(nn.GRU(4, 5, **TWICE), 10), (12,)),
    "transformer layer": (LastStep(ENCODER, 4), (12,)),
    "transformer": (LastStep(nn.TransformerEncoder(ENCODER, 2), 4), (12,)),
    "values": (DependsOnValues(nn.Linear(3, 2)), (3,)),
}


NETWORKS = {
    "mlp": (MLP(4, 3, hidden_sizes=(6,)), (4,)),
    "lenet": (LeNet(3, image_shape=(1, 16, 16)), (256,)),
    "tabular": (TabularNet(3, 2, categories={0: 5}), (3,)),
    "wrapped": (nn.Sequential(MLP(4, 1), BinaryLogits()), (4,)),
}


@pytest.mark.parametrize("name", [*NETWORKS, *IN_TURN])
@pytest.mark.parametrize("shared_input", [True, False])
@pytest.mark.filterwarnings("error")
def test_stacked_forward_and_its_gradient_equal_a_loop_over_models(name, shared_input):
    network, shape = {**NETWORKS, **IN_TURN}[name]
    network = network.double().eval()
    n_models = 4
    stacked = stack_parameters(network, n_models)
    with torch.no_grad():
        for parameter in stacked.values():
            parameter += 0.1 * torch.randn_like(parameter)
    X = torch.rand(*(() if shared_input else (n_models,)), 5, *shape, dtype=torch.float64)
    outputs = stacked_forward(network, stacked, X, shared_input=shared_input)
    gradients = torch.autograd.grad(outputs.square().sum(), [*stacked.values()])
    before = {name: value.clone() for name, value in network.state_dict().items()}
    for i in range(n_models):
        network.load_state_dict({key: value[i] for key, value in stacked.items()}, strict=False)
        expected = network(X if shared_input else X[i])
        torch.testing.assert_close(outputs[i], expected)
        slow = torch.autograd.grad(expected.square().sum(), [*network.parameters()])
        for fast, own in zip(gradients, slow, strict=True):
            torch.testing.assert_close(fast[i], own)
    network.load_state_dict(before)


class CentresInPlace(nn.Module):
    """Alters its input, and then has no batched form."""

    def __init__(self, rest):
        super().__init__()
        self.register_buffer("mu", torch.tensor(0.5))
        self.rest = rest

    def forward(self, X):
        X -= self.mu
        return self.rest(X)


@pytest.mark.parametrize(
    "rest", [LastStep(nn.GRU(4, 5, batch_first=True), 5), DependsOnValues(nn.Linear(12, 2))]
)
@pytest.mark.parametrize("shared_input", [True, False])
def test_a_network_that_alters_its_input_gets_the_same_one_for_each_variant(rest, shared_input):
    network, n_models = CentresInPlace(rest).double().eval(), 3
    stacked = {
        name: value.detach() + 0.1 * torch.randn_like(value)
        for name, value in stack_parameters(network, n_models).items()
    }
    X = torch.rand(*(() if shared_input else (n_models,)), 5, 12, dtype=torch.float64)
    before = X.clone()
    outputs = stacked_forward(network, stacked, X, shared_input=shared_input)
    torch.testing.assert_close(X, before, rtol=0, atol=0)
    for i in range(n_models):
        own = {name: value[i] for name, value in stacked.items()}
        x = (before if shared_input else before[i]).clone()
        torch.testing.assert_close(outputs[i], functional_call(network, own, (x,)))


@pytest.mark.parametrize("name", NETWORKS)
def test_head_on_cached_features_equals_the_network(name):
    network, shape = NETWORKS[name]
    network = network.double().eval()
    X = torch.rand(6, *shape, dtype=torch.float64)
    head = cut_network(network, "last", X[:1])
    torch.testing.assert_close(head.module(head.body(X)), network(X))
    moved = [name for name, _ in head.module.named_parameters()]
    assert len(moved) == 2
    assert not any(module._forward_pre_hooks for module in network.modules())


class AfterLayer(nn.Module):
    """A layer, and something that is computed of its output."""

    def __init__(self, compute, n_outputs=2):
        super().__init__()
        self.layer, self.compute = nn.Linear(2, n_outputs), compute

    def forward(self, X):
        return self.compute(self.layer(X))


class Gate(nn.Module):
    """Squeeze and excitation of channels, with linear layers inside."""

    def __init__(self, n_channels):
        super().__init__()
        self.squeeze, self.excite = nn.Linear(n_channels, 2), nn.Linear(2, n_channels)

    def forward(self, X):
        return X * self.excite(self.squeeze(X.mean(2)).relu()).sigmoid()[..., None]


class Mean(nn.Module):
    def forward(self, X):
        return X.mean(2)


class Logarithms(nn.Module):
    """Log-probabilities, by a function of torch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, X):
        return nn.functional.log_softmax(self.last(self.first(X).relu()), dim=1)


class TiedLayers(nn.Module):
    """Its last layer has the weights of the one before."""

    def __init__(self):
        super().__init__()
        self.layer, self.layer2 = nn.Linear(2, 2), nn.Linear(2, 2)
        self.layer2.weight = self.layer.weight

    def forward(self, X):
        return 2 * self.layer2(self.layer(X))


OWN = ("layer.weight", "layer.bias")
GATED = nn.Sequential(nn.Conv1d(1, 4, 3), nn.Sequential(Gate(4)), Mean())
EXCITE = ("1.0.excite.weight", "1.0.excite.bias")
AFTER_LAST = {
    "scaled": (AfterLayer(lambda h: 2 * h), torch.ones(1, 2), OWN),
    "seen on the last rows": (AfterLayer(torch.relu), torch.randn(50, 2), OWN),
    "broadcast": (AfterLayer(lambda h: h.expand(-1, 3), 1), torch.randn(6, 2), OWN),
    "does not run when cut": (GATED, torch.randn(6, 1, 5), EXCITE),
    "tied": (TiedLayers(), torch.randn(6, 2), ("layer.weight", "layer2.bias")),
}


@pytest.mark.parametrize("name", AFTER_LAST)
def test_last_layer_moves_in_its_place_if_something_is_computed_after_it(name):
    torch.manual_seed(0)
    network, X, names = AFTER_LAST[name]
    body, module, moved = cut_network(network.eval(), "last", X)
    assert body is None
    assert module is network
    assert moved == names
    weights = {name: 2 * values for name, values in stack_parameters(network, 2, moved).items()}
    outputs = stacked_forward(network, weights, X, shared_input=True)
    own = {name: values[1] for name, values in weights.items()}
    torch.testing.assert_close(outputs[1], functional_call(network, own, (X,)))


def test_function_log_softmax_is_cut_off_with_the_last_layer():
    torch.manual_seed(0)
    network, X = Logarithms().eval(), torch.randn(6, 4)
    body, module, moved = cut_network(network, "last", X)
    torch.testing.assert_close(module(body(X)), network(X))
    assert moved == ("0.weight", "0.bias")
    assert body(X).shape == (6, 5)


@pytest.mark.parametrize(
    ("parameters", "first"), [("last", nn.Linear(4, 5)), ("linear", nn.ReLU())]
)
def test_networks_that_need_several_rows_can_be_cut(parameters, first):
    width = 5 if parameters == "last" else 4
    norm = nn.BatchNorm1d(width, track_running_stats=False)
    network = nn.Sequential(first, norm, nn.Linear(width, 3)).eval()
    X = torch.randn(6, 4)
    head = cut_network(network, parameters, X)
    torch.testing.assert_close(head.module(head.body(X)), network(X))


def test_a_lack_of_memory_is_not_hidden_by_a_slow_loop():
    class TooLarge(nn.Module):
        calls = 0

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, X):
            TooLarge.calls += 1
            raise torch.OutOfMemoryError("too much")

    net = TooLarge()
    with pytest.raises(torch.OutOfMemoryError):
        stacked_forward(net, stack_parameters(net, 3), torch.ones(4, 2), shared_input=True)
    assert TooLarge.calls == 1


def convolutional():
    return nn.Sequential(nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 4), nn.Tanh())


CUT = {
    "lenet": (LeNet(3, image_shape=(1, 16, 16)), (256,), 6),
    "tabular": (TabularNet(3, 2, categories={0: 5}), (3,), 6),
    "nested": (nn.Sequential(convolutional(), nn.ReLU(), nn.Linear(4, 2)), (1, 4), 4),
    "in place": (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)), (4,), 2),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["auto", "linear"])
@pytest.mark.parametrize("name", CUT)
def test_layers_from_the_first_linear_one_on_equal_the_network(name, kind):
    network, shape, n_parameters = CUT[name]
    network = network.double().eval()
    X = torch.rand(6, *shape, dtype=torch.float64) - 0.2
    before = X.clone()
    body, module, _ = cut_network(network, kind, X[:2])
    features = body(X.clone())
    torch.testing.assert_close(module(features), network(X.clone()))
    torch.testing.assert_close(X, before)
    assert not body.training
    assert not module.training
    assert len(list(module.named_parameters())) == n_parameters
    assert not any(part._forward_pre_hooks for part in network.modules())
    torch.testing.assert_close(pickle.loads(pickle.dumps(body))(X.clone()), features)


@pytest.mark.parametrize("kind", ["auto", "linear"])
@pytest.mark.parametrize("network", [MLP(4, 3), nn.Linear(4, 3), nn.Sequential(MLP(4, 3))])
def test_chain_that_starts_with_a_linear_layer_stays_whole(network, kind, monkeypatch):
    monkeypatch.setattr(module_under_test, "_FEW_WEIGHTS", 0)
    body, module, names = cut_network(network.eval(), kind, torch.ones(2, 4))
    assert body is None
    assert module is network
    assert len(names) == len(list(network.parameters()))


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


def with_linear_layers_inside(block):
    return nn.Sequential(nn.Conv1d(1, 3, 2), nn.ReLU(), block, nn.Flatten(), nn.Linear(9, 4))


NARROW = nn.TransformerEncoderLayer(3, 1, 8, batch_first=True)


class OnRows(nn.Module):
    """Linear layers alone, the first on inputs that a function reshapes."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, X):
        return self.last(self.first(X.flatten(1)).relu())


UNCUT = {
    "functional": (Functional(), torch.randn(3, 1, 4), 2),
    "gate": (with_linear_layers_inside(Gate(3)), torch.randn(3, 1, 4), 2),
    "encoder": (with_linear_layers_inside(NARROW), torch.randn(3, 1, 4), 2),
    "no linear": (
        nn.Sequential(nn.Conv2d(2, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 2), nn.Flatten()),
        torch.randn(3, 2, 2, 2),
        2,
    ),
}


@pytest.mark.parametrize("name", UNCUT)
def test_last_layer_of_a_network_moves_that_cannot_be_cut_before_its_first_linear_one(name):
    network, X, n_moved = UNCUT[name]
    with pytest.raises(ValueError, match="cannot be cut before"):
        cut_network(network.eval(), "linear", X)
    with pytest.warns(UserWarning, match="last layer is searched"):
        found = cut_network(network, "auto", X)
    assert len(found.parameters) == n_moved
    torch.testing.assert_close(found.module(found.body(X)), network(X))


@pytest.mark.filterwarnings("error")
def test_all_weights_move_where_the_last_layer_is_all_or_a_small_network_begins_linear(monkeypatch):
    alone = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten()).eval()
    assert cut_network(alone, "auto", torch.randn(3, 2, 2, 2)).parameters == ("0.weight", "0.bias")
    assert len(cut_network(OnRows().eval(), "auto", torch.randn(3, 2, 2)).parameters) == 4
    assert cut_network(Residual().eval(), "auto", torch.randn(3, 4)).body is None
    monkeypatch.setattr(module_under_test, "_FEW_WEIGHTS", 44)
    assert len(cut_network(OnRows().eval(), "auto", torch.randn(3, 4)).parameters) == 4
    monkeypatch.setattr(module_under_test, "_FEW_WEIGHTS", 43)
    with pytest.warns(UserWarning, match="'last', 18 of 43 weights"):
        assert len(cut_network(OnRows().eval(), "auto", torch.randn(3, 4)).parameters) == 2


def test_features_of_any_network_can_be_read_off():
    network = Functional().eval()
    X = torch.randn(3, 1, 4)
    features = LayerInput.of_first_linear(network, X)
    torch.testing.assert_close(features(X), network.features(X))
    features = LayerInput.of_last_layer(network, X)
    torch.testing.assert_close(network.second(features(X)), network(X))
    assert LayerInput.of_first_linear(nn.Sequential(nn.ReLU()), torch.ones(1, 2)) is None


@pytest.fixture
def network():
    torch.manual_seed(0)
    layers = (nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(5, 3)).eval().requires_grad_(False)


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ("all", {f"{layer}.{kind}" for layer in (0, 1, 3, 5) for kind in ("weight", "bias")}),
        (lambda name, _: name.endswith("bias"), {"0.bias", "1.bias", "3.bias", "5.bias"}),
        (lambda name, _: name.startswith("3"), {"3.weight", "3.bias"}),
        (lambda _, tensor: tensor.shape == (5, 6), {"3.weight"}),
    ],
)
def test_chosen_parameters_and_the_part_before_them(network, parameters, names):
    x = torch.randn(7, 4)
    body, module, moved = cut_network(network, parameters, x)
    assert set(moved) == names
    for name in moved:  # the very weights of the network, under the same names
        assert torch.equal(module.get_parameter(name), network.get_parameter(name))
    first = min(int(name[0]) for name in names)
    assert (body is None) == (first == 0)
    features = x if body is None else body(x)
    torch.testing.assert_close(module(features), network(x))


class Skip(nn.Sequential):
    def forward(self, x):
        h = self[0](x)
        return self[2](h + self[1](h))


class OwnArguments(nn.Sequential):
    def __init__(self, n_features, n_outputs):
        super().__init__(nn.Linear(n_features, 5), nn.ReLU(), nn.Linear(5, n_outputs))


@pytest.mark.parametrize(
    ("network", "cut"),
    [
        (Skip(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)), False),
        (OwnArguments(4, 3), True),
        (MLP(4, 3), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_kinds_of_sequential_are_cut_only_where_they_run_their_layers_in_turn(network, cut):
    x = torch.randn(7, 4)
    body, module, moved = cut_network(network, lambda name, _: name.startswith("2."), x)
    assert moved == ("2.weight", "2.bias")
    assert (body is not None) == cut
    torch.testing.assert_close(module(body(x) if cut else x), network(x))


def test_nothing_to_move_is_said():
    with pytest.raises(ValueError, match="selects no parameter"):
        cut_network(nn.Sequential(nn.Linear(2, 2)), lambda *_: False, torch.zeros(1, 2))
