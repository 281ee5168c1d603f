"""Training on env seeds: seeds of episodes, and returns against episodes played one by one."""

import warnings

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces

from skuq.uadqn import _env_seeds
from skuq.uadqn._env_seeds import SeededEpisodes, play_episodes
from skuq.uadqn._envs import RIGHT, CliffWindEnv, make_env
from skuq.uadqn._history import Episode
from skuq.uadqn._training import train


class SeedTeller(gym.Env):
    """Shows its seed and the step; an episode lasts as many steps as its seed says."""

    made = []

    def __init__(self, as_dict=False):
        number = spaces.Box(0, np.inf, (1,), np.float64)
        both = spaces.Dict({"seed": number, "step": number})
        self.observation_space = both if as_dict else spaces.Box(0, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(100)
        self.as_dict, self.seeds, self.options, self.noise = as_dict, [], [], []
        self.closed = 0
        SeedTeller.made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.options.append(options)
        self.noise.append(self.np_random.random())
        self.length = seed % 5 + 1
        self.step_ = 0
        return self._observation(), {}

    def step(self, action):
        self.step_ += 1
        reward = 100.0 if action == self.seeds[-1] % 100 else -float(self.step_)
        ends = self.step_ == self.length
        truncates = self.seeds[-1] % 2 == 0
        return self._observation(), reward, ends and not truncates, ends and truncates, {}

    def close(self):
        self.closed += 1

    def _observation(self):
        if self.as_dict:
            return {"seed": np.array([self.seeds[-1]]), "step": np.array([self.step_])}
        return np.array([self.seeds[-1], self.step_], np.float64)


@pytest.fixture(autouse=True)
def made():
    SeedTeller.made.clear()
    return SeedTeller.made


def seeds_of(n_episodes, seeds):
    env = SeededEpisodes(SeedTeller(), seeds)
    for _ in range(n_episodes):
        env.reset()
    return env.unwrapped.seeds


# Seeds of episodes


def test_the_first_round_takes_the_seeds_themselves():
    assert seeds_of(4, [7, 0, 123, 5]) == [7, 0, 123, 5]
    assert seeds_of(2, np.array([7, 0, 123])) == [7, 0]


def test_later_rounds_are_new_and_reproducible():
    seeds = [4, 0, 9]
    drawn = seeds_of(60, seeds)
    assert len(set(drawn)) == 60
    assert all(isinstance(seed, int) and seed >= 0 for seed in drawn)
    assert drawn == seeds_of(60, seeds)


def test_a_stream_belongs_to_its_seed_whatever_the_others_are():
    first, second = seeds_of(15, [4, 0, 9]), seeds_of(10, [9, 4])
    assert first[2::3] == second[0::2]
    assert first[0::3] == second[1::2]


def test_seeds_beyond_32_bits_are_told_apart():
    drawn = seeds_of(40, [1, 2**32 + 1, 2**33, 2**62])
    assert drawn[:4] == [1, 2**32 + 1, 2**33, 2**62]
    assert len(set(drawn)) == 40


def test_a_seed_of_the_caller_is_left_aside_and_options_are_passed_on():
    env = SeededEpisodes(SeedTeller(), [3, 8])
    observation, info = env.reset(seed=55, options={"a": 1})
    assert env.unwrapped.seeds == [3]
    assert env.unwrapped.options == [{"a": 1}]
    np.testing.assert_array_equal(observation, [3, 0])
    assert info == {}


class Still:
    """An algorithm that takes one action, as far as training needs one."""

    def __init__(self, policy, env):
        self.policy, self.env = policy, env

    def learn(self, total_timesteps, callback):
        self.env.reset()
        for _ in range(total_timesteps):
            if any(self.env.step(0)[2:4]):
                self.env.reset()


def test_training_never_repeats_a_sequence_of_noise(made):
    algorithm, history = train(Still, SeedTeller, [2, 3, 4], 300, policy="auto")
    (env,) = made
    assert env.seeds[:3] == [2, 3, 4]
    assert len(env.seeds) > 60
    assert len(set(env.seeds)) == len(set(env.noise)) == len(env.seeds)
    assert algorithm.policy == "MlpPolicy"
    assert tuple(history.columns) == Episode._fields


@pytest.mark.parametrize(
    ("space", "policy"),
    [
        (spaces.Box(0, 1, (4,)), "MlpPolicy"),
        (spaces.Box(0, 1, (4, 3)), "MlpPolicy"),
        (spaces.Box(0, 1, (6, 5, 2)), "CnnPolicy"),
        (spaces.Discrete(3), "MlpPolicy"),
        (spaces.MultiDiscrete([3, 2]), "MlpPolicy"),
        (spaces.Dict({"a": spaces.Box(0, 1, (6, 5, 2))}), "MultiInputPolicy"),
    ],
)
def test_networks_suit_observations(space, policy):
    env = SeedTeller()
    env.observation_space = space
    algorithm, _ = train(Still, env, [0], 1, policy="auto")
    assert algorithm.policy == policy
    algorithm, _ = train(Still, env, [0], 1, policy="another")
    assert algorithm.policy == "another"


# Playing


def alone(make, act, seed):
    """Return of one episode, played with nobody beside it."""
    env, total = make(), 0.0
    observation, _ = env.reset(seed=seed)
    for _ in range(1000):
        action = act(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        total += reward
        if terminated or truncated:
            return total
    raise AssertionError("the episode did not end")


def guess(observation):
    """Right in the first step alone, so that each step counts differently."""
    return int(observation[0]) % 100 if observation[1] == 0 else 99


@pytest.mark.parametrize("seeds", [[3], [0, 1, 2, 3, 4], [14, 5, 3, 3, 0, 77]])
def test_returns_are_those_of_episodes_played_alone(seeds):
    returns = play_episodes(SeedTeller, lambda X: np.array([guess(x) for x in X]), seeds)
    assert returns.dtype == np.float64
    np.testing.assert_array_equal(returns, [alone(SeedTeller, guess, seed) for seed in seeds])


def test_returns_on_the_cliff_are_those_of_episodes_played_alone():
    def act(X):
        return np.where(np.argmax(X, axis=1) == 9, 0, 1)  # along the ledge

    def make():
        return make_env("CliffWind-v0")

    returns = play_episodes(make, act, range(60))
    expected = [alone(make, lambda x: act(x[None])[0], seed) for seed in range(60)]
    np.testing.assert_array_equal(returns, expected)
    assert len(set(returns)) > 2


def test_only_running_episodes_are_asked_for_and_all_are_closed(made):
    asked = []

    def act(X):
        asked.append(X.tolist())
        return np.zeros(len(X), np.int64)

    play_episodes(SeedTeller, act, np.array([1, 4, 2]))
    assert asked[0] == [[1, 0], [4, 0], [2, 0]]
    assert asked[2] == [[4, 2], [2, 2]]
    assert asked[4] == [[4, 4]]
    assert [len(X) for X in asked] == [3, 3, 2, 1, 1]
    assert [env.closed for env in made] == [1, 1, 1]
    assert [env.seeds for env in made] == [[1], [4], [2]]


def test_dictionaries_of_observations_come_as_a_batch():
    def act(X):
        assert set(X) == {"seed", "step"}
        assert X["seed"].shape == X["step"].shape == (len(X["seed"]), 1)
        return X["seed"][:, 0] % 100

    returns = play_episodes(lambda: SeedTeller(as_dict=True), act, [0, 3, 4])
    np.testing.assert_array_equal(returns, [100, 400, 500])


def test_episodes_without_end_are_cut_with_a_warning(monkeypatch):
    monkeypatch.setattr(_env_seeds, "MAX_STEPS", 3)

    def act(X):
        return np.full(len(X), 99)

    with pytest.warns(UserWarning, match=r"^2 of 4 episodes had not ended after 3 steps.*TimeLi"):
        returns = play_episodes(SeedTeller, act, [1, 3, 4, 0])
    np.testing.assert_array_equal(returns, [-3, -6, -6, -1])


def test_an_episode_of_exactly_the_limit_is_not_cut(monkeypatch):
    monkeypatch.setattr(_env_seeds, "MAX_STEPS", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play_episodes(SeedTeller, lambda X: np.zeros(len(X), int), [2, 7])


def test_many_seeds_are_played_some_at_a_time(monkeypatch):
    open_now, most = set(), []

    class Watched(CliffWindEnv):
        def __init__(self):
            super().__init__()
            open_now.add(self)
            most.append(len(open_now))

        def close(self):
            open_now.discard(self)

    def act(observations):
        return np.full(len(observations), RIGHT)

    seeds = range(7)
    at_once = _env_seeds.play_episodes(CliffWindEnv, act, seeds)
    monkeypatch.setattr(_env_seeds, "MAX_ENVS", 3)
    np.testing.assert_array_equal(_env_seeds.play_episodes(Watched, act, seeds), at_once)
    assert (max(most), len(open_now)) == (3, 0)
