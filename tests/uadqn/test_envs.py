"""The windy cliff against its closed form, and what turns a parameter into an environment."""

import subprocess
import sys
from copy import deepcopy

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as check_env_for_learning
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv

from skuq import UADQN
from skuq.uadqn import UADQNAlgorithm
from skuq.uadqn._envs import DOWN, LEFT, RIGHT, UP, CliffWindEnv, make_env
from tests.uadqn.environments import RandomEnv

LEDGE, SAFE = [RIGHT] * 4, [UP, *[RIGHT] * 4, DOWN]


@pytest.fixture
def env():
    return gym.make("CliffWind-v0")


def play(env, actions, seed=None):
    """Rewards, last observation, and how the episode ended."""
    env.reset(seed=seed)
    rewards = []
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            break
    return rewards, obs, terminated, truncated, info


@pytest.mark.parametrize("render_mode", ["rgb_array", "ansi"])
def test_checks_of_gymnasium_and_of_stable_baselines3_pass(render_mode):
    env = gym.make("CliffWind-v0", render_mode=render_mode).unwrapped
    check_env(env)
    check_env_for_learning(env, warn=True)


@pytest.mark.slow
def test_ledge_returns_what_enumerating_the_wind_gives():
    # Every outcome of four steps: thrown off after the first, second or third, or arrived.
    alive = 0.95
    exact = sum(0.05 * alive**k * -(k + 1) for k in range(3)) + alive**3 * (9 - 3)
    assert exact == pytest.approx(4.863875)
    env = CliffWindEnv()
    env.reset(seed=1)
    n_episodes = 20_000
    scores, fell = np.empty(n_episodes), np.empty(n_episodes, bool)
    for i in range(n_episodes):
        rewards, *_, info = play(env, LEDGE)
        scores[i], fell[i] = sum(rewards), info["fell"]
    assert abs(scores.mean() - exact) < 4 * scores.std() / n_episodes**0.5
    share = 1 - alive**3
    assert abs(fell.mean() - share) < 4 * (share * (1 - share) / n_episodes) ** 0.5


@pytest.mark.parametrize("wind", [0.05, 1.0])
def test_detour_returns_4_whatever_the_wind(wind):
    env = CliffWindEnv(wind)
    for seed in range(20):
        rewards, obs, terminated, truncated, info = play(env, SAFE, seed)
        assert sum(rewards) == 4
        assert obs.argmax() == 9
        assert (terminated, truncated, info["fell"]) == (True, False, False)


@pytest.mark.parametrize("column", [1, 2, 3])
def test_stepping_down_from_the_ledge_is_a_fall(column):
    rewards, *_, terminated, truncated, info = play(CliffWindEnv(0), [RIGHT] * column + [DOWN])
    assert rewards == [-1.0] * (column + 1)
    assert (terminated, truncated, info["fell"]) == (True, False, True)


def test_every_step_that_ends_on_the_ledge_is_windy_and_no_other():
    env = CliffWindEnv(wind=1)
    env.reset(seed=0)
    for row in range(2):
        for column in range(5):
            for action in (UP, RIGHT, DOWN, LEFT):
                if (row, column) == (1, 4):
                    continue
                env.cell = (row, column)
                _, _, terminated, _, info = env.step(action)
                on_ledge = env.cell[0] == 1 and env.cell[1] in (1, 2, 3)
                assert info["fell"] == on_ledge, (row, column, action)
                assert terminated == (on_ledge or env.cell == (1, 4))


@pytest.mark.parametrize("action", [LEFT, DOWN])
def test_walls_and_the_ground_below_the_start_hold_the_agent(action):
    rewards, obs, terminated, _, info = play(CliffWindEnv(1), [action] * 3)
    assert rewards == [-1.0] * 3
    assert obs.argmax() == 5
    assert not terminated
    assert not info["fell"]


@pytest.mark.parametrize(("action", "move"), [(UP, -5), (RIGHT, 1), (DOWN, 5), (LEFT, -1)])
def test_actions_move_by_one_cell(action, move):
    env = CliffWindEnv(0)
    env.reset()
    env.cell = (0, 2) if action == DOWN else (1, 2)
    before = env.cell[0] * 5 + env.cell[1]
    assert env.step(action)[0].argmax() == before + move


def test_episodes_are_cut_after_15_steps(env):
    rewards, _, terminated, truncated, _ = play(env, [UP] * 20, seed=0)
    assert len(rewards) == 15
    assert (terminated, truncated) == (False, True)


def test_same_seed_same_wind():
    def outcome(seed):
        env = CliffWindEnv(0.5)
        env.reset(seed=seed)
        return [len(play(env, LEDGE)[0]) for _ in range(30)]

    assert outcome(3) == outcome(3)
    assert outcome(3) != outcome(4)


def test_picture_shows_agent_ledge_goal_and_cliff():
    env = gym.make("CliffWind-v0", render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    assert before.shape == (3 * 32, 5 * 32, 3)
    assert before.dtype == np.uint8
    env.step(UP)
    after = env.render()

    def cells(picture):
        return picture.reshape(3, 32, 5, 32, 3).transpose(0, 2, 1, 3, 4)

    changed = (cells(before) != cells(after)).any((2, 3, 4))
    assert changed.tolist() == [[True, *[False] * 4], [True, *[False] * 4], [False] * 5]
    # Away from the agent: ground, ledge, goal and cliff have a colour each.
    middle = cells(after)[:, :, 16, 16]
    colours = {tuple(middle[place]) for place in [(0, 2), (1, 2), (1, 4), (2, 2), (0, 0)]}
    assert len(colours) == 5


def test_text_shows_the_agent():
    env = CliffWindEnv(0, render_mode="ansi")
    env.reset()
    assert env.render() == ".....\nA~~~G\n"
    env.step(RIGHT)
    assert env.render() == ".....\nSA~~G\n"


def test_rendering_without_a_mode_warns():
    env = CliffWindEnv()
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.render() is None


@pytest.mark.parametrize(
    ("options", "match"),
    [({"wind": 1.5}, "wind must be"), ({"render_mode": "human"}, "render_mode must be one of")],
)
def test_wrong_settings_of_the_cliff(options, match):
    with pytest.raises(ValueError, match=match):
        CliffWindEnv(**options)


@pytest.mark.parametrize("action", [4, -1, 0.5])
def test_unknown_action(env, action):
    env.reset()
    with pytest.raises(ValueError, match="Actions are 0 up"):
        env.unwrapped.step(action)


def test_make_env_takes_an_id_with_options():
    made = make_env("CliffWind-v0", render_mode="ansi", wind=0.25)
    assert made.render_mode == "ansi"
    assert made.unwrapped.wind == 0.25


@pytest.mark.parametrize("make", [CliffWindEnv, lambda: CliffWindEnv(0.25)])
def test_make_env_calls_a_callable_each_time(make):
    first, second = make_env(make), make_env(make)
    assert isinstance(first, CliffWindEnv)
    assert first is not second


def test_make_env_copies_an_instance_and_leaves_it_alone(env):
    play(env, [UP, RIGHT], seed=0)
    state = deepcopy(env.unwrapped.np_random.bit_generator.state)
    made = make_env(env)
    made.reset(seed=5)
    made.step(UP)
    assert made.unwrapped is not env.unwrapped
    assert env.unwrapped.cell == (0, 1)
    assert env.unwrapped.np_random.bit_generator.state == state


@pytest.mark.filterwarnings("ignore:.*out of date")
def test_make_env_registers_minatar(monkeypatch):
    pytest.importorskip("minatar")
    kept = {k: v for k, v in gym.registry.items() if not k.startswith("MinAtar/")}
    monkeypatch.setattr("gymnasium.registry", kept)
    monkeypatch.setattr("gymnasium.envs.registration.registry", kept)
    made = make_env("MinAtar/Breakout-v0")
    assert made.observation_space.shape == (10, 10, 4)
    assert made.action_space.n == 6
    make_env("MinAtar/Freeway-v1")  # registered by now


@pytest.mark.parametrize("name", ["Nowhere-v0", "Nowhere/Nothing-v0", "CliffWind-v7"])
def test_unknown_id(name):
    with pytest.raises(ValueError, match=f"There is no environment '{name}'"):
        make_env(name)


@pytest.mark.parametrize("env", ["Pendulum-v1", lambda: gym.make("Pendulum-v1")])
def test_continuous_actions_are_refused(env):
    with pytest.raises(ValueError, match=r"finitely many actions.*Box"):
        make_env(env)


@pytest.mark.parametrize("env", [None, 3, ["CliffWind-v0"]])
def test_what_is_no_environment_is_refused(env):
    with pytest.raises(TypeError, match="env must be an id, an environment or a callable"):
        make_env(env)


def test_a_callable_that_makes_something_else_is_refused():
    with pytest.raises(TypeError, match="must make a gymnasium environment, got dict"):
        make_env(dict)


def test_importing_the_module_registers_the_cliff_once():
    module = sys.modules["skuq.uadqn._envs"]
    assert gym.spec("CliffWind-v0").entry_point == f"{module.__name__}:CliffWindEnv"
    assert gym.spec("CliffWind-v0").max_episode_steps == 15


@pytest.mark.parametrize("name", ["foo bar!", ""])
def test_ids_that_cannot_be_made_are_named(name):
    with pytest.raises(ValueError, match="There is no environment"):
        make_env(name)


def test_an_environment_of_a_missing_package():
    with pytest.raises(ValueError, match=r"needs what is not installed: .*no_such_module"):
        make_env("no_such_module:Env-v0")


def test_actions_are_counted_from_0():
    class FromOne(gym.Env):
        observation_space = gym.spaces.Box(0, 1, (2,))
        action_space = gym.spaces.Discrete(2, start=1)

    with pytest.raises(ValueError, match="counted from 0"):
        make_env(FromOne)


DISCRETE = spaces.Discrete(2)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Tuple([DISCRETE]),
        spaces.Sequence(DISCRETE),
        spaces.Graph(DISCRETE, None),
        spaces.Box(0, 1, ()),
        spaces.Box(0, 1, (3, 0)),
        spaces.MultiDiscrete([[2, 3], [2, 2]]),
        spaces.Dict(),
        spaces.Dict(inner=spaces.Dict(state=DISCRETE)),
        spaces.Dict(state=DISCRETE, name=spaces.Text(3)),
    ],
    ids=str,
)
def test_observations_that_networks_cannot_read(space):
    with pytest.raises(ValueError, match="FlattenObservation"):
        make_env(lambda: RandomEnv(space))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(2, start=1),
        spaces.MultiDiscrete([2, 3], start=[0, 1]),
        spaces.Dict(state=spaces.Discrete(2, start=1), other=DISCRETE),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "make", [make_env, lambda env: UADQNAlgorithm("MultiInputPolicy", env)], ids=["env", "agent"]
)
def test_states_are_counted_from_0(space, make):
    with pytest.raises(ValueError, match="States must be counted from 0"):
        make(RandomEnv(space))


@pytest.mark.parametrize(
    "space",
    [
        DISCRETE,
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary((2, 2)),
        spaces.Dict(state=DISCRETE, grid=spaces.Box(0, 1, (2, 2)), bits=spaces.MultiBinary(3)),
    ],
    ids=str,
)
def test_observations_that_are_not_one_box_are_learnt_from(space):
    agent = UADQN(lambda: RandomEnv(space), total_timesteps=20, learning_starts=5).fit([0])
    observations = [space.sample() for _ in range(3)]
    if isinstance(space, spaces.Dict):
        observations = {key: np.stack([o[key] for o in observations]) for key in space}
    assert np.isfinite(agent.predict_uncertainty(observations).total).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("import gymnasium", "skuq.uadqn:CliffWind-v0"),
        ("import gymnasium, skuq.uadqn", "CliffWind-v0"),
        ("import skuq.uadqn, gymnasium; skuq.uadqn.make_env", "CliffWind-v0"),
    ],
)
def test_the_cliff_is_made_by_its_id_in_a_fresh_process(imports, name):
    code = f"{imports}\nprint(gymnasium.make({name!r}).spec.max_episode_steps)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "15\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_the_cliff_lives_in_other_processes(start_method):
    options = {"start_method": start_method}
    env = make_vec_env(
        "skuq.uadqn:CliffWind-v0", 2, vec_env_cls=SubprocVecEnv, vec_env_kwargs=options
    )
    try:
        assert env.reset().argmax(-1).tolist() == [5, 5]
    finally:
        env.close()
