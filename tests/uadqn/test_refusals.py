"""What agents, environments and policies refuse, with a word of the message."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from skuq import UADQN
from skuq.uadqn import QuantileDQN, UADQNAlgorithm, make_env, play_episodes
from skuq.uadqn._envs import CliffWindEnv, checked_observations, checked_seeds
from skuq.uadqn._policies import image_extractor
from tests.uadqn.environments import MIXED, SMALL, VECTOR, Faulty, RandomEnv, sampled

CELL = spaces.Box(0, 1, (10,), np.float32)


def rows(table):
    """Rows of options, a word of the message, and the exception: a ValueError if none is named."""
    return [(*row, ValueError)[:3] for row in table]


def with_actions(actions):
    env = RandomEnv()
    env.action_space = actions
    return env


ESTIMATORS = [
    *(({"env": name}, name) for name in ("Nowhere-v0", "Nowhere/Nothing-v0", "CliffWind-v7")),
    ({"env": "foo bar!"}, "cannot be made"),
    *(({"env": env}, "Discrete") for env in ("Pendulum-v1", lambda: gym.make("Pendulum-v1"))),
    *(({"env": env}, "env") for env in (3, VECTOR)),
    ({"env": with_actions(spaces.Discrete(3, start=1))}, "start"),
    ({"env": RandomEnv(spaces.Discrete(5, start=2))}, "start"),
    ({"env": RandomEnv(spaces.MultiDiscrete([2, 3], start=[0, 1]))}, "start"),
    ({"env": RandomEnv(spaces.Dict(state=spaces.Discrete(2, start=1)))}, "start"),
    ({"env": RandomEnv(spaces.Text(3))}, "Box"),
    *(({"policy": name}, name) for name in ("LstmPolicy", "mlp")),
    *(({"aleatoric": name}, name) for name in ("both", "Variance")),
    *(({name: -0.1}, name) for name in ("aleatoric_factor", "noise_scale", "learning_rate")),
    *(({name: 0}, name) for name in ("total_timesteps", "learning_rate", "n_quantiles")),
    *(({name: np.nan}, name) for name in ("epistemic_factor", "aleatoric_factor")),
    ({"gamma": 1.01}, "gamma"),
    ({"random_state": "now"}, "random_state"),
    ({"n_quantiles": 1}, "n_quantiles"),
    ({"algorithm_kwargs": [("batch_size", 3)]}, "algorithm_kwargs"),
    ({"algorithm_kwargs": {"gamma": 0.5, "seed": 3}}, "gamma, seed"),
    ({"algorithm_kwargs": {"policy_kwargs": {"n_quantiles": 3}}}, "n_quantiles"),
    ({"algorithm_kwargs": {"bufer_size": 3}}, "bufer_size", TypeError),
    ({"algorithm_kwargs": {"exploration_fraction": 0.1}}, "exploration_fraction", TypeError),
    ({"policy": "CnnPolicy"}, None, AssertionError),
    ({"policy": "GridPolicy"}, "GridCNN"),
    ({"env": RandomEnv(MIXED), "policy": "MlpPolicy"}, None),
]


@pytest.mark.parametrize(("options", "word", "error"), rows(ESTIMATORS))
def test_estimators_refuse(options, word, error):
    with pytest.raises(error, match=word):
        UADQN(**{"env": "CliffWind-v0", "total_timesteps": 30} | options).fit([0])


class Features(BaseFeaturesExtractor):
    def __init__(self, space, layer):
        super().__init__(space, 8)
        self.layers = nn.Sequential(nn.Linear(4, 8), layer())

    def forward(self, obs):
        return self.layers(obs)


def features(layer):
    own = {"features_extractor_kwargs": {"layer": layer}}
    return {"policy_kwargs": {"features_extractor_class": Features} | own}


def of_policy(**options):
    return {"policy_kwargs": options}


SETTINGS = [
    *(({"epistemic_factor": wrong}, "epistemic_factor") for wrong in (-0.1, np.nan)),
    *(({"noise_scale": wrong}, "noise_scale") for wrong in (-1, np.nan)),
    ({"aleatoric_factor": -1}, "aleatoric_factor"),
    ({"aleatoric": "both"}, "both"),
    ({"exploration_initial_eps": 0.1}, "exploration_initial_eps", TypeError),
    ({"exploration_final_eps": 0.1}, "posterior", TypeError),
]
ALGORITHMS = [
    *SETTINGS,
    (of_policy(n_quantiles=1), "n_quantiles"),
    (of_policy(n_auxiliary=1), "n_auxiliary"),
    (of_policy(aleatoric_factor=5), "aleatoric_factor", TypeError),
    (of_policy(levels="middle"), "middle"),
    (of_policy(net_arch={"pi": [8]}), "pi"),
    (of_policy(net_arch=[8, 0]), "positive"),
    (of_policy(activation_fn=nn.PReLU), "PReLU"),
    *((features(layer), "Features has") for layer in (nn.AlphaDropout, nn.LazyBatchNorm1d)),
    (features(lambda: nn.BatchNorm1d(8)), "Features has"),
    ({"policy": "NoPolicy"}, None),
    ({"policy": "CnnPolicy", "env": RandomEnv(spaces.Box(0, 255, (7, 7, 3), np.uint8))}, "small"),
    ({"policy": "GridPolicy", "env": RandomEnv(spaces.Box(0, 255, (3, 7, 7), np.uint8))}, "grids"),
    ({"policy": "GridPolicy"}, "GridCNN"),
    ({"env": with_actions(spaces.Discrete(3, start=1))}, "start"),
    ({"env": with_actions(spaces.MultiBinary(3))}, "Discrete"),
]


@pytest.mark.parametrize(("options", "word", "error"), rows(ALGORITHMS))
def test_algorithms_refuse(options, word, error):
    options = {"policy": "MlpPolicy", "env": RandomEnv()} | options
    with pytest.raises(error, match=word):
        UADQNAlgorithm(**options)


@pytest.mark.parametrize(
    "options", [{"env": with_actions(spaces.Box(-1, 1, (2,)))}, of_policy(net_arch=[0])]
)
def test_networks_without_auxiliary_ones_refuse_too(options):
    with pytest.raises(ValueError, match=r"Discrete|positive"):
        QuantileDQN(**{"policy": "MlpPolicy", "env": RandomEnv()} | options)


def test_settings_are_checked_on_loading_and_when_they_are_changed(tmp_path):
    agent = UADQNAlgorithm("MlpPolicy", RandomEnv(), policy_kwargs=SMALL, buffer_size=10)
    agent.save(tmp_path / "agent.zip")
    for settings, word, error in rows(SETTINGS):
        with pytest.raises(error, match=word):
            UADQNAlgorithm.load(tmp_path / "agent.zip", trust=True, **settings)
        (name, value) = next(iter(settings.items()))
        if name in ("epistemic_factor", "aleatoric_factor", "aleatoric"):
            before = getattr(agent, name)
            with pytest.raises(ValueError, match=word):
                setattr(agent, name, value)
            assert getattr(agent, name) == before


SAMPLES = sampled(MIXED)
VALUES, BOOL = SAMPLES["vector"], spaces.Box(0, 1, (2, 2, 1), bool)
OBSERVATIONS = [
    (CELL, np.full((2, 10), np.nan), "NaN"),
    (CELL, np.full((2, 10), -np.inf), "infinite"),
    (CELL, np.full((1, 10), 1e300), "float32"),
    *((CELL, np.zeros(shape), "shape") for shape in [(0, 9), (2, 11), (2, 10, 1), 10, ()]),
    (CELL, [["a"] * 10], "numeric"),
    (CELL, np.full((1, 10), None), "numeric"),
    (CELL, {"cell": np.eye(10)}, "shape"),
    *((spaces.Discrete(5), X, "Observations") for X in ([5], [-1], [1.5])),
    (BOOL, np.full((1, 2, 2, 1), 7.3), "elements"),
    (MIXED, VALUES, "dict"),
    (MIXED, {"vector": VALUES}, "dict"),
    (MIXED, SAMPLES | {"more": VALUES}, "dict"),
    (MIXED, {key: x[0] for key, x in SAMPLES.items()}, "shape"),
    (MIXED, SAMPLES | {"vector": VALUES * np.nan}, "NaN"),
    *((MIXED, SAMPLES | {"vector": VALUES[:n]}, "equally many") for n in (1, 3)),
]
SEEDS = [
    *((X, "integers") for X in ([0.5, 1.0], [3, -1], [np.nan], ["a", "b"], [None], [1e300], [1j])),
    *((X, "shape") for X in ([[1, 2]], 3, np.eye(3))),
    ([], "at least one"),
]


def test_observations_seeds_environments_and_extractors_refuse():
    for space, X, word in OBSERVATIONS:
        with pytest.raises(ValueError, match=word):
            checked_observations(X, space)
    for X, word in SEEDS:
        with pytest.raises(ValueError, match=word):
            checked_seeds(X)
    for make, given, word in [
        (CliffWindEnv, 1.5, "wind"),
        *((CliffWindEnv().step, action, "action") for action in (4, -1, 0.5)),
        (image_extractor, spaces.Box(0, 255, (2, 2, 3), np.uint8), "small"),
        (make_env, "", "cannot be made"),
    ]:
        with pytest.raises(ValueError, match=word):
            make(given)


def small(cls, env, policy="MlpPolicy"):
    options = {"buffer_size": 100, "seed": 0, "batch_size": 8, "learning_starts": 2}
    return cls(policy, env, policy_kwargs=SMALL, **options)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of stable-baselines3
@pytest.mark.parametrize(
    ("where", "wrong"),
    [
        *[("reward", np.nan), ("first observation", -np.inf), ("observation", 1e20)],
        *[("last observation", 1e39), ("reward", 1e20), ("observation", np.nan)],
    ],
)
def test_wrong_numbers_are_refused_when_they_arrive(where, wrong):
    agent = small(UADQNAlgorithm, DummyVecEnv([RandomEnv, lambda: Faulty(where, wrong)]))
    step, kind = 0 if where == "first observation" else 6, where.removeprefix("first ")
    with pytest.raises(ValueError, match=f"At step {step}, the {kind} of environment 1 "):
        agent.learn(20)
    assert agent.num_timesteps == step
    assert np.isfinite(agent.replay_buffer.rewards).all()
    assert np.isfinite(agent.predict_quantiles(np.zeros((1, 4), np.float32))).all()


@pytest.mark.parametrize(
    "where", ["reward", "first observation", "observation", "last observation"]
)
def test_dictionaries_are_checked_and_normalisation_does_not_hide_them(where):
    entry, kind = "" if where == "reward" else "'vector' of ", where.removeprefix("first ")
    with pytest.raises(ValueError, match=f"^{entry}At step [03], the {kind} of environment 0 "):
        small(QuantileDQN, Faulty(where, np.nan, MIXED), "MultiInputPolicy").learn(20)
    if where != "last observation":
        env = VecNormalize(DummyVecEnv([lambda: Faulty(where, np.inf)]))
        with pytest.raises(ValueError, match=f"the {kind} of environment 0 "):
            small(UADQNAlgorithm, env).learn(20)


def test_rewards_of_played_episodes_and_observations_of_predictions_are_checked():
    env = Faulty("reward", np.nan)
    with pytest.raises(ValueError, match=r"seed 7 .* nan"):
        play_episodes(lambda: make_env(env), lambda X: np.zeros(len(X), int), [7])
    with pytest.raises(ValueError, match=r"observation .* nan"):
        small(QuantileDQN, RandomEnv()).predict(np.full(4, np.nan, np.float32), deterministic=True)


def test_files_of_agents_networks_and_policies_run_no_code_unless_they_are_trusted(tmp_path):
    agent = UADQNAlgorithm("MlpPolicy", RandomEnv(), policy_kwargs=SMALL, buffer_size=10)
    forged, ran = tmp_path / "forged.zip", tmp_path / "ran"
    forged.write_bytes(pickle.dumps(RunsCode(ran)))
    for made in (agent, agent.policy, agent.quantile_net):
        made.save(tmp_path / "own.zip")
        for path in (forged, tmp_path / "own.zip", io.BytesIO(forged.read_bytes())):
            with pytest.raises(ValueError, match="trust=True"):
                type(made).load(path)
    assert not ran.exists()
    pickle.loads(forged.read_bytes())
    assert ran.exists()  # as it would have


class RunsCode:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)
