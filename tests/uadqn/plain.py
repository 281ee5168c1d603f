"""The same networks and updates, written plainly: what the stacked ones are tested against."""

from itertools import combinations
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn


class ChannelsLast(nn.Module):
    def forward(self, maps):
        return maps.permute(0, 2, 3, 1)


def plain_network(networks, k):
    """Network `k` of a stack as layers of its own, with the same weights."""
    layers = []
    if any(True for _ in networks.features_extractor.parameters()):
        kernel = networks.features_extractor.convolution.weight[k]
        convolution = nn.Conv2d(kernel.shape[1], kernel.shape[0], kernel.shape[2])
        convolution.weight.data = kernel.detach().clone()
        convolution.bias.data = networks.features_extractor.convolution.bias[k].detach().clone()
        layers += [convolution, nn.ReLU(), ChannelsLast(), nn.Flatten()]
    return nn.Sequential(*layers, *plain_layers(networks.head, k))


def plain_layers(stack, k):
    """Layers of network `k` of a stack of multilayer perceptrons."""
    layers = []
    for layer in stack:
        if hasattr(layer, "weight"):
            linear = nn.Linear(*layer.weight.shape[1:])
            linear.weight.data = layer.weight[k].T.detach().clone()
            linear.bias.data = layer.bias[k, 0].detach().clone()
            layers.append(linear)
        else:
            layers.append(nn.ReLU())
    return layers


def stacked_parameters(parameters, k):
    """Parameters of network `k` in the shape and order of `plain_network`."""
    for parameter in parameters:
        own = parameter[k]
        if own.ndim == 2:
            yield own.T if own.shape[0] > 1 or parameter.ndim == 4 else own[0]
        else:
            yield own


def numbers(batch):
    """A batch of transitions, with grids channels first."""
    observations = batch.observations, batch.next_observations
    if observations[0].ndim == 4:
        observations = tuple(o.permute(0, 3, 1, 2) for o in observations)
    now, ahead = (o.float() for o in observations)
    actions, dones = batch.actions[:, 0], batch.dones[:, 0]
    rewards = batch.rewards[:, 0]
    return SimpleNamespace(now=now, ahead=ahead, actions=actions, dones=dones, rewards=rewards)


LEVELS = {"midpoint": lambda i, n: (i + 0.5) / n, "paper": lambda i, n: (i + 1) / (n + 1)}


def every_pair(quantiles, targets, levels):
    """Eq. 1 with every quantile against every target, of shape (..., n_samples)."""
    u = targets[..., None, :] - quantiles[..., None]
    return (u * (levels[:, None] - (u < 0).to(u.dtype))).mean(-1).sum(-1)


def pairwise(quantiles):
    """Eq. 7 written out, averaged over all pairs of networks: epistemic and aleatoric variances."""
    epistemic, aleatoric = [], []
    for a, b in combinations(quantiles, 2):
        epistemic.append(((a - b) ** 2).mean(-1) / 2)
        means = a.mean(-1, keepdims=True), b.mean(-1, keepdims=True)
        aleatoric.append(((a - means[0]) * (b - means[1])).mean(-1))
    return np.mean(epistemic, axis=0), np.mean(aleatoric, axis=0)


def moments(quantiles, aleatoric="covariance"):
    """Mean, aleatoric and epistemic variance of each action, of quantiles (n_members, ...)."""
    epistemic, risk = pairwise(quantiles[1:])
    risk = np.var(quantiles[0], axis=-1) if aleatoric == "variance" else risk.clip(0)
    return quantiles[0].mean(-1), risk, epistemic


def bellman(target, batch, n_actions, gamma):
    with torch.no_grad():
        quantiles = target(batch.ahead).view(len(batch.ahead), n_actions, -1)
        rows = []
        for reward, done, of_row in zip(batch.rewards, batch.dones, quantiles, strict=True):
            best = int(np.argmax([q.mean().item() for q in of_row]))
            rows.append(reward + (0 if done else gamma) * of_row[best])
    return torch.stack(rows)


def squared_distance(network, anchors):
    pairs = zip(network.parameters(), anchors, strict=True)
    return sum((p - a).square().sum() for p, a in pairs)


def backward(loss, parameters):
    """Gradients, and a note where they are so small that rounding decides their sign. A step of
    Adam is then anywhere within the learning rate."""
    loss.backward()
    for parameter in parameters:
        small = (parameter.grad != 0) & (parameter.grad.abs() < 1e-6)
        parameter.doubtful = getattr(parameter, "doubtful", False) | small


def assert_stack_matches(trained, plain):
    n_doubtful = n_all = 0
    for k, parameters in enumerate(plain):
        stacked = stacked_parameters(trained, k)
        gradients = stacked_parameters([p.grad for p in trained], k)
        for own, gradient, expected in zip(stacked, gradients, parameters, strict=True):
            # The gradient says more than a step of Adam, which forgets its size.
            torch.testing.assert_close(gradient, expected.grad, rtol=1e-3, atol=1e-5)
            sure = ~expected.doubtful
            torch.testing.assert_close(own[sure], expected[sure], rtol=0, atol=1e-5)
            n_doubtful, n_all = n_doubtful + (~sure).sum(), n_all + sure.numel()
    assert n_doubtful <= 0.01 * n_all
