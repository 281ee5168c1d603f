"""Situations that users of neighbouring packages reported in public, tried here.

Each test says in its docstring which kind of report it stands for, with the address of one. Whoever
finds a further report adds a test below the heading of its kind.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

# --- order of labels, and labels of rows ----------------------------------------------------------


# --- parts of the uncertainty that nobody measured ------------------------------------------------


# --- half precision -------------------------------------------------------------------------------


# --- explanations ---------------------------------------------------------------------------------


# --- sample weights and where they reach ----------------------------------------------------------


# --- reinforcement learning -----------------------------------------------------------------------


def bandit(reward, observation=(0.0, 0.0)):
    """Environment of two actions and one observation; an episode has ten steps."""
    gymnasium = pytest.importorskip("gymnasium")
    pytest.importorskip("stable_baselines3")

    class Bandit(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self):
            self.tried = [0, 0]

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.n_steps = 0
            return np.array(observation, np.float32), {}

        def step(self, action):
            self.n_steps += 1
            self.tried[action] += 1
            ended = self.n_steps == 10
            return np.array(observation, np.float32), reward(action), ended, False, {}

    return Bandit()


BANDIT = {"learning_starts": 50, "target_update_interval": 50}
ZEROS = np.zeros((1, 2), np.float32)
AGENTS = ["UADQNAlgorithm", "QuantileDQN", "DQNAlgorithm", "BootstrappedDQN"]


@pytest.mark.parametrize("beta", [0.2, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_where_observations_are_zeros_all_actions_are_tried(beta, seed):
    """An agent never explores where observations are zeros, as in bandits without features."""
    env = bandit(lambda action: [1.0, 10.0][action])
    from skuq.uadqn import UADQNAlgorithm

    options = BANDIT | {"learning_rate": 1e-3, "seed": seed, "device": "cpu"}
    UADQNAlgorithm("MlpPolicy", env, epistemic_factor=beta, **options).learn(400)
    assert env.tried[1] > 250


def test_where_observations_are_zeros_no_network_is_certain():
    """Epistemic uncertainty is 0 in the state that the agent knows nothing of."""
    env = bandit(lambda action: [1.0, 10.0][action])
    from skuq import UADQN
    from skuq.uadqn import BootstrappedDQN

    options = {"total_timesteps": 400, "algorithm_kwargs": BANDIT, "random_state": 0}
    agent = UADQN(env, **options).fit([0, 1])
    assert agent.predict(ZEROS) == [1]
    assert (agent.predict_uncertainty(ZEROS, per_action=True).epistemic > 0).all()
    heads = BootstrappedDQN("MlpPolicy", env, seed=0, device="cpu").predict_q(ZEROS)
    assert (heads.var(0) > 0).all()


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e20])
def test_rewards_that_are_not_finite_are_refused(name, wrong):
    """A reward of NaN is learnt without a word (github.com/hill-a/stable-baselines/issues/693)."""
    env = bandit(lambda action: 1.0 if action == 0 else wrong)
    import skuq.uadqn

    with pytest.raises(ValueError, match=r"At step \d+, the reward of environment 0 "):
        getattr(skuq.uadqn, name)("MlpPolicy", env, seed=0, device="cpu", **BANDIT).learn(400)


@pytest.mark.parametrize("name", AGENTS)
def test_observations_that_are_not_finite_are_refused(name):
    """A NaN observation makes all values NaN (github.com/takuseno/d3rlpy/issues/257)."""
    env = bandit(lambda action: 1.0, observation=(0.0, np.nan))
    import skuq.uadqn

    with pytest.raises(ValueError, match="At step 0, the observation of environment 0 "):
        getattr(skuq.uadqn, name)("MlpPolicy", env, seed=0, device="cpu", **BANDIT).learn(400)


@pytest.mark.parametrize("name", AGENTS)
def test_architectures_of_actors_and_critics_are_refused_in_words(name):
    """A dictionary of widths, as actor-critic agents take, ends in an error of torch."""
    env = bandit(lambda action: 1.0)
    import skuq.uadqn

    with pytest.raises(ValueError, match="net_arch must be a list of widths"):
        getattr(skuq.uadqn, name)("MlpPolicy", env, policy_kwargs={"net_arch": {"pi": [8]}})


@pytest.mark.parametrize("name", AGENTS)
def test_observations_without_a_shape_are_refused_in_words(name):
    """Observations that are texts end in an error about None."""
    env = bandit(lambda action: 1.0)
    import gymnasium

    import skuq.uadqn

    env.observation_space = gymnasium.spaces.Text(4)
    with pytest.raises(ValueError, match="Networks read observations of one shape"):
        getattr(skuq.uadqn, name)("MlpPolicy", env)


# --- units of features, and bounds ----------------------------------------------------------------


# --- modules of torch as people write them --------------------------------------------------------


# --- empty, odd and large inputs ------------------------------------------------------------------


# --- this file ------------------------------------------------------------------------------------


def test_each_test_names_its_kind_of_report():
    """A test without a word on what was reported cannot be added to."""
    for name, test in globals().items():
        if name.startswith("test_"):
            assert re.match(r"\S.*\.$", test.__doc__ or ""), name
