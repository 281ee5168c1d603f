"""Stacked policies against separate networks, and what they refuse."""

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

from gymnasium import spaces
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
)
from torch import nn

from skuq.uadqn import QuantileDQN, UADQNAlgorithm, epistemic_variance
from skuq.uadqn._networks import draw_biases, stacked_mlp
from skuq.uadqn._policies import (
    CnnPolicy,
    DictExtractor,
    GridCNN,
    GridPolicy,
    MlpPolicy,
    MultiInputPolicy,
    policy_for,
    stack_extractors,
)
from tests.uadqn.environments import GRID, SMALL, VECTOR, RandomEnv, perturb, sampled

ACTIONS = spaces.Discrete(3)
CHANNELS_FIRST = spaces.Box(0, 255, (3, 36, 36), np.uint8)
MIXED = spaces.Dict({"vector": VECTOR, "image": CHANNELS_FIRST})


def policy(cls, space, n_auxiliary=2, **options):
    torch.manual_seed(0)
    options = SMALL | options
    return cls(space, ACTIONS, lambda _: 1e-3, n_auxiliary=n_auxiliary, **options)


def samples(space, n):
    return torch.as_tensor(sampled(space, n))


def test_small_grids_are_convolved_channels_last():
    torch.manual_seed(0)
    extractor = GridCNN(GRID)
    grids = samples(GRID, 4)
    features = extractor(grids)
    assert features.shape == (4, extractor.features_dim) == (4, 16 * 4 * 3)
    # one output by hand: sample 1, filter 3, place (2, 1)
    weight, bias = extractor.convolution.weight[3], extractor.convolution.bias[3]
    patch = grids[1, 2:5, 1:4]  # height, width, channels
    by_hand = ((patch * weight.permute(1, 2, 0)).sum() + bias).relu()
    assert features.view(4, 4, 3, 16)[1, 2, 1, 3].item() == pytest.approx(by_hand.item(), abs=1e-6)


class WideCNN(GridCNN):
    N_FILTERS = 32

    def forward(self, observations):
        return super().forward(observations) ** 2


def copied(stacked, k, single):
    own = {n.replace("__", ".").removeprefix("stacked."): p for n, p in stacked.named_parameters()}
    pairs = [(parameter, own[name]) for name, parameter in single.named_parameters()]
    for parameter, stack in pairs:
        parameter.data = stack.data[k].clone()
    return pairs


def test_stacked_grid_features_equal_separate_ones():
    stacked, width = stack_extractors(lambda: WideCNN(GRID), [1.0, 3.0, 3.0])
    perturb(stacked.parameters())
    grids, single = samples(GRID, 4), WideCNN(GRID)
    outputs = stacked(grids)
    assert outputs.shape == (3, 4, width) == (3, 4, 32 * 4 * 3)
    for k in range(3):
        copied(stacked, k, single)
        torch.testing.assert_close(outputs[k], single(grids))


def test_vmapped_nature_cnns_equal_separate_ones_and_so_do_their_gradients():
    torch.manual_seed(0)
    stacked, n_features = stack_extractors(lambda: NatureCNN(CHANNELS_FIRST), [1.0, 3.0, 3.0])
    images = samples(CHANNELS_FIRST, 2).float() / 255
    outputs = stacked(images)
    outputs.square().sum().backward()
    assert outputs.shape == (3, 2, n_features)
    for k in range(3):
        single = NatureCNN(CHANNELS_FIRST)
        pairs = copied(stacked, k, single)
        expected = single(images)
        expected.square().sum().backward()
        torch.testing.assert_close(outputs[k], expected, rtol=1e-4, atol=1e-5)
        for parameter, stack in pairs:
            scale = parameter.grad.abs().max().item()
            torch.testing.assert_close(stack.grad[k], parameter.grad, rtol=1e-3, atol=1e-5 * scale)


def test_gains_and_the_prior_scale_are_those_of_the_weights_of_each_network():
    networks = policy(GridPolicy, GRID, init_gain=0.5, prior_gain=2.0).quantile_net
    weights = [networks.features_extractor.convolution.weight.detach().flatten(2)]
    weights += [layer.weight.detach() for layer in networks.head if hasattr(layer, "weight")]
    for k, gain in enumerate([0.5, 2.0, 2.0]):
        values = torch.cat([torch.linalg.svdvals(each[k]) for each in weights])
        torch.testing.assert_close(values, torch.full_like(values, gain))
    scales = [torch.cat([w[k].flatten() for w in weights]).std().item() for k in (1, 2)]
    assert networks.prior_scale.item() == pytest.approx(np.mean(scales), rel=1e-5)


@pytest.mark.parametrize(
    ("cls", "space", "extractor", "widths"),
    [
        (MlpPolicy, VECTOR, FlattenExtractor, [100, 100]),
        (MlpPolicy, spaces.Discrete(7), FlattenExtractor, [100, 100]),
        (GridPolicy, GRID, GridCNN, [128]),
        (CnnPolicy, CHANNELS_FIRST, NatureCNN, []),
        (MultiInputPolicy, MIXED, DictExtractor, [100, 100]),
    ],
)
def test_each_policy_has_an_extractor_that_suits_its_observations(cls, space, extractor, widths):
    made = policy(cls, space, net_arch=None)
    assert made.features_extractor_class is extractor
    layers = [layer for layer in made.quantile_net.head if hasattr(layer, "weight")]
    assert [layer.weight.shape[2] for layer in layers] == [*widths, 3 * 5]
    obs, _ = made.obs_to_tensor(space.sample())
    quantiles = made.quantile_net.quantiles(obs)
    assert quantiles.shape == (3, 1, 3, 5)
    # The value network alone decides, and the target network is its copy.
    torch.testing.assert_close(made.quantile_net(obs), quantiles[0].transpose(1, 2))
    torch.testing.assert_close(made.quantile_net_target.quantiles(obs)[0], quantiles[0])
    # The networks start apart, at observations of zeros too, and at their anchors.
    assert (quantiles[1] - quantiles[2]).abs().min() > 0
    for part in obs.values() if isinstance(obs, dict) else [obs]:
        part.zero_()
    assert (epistemic_variance(made.quantile_net.quantiles(obs)[1:]) > 0).all()
    start, anchors = made.quantile_net.trained(), made.quantile_net.anchors
    for parameter, anchor in zip(start, anchors, strict=True):
        assert (parameter != 0).any()
        torch.testing.assert_close(parameter[1:], anchor, rtol=0, atol=0)


TINY = spaces.Dict(view=spaces.Box(0, 255, (7, 7, 3), np.uint8), heading=spaces.Discrete(4))


def test_images_in_dictionaries_are_read_as_by_the_library_or_flattened():
    own, library = DictExtractor(MIXED), CombinedExtractor(MIXED)
    own.load_state_dict(library.state_dict())
    observations = {name: samples(part, 3).float() for name, part in MIXED.items()}
    torch.testing.assert_close(own(observations), library(observations), rtol=0, atol=0)
    assert own(observations).std(0).max() > 0
    assert DictExtractor(TINY).features_dim == 7 * 7 * 3 + 4
    agent = UADQNAlgorithm("MultiInputPolicy", RandomEnv(TINY), learning_starts=8, buffer_size=50)
    assert agent.learn(12).predict(TINY.sample())[0] in range(3)


def test_policies_are_chosen_by_the_space():
    for shape, name in [
        *[((40, 3, 40), "MlpPolicy"), ((3, 40, 40), "CnnPolicy"), ((3, 84, 84), "CnnPolicy")],
        *[((7, 7, 3), "MlpPolicy"), ((2, 2, 3), "MlpPolicy")],  # too small for the library
    ]:
        assert policy_for(spaces.Box(0, 255, shape, np.uint8)) == name


@pytest.mark.parametrize("tau", [0.25, 1.0])
def test_target_moves_towards_the_value_network_by_tau(tau):
    made = policy(GridPolicy, GRID)
    perturb(made.quantile_net.trained())
    target, value = made.quantile_net_target.trained(), made.quantile_net.trained()
    expected = [(1 - tau) * t + tau * v[:1] for t, v in zip(target, value, strict=True)]
    made.update_target(tau)
    torch.testing.assert_close(made.quantile_net_target.trained(), expected)


def test_optimiser_is_adam_of_the_paper_and_leaves_anchors_alone():
    made = policy(GridPolicy, GRID)
    (group,) = made.optimizer.param_groups
    assert {id(p) for p in group["params"]} == {id(p) for p in made.quantile_net.trained()}
    assert {id(p) for p in group["params"]}.isdisjoint({id(p) for p in made.quantile_net.anchors})
    assert isinstance(made.optimizer, torch.optim.Adam)
    assert (group["eps"], group["weight_decay"], group["lr"]) == (1e-8, 0, 1e-3)
    options = {"eps": 1e-3, "weight_decay": 0.1}
    given = policy(MlpPolicy, VECTOR, optimizer_kwargs=options).optimizer
    assert {name: given.defaults[name] for name in options} == options
    other = policy(MlpPolicy, VECTOR, optimizer_class=torch.optim.SGD).optimizer
    assert type(other) is torch.optim.SGD


class Frozen(BaseFeaturesExtractor):
    def __init__(self, space):
        super().__init__(space, 8)
        self.layer = nn.Linear(4, 8).requires_grad_(False)

    def forward(self, observations):
        return self.layer(observations)


class PartlyFrozen(Frozen):
    def __init__(self, space, scale):
        super().__init__(space)
        self.register_buffer("omega", torch.full((8,), scale))
        nn.init.ones_(self.layer.weight)
        nn.init.ones_(self.layer.bias)
        self.head = nn.Linear(8, 8)

    def forward(self, observations):
        return self.head(self.layer(observations) * self.omega).tanh()


def test_an_extractor_of_ones_own_keeps_its_constants_and_weights_that_are_frozen():
    own = {"features_extractor_class": PartlyFrozen, "features_extractor_kwargs": {"scale": 2.0}}
    extractor = policy(MlpPolicy, VECTOR, **own).quantile_net.features_extractor
    weights, biases = (extractor.stacked[f"head__{n}"] for n in ("weight", "bias"))
    obs = samples(VECTOR, 3)
    inputs = 2 * (obs.sum(1, keepdim=True) + 1).expand(-1, 8)
    for found, weight, bias in zip(extractor(obs), weights, biases, strict=True):
        torch.testing.assert_close(found, (inputs @ weight.T + bias).tanh())


@pytest.mark.parametrize(
    ("algorithm", "extractor", "kwargs"),
    [(QuantileDQN, Frozen, {}), (UADQNAlgorithm, PartlyFrozen, {"scale": 2.0})],
)
def test_frozen_parts_stay_as_they_are_and_are_the_targets_too(algorithm, extractor, kwargs):
    options = {"features_extractor_class": extractor, "features_extractor_kwargs": kwargs}
    agent = algorithm("MlpPolicy", "CartPole-v1", seed=0, learning_starts=5, policy_kwargs=options)
    x, networks = torch.randn(3, 4), agent.quantile_net
    targets = agent.quantile_net_target.quantiles(x)
    torch.testing.assert_close(networks.quantiles(x)[0], targets[0])
    before = [tensor.clone() for tensor in networks.fixed()]
    agent.learn(12)
    assert len(before) > 0
    assert all(map(torch.equal, before, networks.fixed()))


def test_biases_are_drawn_on_the_scale_of_the_weights_beside_them():
    stacked = stacked_mlp([400, 300, 200], [1.0, 2.0, 3.0])
    draw_biases(stacked, slice(1, None))
    for layer in (stacked[0], stacked[2]):
        assert (layer.bias[0] == 0).all()
        assert layer.bias[1:].std().item() == pytest.approx(layer.weight[1:].std().item(), rel=0.1)
        assert not torch.allclose(layer.bias[1], layer.bias[2])
