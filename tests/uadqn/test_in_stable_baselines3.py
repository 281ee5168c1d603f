"""All algorithms behave as users of stable-baselines3 and sb3-contrib expect."""

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

from gymnasium import spaces
from sb3_contrib import QRDQN
from stable_baselines3.common.evaluation import evaluate_policy

from skuq.uadqn import BootstrappedDQN, DQNAlgorithm, GridCNN, QuantileDQN, UADQNAlgorithm
from tests.uadqn.environments import IMAGE, MIXED, VECTOR, RandomEnv, perturb

ALGORITHMS = [UADQNAlgorithm, QuantileDQN, DQNAlgorithm, BootstrappedDQN]
SPACES = [("MlpPolicy", VECTOR), ("CnnPolicy", IMAGE), ("MultiInputPolicy", MIXED)]
every_algorithm = pytest.mark.parametrize("cls", ALGORITHMS)


def make(cls, policy="MlpPolicy", space=VECTOR, policy_kwargs=None, **options):
    widths = {"net_arch": [8]}
    env = RandomEnv(space)
    options = {"seed": 0, "buffer_size": 100, "batch_size": 8, "learning_starts": 10} | options
    agent = cls(policy, env, policy_kwargs=widths | (policy_kwargs or {}), **options)
    perturb(agent.policy.parameters())
    return agent


def observations(agent, n_samples=None):
    """As the agent gets them: images channels first."""
    space = agent.observation_space
    space.seed(0)
    if n_samples is None:
        return space.sample()
    if isinstance(space, spaces.Dict):
        samples = [space.sample() for _ in range(n_samples)]
        return {key: np.stack([sample[key] for sample in samples]) for key in space.spaces}
    return np.stack([space.sample() for _ in range(n_samples)])


def network(agent):
    return agent.quantile_net if isinstance(agent, QuantileDQN) else agent.q_net


# Actions


@every_algorithm
@pytest.mark.parametrize(("policy", "space"), SPACES)
@pytest.mark.parametrize("deterministic", [True, False])
def test_one_observation_gives_an_array_without_axes_and_several_a_vector(
    cls, policy, space, deterministic
):
    agent = make(cls, policy, space)
    for chooses in (agent, agent.policy):
        action, state = chooses.predict(observations(agent), deterministic=deterministic)
        assert isinstance(action, np.ndarray)
        assert action.shape == ()
        assert agent.action_space.contains(action)
        assert state is None
        actions, _ = chooses.predict(observations(agent, 3), deterministic=deterministic)
        assert isinstance(actions, np.ndarray)
        assert actions.shape == (3,)


@every_algorithm
def test_observations_may_be_lists(cls):
    agent = make(cls)
    vectors = observations(agent, 5)
    expected, _ = agent.predict(vectors, deterministic=True)
    np.testing.assert_array_equal(agent.predict(vectors.tolist(), deterministic=True)[0], expected)
    single, _ = agent.predict(vectors[0].tolist(), deterministic=True)
    assert single.shape == ()
    assert single == expected[0]


RISK = [
    *[(cls, {}) for cls in ALGORITHMS],
    (UADQNAlgorithm, {"aleatoric_factor": 3.0}),
    (UADQNAlgorithm, {"aleatoric_factor": 1.0, "aleatoric": "variance"}),
]


@pytest.mark.parametrize(("cls", "options"), RISK)
def test_the_policy_chooses_the_actions_of_the_algorithm_and_so_does_its_file(
    cls, options, tmp_path
):
    agent = make(cls, **options)
    x = observations(agent, 200)
    expected, _ = agent.predict(x, deterministic=True)
    if options:  # a case where aversion to risk makes a difference
        neutral = agent.predict_quantiles(x)[0].mean(-1).argmax(1)
        assert (expected != neutral).mean() > 0.05
    policy, net = agent.policy, network(agent)
    policy.save(tmp_path / "policy.zip")
    net.save(tmp_path / "network.zip")
    agent.save(tmp_path / "agent.zip")
    loaded = cls.load(tmp_path / "agent.zip")
    for chooses in (
        policy,
        net,
        type(policy).load(tmp_path / "policy.zip"),
        type(net).load(tmp_path / "network.zip"),
        loaded,
        loaded.policy,
    ):
        np.testing.assert_array_equal(chooses.predict(x, deterministic=True)[0], expected)


def test_factors_can_be_changed_and_are_kept(tmp_path):
    agent = make(UADQNAlgorithm)
    x = observations(agent, 200)
    neutral, _ = agent.predict(x, deterministic=True)
    agent.aleatoric_factor, agent.aleatoric, agent.epistemic_factor = 2.0, "variance", 0.0
    agent.save(tmp_path / "agent.zip")
    agent.policy.save(tmp_path / "policy.zip")
    loaded = UADQNAlgorithm.load(tmp_path / "agent.zip")
    settings = (loaded.aleatoric_factor, loaded.aleatoric, loaded.epistemic_factor)
    assert settings == (2.0, "variance", 0.0)
    averse, _ = agent.predict(x)
    assert (averse != neutral).any()
    for chooses in (loaded, type(agent.policy).load(tmp_path / "policy.zip")):
        np.testing.assert_array_equal(chooses.predict(x)[0], averse)


def test_the_policy_of_uadqn_explores_by_posterior_sampling_unless_deterministic():
    agent = make(UADQNAlgorithm, epistemic_factor=1.0)
    x = np.repeat(observations(agent, 1), 500, axis=0)
    assert len(set(agent.policy.predict(x, deterministic=True)[0])) == 1
    assert len(set(agent.policy.predict(x, deterministic=False)[0])) > 1


@every_algorithm
def test_policies_can_be_evaluated(cls):
    agent = make(cls)
    scores, lengths = evaluate_policy(
        agent.policy, agent.get_env(), n_eval_episodes=3, return_episode_rewards=True
    )
    assert lengths == [5, 5, 5]
    assert np.isfinite(scores).all()


# Files of networks


@every_algorithm
@pytest.mark.parametrize(("policy", "space"), SPACES)
def test_a_saved_network_predicts_the_same(cls, policy, space, tmp_path):
    agent = make(cls, policy, space)
    net = network(agent)
    net.save(tmp_path / "network.zip")
    loaded = type(net).load(tmp_path / "network.zip", device="cpu")
    assert loaded is not net
    saved, read = net.state_dict(), loaded.state_dict()
    assert list(saved) == list(read)
    for name, weights in saved.items():
        assert torch.equal(weights, read[name])
    x, _ = agent.policy.obs_to_tensor(observations(agent, 4))
    torch.testing.assert_close(loaded(x), net(x))


# Images


def outcome(cls, space, normalize_images):
    """Shapes of the extractor's weights, or how the space is refused."""
    widths = {"features_dim": 16}  # not shared: the library writes into it
    options = {"normalize_images": normalize_images, "features_extractor_kwargs": widths}
    try:
        agent = cls("CnnPolicy", RandomEnv(space), policy_kwargs=options, buffer_size=10)
    except (AssertionError, RuntimeError) as error:
        return type(error)
    extractor = agent.policy.make_features_extractor()
    return type(extractor), [tuple(p.shape) for p in extractor.parameters()]


IMAGES = [
    spaces.Box(0, 255, (36, 36, 3), np.uint8),
    spaces.Box(0, 255, (3, 36, 36), np.uint8),
    spaces.Box(0, 9, (3, 36, 36), np.uint8),
    spaces.Box(-1, 1, (3, 36, 36), np.float32),
    spaces.Box(0, 1, (1, 40, 40), np.float32),
    spaces.Box(0, 1, (4, 84, 84), np.float32),
    spaces.Box(0, 1, (84, 84, 4), np.float32),
    spaces.Box(0, 1, (10, 10, 4), bool),
]


@every_algorithm
@pytest.mark.parametrize("normalize_images", [True, False])
@pytest.mark.parametrize("space", IMAGES, ids=str)
def test_images_are_what_stable_baselines3_takes_for_one(cls, space, normalize_images):
    expected = outcome(QRDQN, space, normalize_images)
    assert outcome(cls, space, normalize_images) == expected
    if normalize_images and space.dtype != np.uint8:
        assert expected is AssertionError


@every_algorithm
def test_small_grids_are_read_if_asked_for_by_name(cls):
    agent = cls("GridPolicy", RandomEnv(spaces.Box(0, 1, (6, 5, 2), bool)), buffer_size=10)
    extractor = agent.policy.make_features_extractor()
    assert isinstance(extractor, GridCNN)
    assert extractor.features_dim == 16 * 4 * 3


# Optimisers


@every_algorithm
@pytest.mark.parametrize(
    "optimizer", [torch.optim.RMSprop, torch.optim.NAdam, torch.optim.SGD, torch.optim.AdamW]
)
def test_any_optimiser_is_taken(cls, optimizer):
    agent = make(cls, policy_kwargs={"optimizer_class": optimizer}).learn(20)
    assert type(agent.policy.optimizer) is optimizer
    assert agent._n_updates > 0


@every_algorithm
def test_options_of_the_optimiser_are_those_given(cls):
    default = make(cls).policy.optimizer
    assert type(default) is torch.optim.Adam
    assert default.defaults["eps"] == 1e-8
    options = {"eps": 1e-3, "weight_decay": 0.1}
    given = make(cls, policy_kwargs={"optimizer_kwargs": options}).policy.optimizer
    assert {name: given.defaults[name] for name in options} == options


# Exploration


@pytest.mark.parametrize(
    "name", ["exploration_fraction", "exploration_initial_eps", "exploration_final_eps"]
)
def test_uadqn_has_no_epsilon_and_says_how_it_explores(name):
    with pytest.raises(TypeError, match=f"{name}.* posterior sampling"):
        make(UADQNAlgorithm, **{name: 0.1})
    for cls in (QuantileDQN, DQNAlgorithm, BootstrappedDQN):
        assert getattr(make(cls, **{name: 0.1}), name) == 0.1
