"""All algorithms behave as users of stable-baselines3 and sb3-contrib expect."""

import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces
from sb3_contrib import QRDQN
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.callbacks import (
    CheckpointCallback,
    EvalCallback,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.envs import BitFlippingEnv, IdentityEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

from skuq.uadqn import (
    QuantileDQN,
    UADQNAlgorithm,
)
from tests.uadqn.environments import IMAGE, MIXED, VECTOR, RandomEnv, perturb

ALGORITHMS = [UADQNAlgorithm, QuantileDQN]
SPACES = [("MlpPolicy", VECTOR), ("CnnPolicy", IMAGE), ("MultiInputPolicy", MIXED)]
every_algorithm = pytest.mark.parametrize("cls", ALGORITHMS)


def make(cls, policy="MlpPolicy", space=VECTOR, env=None, policy_kwargs=None, **options):
    widths = {"net_arch": [8]}
    env = env or RandomEnv(space)
    options = {"seed": 0, "buffer_size": 100, "batch_size": 8, "learning_starts": 10} | options
    agent = cls(policy, env, policy_kwargs=widths | (policy_kwargs or {}), **options)
    perturb(agent.policy.parameters())
    return agent


def observations(agent, n_samples=None):
    """As the agent gets them: images channels first."""
    space = agent.observation_space
    space.seed(0)
    if n_samples is None:
        return space.sample()
    if isinstance(space, spaces.Dict):
        samples = [space.sample() for _ in range(n_samples)]
        return {key: np.stack([sample[key] for sample in samples]) for key in space.spaces}
    return np.stack([space.sample() for _ in range(n_samples)])


def network(agent):
    return agent.quantile_net if isinstance(agent, QuantileDQN) else agent.q_net


# Actions


@every_algorithm
@pytest.mark.parametrize(("policy", "space"), SPACES)
@pytest.mark.parametrize("deterministic", [True, False])
def test_one_observation_gives_an_array_without_axes_and_several_a_vector(
    cls, policy, space, deterministic
):
    agent = make(cls, policy, space)
    for chooses in (agent, agent.policy):
        action, state = chooses.predict(observations(agent), deterministic=deterministic)
        assert isinstance(action, np.ndarray)
        assert action.shape == ()
        assert agent.action_space.contains(action)
        assert state is None
        actions, _ = chooses.predict(observations(agent, 3), deterministic=deterministic)
        assert isinstance(actions, np.ndarray)
        assert actions.shape == (3,)


RISK = [
    *[(cls, {}) for cls in ALGORITHMS],
    (UADQNAlgorithm, {"aleatoric_factor": 3.0}),
    (UADQNAlgorithm, {"aleatoric_factor": 1.0, "aleatoric": "variance"}),
]


@pytest.mark.parametrize(("cls", "options"), RISK)
def test_the_policy_chooses_the_actions_of_the_algorithm_and_so_does_its_file(
    cls, options, tmp_path
):
    agent = make(cls, **options)
    x = observations(agent, 200)
    expected, _ = agent.predict(x, deterministic=True)
    if options:  # a case where aversion to risk makes a difference
        neutral = agent.predict_quantiles(x)[0].mean(-1).argmax(1)
        assert (expected != neutral).mean() > 0.05
    policy, net = agent.policy, network(agent)
    policy.save(tmp_path / "policy.zip")
    net.save(tmp_path / "network.zip")
    agent.save(tmp_path / "agent.zip")
    loaded = cls.load(tmp_path / "agent.zip")
    for chooses in (
        policy,
        net,
        type(policy).load(tmp_path / "policy.zip"),
        type(net).load(tmp_path / "network.zip"),
        loaded,
        loaded.policy,
    ):
        np.testing.assert_array_equal(chooses.predict(x, deterministic=True)[0], expected)


def test_factors_can_be_changed_and_are_kept(tmp_path):
    agent = make(UADQNAlgorithm)
    x = observations(agent, 200)
    neutral, _ = agent.predict(x, deterministic=True)
    agent.aleatoric_factor, agent.aleatoric, agent.epistemic_factor = 2.0, "variance", 0.0
    agent.save(tmp_path / "agent.zip")
    agent.policy.save(tmp_path / "policy.zip")
    loaded = UADQNAlgorithm.load(tmp_path / "agent.zip")
    settings = (loaded.aleatoric_factor, loaded.aleatoric, loaded.epistemic_factor)
    assert settings == (2.0, "variance", 0.0)
    averse, _ = agent.predict(x)
    assert (averse != neutral).any()
    for chooses in (loaded, type(agent.policy).load(tmp_path / "policy.zip")):
        np.testing.assert_array_equal(chooses.predict(x)[0], averse)


def test_the_policy_of_uadqn_explores_by_posterior_sampling_unless_deterministic():
    agent = make(UADQNAlgorithm, epistemic_factor=1.0)
    x = np.repeat(observations(agent, 1), 500, axis=0)
    assert len(set(agent.policy.predict(x, deterministic=True)[0])) == 1
    assert len(set(agent.policy.predict(x, deterministic=False)[0])) > 1


@every_algorithm
def test_policies_can_be_evaluated(cls):
    agent = make(cls)
    scores, lengths = evaluate_policy(
        agent.policy, agent.get_env(), n_eval_episodes=3, return_episode_rewards=True
    )
    assert lengths == [5, 5, 5]
    assert np.isfinite(scores).all()


# Files of networks


@every_algorithm
@pytest.mark.parametrize(("policy", "space"), SPACES)
def test_a_saved_network_predicts_the_same(cls, policy, space, tmp_path):
    agent = make(cls, policy, space)
    net = network(agent)
    net.save(tmp_path / "network.zip")
    loaded = type(net).load(tmp_path / "network.zip", device="cpu")
    assert loaded is not net
    saved, read = net.state_dict(), loaded.state_dict()
    assert list(saved) == list(read)
    for name, weights in saved.items():
        assert torch.equal(weights, read[name])
    x, _ = agent.policy.obs_to_tensor(observations(agent, 4))
    torch.testing.assert_close(loaded(x), net(x))


# Images


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


IMAGES = [
    spaces.Box(0, 255, (36, 36, 3), np.uint8),
    spaces.Box(0, 255, (3, 36, 36), np.uint8),
    spaces.Box(0, 9, (3, 36, 36), np.uint8),
    spaces.Box(-1, 1, (3, 36, 36), np.float32),
    spaces.Box(0, 1, (1, 40, 40), np.float32),
    spaces.Box(0, 1, (4, 84, 84), np.float32),
    spaces.Box(0, 1, (84, 84, 4), np.float32),
    spaces.Box(0, 1, (10, 10, 4), bool),
]


@every_algorithm
@pytest.mark.parametrize("normalize_images", [True, False])
@pytest.mark.parametrize("space", IMAGES, ids=str)
def test_images_are_what_stable_baselines3_takes_for_one(cls, space, normalize_images):
    expected = outcome(QRDQN, space, normalize_images)
    assert outcome(cls, space, normalize_images) == expected
    if normalize_images and space.dtype != np.uint8:
        assert expected is AssertionError


# Optimisers


@every_algorithm
def test_options_of_the_optimiser_are_those_given(cls):
    default = make(cls).policy.optimizer
    assert type(default) is torch.optim.Adam
    assert default.defaults["eps"] == 1e-8
    options = {"eps": 1e-3, "weight_decay": 0.1}
    given = make(cls, policy_kwargs={"optimizer_kwargs": options}).policy.optimizer
    assert {name: given.defaults[name] for name in options} == options


# Exploration


@pytest.mark.parametrize(
    "name", ["exploration_fraction", "exploration_initial_eps", "exploration_final_eps"]
)
def test_uadqn_has_no_epsilon_and_says_how_it_explores(name):
    with pytest.raises(TypeError, match=f"{name}.* posterior sampling"):
        make(UADQNAlgorithm, **{name: 0.1})
    assert getattr(make(QuantileDQN, **{name: 0.1}), name) == 0.1


# Saving and loading


def parameters(agent):
    return [p.detach().clone() for p in agent.policy.parameters()]


def are_equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@every_algorithm
def test_a_loaded_agent_learns_on_from_its_buffer_as_the_saved_one(cls, tmp_path):
    agents = [make(cls).learn(30)]
    agents[0].save(tmp_path / "agent.zip")
    agents[0].save_replay_buffer(tmp_path / "buffer.pkl")
    # In the file alone the environment's state is missing: both go on in new ones.
    for _ in range(2):
        agents.append(cls.load(tmp_path / "agent.zip", env=RandomEnv()))
        agents[-1].load_replay_buffer(tmp_path / "buffer.pkl")
        assert agents[-1].replay_buffer.size() == 30
        agents[-1].set_random_seed(3)
        agents[-1].learn(20, reset_num_timesteps=False)
        assert agents[-1].num_timesteps == 50
    saved, one, other = map(parameters, agents)
    assert are_equal(one, other)
    assert not are_equal(saved, one)


@every_algorithm
def test_training_that_resumes_without_its_replay_buffer_warns(cls, tmp_path):
    agent = make(cls).learn(12)
    agent.save(tmp_path / "agent.zip")
    agent.save_replay_buffer(tmp_path / "buffer.pkl")
    loaded = cls.load(tmp_path / "agent.zip", env=RandomEnv())
    with pytest.warns(UserWarning, match="resumes at step 12 with an empty replay") as caught:
        loaded.learn(2, reset_num_timesteps=False)
    assert caught[0].filename == __file__
    whole = cls.load(tmp_path / "agent.zip", env=RandomEnv())
    whole.load_replay_buffer(tmp_path / "buffer.pkl")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole.learn(2, reset_num_timesteps=False)
        cls.load(tmp_path / "agent.zip", env=RandomEnv()).learn(2)  # starts anew


@every_algorithm
def test_an_agent_without_any_update_warns_at_the_end_of_training(cls):
    message = r"No update was made in 10 steps.*learning_starts=10 steps"
    with pytest.warns(UserWarning, match=message) as caught:
        agent = make(cls).learn(10)
    assert (len(caught), caught[0].filename) == (1, __file__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.learn(1, reset_num_timesteps=False)


@every_algorithm
def test_agents_of_other_algorithms_are_refused_by_name(cls, tmp_path):
    for other in (*ALGORITHMS, DQN, QRDQN):
        if other is cls:
            continue
        path = tmp_path / f"{other.__name__}.zip"
        make(other).save(path)
        message = f"{cls.__name__} cannot use the .*Policy of a different algorithm"
        with pytest.raises(ValueError, match=message):
            cls.load(path)


@every_algorithm
def test_a_policy_of_another_algorithm_is_refused(cls):
    with pytest.raises(ValueError, match=f"{cls.__name__} cannot use the ActorCriticPolicy"):
        cls(ActorCriticPolicy, RandomEnv())


@every_algorithm
def test_unknown_options_are_refused_on_loading(cls, tmp_path):
    make(cls).save(tmp_path / "agent.zip")
    with pytest.raises(TypeError, match="does not accept gama, q"):
        cls.load(tmp_path / "agent.zip", q=1, gama=0.5)
    loaded = cls.load(tmp_path / "agent.zip", gamma=0.5, learning_starts=3, seed=1)
    assert (loaded.gamma, loaded.learning_starts) == (0.5, 3)


@every_algorithm
def test_environments_can_be_changed_for_those_of_the_same_spaces(cls):
    agent = make(cls).learn(15)
    agent.set_env(RandomEnv(length=2))
    agent.learn(10, reset_num_timesteps=False)
    assert agent.num_timesteps == 25
    with pytest.raises(ValueError, match="Observation spaces do not match"):
        agent.set_env(RandomEnv(spaces.Box(-1, 1, (7,))))


# Callbacks and loggers


@every_algorithm
def test_callbacks_of_the_library_are_called(cls, tmp_path):
    evaluation = EvalCallback(
        Monitor(RandomEnv(length=3)),
        callback_on_new_best=StopTrainingOnRewardThreshold(-100),
        eval_freq=25,
        n_eval_episodes=2,
        best_model_save_path=str(tmp_path / "best"),
        verbose=0,
    )
    callbacks = [
        CheckpointCallback(10, str(tmp_path), save_replay_buffer=True),
        evaluation,
    ]
    agent = make(cls).learn(60, callback=callbacks)
    assert agent.num_timesteps == 25  # stopped: any score is above the threshold
    for step in (10, 20):
        assert cls.load(tmp_path / f"rl_model_{step}_steps.zip").num_timesteps == step
        assert (tmp_path / f"rl_model_replay_buffer_{step}_steps.pkl").exists()
    best = cls.load(tmp_path / "best" / "best_model.zip")
    assert are_equal(parameters(best), parameters(agent))


@every_algorithm
def test_scores_and_losses_reach_loggers_and_tensorboard(cls, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    agent = make(cls, env=Monitor(RandomEnv()))
    agent.LOSS_INTERVAL = 1
    agent.set_logger(configure(str(tmp_path), ["csv", "tensorboard"]))
    agent.learn(60, log_interval=2)
    events = EventAccumulator(str(tmp_path)).Reload()
    tags = {"rollout/ep_rew_mean", "rollout/ep_len_mean", "train/loss", "time/fps"}
    if cls is UADQNAlgorithm:
        tags |= {"rollout/epistemic", "rollout/aleatoric", "rollout/exploratory"}
    assert tags <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("rollout/ep_len_mean")] == [
        10,
        20,
        30,
        40,
        50,
        60,
    ]
    assert {event.value for event in events.Scalars("rollout/ep_len_mean")} == {5.0}
    assert (tmp_path / "progress.csv").read_text(encoding="utf-8").count("\n") == 7


# Vectorised and wrapped environments


@every_algorithm
def test_normalised_environments_are_saved_beside_the_agent(cls, tmp_path):
    env = VecNormalize(DummyVecEnv([RandomEnv] * 2))
    agent = make(cls, env=env).learn(40)
    # The buffer keeps what the environment said, and is normalised when it is sampled.
    kept = agent.replay_buffer.observations[: agent.replay_buffer.size()]
    assert np.abs(kept).max() <= 1
    sampled = agent.replay_buffer.sample(50, env=env)
    assert sampled.observations.abs().max() > 1
    env.save(tmp_path / "normalised.pkl")
    loaded = VecNormalize.load(tmp_path / "normalised.pkl", DummyVecEnv([RandomEnv] * 2))
    np.testing.assert_array_equal(loaded.obs_rms.mean, env.obs_rms.mean)
    agent.save(tmp_path / "agent.zip")
    cls.load(tmp_path / "agent.zip", env=loaded).learn(12)


@every_algorithm
@pytest.mark.parametrize(
    "options",
    [
        {"train_freq": (2, "step"), "gradient_steps": -1},
        {"train_freq": 4, "gradient_steps": 2},
        {"train_freq": 1, "gradient_steps": 1, "target_update_interval": 1},
    ],
)
def test_several_environments_may_be_stepped_between_updates(cls, options):
    agent = make(cls, env=DummyVecEnv([RandomEnv] * 3), **options).learn(48)
    assert agent.num_timesteps == 48
    per_update = {-1: 6 / 6, 2: 12 / 2, 1: 3 / 1}[options["gradient_steps"]]
    assert agent._n_updates == pytest.approx((48 - 10) / per_update, abs=6)


@pytest.mark.slow
@every_algorithm
def test_environments_may_live_in_other_processes(cls):
    env = SubprocVecEnv([RandomEnv, RandomEnv])
    try:
        assert make(cls, env=env).learn(30)._n_updates > 0
    finally:
        env.close()


# Spaces


@every_algorithm
@pytest.mark.parametrize(
    "space", [spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(3)], ids=str
)
def test_only_finitely_many_single_actions_are_taken(cls, space):
    env = RandomEnv()
    env.action_space = space
    with pytest.raises(ValueError, match="Discrete"):
        make(cls, env=env)


@every_algorithm
@pytest.mark.parametrize(
    ("policy", "space"),
    [
        ("MlpPolicy", spaces.Discrete(4)),
        ("MlpPolicy", spaces.MultiDiscrete([3, 2])),
        ("MlpPolicy", spaces.MultiBinary([2, 3])),
        ("MultiInputPolicy", spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)})),
    ],
    ids=str,
)
def test_observations_of_all_kinds_are_learnt_from_and_evaluated(cls, policy, space):
    agent = make(cls, policy, space).learn(14)
    assert agent._n_updates > 0
    score, _ = evaluate_policy(agent, agent.get_env(), n_eval_episodes=2, warn=False)
    assert np.isfinite(score)


# Hyperparameter files


def test_hyperparameters_of_the_zoo_are_taken(tmp_path):
    """The example of the guide, read as rl_zoo3 reads it: strings in `policy_kwargs` are code."""
    yaml = pytest.importorskip("yaml")
    page = (Path(__file__).parents[2] / "docs" / "guide" / "uadqn.rst").read_text(encoding="utf-8")
    block = page.partition(".. code-block:: yaml\n")[2].partition("\nEnvironments")[0]
    (options,) = yaml.safe_load(textwrap.dedent(block)).values()
    n_timesteps, policy = int(options.pop("n_timesteps")), options.pop("policy")
    assert options.pop("normalize") is True  # the zoo's own, as is the number of steps
    options["policy_kwargs"] = eval(options["policy_kwargs"])
    env = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    agent = UADQNAlgorithm(policy, env, learning_starts=20, buffer_size=100, **options).learn(40)
    assert n_timesteps == 50_000
    assert agent.epistemic_factor == 1.0
    assert agent.quantile_net.n_quantiles == 50


# Replay buffers


@every_algorithm
def test_hindsight_experience_is_replayed(cls):
    env = BitFlippingEnv(n_bits=3, continuous=False, max_steps=3)
    goals = {"n_sampled_goal": 2, "goal_selection_strategy": "future"}
    agent = make(
        cls,
        "MultiInputPolicy",
        env=env,
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs=goals,
    ).learn(40)
    assert isinstance(agent.replay_buffer, HerReplayBuffer)
    assert agent._n_updates > 0


@every_algorithm
def test_targets_may_be_several_steps_ahead(cls, tmp_path):
    agent = make(cls, n_steps=3).learn(30)
    assert isinstance(agent.replay_buffer, NStepReplayBuffer)
    assert agent._n_updates > 0
    agent.save(tmp_path / "agent.zip")
    assert cls.load(tmp_path / "agent.zip", env=RandomEnv()).n_steps == 3


@every_algorithm
def test_transitions_may_be_kept_in_half_the_memory(cls):
    options = {
        "optimize_memory_usage": True,
        "replay_buffer_kwargs": {"handle_timeout_termination": False},
    }
    agent = make(cls, **options).learn(30)
    assert agent._n_updates > 0


# Modes, and learning


@every_algorithm
def test_the_same_seed_gives_the_same_agent(cls):
    one, same, other = (make(cls, seed=seed).learn(25) for seed in (3, 3, 4))
    assert are_equal(parameters(one), parameters(same))
    np.testing.assert_array_equal(one.replay_buffer.actions, same.replay_buffer.actions)
    assert not are_equal(parameters(one), parameters(other))


@pytest.mark.slow
@every_algorithm
def test_the_identity_is_learnt(cls):
    """The action that the observation names brings 1, any other 0."""
    env = Monitor(IdentityEnv(3))
    options = {} if cls is UADQNAlgorithm else {"exploration_fraction": 0.5}
    agent = cls(
        "MlpPolicy",
        env,
        learning_rate=1e-2,
        gamma=0.0,
        learning_starts=50,
        target_update_interval=50,
        policy_kwargs={"net_arch": [32]},
        seed=0,
        **options,
    ).learn(400)
    score, _ = evaluate_policy(agent, env, n_eval_episodes=5, warn=False)
    assert score >= 90  # of 100 steps
