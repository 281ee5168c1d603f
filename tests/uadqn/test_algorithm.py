"""UA-DQN and QR-DQN against plain updates, their choice of actions, and the history of training."""

from copy import deepcopy

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces
from scipy.stats import chisquare
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import skuq.uadqn._envs  # noqa: F401 - registers the windy cliff
from skuq.uadqn import QuantileDQN, TrainingHistory, UADQNAlgorithm
from skuq.uadqn._training import Episode
from tests.uadqn import plain as by_hand
from tests.uadqn.environments import (
    GRID,
    MIXED,
    SMALL,
    VECTOR,
    RandomEnv,
    collect,
    perturb,
    sampled,
)
from tests.uadqn.test_policies import WideCNN

POLICY = {"MlpPolicy": VECTOR, "GridPolicy": GRID}
N_ACTIONS, N_SEEN = 3, 40


def make(cls=UADQNAlgorithm, policy="MlpPolicy", env=None, **options):
    env = RandomEnv(POLICY.get(policy, MIXED)) if env is None else env
    options = {"buffer_size": 500, "seed": 0, "batch_size": 16, "policy_kwargs": SMALL} | options
    return cls(policy, env, **options)


def updates_by_hand(agent, batches, noise, prior, levels="midpoint"):
    """Weights of each network after the updates: three of them, one optimiser."""
    networks, target = agent.quantile_net, by_hand.plain_network(agent.quantile_net_target, 0)
    n_members = len(networks.head[0].weight)
    plain = [by_hand.plain_network(networks, k) for k in range(n_members)]
    anchors = [
        [a.detach().clone() for a in by_hand.stacked_parameters(networks.anchors, k)]
        for k in range(n_members - 1)
    ]
    taus = torch.tensor([by_hand.LEVELS[levels](i, 5) for i in range(5)])
    parameters = [p for net in plain for p in net.parameters()]
    adam = torch.optim.Adam(parameters, lr=agent.lr_schedule(1), eps=1e-8)
    for batch in map(by_hand.numbers, batches):
        targets = by_hand.bellman(target, batch, N_ACTIONS, agent.gamma)
        loss = torch.zeros(())
        for net in plain:
            quantiles = net(batch.now).view(len(batch.now), N_ACTIONS, -1)
            chosen = quantiles[range(len(batch.now)), batch.actions]
            loss = loss + by_hand.every_pair(chosen, targets, taus).mean()
        for net, anchor in zip(plain[1:], anchors, strict=True):
            loss = loss + noise**2 / (prior**2 * N_SEEN) * by_hand.squared_distance(net, anchor)
        adam.zero_grad()
        by_hand.backward(loss, parameters)
        adam.step()
    return plain, loss.item()


def train_on(agent, batches, monkeypatch):
    left = list(batches)
    monkeypatch.setattr(agent.replay_buffer, "sample", lambda *_: left.pop(0))
    agent.train(len(batches), 16)
    assert not left


@pytest.mark.parametrize(
    ("cls", "policy", "n_envs", "noise", "levels"),
    [
        (UADQNAlgorithm, "GridPolicy", 1, 1.0, "midpoint"),
        (UADQNAlgorithm, "MlpPolicy", 2, 0.5, "paper"),  # counts transitions of both
        (UADQNAlgorithm, "MlpPolicy", 1, 0.0, "midpoint"),
        (QuantileDQN, "GridPolicy", 1, 0.0, "midpoint"),
    ],
)
def test_updates_equal_those_of_plain_networks(cls, policy, n_envs, noise, levels, monkeypatch):
    own = {"noise_scale": noise} if cls is UADQNAlgorithm else {}
    env = DummyVecEnv([lambda: RandomEnv(POLICY[policy])] * n_envs)
    own |= {"learning_rate": 1e-3, "policy_kwargs": SMALL | {"levels": levels}}
    agent = collect(make(cls, policy, env, **own), N_SEEN)
    perturb([*agent.quantile_net.trained(), *agent.quantile_net_target.trained()])
    batches = [agent.replay_buffer.sample(16) for _ in range(3)]
    scale = agent.quantile_net.prior_scale.item() if cls is UADQNAlgorithm else 1.0
    plain, loss = updates_by_hand(agent, batches, noise, scale, levels)
    assert len(plain) == (1 if cls is QuantileDQN else 3)
    anchors = getattr(agent.quantile_net, "anchors", [])
    before = [anchor.clone() for anchor in anchors]
    agent._n_updates = agent.LOSS_INTERVAL - len(batches)
    train_on(agent, batches, monkeypatch)
    by_hand.assert_stack_matches(agent.quantile_net.trained(), [net.parameters() for net in plain])
    if not noise:  # what is logged has no prior
        assert agent.logger.name_to_value["train/loss"] == pytest.approx(loss, rel=1e-4)
    assert all(map(torch.equal, anchors, before))


@pytest.mark.parametrize(
    ("cls", "policy"), [(UADQNAlgorithm, "GridPolicy"), (QuantileDQN, "MlpPolicy")]
)
def test_gradients_and_400_actions_are_those_of_autograd(cls, policy, monkeypatch):
    options = {"learning_starts": 20, "batch_size": 8, "target_update_interval": 50}
    by_autograd = {"max_grad_norm": 1e9}  # never clips, but gradients are then those of autograd
    fused, plain = (make(cls, policy, **options, **by).learn(400) for by in ({}, by_autograd))
    assert fused.policy.fused_update() is not None
    np.testing.assert_array_equal(*(agent.replay_buffer.actions for agent in (fused, plain)))
    plain.set_parameters(deepcopy(fused.get_parameters()))
    batch = fused.replay_buffer.sample(16)
    for agent in (fused, plain):
        train_on(agent, [batch], monkeypatch)
    for one, other in zip(*(a.quantile_net.trained() for a in (fused, plain)), strict=True):
        assert (one.grad != 0).any()
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


OTHERS = [
    {"activation_fn": torch.nn.Tanh},
    {"features_extractor_class": WideCNN},
    {"optimizer_class": torch.optim.SGD},
    {"optimizer_kwargs": {"fused": True, "amsgrad": True}},
]


@pytest.mark.parametrize("networks", OTHERS)
def test_other_networks_and_optimisers_are_updated_by_autograd(networks):
    agent = make(policy="GridPolicy", policy_kwargs=SMALL | networks, learning_starts=5)
    before = [parameter.clone() for parameter in agent.quantile_net.trained()]
    agent.learn(20)
    assert agent.policy.fused_update() is None
    assert not any(map(torch.equal, before, agent.quantile_net.trained()))


def test_updates_read_no_number_from_the_device(monkeypatch):
    # On a GPU, each would wait for it.
    agent = collect(make(), N_SEEN)
    perturb([agent.quantile_net.prior_scale])
    agent.quantile_net.load_state_dict(agent.quantile_net.state_dict())
    agent.train(1, 16)
    assert agent.quantile_net.scale_of_anchors == agent.quantile_net.prior_scale.item()

    def read(_):
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(torch.Tensor, "item", read)
    agent.train(1, 16)


def test_gradients_are_clipped_and_the_learning_rate_follows_its_schedule():
    rate = {"learning_rate": lambda left: 1e-3 * left}
    agent = make(max_grad_norm=0.01, learning_starts=5, **rate).learn(20)
    norms = [p.grad.square().sum() for p in agent.quantile_net.trained()]
    assert sum(norms).sqrt().item() == pytest.approx(0.01, rel=1e-3)
    (group,) = agent.policy.optimizer.param_groups
    assert 0 <= group["lr"] <= 1e-4


@pytest.mark.parametrize("truncates", [True, False])
def test_cut_episodes_go_on_in_the_target_and_ended_ones_do_not(truncates):
    agent = collect(make(env=RandomEnv(length=3, truncates=truncates)), 60)
    perturb(agent.quantile_net_target.trained())
    assert agent.replay_buffer.dones[:60].sum() == 20
    batch = agent.replay_buffer.sample(200)
    bootstrapped = (agent._targets(batch) - batch.rewards).abs().amin(1) > 0
    assert bool(batch.dones.any()) != truncates
    torch.testing.assert_close(bootstrapped, batch.dones[:, 0] == 0)


@pytest.mark.parametrize(("n_envs", "expected"), [(1, [10, 20, 30]), (3, [9, 18, 27])])
def test_target_network_follows_at_the_interval(n_envs, expected):
    env, called = DummyVecEnv([RandomEnv] * n_envs), []
    agent = make(env=env, target_update_interval=10, tau=0.3, learning_starts=4)
    agent.policy.update_target = lambda tau: called.append((agent.num_timesteps, tau))
    agent.learn(30)
    assert called == [(step, 0.3) for step in expected]


def with_quantiles(quantiles, n_samples=1, **options):
    agent = make(**options)
    fixed = torch.as_tensor(quantiles, dtype=torch.float32)[:, None]
    agent.quantile_net.quantiles = lambda obs: fixed.expand(-1, len(obs), -1, -1)
    return agent, np.zeros((n_samples, 4), np.float32)


def act(agent, obs):
    """Actions as the agent takes them while it learns; it then says why."""
    agent.set_logger(Logger(folder=None, output_formats=[]))
    agent._last_obs = obs
    return agent._sample_action(learning_starts=0)[0]


# Three actions: risky and good, less of both, certain; the networks agree but for noise.
SPREAD = np.linspace(-1, 1, 9) * [[1.5], [0.7], [0.1]] + [[0.8], [0.3], [0.0]]
QUANTILES = SPREAD + np.random.default_rng(2).normal(scale=0.6, size=(3, 3, 9))


@pytest.mark.parametrize(
    ("beta", "lam", "aleatoric"),
    [(0.7, 0.0, "covariance"), (0.6, 0.8, "covariance"), (0.6, 0.8, "variance")],
)
def test_actions_are_thompson_samples(beta, lam, aleatoric):
    options = {"epistemic_factor": beta, "aleatoric_factor": lam, "aleatoric": aleatoric}
    agent, obs = with_quantiles(QUANTILES, 5_000, **options)
    mean, risk, epistemic = by_hand.moments(QUANTILES, aleatoric)
    values = mean - lam * np.sqrt(risk)
    rng = np.random.default_rng(1)
    draws = rng.normal(values, beta * np.sqrt(epistemic), (500_000, 3)).argmax(1)
    expected = np.bincount(draws, minlength=3) / len(draws)
    actions = act(agent, obs)
    counts = np.bincount(actions, minlength=3)
    assert (expected > 0.02).all()  # a case where every action is taken
    assert chisquare(counts, expected * len(obs)).pvalue > 1e-4
    exploratory = (actions != values.argmax()).mean()
    wanted = (epistemic[actions].mean(), risk[actions].mean(), exploratory)
    assert agent.decision == pytest.approx(wanted, rel=1e-4)
    counts = np.bincount(agent.predict(obs)[0], minlength=3)
    assert chisquare(counts, expected * len(obs)).pvalue > 1e-4
    assert agent.decision == pytest.approx(wanted, rel=1e-4)  # of what was done, not asked


def test_the_decision_of_every_tenth_step_is_logged():
    agent = make()
    agent.learn(25, log_interval=None)
    assert agent.logger.name_to_count["rollout/epistemic"] == 3
    agent.DECISION_INTERVAL = 1
    agent.learn(5, log_interval=None)  # with a logger of its own
    assert agent.logger.name_to_count["rollout/epistemic"] == 5


def test_an_epistemic_factor_of_0_is_greedy_and_there_is_no_epsilon_and_no_random_start():
    agent, obs = with_quantiles(QUANTILES, 100, epistemic_factor=0.0)
    best = QUANTILES[0].mean(1).argmax()
    assert (agent.predict(obs)[0] == best).all()
    assert (act(agent, obs) == best).all()
    assert agent.decision.exploratory == 0
    certain = np.repeat([[0.0], [9.0], [0.0]], 9, axis=1)
    agent, _ = with_quantiles(np.stack([certain] * 3), learning_starts=1000)
    agent.learn(60)
    assert agent.exploration_rate == 0
    assert set(agent.replay_buffer.actions[:60, 0, 0]) == {1}


@pytest.mark.parametrize(
    ("cls", "policy"), [(UADQNAlgorithm, "MlpPolicy"), (QuantileDQN, "GridPolicy")]
)
def test_a_saved_or_copied_agent_predicts_and_learns_the_same(cls, policy, tmp_path, monkeypatch):
    options = {"epistemic_factor": 0.7, "aleatoric_factor": 0.3} if cls is UADQNAlgorithm else {}
    options |= {"learning_starts": 10}
    agent = make(cls, policy, **options).learn(30)
    agent.save(tmp_path / "agent.zip")
    loaded = cls.load(tmp_path / "agent.zip", trust=True, env=RandomEnv(POLICY[policy]))
    trained = make(cls, policy, **options | {"seed": 1}).learn(30)  # otherwise, before it is set
    trained.set_parameters(deepcopy(agent.get_parameters()))
    copied = make(cls, policy, **options)
    copied.policy = deepcopy(agent.policy)
    copied._create_aliases()
    obs, agents = sampled(POLICY[policy]), (agent, loaded, trained, copied)
    assert {name: getattr(loaded, name) for name in options} == options
    # The optimiser's moments are kept too: other updates are the same.
    batches = [agent.replay_buffer.sample(16) for _ in range(2)]
    before = agent.predict_quantiles(obs)
    for one in agents:
        np.testing.assert_array_equal(one.predict_quantiles(obs), before)
        one.replay_buffer, one._logger = agent.replay_buffer, agent.logger
        train_on(one, batches, monkeypatch)
        np.testing.assert_array_equal(one.predict_quantiles(obs), agent.predict_quantiles(obs))
    assert (agent.predict_quantiles(obs) != before).any()


def test_a_value_network_alone_has_the_variance_of_its_quantiles():
    setting = {"aleatoric_factor": 1.0, "aleatoric": "variance"}
    agent = QuantileDQN("MlpPolicy", RandomEnv(), policy_kwargs=SMALL | setting)
    observations = np.zeros((1, 4), np.float32)
    quantiles = agent.predict_quantiles(observations)[0, 0]
    expected = (quantiles.mean(-1) - quantiles.std(-1)).argmax()
    assert agent.predict(observations, deterministic=True)[0].item() == expected


def test_several_steps_ahead_are_discounted_as_the_buffer_says():
    agent = collect(make(env=RandomEnv(length=50), n_steps=3, gamma=0.5), 40)
    batch = agent.replay_buffer.sample(30)
    assert set(batch.discounts.flatten().tolist()) <= {0.125, 0.25, 0.5}
    with torch.no_grad():
        ahead = agent.quantile_net_target.quantiles(batch.next_observations)[0]
    best = ahead[range(30), ahead.mean(-1).argmax(1)]
    expected = batch.rewards + batch.discounts * (1 - batch.dones) * best
    torch.testing.assert_close(agent._targets(batch), expected)
    agent.train(1, 16)


TYPES = ["int64", "float64", "int64", "int64", "float64", "float64", "float64"]


class Counting(gym.Env):
    """Episode k lasts k + 1 steps; step i brings ``scale * i``; the last one is a fall."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, scale=1.0, says=True):
        self.scale, self.says, self.length, self.i = scale, says, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.i = self.length + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.i += 1
        ends = self.i == self.length
        info = {"fell": ends} if self.says else {}
        return np.zeros(1, np.float32), self.scale * self.i, ends, False, info


class Decisions(BaseCallback):
    def __init__(self):
        super().__init__()
        self.all = []

    def _on_step(self):
        self.all.append(self.model.decision)
        return True


def test_episodes_are_summed_and_decisions_averaged():
    history, decisions = TrainingHistory(), Decisions()
    make(env=Counting()).learn(12, callback=CallbackList([history, decisions]))
    rows = history.to_frame()
    assert rows.columns.tolist() == list(Episode._fields)
    # lengths 1, 2, 3, 4 fit into 12 steps
    assert rows.length.tolist() == [1, 2, 3, 4]
    assert rows.step.tolist() == [1, 3, 6, 10]
    assert rows.score.tolist() == [1, 3, 6, 10]
    assert rows.falls.tolist() == [1, 1, 1, 1]
    for row, end in zip(rows.itertuples(), rows.step, strict=True):
        mean = np.mean(decisions.all[end - row.length : end], axis=0)
        assert [row.epistemic, row.aleatoric, row.exploratory] == pytest.approx(mean)


@pytest.mark.parametrize("normalise", [False, True])
def test_several_environments_are_kept_apart_and_rewards_are_those_before_normalisation(normalise):
    history, env = TrainingHistory(), DummyVecEnv([Counting, lambda: Counting(scale=10.0)])
    make(env=VecNormalize(env) if normalise else env).learn(12, callback=history)
    rows = history.to_frame()
    assert rows.step.tolist() == [2, 2, 6, 6, 12, 12]
    assert rows.score.tolist() == [1, 10, 3, 30, 6, 60]
    assert rows.length.tolist() == [1, 1, 2, 2, 3, 3]


def test_agents_without_decisions_have_no_uncertainties_and_silent_environments_no_falls():
    history = TrainingHistory()
    assert history.to_frame().dtypes.map(str).tolist() == TYPES
    DQN("MlpPolicy", Counting(says=False), seed=0, buffer_size=100).learn(6, callback=history)
    rows = history.to_frame()
    assert rows.dtypes.map(str).tolist() == TYPES
    assert rows.score.tolist() == [1, 3, 6]
    assert rows.falls.tolist() == [0, 0, 0]
    assert rows[["epistemic", "aleatoric", "exploratory"]].isna().to_numpy().all()


def learn_on(agent, history):
    agent.learn(5, callback=history, reset_num_timesteps=False)


def learn_anew(agent, history):
    agent.learn(4, callback=history)  # the environment is reset: the fourth episode


def learn_elsewhere(agent, history):
    agent.set_env(Counting())
    agent.learn(3, callback=history, reset_num_timesteps=False)


@pytest.mark.parametrize(
    ("go_on", "lengths"),
    [(learn_on, [1, 2, 3, 4]), (learn_anew, [1, 2, 4]), (learn_elsewhere, [1, 2, 1, 2])],
)
def test_an_unfinished_episode_goes_on_unless_the_environments_are_reset(go_on, lengths):
    history, agent = TrainingHistory(), make(env=Counting())
    agent.learn(5, callback=history)  # two steps into the third episode
    go_on(agent, history)
    assert history.to_frame().length.tolist() == lengths
    assert history.to_frame().score.tolist() == [n * (n + 1) / 2 for n in lengths]
