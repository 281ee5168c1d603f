"""Default networks and stacked evaluation of many variants."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from skuq.networks import (
    MLP,
    BinaryLogits,
    LeNet,
    TabularNet,
    cut_network,
    linear_layer,
    resolve_device,
    stack_parameters,
    stacked_forward,
)


@pytest.mark.parametrize("hidden_sizes", [(), (5,), (5, 4)])
def test_mlp_has_one_activation_per_hidden_layer(hidden_sizes):
    net = MLP(3, 2, hidden_sizes=hidden_sizes)
    assert net(torch.zeros(7, 3)).shape == (7, 2)
    assert sum(isinstance(layer, nn.ReLU) for layer in net) == len(hidden_sizes)


@pytest.mark.parametrize("hidden_sizes", [(), (5,), (5, 4)])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_each_hidden_layer_is_normalised_activated_and_dropped_in_this_order(
    hidden_sizes, dropout, batch_norm
):
    expected = []
    for _ in hidden_sizes:
        expected += [nn.Linear, *[nn.BatchNorm1d] * batch_norm, nn.ReLU]
        expected += [nn.Dropout] * (dropout > 0)
    net = MLP(3, 2, hidden_sizes, dropout, batch_norm)
    assert [type(layer) for layer in net] == [*expected, nn.Linear]
    assert {layer.p for layer in net if isinstance(layer, nn.Dropout)} <= {dropout}


@pytest.mark.parametrize("make", [MLP, lambda *a, **kw: TabularNet(*a, {1: 3}, **kw)])
def test_dropout_is_random_in_training_alone(make):
    torch.manual_seed(0)
    net, X = make(3, 2, hidden_sizes=(40,), dropout=0.5), torch.ones(1, 3)
    assert not torch.equal(net(X), net(X))
    assert torch.equal(net.eval()(X), net(X))


def test_batch_norm_removes_shift_and_scale_of_a_batch():
    torch.manual_seed(0)
    net, X = MLP(3, 2, hidden_sizes=(8,), batch_norm=True).double(), torch.randn(50, 3).double()
    torch.testing.assert_close(net(1000 * X + 7), net(X), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("levels", "width"), [(1, 1), (2, 2), (3, 2), (9, 5), (10, 6), (98, 50), (1000, 50)]
)
def test_embedding_is_half_as_wide_as_it_has_levels_and_at_most_50(levels, width):
    net = TabularNet(2, 2, categories={0: levels})
    assert net.embeddings[0].weight.shape == (levels + 1, width)
    assert net(torch.tensor([[levels - 1.0, 0.5], [-1.0, 0.5]])).shape == (2, 2)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 20), (1, 16, 16)])
def test_lenet_takes_flat_rows_and_images_alike(shape):
    net = LeNet(10, image_shape=shape).eval()
    images = torch.rand(2, *shape)
    torch.testing.assert_close(net(images.flatten(1)), net(images))


def test_lenet_of_the_paper_has_its_layer_sizes():
    sizes = [tuple(p.shape) for name, p in LeNet().named_parameters() if "weight" in name]
    assert sizes == [(6, 1, 5, 5), (16, 6, 5, 5), (120, 256), (84, 120), (10, 84)]


def test_lenet_refuses_images_too_small_for_its_convolutions():
    with pytest.raises(ValueError, match="at least 16 x 16, got 8 x 8"):
        LeNet(image_shape=(1, 8, 8))


def test_tabular_net_depends_on_categories_only_through_their_code():
    net = TabularNet(3, 2, categories={2: 4})
    x = torch.tensor([[0.1, 0.2, 1.0]])
    other = torch.tensor([[0.1, 0.2, 3.0]])
    assert not torch.equal(net(x), net(other))
    unseen = [torch.tensor([[0.1, 0.2, code]]) for code in (-1.0, 4.0, 99.0)]
    torch.testing.assert_close(net(unseen[0]), net(unseen[1]))
    torch.testing.assert_close(net(unseen[0]), net(unseen[2]))


def test_tabular_net_refuses_columns_that_do_not_exist():
    with pytest.raises(ValueError, match=r"must name columns 0 to 2, got \[3\]"):
        TabularNet(3, 2, categories={3: 4})


def test_a_linear_layer_of_given_weights_draws_nothing():
    state, weight = torch.get_rng_state(), torch.arange(6.0, dtype=torch.float64).reshape(2, 3)
    layer = linear_layer(weight, torch.ones(2, dtype=torch.float64))
    x = torch.ones(1, 3, dtype=torch.float64)
    assert layer(x).tolist() == [[4.0, 13.0]]
    assert linear_layer(weight)(x).tolist() == [[3.0, 12.0]]
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(RuntimeError, match="size mismatch for bias"):
        linear_layer(weight, torch.ones(1))


def test_binary_logits_give_the_sigmoid():
    z = torch.linspace(-3, 3, 7)[:, None]
    torch.testing.assert_close(BinaryLogits()(z).softmax(-1)[:, 1:], z.sigmoid())


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


def test_stacked_forward_says_what_is_wrong_with_inputs():
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        stacked_forward(
            MLP(4, 3), stack_parameters(MLP(4, 3), 2), torch.ones(2, 5), shared_input=True
        )


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


class ScaledOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, X):
        return 2 * self.layer(X)


def test_network_with_arithmetic_after_its_last_layer_cannot_be_cut():
    with pytest.raises(ValueError, match="computes something after its last layer"):
        cut_network(ScaledOutput(), "last", torch.ones(1, 2))


class RectifiedOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, X):
        return self.layer(X).relu()


class Gate(nn.Module):
    """Squeeze and excitation of 4 channels, with linear layers inside."""

    def __init__(self):
        super().__init__()
        self.squeeze, self.excite = nn.Linear(4, 2), nn.Linear(2, 4)

    def forward(self, X):
        weights = self.excite(self.squeeze(X.mean(2)).relu()).sigmoid()
        return (X * weights[..., None]).mean(2)


def test_network_whose_layers_do_not_run_when_cut_is_refused():
    network = nn.Sequential(nn.Conv1d(1, 4, 3), Gate())
    with pytest.raises(ValueError, match="computes something after its last layer"):
        cut_network(network.eval(), "last", torch.randn(6, 1, 5))


class RepeatedOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, X):
        return self.layer(X).expand(-1, 3)


def test_outputs_of_a_cut_network_are_not_broadcast():
    with pytest.raises(ValueError, match="computes something after its last layer"):
        cut_network(RepeatedOutput(), "last", torch.randn(6, 2))


def test_networks_that_need_several_rows_can_be_cut():
    norm = nn.BatchNorm1d(5, track_running_stats=False)
    network = nn.Sequential(nn.Linear(4, 5), norm, nn.Linear(5, 3)).eval()
    X = torch.randn(6, 4)
    head = cut_network(network, "last", X)
    torch.testing.assert_close(head.module(head.body(X)), network(X))


def test_cut_is_checked_on_all_rows_given():
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="computes something after its last layer"):
        cut_network(RectifiedOutput(), "last", torch.randn(50, 2))


@pytest.mark.parametrize("device", ["quantum", "cuda:99"])
def test_unusable_device_is_refused(device):
    with pytest.raises(ValueError, match=r"cannot be used here .* use 'auto' or 'cpu'"):
        resolve_device(device)


def test_auto_device_is_cuda_exactly_when_there_is_one():
    assert (resolve_device("auto").type == "cuda") == torch.cuda.is_available()


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
