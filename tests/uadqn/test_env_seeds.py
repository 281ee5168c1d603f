"""Training on env seeds: seeds of episodes, their noise, and networks for the observations."""

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from gymnasium import spaces

from skuq.uadqn._env_seeds import SeededEpisodes
from skuq.uadqn._history import Episode
from skuq.uadqn._training import train
from tests.uadqn.environments import SeedTeller


@pytest.fixture(autouse=True)
def made():
    SeedTeller.made.clear()
    return SeedTeller.made


def seeds_of(n_episodes, seeds):
    env = SeededEpisodes(SeedTeller(), seeds)
    for _ in range(n_episodes):
        env.reset()
    return env.unwrapped.seeds


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
        (spaces.Box(0, 1, (6, 5, 2)), "GridPolicy"),
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
