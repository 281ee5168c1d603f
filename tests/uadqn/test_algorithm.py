"""UA-DQN and QR-DQN against plain updates, their choice of actions, and the library's parts."""

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

from gymnasium import spaces
from scipy.stats import chisquare
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

import skuq.uadqn._envs  # noqa: F401 - registers the windy cliff
from skuq.uadqn import QuantileDQN, UADQNAlgorithm
from tests.uadqn.environments import GRID, IMAGE, MIXED, SMALL, VECTOR, RandomEnv, collect, perturb
from tests.uadqn.plain import (
    assert_stack_matches,
    backward,
    bellman,
    every_pair,
    numbers,
    plain_network,
    squared_distance,
    stacked_parameters,
)

POLICY = {"MlpPolicy": VECTOR, "GridPolicy": GRID}
N_ACTIONS, N_SEEN = 3, 40


def make(cls=UADQNAlgorithm, policy="MlpPolicy", env=None, **options):
    env = RandomEnv(POLICY.get(policy, MIXED)) if env is None else env
    options = {"buffer_size": 500, "seed": 0, "batch_size": 16, "policy_kwargs": SMALL} | options
    return cls(policy, env, **options)


def updates_by_hand(agent, batches, noise, prior, levels="midpoint"):
    """Weights of each network after the updates: three of them, one optimiser."""
    networks, target = agent.quantile_net, plain_network(agent.quantile_net_target, 0)
    n_members = len(networks.head[0].weight)
    plain = [plain_network(networks, k) for k in range(n_members)]
    anchors = [
        [a.detach().clone() for a in stacked_parameters(networks.anchors, k - 1)]
        for k in range(1, n_members)
    ]
    parameters = [p for net in plain for p in net.parameters()]
    adam = torch.optim.Adam(parameters, lr=agent.lr_schedule(1), eps=1e-8)
    for batch in map(numbers, batches):
        targets = bellman(target, batch, N_ACTIONS, agent.gamma)
        loss = torch.zeros(())
        for net in plain:
            quantiles = net(batch.now).view(len(batch.now), N_ACTIONS, -1)
            chosen = quantiles[range(len(batch.now)), batch.actions]
            loss = loss + every_pair(chosen, targets, levels)
        for net, anchor in zip(plain[1:], anchors, strict=True):
            loss = loss + noise**2 / (prior**2 * N_SEEN) * squared_distance(net, anchor)
        adam.zero_grad()
        backward(loss, parameters)
        adam.step()
    return plain


def train_on(agent, batches, monkeypatch):
    left = list(batches)
    monkeypatch.setattr(agent.replay_buffer, "sample", lambda *_: left.pop(0))
    agent.train(len(batches), 16)
    assert not left


def assert_same(agent, plain):
    assert_stack_matches(agent.quantile_net.trained(), [net.parameters() for net in plain])


@pytest.mark.parametrize(
    ("policy", "noise", "prior", "levels"),
    [
        ("GridPolicy", 1.0, None, "midpoint"),
        ("MlpPolicy", 0.5, 0.2, "paper"),
        ("MlpPolicy", 0.0, None, "midpoint"),
    ],
)
def test_updates_of_uadqn_equal_those_of_three_plain_networks(
    policy, noise, prior, levels, monkeypatch
):
    options = {"learning_rate": 1e-3, "policy_kwargs": SMALL | {"levels": levels}}
    agent = make(policy=policy, noise_scale=noise, prior_scale=prior, **options)
    scale = prior or agent.quantile_net.prior_scale.item()
    collect(agent, N_SEEN)
    perturb([*agent.quantile_net.trained(), *agent.quantile_net_target.trained()])
    batches = [agent.replay_buffer.sample(16) for _ in range(3)]
    plain = updates_by_hand(agent, batches, noise, scale, levels)
    anchors = [anchor.clone() for anchor in agent.quantile_net.anchors]
    train_on(agent, batches, monkeypatch)
    assert_same(agent, plain)
    for anchor, kept in zip(agent.quantile_net.anchors, anchors, strict=True):
        torch.testing.assert_close(anchor, kept, rtol=0, atol=0)


def test_updates_of_qr_dqn_equal_those_of_a_plain_network(monkeypatch):
    agent = collect(make(QuantileDQN, "GridPolicy", learning_rate=1e-3), N_SEEN)
    perturb([*agent.quantile_net.trained(), *agent.quantile_net_target.trained()])
    batches = [agent.replay_buffer.sample(16) for _ in range(3)]
    plain = updates_by_hand(agent, batches, 0.0, 1.0)
    assert len(plain) == 1
    train_on(agent, batches, monkeypatch)
    assert_same(agent, plain)


def test_the_prior_counts_transitions_of_all_environments(monkeypatch):
    env = DummyVecEnv([RandomEnv, RandomEnv])
    agent = collect(make(env=env, learning_rate=1e-3), N_SEEN)  # 20 steps of two environments
    perturb([*agent.quantile_net.trained(), *agent.quantile_net_target.trained()])
    batches = [agent.replay_buffer.sample(16)]
    plain = updates_by_hand(agent, batches, 1.0, agent.quantile_net.prior_scale.item())
    train_on(agent, batches, monkeypatch)
    assert_same(agent, plain)


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
    agent._add_prior(agent.quantile_net.trained())


def test_gradients_are_clipped_to_the_norm_that_was_asked_for(monkeypatch):
    agent = collect(make(max_grad_norm=0.01), N_SEEN)
    train_on(agent, [agent.replay_buffer.sample(16)], monkeypatch)
    norms = [p.grad.square().sum() for p in agent.quantile_net.trained()]
    assert sum(norms).sqrt().item() == pytest.approx(0.01, rel=1e-3)


def test_loss_is_logged_and_is_that_of_every_pair(monkeypatch):
    agent = collect(make(QuantileDQN), N_SEEN)
    (batch,) = batches = [agent.replay_buffer.sample(16)]
    of_batch, net = numbers(batch), plain_network(agent.quantile_net, 0)
    targets = bellman(plain_network(agent.quantile_net_target, 0), of_batch, N_ACTIONS, 0.99)
    quantiles = net(of_batch.now).view(16, N_ACTIONS, -1)[range(16), of_batch.actions]
    agent._n_updates = agent.LOSS_INTERVAL - 1
    train_on(agent, batches, monkeypatch)
    logged = agent.logger.name_to_value["train/loss"]
    assert logged == pytest.approx(every_pair(quantiles, targets).item(), rel=1e-4)


def test_cut_episodes_go_on_in_the_target_and_ended_ones_do_not():
    for truncates in (True, False):
        agent = collect(make(env=RandomEnv(length=3, truncates=truncates)), 60)
        perturb(agent.quantile_net_target.trained())
        assert agent.replay_buffer.dones[:60].sum() == 20
        batch = agent.replay_buffer.sample(200)
        targets = agent._targets(batch)
        bootstrapped = (targets - batch.rewards).abs().amin(1) > 0
        if truncates:
            assert batch.dones.sum() == 0
            assert bootstrapped.all()
        else:
            assert 0 < batch.dones.sum() < 200
            torch.testing.assert_close(bootstrapped, batch.dones[:, 0] == 0)


@pytest.mark.parametrize(
    ("n_envs", "expected"), [(1, [10, 20, 30]), (2, [10, 20, 30]), (3, [9, 18, 27])]
)
def test_target_network_follows_at_the_interval(n_envs, expected, monkeypatch):
    env = DummyVecEnv([RandomEnv] * n_envs)
    agent = make(env=env, target_update_interval=10, tau=0.3, learning_starts=4)
    called = []
    monkeypatch.setattr(
        agent.policy, "update_target", lambda tau: called.append((agent.num_timesteps, tau))
    )
    agent.learn(30)
    assert called == [(step, 0.3) for step in expected]


def with_quantiles(quantiles, n_samples=1, **options):
    """An agent whose networks say the given quantiles (n_members, n_actions, n_quantiles)."""
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


def moments(quantiles, aleatoric):
    """Mean, aleatoric and epistemic variance of each action, by numpy's own functions."""
    value, first, second = quantiles
    epistemic = np.array(
        [np.var([a, b], axis=0, ddof=1).mean() for a, b in zip(first, second, strict=True)]
    )
    if aleatoric == "variance":
        return value.mean(1), value.var(1), epistemic
    risk = [np.cov(a, b, ddof=0)[0, 1] for a, b in zip(first, second, strict=True)]
    return value.mean(1), np.clip(risk, 0, None), epistemic


@pytest.mark.parametrize(
    ("beta", "lam", "aleatoric"),
    [(0.7, 0.0, "covariance"), (0.6, 0.8, "covariance"), (0.6, 0.8, "variance")],
)
def test_actions_are_thompson_samples(beta, lam, aleatoric):
    options = {"epistemic_factor": beta, "aleatoric_factor": lam, "aleatoric": aleatoric}
    agent, obs = with_quantiles(QUANTILES, 5_000, **options)
    mean, risk, epistemic = moments(QUANTILES, aleatoric)
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
    sampled = np.bincount(agent.predict(obs)[0], minlength=3)
    assert chisquare(sampled, expected * len(obs)).pvalue > 1e-4
    assert agent.decision == pytest.approx(wanted, rel=1e-4)  # of what was done, not asked


@pytest.mark.parametrize(
    ("lam", "aleatoric"), [(0.0, "covariance"), (0.5, "variance"), (3.0, "covariance")]
)
def test_deterministic_actions_are_the_best_by_risk_adjusted_value(aleatoric, lam):
    agent = make(aleatoric_factor=lam, aleatoric=aleatoric)
    quantiles = np.random.default_rng(5).normal(size=(40, 3, 3, 9)) * [[1.0], [0.3], [0.1]]
    agent.quantile_net.quantiles = lambda _: torch.as_tensor(quantiles.transpose(1, 0, 2, 3))
    best = []
    for one in quantiles:
        mean, risk, _ = moments(one, aleatoric)
        best.append((mean - lam * np.sqrt(risk)).argmax())
    actions, _ = agent.predict(np.zeros((40, 4), np.float32), deterministic=True)
    assert actions.tolist() == best


def test_the_decision_of_every_tenth_step_is_logged():
    agent = make()
    agent.learn(25, log_interval=None)
    assert agent.logger.name_to_count["rollout/epistemic"] == 3
    agent.DECISION_INTERVAL = 1
    agent.learn(5, log_interval=None)  # with a logger of its own
    assert agent.logger.name_to_count["rollout/epistemic"] == 5


def test_an_epistemic_factor_of_0_is_greedy():
    agent, obs = with_quantiles(QUANTILES, 100, epistemic_factor=0.0)
    best = QUANTILES[0].mean(1).argmax()
    assert (agent.predict(obs)[0] == best).all()
    assert (act(agent, obs) == best).all()
    assert agent.decision.exploratory == 0


def test_there_is_no_epsilon_and_no_random_start():
    certain = np.repeat([[0.0], [9.0], [0.0]], 9, axis=1)
    agent, _ = with_quantiles(np.stack([certain] * 3), learning_starts=1000)
    agent.learn(60)
    assert agent.exploration_rate == 0
    assert set(agent.replay_buffer.actions[:60, 0, 0]) == {1}


def run(seed, n_envs=1):
    env = DummyVecEnv([lambda: RandomEnv(length=4)] * n_envs)
    agent = make(env=env, seed=seed, learning_starts=20).learn(60)
    return agent, agent.replay_buffer


@pytest.mark.parametrize("n_envs", [1, 2])
def test_same_seed_same_run(n_envs):
    (first, kept), (second, other) = run(3, n_envs), run(3, n_envs)
    for mine, theirs in zip(first.policy.parameters(), second.policy.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    np.testing.assert_array_equal(kept.observations, other.observations)
    np.testing.assert_array_equal(kept.actions, other.actions)
    third, different = run(4, n_envs)
    assert not np.array_equal(kept.actions, different.actions)
    assert not torch.equal(next(third.policy.parameters()), next(first.policy.parameters()))


@pytest.mark.parametrize(
    ("cls", "policy"), [(UADQNAlgorithm, "MlpPolicy"), (QuantileDQN, "GridPolicy")]
)
def test_a_saved_agent_predicts_and_learns_the_same(cls, policy, tmp_path, monkeypatch):
    options = {"epistemic_factor": 0.7, "aleatoric_factor": 0.3} if cls is UADQNAlgorithm else {}
    agent = make(cls, policy, learning_starts=10, **options).learn(30)
    agent.save(tmp_path / "agent.zip")
    loaded = cls.load(tmp_path / "agent.zip", env=RandomEnv(POLICY[policy]))
    obs = np.stack([POLICY[policy].sample() for _ in range(5)])
    kept = [(agent, agent.predict_quantiles(obs)), (loaded, loaded.predict_quantiles(obs))]
    np.testing.assert_array_equal(kept[0][1], kept[1][1])
    for name in options:
        assert getattr(loaded, name) == options[name]
    # The optimiser's moments are kept too: another update is the same.
    batch = agent.replay_buffer.sample(16)
    loaded.replay_buffer = agent.replay_buffer
    loaded.set_logger(agent.logger)
    for one in (agent, loaded):
        train_on(one, [batch], monkeypatch)
    np.testing.assert_array_equal(*(one.predict_quantiles(obs) for one in (agent, loaded)))


def test_settings_can_be_given_anew_on_loading(tmp_path):
    make(aleatoric_factor=0.5).save(tmp_path / "agent.zip")
    given = {"aleatoric_factor": 3.0, "epistemic_factor": 0.0, "noise_scale": 0.5}
    loaded = UADQNAlgorithm.load(tmp_path / "agent.zip", prior_scale=2.0, **given)
    assert loaded.quantile_net.aleatoric_factor == 3.0
    assert {name: getattr(loaded, name) for name in given} == given
    assert (loaded.prior_scale, loaded.aleatoric) == (2.0, "covariance")


def test_a_value_network_alone_has_the_variance_of_its_quantiles():
    setting = {"aleatoric_factor": 1.0, "aleatoric": "variance"}
    agent = QuantileDQN("MlpPolicy", RandomEnv(), policy_kwargs=SMALL | setting)
    observations = np.zeros((1, 4), np.float32)
    quantiles = agent.predict_quantiles(observations)[0, 0]
    expected = (quantiles.mean(-1) - quantiles.std(-1)).argmax()
    assert agent.predict(observations, deterministic=True)[0].item() == expected


@pytest.mark.parametrize(
    ("cls", "policy", "space"),
    [
        (UADQNAlgorithm, "MlpPolicy", VECTOR),
        (QuantileDQN, "MlpPolicy", spaces.Discrete(6)),
        (QuantileDQN, "GridPolicy", GRID),
        (UADQNAlgorithm, "GridPolicy", spaces.Box(0, 1, (5, 5, 3), bool)),
        (UADQNAlgorithm, "CnnPolicy", IMAGE),
        (QuantileDQN, "MultiInputPolicy", MIXED),
        (UADQNAlgorithm, "MultiInputPolicy", spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)})),
    ],
)
def test_agents_learn_from_observations_of_all_kinds(cls, policy, space):
    agent = make(cls, policy, RandomEnv(space), batch_size=4, learning_starts=8)
    before = [p.detach().clone() for p in agent.quantile_net.trained()]
    agent.learn(12)
    changed = [
        not torch.equal(p, b) for p, b in zip(agent.quantile_net.trained(), before, strict=True)
    ]
    assert all(changed)
    score, _ = evaluate_policy(agent.policy, agent.get_env(), n_eval_episodes=2, warn=False)
    assert np.isfinite(score)


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


def test_learning_rate_may_be_a_schedule():
    agent = make(learning_rate=lambda left: 1e-3 * left, learning_starts=5).learn(20)
    (group,) = agent.policy.optimizer.param_groups
    assert 0 <= group["lr"] <= 1e-4
