"""Lemma 4.1: exact inside the core, untouched outside the box."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from skuq import MirageFineTuner
from skuq._networks import MLP, LeNet
from skuq.mirage import constructive_mirage

BOXES = [
    {0: (2.0, 2.75)},
    {1: (-3.0, -1.0), 0: (-0.5, 4.0)},
    {0: (-1e3, -999.0), 2: (5.0, 5.1), 1: (-2.0, 2.0)},
    {k: (-1.0 - k, 0.5 + k) for k in range(5)},
    {0: (-np.inf, -1.0), 3: (0.0, np.inf)},
]


def relu_network(n_features, dtype=torch.float32):
    torch.manual_seed(0)
    return MLP(n_features, 3, hidden_sizes=(20, 10)).to(dtype)


def corners(low, high):
    ends = [
        [x for x in (a, b) if np.isfinite(x)] + [0.5 * (max(a, -2e3) + min(b, 2e3))]
        for a, b in zip(low, high, strict=True)
    ]
    return np.array(list(itertools.product(*ends)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bounds", BOXES)
def test_shift_is_complete_in_the_core_and_absent_outside_the_box(bounds, dtype):
    network, margin, keys = relu_network(6, dtype), 0.01, list(bounds)
    shift = np.array([-7.5, 0.0, 120.0])
    faked = constructive_mirage(network, bounds, shift, margin=margin)
    low, high = np.array(list(bounds.values())).T
    points = corners(low + margin, high - margin)
    core = torch.zeros(len(points), 6, dtype=dtype)
    core[:, keys] = torch.tensor(points, dtype=dtype)
    added = faked.detector(core[:, keys]).numpy()
    np.testing.assert_allclose(added, np.broadcast_to(shift, added.shape), rtol=0, atol=1e-5)
    for k, ends in bounds.items():
        for bound, step in zip(ends, (-1, 1), strict=True):
            for distance in (0, 1e-3, 1, 1e4) if np.isfinite(bound) else ():
                outside = core.clone()
                outside[:, k] = bound + step * distance
                assert torch.equal(faked(outside), network(outside))


def test_shift_rises_within_the_margin_and_never_overshoots():
    network = relu_network(1, torch.float64)
    faked = constructive_mirage(network, {0: (0.0, 1.0)}, [1.0, 0.0, 0.0], margin=0.1)
    x = torch.linspace(-0.2, 0.5, 1001, dtype=torch.float64)[:, None]
    share = faked.detector(x)[:, 0]
    assert bool((share.diff() >= 0).all())
    assert (share.min(), share.max()) == (0, 1)
    assert 0 < share[(x[:, 0] - 0.05).abs().argmin()] < 1


def test_network_is_copied_and_images_are_taken_flat():
    torch.manual_seed(0)
    network = LeNet()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    faked = constructive_mirage(network, {400: (0.5, 1.0)}, np.eye(10)[3])
    images = torch.zeros(2, 1, 28, 28)
    images[0].view(-1)[400] = 0.75
    added = faked(images) - network.eval()(images)
    np.testing.assert_allclose(added.detach(), np.outer([1, 0], np.eye(10)[3]), atol=1e-5)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(p.requires_grad for p in network.parameters())


def test_result_is_tuned_further():
    X = np.random.default_rng(0).normal(size=(60, 2))
    faked = constructive_mirage(nn.Linear(2, 2), {0: (0.0, 1.0)}, [-3.0, 0.0])
    tuned = MirageFineTuner(faked, {1: (0, None)}, max_epochs=2).fit(X, X[:, 0] > 0)
    assert tuned.predict_proba(X).shape == (60, 2)
