"""Variants of a network: what is cut off before weights that move, and many evaluated at once."""

import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call

from skuq import _networks as networks
from skuq._networks import MLP, LayerInput, cut_network, stack_parameters, stacked_forward
from tests.written import Written


def last_step(layer, width):
    """Logits of the last time step of a layer for sequences of 3 steps of 4 numbers."""

    def forward(self, X):
        hidden = self.layer(X.reshape(-1, 3, 4))
        return self.out((hidden[0] if isinstance(hidden, tuple) else hidden)[:, -1])

    return Written(forward, layer=layer, out=nn.Linear(width, 2))


def depends_on_values(width):
    return Written(lambda self, X: self.a(X if (X > 2).any() else X + 1), a=nn.Linear(width, 2))


def centres_in_place(rest):
    """Alters its input, and then has no batched form."""
    return Written(lambda self, X: self.rest(X.sub_(0.5)), rest=rest)


TWICE = {"num_layers": 2, "bidirectional": True, "batch_first": True}
ENCODER = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
IN_TURN = {
    "lstm": (last_step(nn.LSTM(4, 5, **TWICE), 10), (12,)),
    "gru": (last_step(nn.GRU(4, 5, **TWICE), 10), (12,)),
    "transformer layer": (last_step(ENCODER, 4), (12,)),
    "transformer": (last_step(nn.TransformerEncoder(ENCODER, 2), 4), (12,)),
    "values": (depends_on_values(3), (3,)),
    "in place, gru": (centres_in_place(last_step(nn.GRU(4, 5, batch_first=True), 5)), (12,)),
    "in place, values": (centres_in_place(depends_on_values(12)), (12,)),
}
NETWORKS = {
    "mlp": (MLP(4, 3, hidden_sizes=(6,)), (4,)),
    "lenet": (networks.LeNet(3, image_shape=(1, 16, 16)), (256,)),
    "tabular": (networks.TabularNet(3, 2, categories={0: 5}), (3,)),
    "wrapped": (nn.Sequential(MLP(4, 1), networks.BinaryLogits()), (4,)),
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
    given = X.clone()
    outputs = stacked_forward(network, stacked, X, shared_input=shared_input)
    torch.testing.assert_close(X, given, rtol=0, atol=0)
    gradients = torch.autograd.grad(outputs.square().sum(), [*stacked.values()])
    before = {name: value.clone() for name, value in network.state_dict().items()}
    for i in range(n_models):
        network.load_state_dict({key: value[i] for key, value in stacked.items()}, strict=False)
        expected = network((X if shared_input else X[i]).clone())
        torch.testing.assert_close(outputs[i], expected)
        slow = torch.autograd.grad(expected.square().sum(), [*network.parameters()])
        for fast, own in zip(gradients, slow, strict=True):
            torch.testing.assert_close(fast[i], own)
    network.load_state_dict(before)


def logarithms(self, X):
    return nn.functional.log_softmax(self.last(self.first(X).relu()), dim=1)


STATISTICS = nn.BatchNorm1d(5, track_running_stats=False)
HEADS = NETWORKS | {
    "log_softmax": (Written(logarithms, first=nn.Linear(4, 5), last=nn.Linear(5, 3)), (4,)),
    "several rows": (nn.Sequential(nn.Linear(4, 5), STATISTICS, nn.Linear(5, 3)), (4,)),
}


@pytest.mark.parametrize("name", HEADS)
def test_head_on_cached_features_equals_the_network(name):
    network, shape = HEADS[name]
    network = network.double().eval()
    X = torch.rand(6, *shape, dtype=torch.float64)
    body, module, moved = cut_network(network, "last", X if name == "several rows" else X[:1])
    torch.testing.assert_close(module(body(X)), network(X))
    assert len(moved) == 2
    assert not any(module._forward_pre_hooks for module in network.modules())


def after_layer(compute, n_outputs=2):
    return Written(lambda self, X: compute(self.layer(X)), layer=nn.Linear(2, n_outputs))


def gate(n_channels):
    """Squeeze and excitation of channels, with linear layers inside."""

    def forward(self, X):
        return X * self.excite(self.squeeze(X.mean(2)).relu()).sigmoid()[..., None]

    return Written(forward, squeeze=nn.Linear(n_channels, 2), excite=nn.Linear(2, n_channels))


TIED = Written(lambda self, X: 2 * self.b(self.a(X)), a=nn.Linear(2, 2), b=nn.Linear(2, 2))
TIED.b.weight = TIED.a.weight
OWN = ("layer.weight", "layer.bias")
GATED = nn.Sequential(nn.Conv1d(1, 4, 3), nn.Sequential(gate(4)), nn.AvgPool1d(3), nn.Flatten())
EXCITE = ("1.0.excite.weight", "1.0.excite.bias")
AFTER_LAST = {
    "scaled": (after_layer(lambda h: 2 * h), torch.ones(1, 2), OWN),
    "seen on the last rows": (after_layer(torch.relu), torch.randn(50, 2), OWN),
    "broadcast": (after_layer(lambda h: h.expand(-1, 3), 1), torch.randn(6, 2), OWN),
    "does not run when cut": (GATED, torch.randn(6, 1, 5), EXCITE),
    "tied": (TIED, torch.randn(6, 2), ("a.weight", "b.bias")),
}


@pytest.mark.parametrize("name", AFTER_LAST)
def test_last_layer_moves_in_its_place_if_something_is_computed_after_it(name):
    torch.manual_seed(0)
    network, X, names = AFTER_LAST[name]
    body, module, moved = cut_network(network.eval(), "last", X)
    assert (body, module, moved) == (None, network, names)
    weights = {name: 2 * values for name, values in stack_parameters(network, 2, moved).items()}
    outputs = stacked_forward(network, weights, X, shared_input=True)
    own = {name: values[1] for name, values in weights.items()}
    torch.testing.assert_close(outputs[1], functional_call(network, own, (X,)))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("too much"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: X"),
    ],
)
def test_failures_of_a_device_are_not_hidden_by_a_slow_loop(error):
    calls = []

    def forward(self, X):
        calls.append(X)
        raise error

    net = Written(forward, weight=nn.Parameter(torch.ones(2)))
    with pytest.raises(type(error), match=str(error)):
        stacked_forward(net, stack_parameters(net, 3), torch.ones(4, 2), shared_input=True)
    assert len(calls) == 1


LAYERS = nn.Conv1d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(9, 4), nn.Tanh()
STATISTICS_4 = nn.BatchNorm1d(4, track_running_stats=False)
CUT = {
    "lenet": (*NETWORKS["lenet"], 6),
    "tabular": (*NETWORKS["tabular"], 6),
    "nested": (nn.Sequential(nn.Sequential(*LAYERS), nn.ReLU(), nn.Linear(4, 2)), (1, 4), 4),
    "in place": (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)), (4,), 2),
    "several rows": (nn.Sequential(nn.ReLU(), STATISTICS_4, nn.Linear(4, 3)), (4,), 2),
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
    monkeypatch.setitem(cut_network.__globals__, "_FEW_WEIGHTS", 0)
    body, module, names = cut_network(network.eval(), kind, torch.ones(2, 4))
    assert (body, module) == (None, network)
    assert len(names) == len(list(network.parameters()))


# Layers in a forward pass of its own, as many networks have them.
CALLED = {"c": nn.Conv1d(1, 3, 2), "a": nn.Linear(9, 5), "b": nn.Linear(5, 4)}
FUNCTIONAL = Written(lambda self, X: self.b(self.a(self.c(X).relu().flatten(1)).relu()), **CALLED)


def with_linear_layers_inside(block):
    return nn.Sequential(nn.Conv1d(1, 3, 2), nn.ReLU(), block, nn.Flatten(), nn.Linear(9, 4))


NARROW = nn.TransformerEncoderLayer(3, 1, 8, batch_first=True)
IMAGES = nn.Sequential(nn.Conv2d(2, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 2), nn.Flatten())
UNCUT = {
    "functional": (FUNCTIONAL, (1, 4)),
    "gate": (with_linear_layers_inside(gate(3)), (1, 4)),
    "encoder": (with_linear_layers_inside(NARROW), (1, 4)),
    "no linear": (IMAGES, (2, 2, 2)),
}


@pytest.mark.parametrize("name", UNCUT)
def test_last_layer_of_a_network_moves_that_cannot_be_cut_before_its_first_linear_one(name):
    network, shape = UNCUT[name]
    X = torch.randn(3, *shape)
    with pytest.raises(ValueError, match="cannot be cut before"):
        cut_network(network.eval(), "linear", X)
    with pytest.warns(UserWarning, match="last layer is searched"):
        found = cut_network(network, "auto", X)
    assert len(found.parameters) == 2
    torch.testing.assert_close(found.module(found.body(X)), network(X))


@pytest.mark.filterwarnings("error")
def test_all_weights_move_where_the_last_layer_is_all_or_a_small_network_begins_linear(monkeypatch):
    alone = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten()).eval()
    assert cut_network(alone, "auto", torch.randn(3, 2, 2, 2)).parameters == ("0.weight", "0.bias")
    # Linear layers alone, the first on inputs that a function reshapes.
    parts = {"a": nn.Linear(4, 5), "b": nn.Linear(5, 3)}
    rows = Written(lambda self, X: self.b(self.a(X.flatten(1)).relu()), **parts).eval()
    assert len(cut_network(rows, "auto", torch.randn(3, 2, 2)).parameters) == 4
    # Its outputs have the shape that its last layers alone would return.
    residual = Written(lambda self, X: X + self.a(X.relu()), a=nn.Linear(4, 4)).eval()
    assert cut_network(residual, "auto", torch.randn(3, 4)).body is None
    monkeypatch.setitem(cut_network.__globals__, "_FEW_WEIGHTS", 44)
    assert len(cut_network(rows, "auto", torch.randn(3, 4)).parameters) == 4
    monkeypatch.setitem(cut_network.__globals__, "_FEW_WEIGHTS", 43)
    with pytest.warns(UserWarning, match="'b', 18 of 43 weights"):
        assert len(cut_network(rows, "auto", torch.randn(3, 4)).parameters) == 2


def test_features_of_any_network_can_be_read_off():
    X = torch.randn(3, 1, 4)
    features = LayerInput.of_first_linear(FUNCTIONAL, X)
    torch.testing.assert_close(features(X), FUNCTIONAL.c(X).relu().flatten(1))
    features = LayerInput.of_last_layer(FUNCTIONAL, X)
    torch.testing.assert_close(FUNCTIONAL.b(features(X)), FUNCTIONAL(X))
    assert LayerInput.of_first_linear(nn.Sequential(nn.ReLU()), torch.ones(1, 2)) is None


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ("all", {f"{layer}.{kind}" for layer in (0, 1, 3, 5) for kind in ("weight", "bias")}),
        (lambda name, _: name.endswith("bias"), {"0.bias", "1.bias", "3.bias", "5.bias"}),
        (lambda name, _: name.startswith("3"), {"3.weight", "3.bias"}),
        (lambda _, tensor: tensor.shape == (5, 6), {"3.weight"}),
    ],
)
def test_chosen_parameters_and_the_part_before_them(parameters, names):
    layers = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU()
    network = nn.Sequential(*layers, nn.Linear(5, 3)).eval().requires_grad_(False)
    x = torch.randn(7, 4)
    body, module, moved = cut_network(network, parameters, x)
    assert set(moved) == names
    for name in moved:  # the very weights of the network, under the same names
        assert torch.equal(module.get_parameter(name), network.get_parameter(name))
    assert (body is None) == ("0.bias" in names)
    torch.testing.assert_close(module(x if body is None else body(x)), network(x))


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
