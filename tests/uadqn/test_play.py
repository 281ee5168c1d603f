"""Episodes played side by side: returns against episodes played one by one."""

import warnings

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from skuq.uadqn import _play
from skuq.uadqn._envs import RIGHT, CliffWindEnv, make_env
from skuq.uadqn._play import play_episodes
from tests.uadqn.environments import SeedTeller


@pytest.fixture(autouse=True)
def made():
    SeedTeller.made.clear()
    return SeedTeller.made


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
    monkeypatch.setattr(_play, "MAX_STEPS", 3)

    def act(X):
        return np.full(len(X), 99)

    with pytest.warns(UserWarning, match=r"^2 of 4 episodes had not ended after 3 steps.*TimeLi"):
        returns = play_episodes(SeedTeller, act, [1, 3, 4, 0])
    np.testing.assert_array_equal(returns, [-3, -6, -6, -1])


def test_an_episode_of_exactly_the_limit_is_not_cut(monkeypatch):
    monkeypatch.setattr(_play, "MAX_STEPS", 3)
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
    at_once = play_episodes(CliffWindEnv, act, seeds)
    monkeypatch.setattr(_play, "MAX_ENVS", 3)
    np.testing.assert_array_equal(play_episodes(Watched, act, seeds), at_once)
    assert (max(most), len(open_now)) == (3, 0)
