"""Refusal of observations and rewards that are not finite, when they reach an agent."""

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from skuq.uadqn import QuantileDQN, UADQNAlgorithm, make_env, play_episodes
from tests.uadqn.environments import MIXED, SMALL, Faulty, RandomEnv

WHERE = ["reward", "first observation", "observation", "last observation"]
OPTIONS = {"buffer_size": 100, "seed": 0, "batch_size": 8, "learning_starts": 2}


def make(cls, env, policy="MlpPolicy", **options):
    return cls(policy, env, policy_kwargs=SMALL, **OPTIONS, **options)


def kind(where):
    return where.removeprefix("first ")


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of stable-baselines3
@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        *[("reward", np.nan), ("first observation", -np.inf), ("observation", 1e20)],
        *[("last observation", 1e39), ("reward", 1e20), ("observation", np.nan)],
    ],
)
def test_wrong_numbers_are_refused_when_they_arrive(where, wrong):
    agent = make(UADQNAlgorithm, DummyVecEnv([RandomEnv, lambda: Faulty(where, wrong)]))
    step = 0 if where == "first observation" else 6
    with pytest.raises(ValueError, match=f"At step {step}, the {kind(where)} of environment 1 "):
        agent.learn(20)
    assert agent.num_timesteps == step
    assert np.isfinite(agent.replay_buffer.rewards).all()
    assert np.isfinite(agent.predict_quantiles(np.zeros((1, 4), np.float32))).all()


@pytest.mark.parametrize("where", WHERE)
def test_dictionaries_are_checked(where):
    entry = "" if where == "reward" else "'vector' of "
    with pytest.raises(ValueError, match=f"^{entry}At step [03], the {kind(where)} of environm"):
        make(QuantileDQN, Faulty(where, np.nan, MIXED), "MultiInputPolicy").learn(20)


@pytest.mark.parametrize(
    ("where", "wrong"), [("reward", np.inf), ("first observation", np.nan), ("observation", np.inf)]
)
def test_normalisation_does_not_hide_them(where, wrong):
    env = VecNormalize(DummyVecEnv([lambda: Faulty(where, wrong)]))
    with pytest.raises(ValueError, match=f"the {kind(where)} of environment 0 "):
        make(UADQNAlgorithm, env).learn(20)


def test_rewards_of_played_episodes_and_observations_of_predictions_are_checked():
    env = Faulty("reward", np.nan)
    with pytest.raises(ValueError, match=r"seed 7 .* nan"):
        play_episodes(lambda: make_env(env), lambda X: np.zeros(len(X), int), [7])
    with pytest.raises(ValueError, match=r"observation .* nan"):
        make(QuantileDQN, RandomEnv()).predict(np.full(4, np.nan, np.float32), deterministic=True)
