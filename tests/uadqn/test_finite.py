"""Refusal of observations and rewards that are not finite, when they reach an agent."""

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from skuq.uadqn import (
    QuantileDQN,
    UADQNAlgorithm,
    make_env,
    play_episodes,
)
from tests.uadqn.environments import MIXED, SMALL, VECTOR, Faulty, RandomEnv

ALGORITHMS = [UADQNAlgorithm, QuantileDQN]
WHERE = ["reward", "first observation", "observation", "last observation"]
OPTIONS = {"buffer_size": 100, "seed": 0, "batch_size": 8, "learning_starts": 2}


def make(cls, env, policy="MlpPolicy", **options):
    return cls(policy, env, policy_kwargs=SMALL, **OPTIONS, **options)


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
    env = VecNormalize(DummyVecEnv([lambda: Faulty(where, wrong)]))
    with pytest.raises(ValueError, match=f"the {kind(where)} of environment 0 "):
        make(UADQNAlgorithm, env).learn(20)


def test_rewards_of_played_episodes_are_checked():
    env = Faulty("reward", np.nan)
    with pytest.raises(ValueError, match="A reward with seed 7 is or contains nan"):
        play_episodes(lambda: make_env(env), lambda X: np.zeros(len(X), int), [7])


@pytest.mark.parametrize("cls", ALGORITHMS)
def test_predictions_refuse_them(cls):
    agent = make(cls, RandomEnv())
    with pytest.raises(ValueError, match=r"^An observation is or contains nan"):
        agent.predict(np.full(4, np.nan, np.float32), deterministic=True)
