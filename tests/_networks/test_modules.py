"""Networks and layers, and where they are computed."""

import pytest
import torch
from torch import nn

from skuq._networks import MLP, BinaryLogits, LeNet, TabularNet, linear_layer, resolve_device


@pytest.mark.parametrize(
    ("hidden_sizes", "dropout", "batch_norm"),
    [((), 0.4, True), ((5,), 0.0, False), ((5,), 0.4, False), ((5, 4), 0.4, True)],
)
def test_layers_are_normalised_activated_and_dropped_in_turn(hidden_sizes, dropout, batch_norm):
    layer = [nn.Linear, *[nn.BatchNorm1d] * batch_norm, nn.ReLU, *[nn.Dropout] * (dropout > 0)]
    net = MLP(3, 2, hidden_sizes, dropout, batch_norm)
    assert [type(each) for each in net] == [*layer * len(hidden_sizes), nn.Linear]
    assert {each.p for each in net if isinstance(each, nn.Dropout)} <= {dropout}
    assert net(torch.zeros(7, 3)).shape == (7, 2)


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


def test_lenet_takes_flat_rows_and_images_alike_and_has_the_layers_of_the_paper():
    for shape in ((1, 28, 28), (3, 32, 20), (1, 16, 16)):
        net, images = LeNet(10, image_shape=shape).eval(), torch.rand(2, *shape)
        torch.testing.assert_close(net(images.flatten(1)), net(images))
    sizes = [tuple(p.shape) for name, p in LeNet().named_parameters() if "weight" in name]
    assert sizes == [(6, 1, 5, 5), (16, 6, 5, 5), (120, 256), (84, 120), (10, 84)]


def test_tabular_net_depends_on_codes_alone_and_embeddings_are_half_as_wide_as_they_have_levels():
    net = TabularNet(3, 2, categories={2: 4})
    one, other, *unseen = net(torch.tensor([[0.1, 0.2, code] for code in (1, 3, -1, 4, 99)]))
    assert not torch.equal(one, other)
    torch.testing.assert_close(unseen, [unseen[0]] * 3)
    for levels, width in ((1, 1), (2, 2), (3, 2), (9, 5), (10, 6), (98, 50), (1000, 50)):
        net = TabularNet(2, 2, categories={0: levels})
        assert net.embeddings[0].weight.shape == (levels + 1, width)
        assert net(torch.tensor([[levels - 1.0, 0.5], [-1.0, 0.5]])).shape == (2, 2)


@pytest.mark.parametrize("device", ["quantum", "cuda:99"])
def test_devices_that_are_not_there_are_refused(device):
    with pytest.raises(ValueError, match="cannot be used here"):
        resolve_device(device)


def test_a_linear_layer_of_given_weights_draws_nothing():
    state, weight, x = torch.get_rng_state(), torch.arange(6.0).reshape(2, 3), torch.ones(1, 3)
    assert linear_layer(weight, torch.ones(2))(x).tolist() == [[4.0, 13.0]]
    assert linear_layer(weight.double())(x.double()).dtype == torch.float64
    assert linear_layer(weight)(x).tolist() == [[3.0, 12.0]]
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(RuntimeError):
        linear_layer(weight, torch.ones(1))


def test_binary_logits_give_the_sigmoid():
    z = torch.linspace(-3, 3, 7)[:, None]
    torch.testing.assert_close(BinaryLogits()(z).softmax(-1)[:, 1:], z.sigmoid())
