"""Stacked networks against torch's own layers, one network at a time."""

import pytest
import torch
from torch import nn

from skuq.uadqn._networks import (
    StackedConv2d,
    StackedLinear,
    draw_biases,
    stacked_mlp,
)

GAINS = [1.0, 2.0, 3.0]


@pytest.fixture(autouse=True)
def _double():
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    torch.set_default_dtype(torch.float32)


def alone_linear(stacked, k, inputs):
    alone = nn.Linear(4, 5)
    alone.weight.data = stacked.weight.data[k].T.clone()
    alone.bias.data = stacked.bias.data[k, 0].clone()
    return alone, alone(inputs[k] if inputs.ndim == 3 else inputs)


def alone_convolution(stacked, k, images):
    alone = nn.Conv2d(2, 4, 3)
    alone.weight.data = stacked.weight.data[k].clone()
    alone.bias.data = stacked.bias.data[k].clone()
    return alone, alone(images.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).flatten(1)


@pytest.mark.parametrize(
    ("make", "shape", "compute"),
    [
        (lambda: StackedLinear(4, 5, GAINS), (7, 4), alone_linear),
        (lambda: StackedLinear(4, 5, GAINS), (3, 7, 4), alone_linear),
        (lambda: StackedConv2d((10, 9, 2), 4, 3, GAINS), (6, 10, 9, 2), alone_convolution),
    ],
)
def test_layers_are_separate_ones(make, shape, compute):
    stacked, inputs = make(), torch.randn(shape)
    for parameter in stacked.parameters():
        nn.init.normal_(parameter)  # biases start at 0, which would hide what is done to them
    outputs = stacked(inputs)
    outputs = outputs.view(3, 6, -1) if isinstance(stacked, StackedConv2d) else outputs
    outer = torch.randn_like(outputs)
    (outputs * outer).sum().backward()
    for k in range(3):
        alone, expected = compute(stacked, k, inputs)
        torch.testing.assert_close(outputs[k], expected)
        (expected * outer[k]).sum().backward()
        gradient = stacked.weight.grad[k]
        gradient = gradient.T if isinstance(alone, nn.Linear) else gradient
        torch.testing.assert_close(gradient, alone.weight.grad)
        torch.testing.assert_close(stacked.bias.grad[k].flatten(), alone.bias.grad)


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
