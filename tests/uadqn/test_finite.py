"""Refusal of observations and rewards that are not finite, when they reach an agent."""

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from skuq.uadqn import (
    UADQN,
    BootstrappedDQN,
    DQNAlgorithm,
    QuantileDQN,
    UADQNAlgorithm,
    make_env,
    play_episodes,
)
from tests.uadqn.environments import MIXED, SMALL, VECTOR, Faulty, RandomEnv, collect

ALGORITHMS = [UADQNAlgorithm, QuantileDQN, DQNAlgorithm, BootstrappedDQN]
WHERE = ["reward", "first observation", "observation", "last observation"]
OPTIONS = {"buffer_size": 100, "seed": 0, "batch_size": 8, "learning_starts": 2}


def make(cls, env, policy="MlpPolicy", **options):
    arch = {"net_arch": [4]} if issubclass(cls, DQNAlgorithm) else SMALL
    return cls(policy, env, policy_kwargs=arch, **OPTIONS, **options)


def kind(where):
    return where.removeprefix("first ")


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of stable-baselines3
@pytest.mark.parametrize("wrong", [np.nan, -np.inf, 1e20, 1e39])
@pytest.mark.parametrize("where", WHERE)
def test_wrong_numbers_are_refused_when_they_arrive(where, wrong):
    agent = make(UADQNAlgorithm, DummyVecEnv([RandomEnv, lambda: Faulty(where, wrong)]))
    step = 0 if where == "first observation" else 6
    with pytest.raises(ValueError, match=f"At step {step}, the {kind(where)} of environment 1 "):
        agent.learn(20)
    assert agent.num_timesteps == step
    assert np.isfinite(agent.replay_buffer.rewards).all()
    assert np.isfinite(agent.predict_quantiles(np.zeros((1, 4), np.float32))).all()


@pytest.mark.parametrize("cls", ALGORITHMS)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("policy", ["MlpPolicy", "MultiInputPolicy"])
def test_every_algorithm_refuses_them(cls, where, policy):
    env = Faulty(where, np.nan, VECTOR if policy == "MlpPolicy" else MIXED)
    entry = "" if policy == "MlpPolicy" or where == "reward" else "'vector' of "
    with pytest.raises(ValueError, match=f"^{entry}At step [03], the {kind(where)} of environm"):
        make(cls, env, policy).learn(20)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["reward", "first observation", "observation"])
def test_normalisation_does_not_hide_them(where, wrong):
    env = VecNormalize(DummyVecEnv([lambda: Faulty(where, wrong)]), training=False)
    with pytest.raises(ValueError, match=f"the {kind(where)} of environment 0 "):
        make(UADQNAlgorithm, env).learn(20)


def test_normalised_observations_may_be_huge():
    space = spaces.Box(-np.inf, np.inf, (4,), np.float64)
    env = DummyVecEnv([lambda: Faulty("observation", 1e30, space)])
    make(UADQNAlgorithm, VecNormalize(env)).learn(20)
    with pytest.raises(ValueError, match="is or contains 1e\\+30"):
        make(UADQNAlgorithm, env).learn(20)


def test_the_message_names_an_environment_that_has_an_id():
    gym.register("Faulty-v0", lambda: Faulty("reward", np.nan))
    try:
        with pytest.raises(
            ValueError, match=r"reward of environment 0 \(Faulty-v0\) is or contain"
        ):
            make(UADQNAlgorithm, "Faulty-v0").learn(20)
        with pytest.raises(ValueError, match=r"At step 3, .*environment 0 \(Faulty-v0\)"):
            UADQN("Faulty-v0", total_timesteps=300, random_state=0).fit([0, 1])
    finally:
        gym.registry.pop("Faulty-v0")


@pytest.mark.parametrize("where", WHERE)
def test_episodes_that_are_played_are_checked(where):
    steps = 0 if where == "first observation" else 3
    match = (
        f"The {where.split()[-1]} of the episode with seed 7 after {steps} steps is or contains nan"
    )
    with pytest.raises(ValueError, match=match):
        play_episodes(lambda: make_env(Faulty(where, np.nan)), lambda X: np.zeros(len(X), int), [7])


@pytest.mark.parametrize("cls", ALGORITHMS)
@pytest.mark.parametrize("name", ["observations", "next_observations", "rewards"])
def test_a_replay_buffer_from_elsewhere_is_checked(cls, name, tmp_path):
    agent = collect(make(cls, RandomEnv()), 20)
    agent.save_replay_buffer(tmp_path / "sound")
    agent.load_replay_buffer(tmp_path / "sound")
    getattr(agent.replay_buffer, name)[7] = np.nan
    agent.save_replay_buffer(tmp_path / "faulty")
    with pytest.raises(ValueError, match=rf"^{name}\[7\] of the replay buffer"):
        agent.load_replay_buffer(tmp_path / "faulty")


def test_what_is_beyond_the_end_of_a_replay_buffer_does_not_matter(tmp_path):
    agent = collect(make(UADQNAlgorithm, RandomEnv()), 20)
    agent.replay_buffer.observations[20:] = np.nan
    agent.save_replay_buffer(tmp_path / "buffer")
    agent.load_replay_buffer(tmp_path / "buffer")


@pytest.mark.parametrize("cls", ALGORITHMS)
def test_predictions_refuse_them(cls):
    agent = make(cls, RandomEnv())
    with pytest.raises(ValueError, match=r"^An observation is or contains nan"):
        agent.predict(np.full(4, np.nan, np.float32), deterministic=True)
