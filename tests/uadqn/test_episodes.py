"""Episodes played side by side: returns against episodes played one by one."""

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from skuq.uadqn import _envs
from skuq.uadqn._envs import RIGHT, CliffWindEnv, Played, make_env, play_episodes
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


def scores(played):
    return [episode.score for episode in played]


def guess(observation):
    """Right in the first step alone, so that each step counts differently."""
    return int(observation[0]) % 100 if observation[1] == 0 else 99


@pytest.mark.parametrize("seeds", [[3], [0, 1, 2, 3, 4], [14, 5, 3, 3, 0, 77]])
def test_returns_are_those_of_episodes_played_alone(seeds):
    returns = scores(play_episodes(SeedTeller, lambda X: np.array([guess(x) for x in X]), seeds))
    assert returns == [alone(SeedTeller, guess, seed) for seed in seeds]


def test_returns_on_the_cliff_are_those_of_episodes_played_alone():
    def act(X):
        return np.where(np.argmax(X, axis=1) == 9, 0, 1)  # along the ledge

    def make():
        return make_env("CliffWind-v0")

    played = play_episodes(make, act, range(60))
    returns = scores(played)
    assert returns == [alone(make, lambda x: act(x[None])[0], seed) for seed in range(60)]
    # Along the ledge, an episode without a fall is worth 10 - 4.
    assert [episode.falls for episode in played] == [int(score < 6) for score in returns]
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

    played = play_episodes(lambda: SeedTeller(as_dict=True), act, [0, 3, 4])
    assert played == [
        Played(100, 1, None, True),
        Played(400, 4, None, True),
        Played(500, 5, None, True),
    ]


@pytest.mark.parametrize(("limit", "ended"), [(3, [True, False, False, True]), (5, [True] * 4)])
def test_episodes_are_cut_at_the_limit_and_not_those_that_end_with_it(limit, ended):
    def act(X):
        return np.full(len(X), 99)

    played = play_episodes(SeedTeller, act, [2, 3, 4, 0], max_steps=limit)
    assert [episode.ended for episode in played] == ended
    assert [episode.steps for episode in played] == [min(steps, limit) for steps in (3, 4, 5, 1)]


def test_an_episode_can_be_watched():
    seen = []
    play_episodes(
        SeedTeller,
        lambda X: np.full(len(X), 99),
        [2],
        watch=lambda observation, action, score: seen.append((*observation, action, score)),
    )
    assert seen == [(2, 0, 99, 0), (2, 1, 99, -1), (2, 2, 99, -3), (2, 3, None, -6)]


def test_an_environment_cannot_play_beside_itself():
    env = SeedTeller()
    with pytest.raises(ValueError, match="same environment at each call"):
        play_episodes(lambda: env, lambda X: np.zeros(len(X), int), [1, 2])


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
    monkeypatch.setattr(_envs, "MAX_ENVS", 3)
    assert play_episodes(Watched, act, seeds) == at_once
    assert (max(most), len(open_now)) == (3, 0)
