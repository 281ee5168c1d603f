"""DQN and bootstrapped DQN: settings, one update against plain heads, and who acts when."""

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.torch_layers import FlattenExtractor, NatureCNN
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn
from torch.nn.functional import huber_loss

from skuq.uadqn._baselines import BootstrappedDQN, BootstrappedPolicy, DQNAlgorithm
from skuq.uadqn._policies import GridCNN
from tests.uadqn.environments import GRID, IMAGE, MIXED, VECTOR, RandomEnv, collect, perturb
from tests.uadqn.plain import (
    ChannelsLast,
    assert_stack_matches,
    backward,
    numbers,
    plain_layers,
)

POLICY = {"MlpPolicy": VECTOR, "GridPolicy": GRID, "MultiInputPolicy": MIXED}
N_MEMBERS, N_ACTIONS = 4, 3


def make(policy="MlpPolicy", env=None, cls=BootstrappedDQN, **options):
    env = RandomEnv(POLICY[policy]) if env is None else env
    options = {"buffer_size": 500, "seed": 0, "policy_kwargs": {"net_arch": [8]}} | options
    if cls is BootstrappedDQN:
        options = {"n_members": N_MEMBERS} | options
    return cls(policy, env, **options)


# Settings


@pytest.mark.parametrize("cls", [DQNAlgorithm, BootstrappedDQN])
def test_settings_of_the_paper_are_the_defaults(cls):
    agent = cls("GridPolicy", RandomEnv(GRID))
    table = {
        "batch_size": 32,
        "buffer_size": 100_000,
        "target_update_interval": 1_000,
        "gamma": 0.99,
        "learning_rate": 1e-4,
        "learning_starts": 5_000,
        "tau": 1.0,
        "exploration_initial_eps": 1.0,
        "exploration_final_eps": 0.03,
    }
    assert {name: getattr(agent, name) for name in table} == table
    assert agent.train_freq.frequency == 1
    assert agent.exploration_fraction * 5_000_000 == 100_000
    (group,) = agent.policy.optimizer.param_groups
    assert isinstance(agent.policy.optimizer, torch.optim.Adam)
    assert group["eps"] == 1e-8
    assert isinstance(agent.q_net.features_extractor, GridCNN)


def test_ten_heads_of_128_units_on_grids():
    agent = BootstrappedDQN("GridPolicy", RandomEnv(GRID))
    shapes = [tuple(p.shape) for p in agent.q_net.q_net.parameters()]
    features = agent.q_net.features_dim
    assert shapes == [(10, features, 128), (10, 1, 128), (10, 128, 3), (10, 1, 3)]


def test_dqn_has_128_units_on_grids_and_what_was_asked_for_otherwise():
    agent = DQNAlgorithm("GridPolicy", RandomEnv(GRID), buffer_size=10)
    assert agent.policy.net_arch == [128]
    assert make("GridPolicy", cls=DQNAlgorithm).policy.net_arch == [8]
    options = {"features_extractor_class": FlattenExtractor}
    flat = DQNAlgorithm("GridPolicy", RandomEnv(GRID), buffer_size=10, policy_kwargs=options)
    assert isinstance(flat.q_net.features_extractor, FlattenExtractor)
    assert flat.policy.net_arch == [100, 100]
    images = DQNAlgorithm("CnnPolicy", RandomEnv(IMAGE), buffer_size=10)
    assert isinstance(images.q_net.features_extractor, NatureCNN)


@pytest.mark.parametrize("n_members", [1, 0])
def test_too_few_members(n_members):
    with pytest.raises(ValueError, match=f"n_members must be at least 2, got {n_members}"):
        make(n_members=n_members)


def test_the_number_of_members_is_given_once():
    with pytest.raises(ValueError, match="policy_kwargs must not contain n_members"):
        BootstrappedDQN("MlpPolicy", RandomEnv(), policy_kwargs={"n_members": 3})


# Values and updates


class PlainHeads(nn.Module):
    """The same network with a list of heads, one after the other."""

    def __init__(self, q_net):
        super().__init__()
        self.shared = nn.Sequential()
        if isinstance(q_net.features_extractor, GridCNN):
            of_stack = q_net.features_extractor.convolution
            convolution = nn.Conv2d(of_stack.in_channels, of_stack.out_channels, 3)
            convolution.load_state_dict(of_stack.state_dict())
            self.shared = nn.Sequential(convolution, nn.ReLU(), ChannelsLast(), nn.Flatten())
        self.heads = nn.ModuleList(
            nn.Sequential(*plain_layers(q_net.q_net, k)) for k in range(N_MEMBERS)
        )

    def forward(self, obs):
        features = self.shared(obs)
        return [head(features) for head in self.heads]


def one_update(agent, batch):
    """The network after an update: each head on its own target head."""
    plain, target = PlainHeads(agent.q_net), PlainHeads(agent.q_net_target)
    adam = torch.optim.Adam(plain.parameters(), lr=agent.learning_rate, eps=1e-8)
    batch, loss = numbers(batch), torch.zeros(())
    with torch.no_grad():
        ahead = [values.max(1).values for values in target(batch.ahead)]
    for values, best in zip(plain(batch.now), ahead, strict=True):
        goal = batch.rewards + agent.gamma * (1 - batch.dones) * best
        loss = loss + huber_loss(values[range(len(goal)), batch.actions], goal)
    backward(loss, list(plain.parameters()))
    total = torch.nn.utils.clip_grad_norm_(plain.parameters(), agent.max_grad_norm)
    adam.step()
    return plain, total


@pytest.mark.parametrize("policy", ["MlpPolicy", "GridPolicy"])
@pytest.mark.parametrize("max_grad_norm", [1e6, 0.1])
def test_an_update_equals_that_of_plain_heads(policy, max_grad_norm, monkeypatch):
    agent = collect(make(policy, learning_rate=1e-3, max_grad_norm=max_grad_norm), 60)
    perturb([*agent.q_net.parameters(), *agent.q_net_target.parameters()])
    batch = agent.replay_buffer.sample(16)
    plain, norm = one_update(agent, batch)
    assert (norm > max_grad_norm) == (max_grad_norm == 0.1)
    monkeypatch.setattr(agent.replay_buffer, "sample", lambda *_: batch)
    agent.train(1, 16)
    heads = [head.parameters() for head in plain.heads]
    assert_stack_matches(list(agent.q_net.q_net.parameters()), heads)
    pairs = zip(agent.q_net.features_extractor.parameters(), plain.shared.parameters(), strict=True)
    for mine, expected in pairs:
        torch.testing.assert_close(mine.grad, expected.grad, rtol=1e-3, atol=1e-5)
        sure = ~expected.doubtful
        torch.testing.assert_close(mine[sure], expected[sure], rtol=0, atol=1e-5)


def test_values_are_those_of_each_head_and_prediction_takes_their_mean():
    agent = make(seed=1)  # of seed 0 all votes are the mean
    perturb(agent.q_net.parameters(), 1.0)
    obs = np.stack([VECTOR.sample() for _ in range(50)])
    values = agent.predict_q(obs)
    plain = torch.stack(PlainHeads(agent.q_net)(torch.as_tensor(obs))).detach().numpy()
    np.testing.assert_allclose(values, plain, rtol=1e-5, atol=1e-5)
    actions, _ = agent.predict(obs, deterministic=True)
    np.testing.assert_array_equal(actions, plain.mean(0).argmax(1))
    # the mean is neither the first head nor the vote
    assert (actions != plain[0].argmax(1)).any()
    votes = (plain.argmax(2)[..., None] == range(N_ACTIONS)).sum(0)
    assert (actions != votes.argmax(1)).any()
    assert agent.predict_q(obs[0]).shape == (N_MEMBERS, 1, N_ACTIONS)


def test_heads_start_apart_and_the_target_is_a_copy():
    agent = make(policy_kwargs={})
    obs = np.stack([VECTOR.sample() for _ in range(5)])
    values = agent.predict_q(obs)
    assert values.var(0, ddof=1).min() > 1e-4
    with torch.no_grad():
        np.testing.assert_array_equal(agent.q_net_target(torch.as_tensor(obs)).numpy(), values)


def test_target_network_follows_at_the_interval():
    agent = make(learning_starts=5, target_update_interval=20, learning_rate=1e-2)
    start = [p.clone() for p in agent.q_net_target.parameters()]
    agent.learn(19)
    assert all(map(torch.equal, agent.q_net_target.parameters(), start))
    agent.learn(2, reset_num_timesteps=False)
    assert not any(map(torch.equal, agent.q_net_target.parameters(), start))


# Acting


class Recorder(BaseCallback):
    """Head and action of each environment at each step, and where episodes ended."""

    def __init__(self):
        super().__init__()
        self.heads, self.actions, self.ends, self.values = [], [], [], []

    def _on_step(self):
        self.heads.append(self.model.heads.copy())
        self.actions.append(self.locals["actions"])
        self.ends.append(self.locals["dones"].copy())
        self.values.append(self.model.predict_q(self.model._last_obs))
        return True


def recorded(n_steps, n_envs=1, **options):
    env = DummyVecEnv([lambda i=i: RandomEnv(length=4 + i) for i in range(n_envs)])
    options = {"learning_starts": 0, "exploration_initial_eps": 0.0} | options
    recorder, agent = Recorder(), make(env=env, **options)
    agent.learn(n_steps * n_envs, callback=recorder)
    return [np.array(getattr(recorder, n)) for n in ("heads", "actions", "ends", "values")]


@pytest.mark.parametrize("n_envs", [1, 3])
def test_one_head_acts_from_the_start_of_an_episode_to_its_end(n_envs):
    heads, actions, ends, values = recorded(200, n_envs, exploration_final_eps=0.0)
    for env in range(n_envs):
        begins = np.concatenate([[True], ends[:-1, env]])
        for i in range(1, len(heads)):
            if not begins[i]:
                assert heads[i, env] == heads[i - 1, env]
        drawn = heads[begins, env]
        assert set(drawn) == set(range(N_MEMBERS))
        assert (drawn[1:] == drawn[:-1]).mean() < 0.6  # drawn anew: a quarter stays
    acting = values[np.arange(len(heads))[:, None], heads, np.arange(n_envs)]
    np.testing.assert_array_equal(actions, acting.argmax(-1))


def test_heads_are_drawn_evenly():
    agent = make()
    counts = np.bincount(agent._draw_heads(4_000), minlength=N_MEMBERS)
    assert abs(counts - 1_000).max() < 4 * (4_000 * 0.25 * 0.75) ** 0.5


@pytest.mark.slow
def test_epsilon_greedy_exploration_comes_on_top_for_each_environment():
    eps = 0.4
    heads, actions, _, values = recorded(
        600, 2, exploration_initial_eps=eps, exploration_final_eps=eps, exploration_fraction=1.0
    )
    acting = values[np.arange(len(heads))[:, None], heads, np.arange(2)]
    others = actions[1:] != acting[1:].argmax(-1)  # the first step knows no rate yet
    share = eps * (1 - 1 / N_ACTIONS)
    error = (share * (1 - share) / others.size) ** 0.5
    assert abs(others.mean() - share) < 4 * error
    # environments explore independently of each other
    assert (others[:, 0] != others[:, 1]).mean() == pytest.approx(2 * share * (1 - share), abs=0.08)


def test_the_first_actions_are_random():
    _, actions, _, _ = recorded(300, 1, learning_starts=300)
    counts = np.bincount(actions.ravel(), minlength=N_ACTIONS)
    assert counts.min() > 60


# Storage and what the library offers


def test_same_seed_same_run():
    runs = [collect_and_learn(seed) for seed in (3, 3, 4)]
    for mine, theirs in zip(*(run.policy.parameters() for run in runs[:2]), strict=True):
        assert torch.equal(mine, theirs)
    actions = [run.replay_buffer.actions for run in runs]
    np.testing.assert_array_equal(actions[0], actions[1])
    assert not np.array_equal(actions[0], actions[2])


def collect_and_learn(seed):
    env = DummyVecEnv([RandomEnv, RandomEnv])
    return make(env=env, seed=seed, learning_starts=20).learn(60)


@pytest.mark.parametrize("policy", ["MlpPolicy", "GridPolicy"])
def test_a_saved_agent_predicts_the_same_and_keeps_its_head(policy, tmp_path):
    agent = make(policy, learning_starts=10).learn(33)
    agent.save(tmp_path / "agent.zip")
    env = DummyVecEnv([lambda: RandomEnv(POLICY[policy])])
    loaded = BootstrappedDQN.load(tmp_path / "agent.zip", env=env, force_reset=False)
    obs = np.stack([POLICY[policy].sample() for _ in range(5)])
    np.testing.assert_array_equal(loaded.predict_q(obs), agent.predict_q(obs))
    assert loaded.policy.n_members == N_MEMBERS
    kept = agent.heads.copy()
    loaded._setup_learn(5, reset_num_timesteps=False)
    np.testing.assert_array_equal(loaded.heads, kept)


def test_a_saved_policy_predicts_the_same(tmp_path):
    policy = make().policy
    policy.save(tmp_path / "policy.zip")
    loaded = BootstrappedPolicy.load(tmp_path / "policy.zip")
    obs = torch.as_tensor(VECTOR.sample())[None]
    torch.testing.assert_close(loaded.q_net(obs), policy.q_net(obs))


def test_heads_are_drawn_for_the_environments_that_are_there(tmp_path):
    make().learn(5).save(tmp_path / "agent.zip")
    env = DummyVecEnv([RandomEnv] * 3)
    agent = BootstrappedDQN.load(tmp_path / "agent.zip", env=env, n_envs=3)
    assert agent.learn(6).heads.shape == (3,)


@pytest.mark.parametrize("cls", [BootstrappedDQN, DQNAlgorithm])
@pytest.mark.parametrize(
    ("policy", "space"),
    [
        ("MlpPolicy", VECTOR),
        ("MlpPolicy", spaces.Discrete(6)),
        ("GridPolicy", spaces.Box(0, 1, (5, 5, 3), bool)),
        ("CnnPolicy", IMAGE),
        ("MultiInputPolicy", MIXED),
    ],
)
def test_agents_learn_from_observations_of_all_kinds(cls, policy, space):
    agent = make(policy, RandomEnv(space), cls, batch_size=4, learning_starts=8).learn(12)
    assert agent._n_updates > 0
    score, _ = evaluate_policy(agent, agent.get_env(), n_eval_episodes=2)
    assert np.isfinite(score)


def test_several_steps_ahead_are_discounted_as_the_buffer_says():
    agent = collect(make(env=RandomEnv(length=50), n_steps=3, gamma=0.5), 40)
    batch = agent.replay_buffer.sample(30)
    with torch.no_grad():
        ahead = agent.q_net_target(batch.next_observations).max(2).values
    expected = batch.rewards[:, 0] + batch.discounts[:, 0] * (1 - batch.dones[:, 0]) * ahead
    torch.testing.assert_close(agent._targets(batch), expected)


def test_cut_episodes_go_on_in_the_target():
    agent = collect(make(env=RandomEnv(length=3, truncates=True)), 60)
    perturb(agent.q_net_target.parameters())
    batch = agent.replay_buffer.sample(100)
    assert ((agent._targets(batch) - batch.rewards[:, 0]).abs() > 0).all()


def test_continuous_actions():
    env = RandomEnv()
    env.action_space = spaces.Box(-1, 1, (2,))
    with pytest.raises(AssertionError, match=r"only supports .*Discrete"):
        make(env=env)
