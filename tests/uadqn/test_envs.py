"""The windy cliff, environments that are given, episodes in them, their seeds and observations."""

import itertools
import os
import pickle
import sys
import traceback
from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_for_learning

from skuq import UADQN
from skuq.uadqn import _envs
from skuq.uadqn._envs import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    CliffWindEnv,
    SeededEpisodes,
    checked_observations,
    make_env,
    play_episodes,
)
from tests.uadqn.environments import SeedTeller


def test_checks_of_gymnasium_and_of_stable_baselines3_pass():
    for render_mode in ("rgb_array", None):
        env = gym.make("CliffWind-v0", render_mode=render_mode).unwrapped
        check_env(env)
        check_env_for_learning(env, warn=True)


def test_ledge_returns_what_enumerating_the_wind_gives():
    # Every outcome of four steps: thrown off after the first, second or third, or arrived.
    alive = 0.95
    exact = sum(0.05 * alive**k * -(k + 1) for k in range(3)) + alive**3 * (9 - 3)
    played = play_episodes(CliffWindEnv, lambda X: np.full(len(X), RIGHT), range(4_000))
    scores, falls = np.array([(episode.score, episode.falls) for episode in played]).T
    assert abs(scores.mean() - exact) < 4 * scores.std() / 4_000**0.5
    share = 1 - alive**3
    assert abs(falls.mean() - share) < 4 * (share * (1 - share) / 4_000) ** 0.5


MOVES = {UP: (-1, 0), RIGHT: (0, 1), DOWN: (1, 0), LEFT: (0, -1)}


def test_every_step_follows_the_rules_written_out():
    ledge, goal = [(1, 1), (1, 2), (1, 3)], (1, 4)
    cells = [cell for cell in np.ndindex(2, 5) if cell != goal]
    for wind, cell, action in itertools.product((0, 1), cells, MOVES):
        env = CliffWindEnv(wind)
        env.reset(seed=0)
        env.cell = cell
        observation, *rest, info = env.step(action)
        down, right = MOVES[action]
        place = min(max(cell[0] + down, 0), 1), min(max(cell[1] + right, 0), 4)
        fell = (cell in ledge and action == DOWN) or (wind == 1 and place in ledge)
        expected = [9.0 if place == goal else -1.0, place == goal or fell, False]
        assert np.flatnonzero(observation).tolist() == [5 * place[0] + place[1]]
        assert ([*rest], info) == (expected, {"fell": fell}), (wind, cell, action)


def test_make_env_takes_ids_with_options_calls_callables_and_copies_instances():
    made = make_env("CliffWind-v0", render_mode="rgb_array", wind=0.25)
    assert (made.render_mode, made.unwrapped.wind) == ("rgb_array", 0.25)
    first, second = make_env(CliffWindEnv), make_env(CliffWindEnv)
    assert isinstance(first, CliffWindEnv)
    assert first is not second
    env = gym.make("CliffWind-v0")
    env.reset(seed=0)
    state = deepcopy(env.unwrapped.np_random.bit_generator.state)
    made = make_env(env)
    made.reset(seed=5)
    made.step(UP)
    assert env.unwrapped.cell == (1, 0)
    assert env.unwrapped.np_random.bit_generator.state == state


def fresh(code):
    """Run code in a process that has not imported the package, but already what it imports."""
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
            for name in [name for name in sys.modules if name.partition(".")[0] == "skuq"]:
                del sys.modules[name]
            for name in [name for name in gym.registry if name.startswith(("Cliff", "MinAtar"))]:
                del gym.registry[name]
            exec(code, {})
            os._exit(0)
        finally:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, code


LATE = "import sys; del sys.modules['gymnasium']; import skuq.uadqn; import gymnasium; "
LATE += "assert not gymnasium.registry.get('CliffWind-v0'); skuq.uadqn.make_env"
IMPORTS = [
    ("import gymnasium", "skuq.uadqn:CliffWind-v0"),
    ("import gymnasium, skuq.uadqn", "CliffWind-v0"),
    (LATE, "CliffWind-v0"),
]
by_a_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@by_a_fork
def test_the_cliff_is_made_by_its_id_in_a_fresh_process():
    for imports, name in IMPORTS:
        fresh(f"{imports}\nassert gymnasium.make({name!r}).spec.max_episode_steps == 15")
    fresh("from skuq.uadqn import make_env\nmake_env('MinAtar/Breakout-v1')")


@by_a_fork
def test_a_fitted_agent_goes_to_a_process_that_has_not_imported_it(tmp_path):
    options = {"learning_starts": 40, "policy_kwargs": {"net_arch": [16]}}
    agent = UADQN("CliffWind-v0", total_timesteps=80, random_state=0, algorithm_kwargs=options)
    (tmp_path / "agent.pkl").write_bytes(pickle.dumps(agent.fit(range(6))))
    scores = [agent.score([seed]) for seed in (1, 2)]
    fresh(
        "import pickle\n"
        f"agent = pickle.load(open({str(tmp_path / 'agent.pkl')!r}, 'rb'))\n"
        f"assert [agent.score([seed]) for seed in (1, 2)] == {scores!r}\n"
        # In this process some other test has registered the environments.
        "from skuq.uadqn import UADQNAlgorithm\n"
        "UADQNAlgorithm('MlpPolicy', 'MinAtar/Freeway-v1', _init_setup_model=False)\n"
    )


def seeds_of(n_episodes, seeds):
    env = SeededEpisodes(SeedTeller(), seeds)
    for _ in range(n_episodes):
        env.reset(seed=55, options={"a": 1})  # a seed of the caller is left aside
    assert env.unwrapped.options == [{"a": 1}] * n_episodes
    return env.unwrapped.seeds


def test_the_first_round_takes_the_seeds_themselves_and_later_ones_are_new_and_reproducible():
    assert seeds_of(2, np.array([7, 0, 123])) == [7, 0]
    for seeds in ([4, 0, 9], [1, 2**32 + 1, 2**33, 2**62]):
        drawn = seeds_of(60, seeds)
        assert drawn[: len(seeds)] == seeds
        assert len(set(drawn)) == 60
        assert all(isinstance(seed, int) and seed >= 0 for seed in drawn)
        assert drawn == seeds_of(60, seeds)
    # A stream belongs to its seed, whatever the others are.
    first, second = seeds_of(15, [4, 0, 9]), seeds_of(10, [9, 4])
    assert (first[2::3], first[0::3]) == (second[0::2], second[1::2])


@pytest.fixture(autouse=True)
def made():
    SeedTeller.made.clear()
    return SeedTeller.made


def alone(make, act, seed):
    """Return of one episode, played with nobody beside it."""
    env, total, ends = make(), 0.0, False
    observation, _ = env.reset(seed=seed)
    while not ends:
        (action,) = act(observation[None])
        observation, reward, terminated, truncated, _ = env.step(action)
        total, ends = total + reward, terminated or truncated
    return total


def guess(X):
    """Right in the first step alone, so that each step counts differently."""
    return np.where(X[:, 1] == 0, X[:, 0] % 100, 99).astype(int)


def along_the_ledge(X):
    return np.where(np.argmax(X, axis=1) == 9, UP, RIGHT)


@pytest.mark.parametrize(
    ("make", "act", "seeds"),
    [
        (SeedTeller, guess, [3]),
        (SeedTeller, guess, [14, 5, 3, 3, 0, 77]),
        (partial(make_env, "CliffWind-v0"), along_the_ledge, range(60)),
    ],
)
def test_returns_are_those_of_episodes_played_alone(make, act, seeds):
    played = play_episodes(make, act, seeds)
    returns = [episode.score for episode in played]
    assert returns == [alone(make, act, seed) for seed in seeds]
    if act is along_the_ledge:  # an episode without a fall is worth 10 - 4
        assert [episode.falls for episode in played] == [int(score < 6) for score in returns]
        assert len(set(returns)) > 2


def test_only_running_episodes_are_asked_for_some_at_a_time_and_all_are_closed(made, monkeypatch):
    asked, n_open = [], []

    def act(X):
        asked.append(X.tolist())
        n_open.append(sum(not env.closed for env in made))
        return np.zeros(len(X), np.int64)

    seeds = np.array([1, 4, 2])
    played = play_episodes(SeedTeller, act, seeds)
    assert asked[0] == [[1, 0], [4, 0], [2, 0]]
    assert asked[2] == [[4, 2], [2, 2]]
    assert asked[4] == [[4, 4]]
    assert [len(X) for X in asked] == [3, 3, 2, 1, 1]
    assert [env.seeds for env in made] == [[1], [4], [2]]
    monkeypatch.setattr(_envs, "MAX_ENVS", 2)
    assert play_episodes(SeedTeller, act, seeds) == played
    assert max(n_open[5:]) == 2
    assert [env.closed for env in made] == [1] * 6


def test_dictionaries_of_observations_come_as_a_batch():
    def act(X):
        assert set(X) == {"seed", "step"}
        assert X["seed"].shape == X["step"].shape == (len(X["seed"]), 1)
        return X["seed"][:, 0] % 100

    played = play_episodes(lambda: SeedTeller(as_dict=True), act, [0, 3, 4])
    assert played == [(100, 1, 0, True), (400, 4, 0, True), (500, 5, 0, True)]


@pytest.mark.parametrize(("limit", "ended"), [(3, [True, False, False, True]), (5, [True] * 4)])
def test_episodes_are_cut_at_the_limit_and_not_those_that_end_with_it(limit, ended):
    def act(X):
        return np.full(len(X), 99)

    played = play_episodes(SeedTeller, act, [2, 3, 4, 0], max_steps=limit)
    assert [episode.ended for episode in played] == ended
    assert [episode.steps for episode in played] == [min(steps, limit) for steps in (3, 4, 5, 1)]


def test_observations_take_the_dtype_of_their_space():
    grid = spaces.Box(0, 1, (2, 2, 1), bool)
    assert checked_observations(np.ones((1, 2, 2, 1)), grid).dtype == bool
    cells = np.eye(10, dtype=np.float32)
    X = checked_observations(cells.tolist(), spaces.Box(0, 1, (10,), np.float32))
    np.testing.assert_array_equal(X, cells, strict=True)
