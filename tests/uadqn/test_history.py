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
    """Keeps the decision behind each step."""

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


def test_several_environments_are_kept_apart():
    history = TrainingHistory()
    env = DummyVecEnv([Counting, lambda: Counting(scale=10.0)])
    uadqn(env, seed=0).learn(12, callback=history)
    rows = history.to_frame()
    assert rows.step.tolist() == [2, 2, 6, 6, 12, 12]
    assert rows.score.tolist() == [1, 10, 3, 30, 6, 60]
    assert rows.length.tolist() == [1, 1, 2, 2, 3, 3]


def test_environments_that_do_not_say_count_no_falls():
    history = TrainingHistory()
    uadqn(Counting(says=False), seed=0).learn(6, callback=history)
    assert history.to_frame().falls.tolist() == [0, 0, 0]


def test_agents_without_decisions_have_no_uncertainties():
    history = TrainingHistory()
    DQN("MlpPolicy", Counting(), seed=0, buffer_size=100).learn(6, callback=history)
    rows = history.to_frame()
    assert rows.score.tolist() == [1, 3, 6]
    assert rows[["epistemic", "aleatoric", "exploratory"]].isna().to_numpy().all()


def test_learning_on_goes_on_with_the_unfinished_episode():
    history, agent = TrainingHistory(), uadqn(Counting(), seed=0)
    agent.learn(5, callback=history)
    agent.learn(5, callback=history, reset_num_timesteps=False)
    assert history.to_frame().score.tolist() == [1, 3, 6, 10]


def test_learning_anew_drops_the_unfinished_episode():
    history, agent = TrainingHistory(), uadqn(Counting(), seed=0)
    agent.learn(5, callback=history)  # two steps into the third episode
    agent.learn(4, callback=history)  # the environment is reset: the fourth episode
    assert history.to_frame().length.tolist() == [1, 2, 4]
    assert history.to_frame().score.tolist() == [1, 3, 10]


def test_scores_are_of_the_rewards_before_they_are_normalised():
    history = TrainingHistory()
    env = VecNormalize(DummyVecEnv([Counting, lambda: Counting(scale=10.0)]))
    uadqn(env, seed=0).learn(12, callback=history)
    assert history.to_frame().score.tolist() == [1, 10, 3, 30, 6, 60]


def test_environments_that_are_reset_drop_the_unfinished_episode():
    history, agent = TrainingHistory(), uadqn(Counting(), seed=0)
    agent.learn(5, callback=history)  # two steps into the third episode
    agent.set_env(Counting())
    agent.learn(3, callback=history, reset_num_timesteps=False)
    assert history.to_frame().length.tolist() == [1, 2, 1, 2]
    assert history.to_frame().score.tolist() == [1, 3, 1, 3]


def test_columns_have_their_types_with_and_without_episodes():
    history = TrainingHistory()
    assert history.to_frame().dtypes.map(str).tolist() == TYPES
    uadqn(Counting(), seed=0).learn(6, callback=history)
    assert history.to_frame().dtypes.map(str).tolist() == TYPES
