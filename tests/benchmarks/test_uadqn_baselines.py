"""DQN and bootstrapped DQN against plain heads; scores on MinAtar, and the authors' logs."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn
from torch.nn.functional import huber_loss

from benchmarks import uadqn_minatar
from benchmarks.uadqn_baselines import BootstrappedDQN, DQNAlgorithm
from benchmarks.uadqn_minatar import binned, records, scores_of
from benchmarks.uadqn_released import logged
from benchmarks.uadqn_repeated import same_points
from skuq.uadqn import GridCNN
from tests.uadqn.environments import GRID, VECTOR, RandomEnv, collect, perturb
from tests.uadqn.plain import ChannelsLast, assert_stack_matches, backward, numbers, plain_layers

POLICY = {"MlpPolicy": VECTOR, "GridPolicy": GRID}
N_MEMBERS, N_ACTIONS = 4, 3


def make(policy="MlpPolicy", env=None, cls=BootstrappedDQN, **options):
    env = RandomEnv(POLICY[policy]) if env is None else env
    options = {"buffer_size": 500, "seed": 0, "policy_kwargs": {"net_arch": [8]}} | options
    if cls is BootstrappedDQN:
        options = {"n_members": N_MEMBERS} | options
    return cls(policy, env, **options)


@pytest.mark.parametrize("cls", [DQNAlgorithm, BootstrappedDQN])
def test_settings_of_the_paper_are_the_defaults(cls):
    agent = cls("GridPolicy", RandomEnv(GRID))
    table = {"batch_size": 32, "buffer_size": 100_000, "target_update_interval": 1_000}
    table |= {"gamma": 0.99, "learning_rate": 1e-4, "learning_starts": 5_000, "tau": 1.0}
    table |= {"exploration_initial_eps": 1.0, "exploration_final_eps": 0.03}
    assert {name: getattr(agent, name) for name in table} == table
    assert (agent.train_freq.frequency, agent.exploration_fraction * 50) == (1, 1)
    (group,) = agent.policy.optimizer.param_groups
    assert (type(agent.policy.optimizer), group["eps"]) == (torch.optim.Adam, 1e-8)
    assert isinstance(agent.q_net.features_extractor, GridCNN)
    if cls is BootstrappedDQN:
        shapes = [tuple(p.shape) for p in agent.q_net.q_net.parameters()]
        features = agent.q_net.features_dim
        assert shapes == [(10, features, 128), (10, 1, 128), (10, 128, 3), (10, 1, 3)]
        with pytest.raises(ValueError, match="at least 2, got 1"):
            make(n_members=1)


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


@pytest.mark.parametrize(("policy", "max_grad_norm"), [("MlpPolicy", 1e6), ("GridPolicy", 0.1)])
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


def test_heads_start_apart_are_drawn_evenly_and_the_target_is_a_copy():
    agent, obs = make(policy_kwargs={}), np.stack([VECTOR.sample() for _ in range(5)])
    values = agent.predict_q(obs)
    assert values.var(0, ddof=1).min() > 1e-4
    with torch.no_grad():
        np.testing.assert_array_equal(agent.q_net_target(torch.as_tensor(obs)).numpy(), values)
    counts = np.bincount(agent._draw_heads(4_000), minlength=N_MEMBERS)
    assert abs(counts - 1_000).max() < 4 * (4_000 * 0.25 * 0.75) ** 0.5


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


def test_epsilon_greedy_exploration_comes_on_top_for_each_environment():
    eps = 0.4
    rates = {"exploration_initial_eps": eps, "exploration_final_eps": eps}
    heads, actions, _, values = recorded(600, 2, exploration_fraction=1.0, **rates)
    acting = values[np.arange(len(heads))[:, None], heads, np.arange(2)]
    others = actions[1:] != acting[1:].argmax(-1)  # the first step knows no rate yet
    share = eps * (1 - 1 / N_ACTIONS)
    error = (share * (1 - share) / others.size) ** 0.5
    assert abs(others.mean() - share) < 4 * error
    # environments explore independently of each other
    assert (others[:, 0] != others[:, 1]).mean() == pytest.approx(2 * share * (1 - share), abs=0.08)


def one_run(history, steps, **run):
    return binned(history, steps).assign(steps=steps, **run)


def test_early_scores_are_of_all_episodes_and_late_ones_of_the_second_half():
    history = pd.DataFrame({"step": [10_000, 20_000, 30_000, 90_000], "score": [1.0, 2, 4, 8]})
    curve = binned(history, 200_000)
    scores = {"score_50000": pytest.approx(7 / 3), "late_score_50000": 4.0}
    assert scores_of(curve, 50_000) == scores
    assert scores_of(curve, 100_000)["late_score_100000"] == 8.0
    assert scores_of(curve, 200_000).keys() == {"score_200000"}


def test_the_authors_runs_are_averaged_as_ours_are(tmp_path, monkeypatch):
    steps = np.arange(1_000, 200_001, 1_000)
    history = pd.DataFrame({"step": steps, "score": np.sqrt(steps)})
    theirs = one_run(history, 200_000, game="breakout", method="uadqn", seed=0)
    monkeypatch.setattr(uadqn_minatar, "RELEASED", tmp_path / "released.csv")
    theirs.to_csv(uadqn_minatar.RELEASED, index=False)
    ours = one_run(history, 200_000, game="breakout", method="uadqn", seed=3)
    found = {(each["method"], each["metric"]): each["value"] for each in records(ours)}
    metrics = [name for method, name in found if method == "uadqn-released"]
    assert len(metrics) == 5
    for name in metrics:
        assert found["uadqn-released", name] == pytest.approx(found["uadqn", name])


def test_logs_are_read_as_numbers_and_nothing_else(tmp_path):
    path = tmp_path / "log_data.pkl"
    path.write_bytes(pickle.dumps({"Episode_score": [[3.0, 9], [0.0, 24]]}))
    assert logged(path).to_dict("list") == {"score": [3.0, 0.0], "step": [10, 25]}
    path.write_bytes(pickle.dumps({"Episode_score": [[print, 9]]}))
    with pytest.raises(pickle.UnpicklingError, match="print where numbers"):
        logged(path)


RECORDED = pd.DataFrame({"episodes": [448, 0, 211, 126], "score": [0.5045, np.nan, 1.678, 3.103]})
AGAIN = {"episodes": [448, 0, 211], "score": [0.504464, np.nan, 1.67773]}


def test_points_are_the_same_in_the_digits_that_were_recorded():
    assert same_points(AGAIN, RECORDED) == 3
    for name, values in (
        ("score", [0.504464, np.nan, 1.6787]),
        ("score", [0.504464, 0.0, 1.67773]),
        ("episodes", [448, 0, 210]),
    ):
        assert same_points({**AGAIN, name: values}, RECORDED) == 2
