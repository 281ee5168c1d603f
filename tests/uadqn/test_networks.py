"""Stacked networks against torch's own layers, one network at a time."""

import pytest
import torch
from torch import nn

from skuq.uadqn._networks import (
    StackedConv2d,
    StackedLinear,
    draw_biases,
    stacked_mlp,
    weights_of,
)

GAINS = [1.0, 2.0, 3.0]


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(torch.float32)


def randomised(module):
    """Biases start at 0, which would hide what is done to them."""
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def assert_same_parameters(stacked, alone, network, transpose):
    """Gradients of one network in the stack, and of the same network on its own."""
    gradient = stacked.weight.grad[network]
    torch.testing.assert_close(gradient.T if transpose else gradient, alone.weight.grad)
    torch.testing.assert_close(stacked.bias.grad[network].flatten(), alone.bias.grad)


@pytest.mark.parametrize("own_inputs", [False, True])
def test_linear_layers_are_separate_ones(own_inputs):
    stacked = randomised(StackedLinear(4, 5, GAINS))
    inputs = torch.randn(*((3,) if own_inputs else ()), 7, 4)
    outputs, outer = stacked(inputs), torch.randn(3, 7, 5)
    (outputs * outer).sum().backward()
    for network in range(3):
        alone = nn.Linear(4, 5)
        alone.weight.data = stacked.weight.data[network].T.clone()
        alone.bias.data = stacked.bias.data[network, 0].clone()
        expected = alone(inputs[network] if own_inputs else inputs)
        torch.testing.assert_close(outputs[network], expected)
        (expected * outer[network]).sum().backward()
        assert_same_parameters(stacked, alone, network, transpose=True)


def test_convolutions_are_separate_ones():
    stacked = randomised(StackedConv2d((10, 9, 2), 4, 3, GAINS))
    images = torch.randn(6, 10, 9, 2)
    outputs = stacked(images).view(3, 6, -1)
    outer = torch.randn_like(outputs)
    (outputs * outer).sum().backward()
    for network in range(3):
        alone = nn.Conv2d(2, 4, 3)
        alone.weight.data = stacked.weight.data[network].clone()
        alone.bias.data = stacked.bias.data[network].clone()
        expected = alone(images.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).flatten(1)
        torch.testing.assert_close(outputs[network], expected)
        (expected * outer[network]).sum().backward()
        assert_same_parameters(stacked, alone, network, transpose=False)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_perceptrons_are_separate_ones(activation):
    stacked = randomised(stacked_mlp([4, 6, 5, 2], GAINS, activation))
    inputs = torch.randn(7, 4)
    outputs = stacked(inputs)
    for network in range(3):
        hidden = inputs
        for layer in stacked:
            if isinstance(layer, StackedLinear):
                hidden = hidden @ layer.weight[network] + layer.bias[network]
            else:
                hidden = activation()(hidden)
        torch.testing.assert_close(outputs[network], hidden)
    assert not isinstance(stacked[-1], activation)


def test_networks_share_nothing():
    stacked = stacked_mlp([4, 6, 2], GAINS)
    assert [tuple(w.shape) for w in weights_of(stacked)] == [(3, 4, 6), (3, 6, 2)]  # no biases
    stacked(torch.randn(7, 4))[1].sum().backward()
    for parameter in stacked.parameters():
        assert (parameter.grad[[0, 2]] == 0).all()
    assert (stacked[0].weight.grad[1] != 0).any()


@pytest.mark.parametrize(("inputs", "outputs"), [(4, 6), (6, 4)])
def test_weights_are_orthogonal_with_each_networks_gain(inputs, outputs):
    layer = StackedLinear(inputs, outputs, GAINS)
    for weight, gain in zip(layer.weight, GAINS, strict=True):
        product = weight @ weight.T if inputs < outputs else weight.T @ weight
        torch.testing.assert_close(product, gain**2 * torch.eye(len(product)))
    assert not torch.allclose(layer.weight[0] * 2, layer.weight[1])  # each drawn on its own
    assert (layer.bias == 0).all()


def test_biases_are_drawn_on_the_scale_of_the_weights_beside_them():
    stacked = stacked_mlp([400, 300, 200], GAINS)
    draw_biases(stacked, slice(1, None))
    for layer in (stacked[0], stacked[2]):
        assert (layer.bias[0] == 0).all()
        assert layer.bias[1:].std().item() == pytest.approx(layer.weight[1:].std().item(), rel=0.1)
        assert not torch.allclose(layer.bias[1], layer.bias[2])
