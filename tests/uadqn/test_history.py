"""Rows of the training history against episodes that are counted by hand."""

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from skuq.uadqn import DQNAlgorithm, UADQNAlgorithm
from skuq.uadqn._callbacks import Episode, TrainingHistory, TrainingProgress
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
    DQNAlgorithm("MlpPolicy", Counting(), seed=0, buffer_size=100).learn(6, callback=history)
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


def test_history_can_go_on_from_what_was_kept():
    history, agent = TrainingHistory(), uadqn(Counting(), seed=0)
    agent.learn(5, callback=history)
    resumed = TrainingHistory(history.episodes)
    resumed.running = history.running
    agent.learn(5, callback=resumed, reset_num_timesteps=False)
    assert resumed.to_frame().score.tolist() == [1, 3, 6, 10]
    assert len(history.episodes) == 2  # the first one is as it was


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


def test_progress_counts_steps_of_all_environments_and_shows_the_recent_score(capsys):
    env = DummyVecEnv([lambda: Monitor(Counting())] * 2)
    progress, agent = TrainingProgress(14), uadqn(env, seed=0)
    agent.learn(14, callback=progress)
    assert (progress.bar.n, progress.bar.total) == (14, 14)
    shown = capsys.readouterr().err
    assert "14/14" in shown
    assert "score=3.33" in shown  # mean of 1, 3 and 6, which ended before the last step


def test_progress_goes_on_where_training_goes_on(capsys):
    agent = uadqn(Counting(), seed=0).learn(5)
    progress = TrainingProgress(9)
    agent.learn(4, callback=progress, reset_num_timesteps=False)
    assert (progress.bar.initial, progress.bar.n) == (5, 9)
    assert "9/9" in capsys.readouterr().err
