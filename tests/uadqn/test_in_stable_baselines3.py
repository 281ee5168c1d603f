"""All algorithms behave as users of stable-baselines3 and sb3-contrib expect."""

import os
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces
from sb3_contrib import QRDQN
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import (
    CheckpointCallback,
    EvalCallback,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from skuq.uadqn import QuantileDQN, UADQNAlgorithm
from tests.uadqn.environments import IMAGE, MIXED, VECTOR, RandomEnv, perturb, sampled

ALGORITHMS = [UADQNAlgorithm, QuantileDQN]
every_algorithm = pytest.mark.parametrize("cls", ALGORITHMS)


def make(cls=UADQNAlgorithm, policy="MlpPolicy", env=None, **options):
    options = {"policy_kwargs": {"net_arch": [8]}, "learning_starts": 10} | options
    options = {"seed": 0, "buffer_size": 100, "batch_size": 8} | options
    agent = cls(policy, env or RandomEnv(), **options)
    perturb(agent.policy.parameters())
    return agent


@pytest.mark.parametrize(
    ("cls", "policy", "space", "deterministic"),
    [
        (UADQNAlgorithm, "MlpPolicy", VECTOR, True),
        (QuantileDQN, "CnnPolicy", IMAGE, False),
        (UADQNAlgorithm, "MultiInputPolicy", MIXED, False),
    ],
)
def test_one_observation_gives_an_array_without_axes_and_several_a_vector(
    cls, policy, space, deterministic
):
    agent = make(cls, policy, RandomEnv(space))
    space = agent.observation_space  # of images channels first
    for chooses in (agent, agent.policy):
        for X, shape in [(space.sample(), ()), (sampled(space, 3), (3,))]:
            actions, state = chooses.predict(X, deterministic=deterministic)
            assert isinstance(actions, np.ndarray)
            assert actions.shape == shape
            assert state is None
            assert all(map(agent.action_space.contains, np.atleast_1d(actions)))


RISK = [
    *[(cls, {}) for cls in ALGORITHMS],
    (UADQNAlgorithm, {"aleatoric_factor": 3.0}),
    (UADQNAlgorithm, {"aleatoric_factor": 1.0, "aleatoric": "variance"}),
]


@pytest.mark.parametrize(("cls", "options"), RISK)
def test_the_policy_chooses_the_actions_of_the_algorithm_and_so_does_its_file(
    cls, options, tmp_path
):
    agent, x = make(cls, **options), sampled(VECTOR, 200)
    expected, _ = agent.predict(x, deterministic=True)
    if options:  # a case where aversion to risk makes a difference
        neutral = agent.predict_quantiles(x)[0].mean(-1).argmax(1)
        assert (expected != neutral).mean() > 0.05
    policy, net = agent.policy, agent.quantile_net
    for each, name in [(policy, "policy"), (net, "network"), (agent, "agent")]:
        each.save(tmp_path / f"{name}.zip")
    of_policy = type(policy).load(tmp_path / "policy.zip", trust=True)
    of_net = type(net).load(tmp_path / "network.zip", trust=True)
    loaded = cls.load(tmp_path / "agent.zip", trust=True)
    for chooses in (policy, net, of_policy, of_net, loaded, loaded.policy):
        np.testing.assert_array_equal(chooses.predict(x, deterministic=True)[0], expected)


def test_factors_can_be_changed_and_are_kept_unless_given_anew(tmp_path):
    agent, x = make(), sampled(VECTOR, 200)
    neutral, _ = agent.predict(x, deterministic=True)
    changed = {"aleatoric_factor": 2.0, "aleatoric": "variance", "epistemic_factor": 0.0}
    for name, value in changed.items():
        setattr(agent, name, value)
    agent.save(tmp_path / "agent.zip")
    agent.policy.save(tmp_path / "policy.zip")
    loaded = UADQNAlgorithm.load(tmp_path / "agent.zip", trust=True)
    averse, _ = agent.predict(x)
    assert (averse != neutral).any()
    for chooses in (loaded, type(agent.policy).load(tmp_path / "policy.zip", trust=True)):
        np.testing.assert_array_equal(chooses.predict(x)[0], averse)
    given = {"aleatoric_factor": 3.0, "epistemic_factor": 0.5, "noise_scale": 0.5, "gamma": 0.5}
    given |= {"learning_starts": 3}
    anew = UADQNAlgorithm.load(tmp_path / "agent.zip", trust=True, seed=1, **given)
    for one, settings in [(loaded, changed), (anew, changed | given)]:
        assert {name: getattr(one, name) for name in settings} == settings
    assert anew.quantile_net.aleatoric_factor == 3.0
    with pytest.raises(TypeError, match="gama, q"):
        UADQNAlgorithm.load(tmp_path / "agent.zip", trust=True, q=1, gama=0.5)


def outcome(cls, space, normalize_images):
    """Shapes of the extractor's weights, or how the space is refused."""
    widths = {"features_dim": 16}  # not shared: the library writes into it
    options = {"normalize_images": normalize_images, "features_extractor_kwargs": widths}
    try:
        agent = cls("CnnPolicy", RandomEnv(space), policy_kwargs=options, buffer_size=10)
    except (AssertionError, RuntimeError) as error:
        return type(error)
    extractor = agent.policy.make_features_extractor()
    return type(extractor), [tuple(p.shape) for p in extractor.parameters()]


@pytest.mark.parametrize(
    ("space", "normalize_images"),  # whether images are divided by 255
    [
        (spaces.Box(0, 255, (36, 36, 3), np.uint8), True),
        (spaces.Box(0, 255, (3, 36, 36), np.uint8), False),
        (spaces.Box(0, 9, (3, 36, 36), np.uint8), True),
        (spaces.Box(0, 9, (3, 36, 36), np.uint8), False),
        (spaces.Box(-1, 1, (3, 36, 36), np.float32), True),
        (spaces.Box(0, 1, (1, 40, 40), np.float32), False),
        (spaces.Box(0, 1, (84, 84, 4), np.float32), False),
        (spaces.Box(0, 1, (10, 10, 4), bool), True),
    ],
    ids=str,
)
def test_images_are_what_stable_baselines3_takes_for_one(space, normalize_images):
    expected = outcome(QRDQN, space, normalize_images)
    assert outcome(UADQNAlgorithm, space, normalize_images) == expected
    if normalize_images and space.dtype != np.uint8:
        assert expected is AssertionError


@every_algorithm
def test_training_warns_without_its_replay_buffer_or_any_update(cls, tmp_path):
    with pytest.warns(UserWarning, match="learning_starts=10"):
        agent = make(cls).learn(10)
    agent.learn(2, reset_num_timesteps=False).save(tmp_path / "agent.zip")
    agent.save_replay_buffer(tmp_path / "buffer.pkl")
    anew, resumed, whole = (
        cls.load(tmp_path / "agent.zip", trust=True, env=RandomEnv()) for _ in range(3)
    )
    with pytest.warns(UserWarning, match="step 12"):
        resumed.learn(2, reset_num_timesteps=False)
    whole.load_replay_buffer(tmp_path / "buffer.pkl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        anew.learn(2)
        assert whole.learn(2, reset_num_timesteps=False).num_timesteps == 14


def test_exploration_that_ends_before_the_first_update_is_warned_of():
    early, later = (make(QuantileDQN, exploration_fraction=share) for share in (0.2, 0.22))
    for agent, n_warnings in [(early, 1), (later, 0), (make(UADQNAlgorithm), 0)]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            agent.learn(50)
        cures = [w for w in caught if "exploration_fraction well above 0.2," in str(w.message)]
        assert len(cures) == n_warnings


@every_algorithm
def test_agents_and_policies_of_other_algorithms_are_refused_by_name(cls, tmp_path):
    for other in {*ALGORITHMS, DQN, QRDQN} - {cls}:
        make(other).save(tmp_path / f"{other.__name__}.zip")
        with pytest.raises(ValueError, match=cls.__name__):
            cls.load(tmp_path / f"{other.__name__}.zip", trust=True)
    with pytest.raises(ValueError, match="ActorCriticPolicy"):
        cls(ActorCriticPolicy, RandomEnv())


def test_callbacks_of_the_library_are_called(tmp_path):
    options = {"eval_freq": 25, "n_eval_episodes": 2, "best_model_save_path": str(tmp_path)}
    options |= {"callback_on_new_best": StopTrainingOnRewardThreshold(-100), "verbose": 0}
    evaluation = EvalCallback(Monitor(RandomEnv(length=3)), **options)
    kept = CheckpointCallback(10, str(tmp_path), save_replay_buffer=True)
    agent = make().learn(60, callback=[kept, evaluation])
    assert agent.num_timesteps == 25  # stopped: any score is above the threshold
    for step in (10, 20):
        saved = UADQNAlgorithm.load(tmp_path / f"rl_model_{step}_steps.zip", trust=True)
        assert saved.num_timesteps == step
        assert (tmp_path / f"rl_model_replay_buffer_{step}_steps.pkl").exists()
    best, x = UADQNAlgorithm.load(tmp_path / "best_model.zip", trust=True), sampled(VECTOR, 5)
    np.testing.assert_array_equal(best.predict_quantiles(x), agent.predict_quantiles(x))


def test_scores_and_losses_reach_loggers_and_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    agent = make(env=Monitor(RandomEnv()))
    agent.LOSS_INTERVAL = 1
    agent.set_logger(configure(str(tmp_path), ["csv", "tensorboard"]))
    agent.learn(60, log_interval=2)
    events = EventAccumulator(str(tmp_path)).Reload()
    of_training = {"rollout/ep_rew_mean", "train/loss", "time/fps"}
    of_decisions = {"rollout/epistemic", "rollout/aleatoric", "rollout/exploratory"}
    assert of_training | of_decisions <= set(events.Tags()["scalars"])
    lengths = events.Scalars("rollout/ep_len_mean")
    assert [(event.step, event.value) for event in lengths] == [(10 * i, 5.0) for i in range(1, 7)]
    assert (tmp_path / "progress.csv").read_text(encoding="utf-8").count("\n") == 7


def test_normalised_environments_are_saved_beside_the_agent(tmp_path):
    env = VecNormalize(DummyVecEnv([RandomEnv] * 2))
    agent = make(env=env).learn(40)
    # The buffer keeps what the environment said, and is normalised when it is sampled.
    assert np.abs(agent.replay_buffer.observations).max() <= 1
    assert agent.replay_buffer.sample(50, env=env).observations.abs().max() > 1
    env.save(tmp_path / "normalised.pkl")
    loaded = VecNormalize.load(tmp_path / "normalised.pkl", DummyVecEnv([RandomEnv] * 2))
    np.testing.assert_array_equal(loaded.obs_rms.mean, env.obs_rms.mean)
    agent.save(tmp_path / "agent.zip")
    UADQNAlgorithm.load(tmp_path / "agent.zip", trust=True, env=loaded).learn(12)


def test_hyperparameters_of_the_zoo_are_taken():
    """The example of the guide, read as rl_zoo3 reads it: strings in `policy_kwargs` are code."""
    yaml = pytest.importorskip("yaml")
    page = (Path(__file__).parents[2] / "docs" / "guide" / "uadqn.rst").read_text(encoding="utf-8")
    block = page.partition(".. code-block:: yaml\n")[2].partition("\nEnvironments")[0]
    (options,) = yaml.safe_load(textwrap.dedent(block)).values()
    # The zoo's own are the number of steps and the normalisation.
    own = [options.pop(name) for name in ("n_timesteps", "normalize", "policy")]
    assert own == [5e4, True, "MlpPolicy"]
    options["policy_kwargs"] = eval(options["policy_kwargs"])
    env = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    agent = UADQNAlgorithm(own[-1], env, learning_starts=20, buffer_size=100, **options).learn(40)
    assert agent.epistemic_factor == 1.0
    assert agent.quantile_net.n_quantiles == 50


@pytest.mark.parametrize(
    ("options", "n_updates"),
    [
        ({"train_freq": (2, "step"), "gradient_steps": -1}, 42),
        ({"train_freq": 4, "gradient_steps": 2}, 8),
        ({"train_freq": 1, "gradient_steps": 1, "target_update_interval": 1}, 13),
    ],
)
def test_several_environments_may_be_stepped_between_updates(options, n_updates):
    agent = make(env=DummyVecEnv([RandomEnv] * 3), **options).learn(48)
    assert (agent.num_timesteps, agent._n_updates) == (48, n_updates)


GOALS = {"n_sampled_goal": 2, "goal_selection_strategy": "future"}
HINDSIGHT = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": GOALS}
HINDSIGHT |= {"env": BitFlippingEnv(n_bits=3, continuous=False, max_steps=3)}
CUT_OFF = {"handle_timeout_termination": False}
HALF_MEMORY = {"optimize_memory_usage": True, "replay_buffer_kwargs": CUT_OFF}


@pytest.mark.parametrize(
    ("policy", "options", "buffer"),
    [
        ("MultiInputPolicy", HINDSIGHT, HerReplayBuffer),
        ("MlpPolicy", {"n_steps": 3}, NStepReplayBuffer),
        ("MlpPolicy", HALF_MEMORY, ReplayBuffer),
    ],
)
def test_replay_buffers_of_the_library_may_be_used(policy, options, buffer, tmp_path):
    agent = make(UADQNAlgorithm, policy, **options).learn(30)
    assert type(agent.replay_buffer) is buffer
    assert agent._n_updates > 0
    agent.save(tmp_path / "agent.zip")
    loaded = UADQNAlgorithm.load(tmp_path / "agent.zip", trust=True, env=options.get("env"))
    assert loaded.n_steps == options.get("n_steps", 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_environments_may_live_in_other_processes():
    options = {"vec_env_cls": SubprocVecEnv, "vec_env_kwargs": {"start_method": "fork"}}
    env = make_vec_env("skuq.uadqn:CliffWind-v0", 2, **options)
    try:
        assert make(env=env).learn(20)._n_updates > 0
    finally:
        env.close()
