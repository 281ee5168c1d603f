"""Episodes that take given seeds in turn."""

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from skuq.uadqn._envs import SeededEpisodes
from tests.uadqn.environments import SeedTeller


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
