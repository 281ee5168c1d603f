"""Rows of the history of training."""

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from skuq.uadqn import TrainingHistory, UADQNAlgorithm
from skuq.uadqn._training import Episode
from tests.uadqn.environments import SMALL

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


def uadqn(env, **options):
    return UADQNAlgorithm("MlpPolicy", env, policy_kwargs=SMALL, buffer_size=500, **options)


class Decisions(BaseCallback):
    def __init__(self):
        super().__init__()
        self.all = []

    def _on_step(self):
        self.all.append(self.model.decision)
        return True


def test_episodes_are_summed_and_decisions_averaged():
    history, decisions = TrainingHistory(), Decisions()
    uadqn(Counting(), seed=0).learn(12, callback=CallbackList([history, decisions]))
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
    uadqn(VecNormalize(env) if normalise else env, seed=0).learn(12, callback=history)
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
    history, agent = TrainingHistory(), uadqn(Counting(), seed=0)
    agent.learn(5, callback=history)  # two steps into the third episode
    go_on(agent, history)
    assert history.to_frame().length.tolist() == lengths
    assert history.to_frame().score.tolist() == [n * (n + 1) / 2 for n in lengths]
