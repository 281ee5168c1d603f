"""UA-DQN as an estimator: its numbers against loops, and the conventions of scikit-learn."""

import copy
import pickle
import random
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("stable_baselines3")

import gymnasium as gym
from gymnasium import spaces
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold

from skuq import UADQN, predict_uncertainty
from skuq.uadqn import _envs, _estimator
from skuq.uadqn._training import Episode
from tests.uadqn.environments import GRID, IMAGE, MIXED, VECTOR, RandomEnv, sampled
from tests.uadqn.plain import moments, plain_network

CLIFF = "CliffWind-v0"
CELLS = np.eye(10, dtype=np.float32)
SEEDS = np.arange(6)
QUICK = {"total_timesteps": 120, "n_quantiles": 7, "random_state": 0}
SMALL = {"learning_starts": 40, "buffer_size": 500, "policy_kwargs": {"net_arch": [16]}}


def make(env=CLIFF, algorithm=None, **options):
    return UADQN(env, algorithm_kwargs=SMALL | (algorithm or {}), **(QUICK | options))


@pytest.fixture(scope="module")
def agent():
    """Averse to risk, so that means alone do not choose. Not to be fitted again."""
    return make(aleatoric_factor=2.0).fit(SEEDS)


def all_quantiles(agent, X):
    return agent.algorithm_.predict_quantiles(X).astype(np.float64)


def assert_alike(models, X=CELLS):
    first, *others = (all_quantiles(model, X) for model in models)
    for other in others:
        np.testing.assert_array_equal(other, first)


def global_states():
    name, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), (name, keys.tolist(), *rest), torch.get_rng_state().tolist()


def scramble():
    random.seed(12)
    np.random.seed(34)  # noqa: NPY002
    torch.manual_seed(56)


def test_a_seed_makes_runs_equal_bit_for_bit(agent):
    scramble()
    again = clone(agent).fit(SEEDS)
    assert_alike([agent, again])
    pd.testing.assert_frame_equal(again.history_, agent.history_, check_exact=True)
    other = again.set_params(random_state=1).fit(SEEDS)
    assert not np.allclose(all_quantiles(other, CELLS), all_quantiles(agent, CELLS))
    assert not other.history_.equals(agent.history_)


def test_fits_in_threads_are_those_of_one_after_the_other():
    fit = joblib.delayed(lambda seed: make(random_state=seed, total_timesteps=60).fit(SEEDS))
    runs = [joblib.Parallel(n, backend="threading")(map(fit, range(2))) for n in (1, 2)]
    for both in zip(*runs, strict=True):
        assert_alike(both)


def test_random_state_may_be_a_generator():
    runs = []
    for _ in range(2):
        model = make(total_timesteps=45, random_state=np.random.RandomState(5))
        runs += [all_quantiles(model.fit(SEEDS), CELLS), all_quantiles(model.fit(SEEDS), CELLS)]
    np.testing.assert_array_equal(runs[:2], runs[2:])
    assert not np.allclose(runs[0], runs[1])


def test_pickle_round_trip():
    model = make(RandomEnv(length=3), aleatoric_factor=0.5, total_timesteps=50).fit(SEEDS)
    X = sampled(VECTOR)
    for loaded in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert_alike([model, loaded], X)
        assert loaded.predict_uncertainty(X) == model.predict_uncertainty(X)
        assert loaded.history_.equals(model.history_)
        assert loaded.score([8, 9]) == model.score([8, 9])
        assert loaded.observation_space_ == model.observation_space_
    assert_alike([model, loaded.fit(SEEDS)], X)


def test_search_judges_on_env_seeds_that_were_not_trained_on():
    grid, X = {"aleatoric_factor": [0, 2.0]}, sampled(VECTOR)
    model = make(RandomEnv(), total_timesteps=50)
    search = GridSearchCV(model, grid, cv=2).fit(SEEDS)
    for i, factor in enumerate(grid["aleatoric_factor"]):
        for k, (train, test) in enumerate(KFold(2).split(SEEDS)):
            fitted = clone(model).set_params(aleatoric_factor=factor).fit(SEEDS[train])
            assert search.cv_results_[f"split{k}_test_score"][i] == fitted.score(SEEDS[test])
    result = predict_uncertainty(search, X)
    np.testing.assert_array_equal(result, search.best_estimator_.predict_uncertainty(X))


def test_seeds_and_observations_may_come_as_lists_columns_or_frames(agent):
    for X in (
        *[SEEDS[:, None], list(range(6)), range(6), SEEDS.astype(np.uint8)],
        *[pd.Series(SEEDS, index=list("fedcba")), pd.DataFrame({"seed": SEEDS})],
    ):
        assert agent.score(X) == agent.score(SEEDS)
        np.testing.assert_array_equal(_envs.checked_seeds(X), SEEDS, strict=True)
    expected = agent.predict(CELLS)
    for X in (CELLS.tolist(), pd.DataFrame(CELLS), CELLS.astype(int), CELLS.astype(bool)):
        np.testing.assert_array_equal(agent.predict(X), expected)


@pytest.mark.parametrize(
    ("factor", "aleatoric", "n_auxiliary"),
    [(0.0, "covariance", 2), (0.5, "variance", 2), (2.0, "covariance", 3)],
)
def test_actions_and_uncertainty_are_those_of_loops(factor, aleatoric, n_auxiliary):
    options = {"total_timesteps": 70, "random_state": 3}
    networks = {"policy_kwargs": {"net_arch": [16], "n_auxiliary": n_auxiliary}}
    model = make(None, networks, aleatoric_factor=factor, aleatoric=aleatoric, **options)
    model.set_params(env=CLIFF).fit(SEEDS)
    X = np.random.default_rng(0).random((40, 10))
    quantiles = all_quantiles(model, X)
    values, risk, epistemic = moments(quantiles, aleatoric)
    actions = (values - factor * np.sqrt(risk)).argmax(-1)
    np.testing.assert_array_equal(model.predict(X), actions, strict=True)
    everything, chosen = (model.predict_uncertainty(X, per_action=each) for each in (True, False))
    parts = (risk + epistemic, risk, epistemic)
    for of_all, of_chosen, expected in zip(everything.parts, chosen.parts, parts, strict=True):
        np.testing.assert_allclose(of_all, expected, rtol=1e-6, atol=1e-9, strict=True)
        np.testing.assert_array_equal(of_chosen, of_all[range(40), actions], strict=True)
        assert (of_all >= 0).all()
    np.testing.assert_array_equal(model.score_samples(X), -chosen.epistemic)
    assert len(set(actions)) > 1
    if factor:  # without aversion to risk, other actions are best
        assert (actions != values.argmax(-1)).any()
    if aleatoric == "covariance":  # estimates below 0 count as none
        assert (risk == 0).any()


def test_quantiles_are_those_of_the_value_network(agent):
    quantiles = agent.predict_quantiles(CELLS)
    assert quantiles.dtype == np.float64
    with torch.no_grad():
        outputs = plain_network(agent.algorithm_.quantile_net, 0)(torch.tensor(CELLS))
    expected = np.sort(outputs.view(10, 4, 7).numpy())
    np.testing.assert_allclose(quantiles, expected, atol=1e-5)
    np.testing.assert_allclose(agent.quantile_levels_, [(i + 0.5) / 7 for i in range(7)])


@pytest.mark.parametrize("space", [None, MIXED])
def test_parts_of_a_large_batch_are_put_together(agent, space, monkeypatch):
    model = agent if space is None else make(RandomEnv(space), total_timesteps=50).fit(SEEDS)
    X = np.tile(CELLS, (2, 1))[:17] if space is None else sampled(space, 17)
    expected = model.predict_uncertainty(X, per_action=True), model.predict_quantiles(X)
    actions, sizes, whole = model.predict(X), [], model.algorithm_.quantile_net.quantiles

    def spy(part):
        sizes.append(len(part["vector"] if isinstance(part, dict) else part))
        return whole(part)

    monkeypatch.setattr(_estimator, "BATCH", 4)
    monkeypatch.setattr(model.algorithm_.quantile_net, "quantiles", spy)
    np.testing.assert_array_equal(model.predict(X), actions)
    assert sizes == [4, 4, 4, 4, 1]
    result = model.predict_uncertainty(X, per_action=True)
    np.testing.assert_allclose(result, expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model.predict_quantiles(X), expected[1], atol=1e-5)


PARTS = {"vector": VECTOR, "one": spaces.Discrete(3), "image": IMAGE}
SPACES = {
    "discrete": (spaces.Discrete(6), "MlpPolicy"),
    "matrix": (spaces.Box(-1, 1, (3, 4)), "MlpPolicy"),
    "grid": (GRID, "GridPolicy"),
    "grid of bool": (spaces.Box(0, 1, (5, 5, 3), bool), "GridPolicy"),
    "image": (IMAGE, "CnnPolicy"),
    "multi-discrete": (spaces.MultiDiscrete([3, 4]), "MlpPolicy"),
    "multi-binary": (spaces.MultiBinary(3), "MlpPolicy"),
    "dict": (spaces.Dict(PARTS), "MultiInputPolicy"),
}


@pytest.mark.parametrize(("space", "policy"), SPACES.values(), ids=SPACES)
def test_observations_of_any_kind(space, policy):
    model = make(RandomEnv(space), {"learning_starts": 20}, total_timesteps=26).fit(SEEDS)
    assert model.algorithm_.policy_class is model.algorithm_.policy_aliases[policy]
    assert model.observation_space_ == space
    assert model.action_space_ == spaces.Discrete(3)
    X = sampled(space)
    assert model.predict_quantiles(X).shape == (5, 3, 7)
    result = model.predict_uncertainty(X)
    _, risk, epistemic = moments(all_quantiles(model, X))
    rows, actions = np.arange(5), model.predict(X)
    np.testing.assert_allclose(result.aleatoric, risk[rows, actions], rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(result.epistemic, epistemic[rows, actions], rtol=1e-5)
    assert np.ptp(result.epistemic) > 0
    assert np.isfinite(model.score([7, 8]))
    loaded = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(loaded.predict_uncertainty(X), result)


class Bandit(gym.Env):
    """One step: action 0 pays 0.5 for certain, action 1 pays 1 on average, plus or minus 3. The
    observation is always (1, 0, 0)."""

    observation_space, action_space = spaces.Box(0, 1, (3,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.array([1, 0, 0], np.float32), {}

    def step(self, action):
        reward = 1 + 3 * self.np_random.choice([-1, 1]) if action else 0.5
        return np.array([0, 1, 0], np.float32), float(reward), True, False, {}


def test_it_learns_value_risk_and_what_it_does_not_know():
    networks = {"learning_starts": 50, "policy_kwargs": {"net_arch": [32]}, "batch_size": 64}
    options = {"learning_rate": 1e-2, "n_quantiles": 10, "algorithm_kwargs": networks}
    neutral = UADQN(Bandit, total_timesteps=350, random_state=0, **options).fit(SEEDS)
    seen, unseen = np.eye(3)[[0]], np.eye(3)[[2]]
    assert neutral.predict_quantiles(seen).mean(-1)[0] == pytest.approx([0.5, 1.0], abs=0.4)
    everything = neutral.predict_uncertainty(seen, per_action=True)
    assert everything.aleatoric[0, 0] < 1
    assert everything.aleatoric[0, 1] == pytest.approx(9, rel=0.5)
    assert neutral.score_samples(unseen) < 5 * neutral.score_samples(seen)
    # The same networks, more careful with what they say.
    neutral.algorithm_.aleatoric_factor = 1.0
    assert neutral.predict(seen) == 0
    assert neutral.score(SEEDS) == 0.5


class Recorder(RandomEnv):
    seeds, noise = [], []

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed)
        self.seeds.append(seed)
        self.noise.append(self.np_random.random())
        return result


def test_no_episode_of_the_training_meets_the_noise_of_another():
    history = make(Recorder, total_timesteps=101).fit([11, 3, 8]).history_
    np.testing.assert_array_equal(history.step, np.arange(5, 101, 5))
    assert np.isfinite(history.to_numpy()).all()
    assert Recorder.seeds[:3] == [11, 3, 8]
    assert len(set(Recorder.seeds)) == len(set(Recorder.noise)) == len(Recorder.seeds) >= 20


CHANGES = {"env": RandomEnv(GRID, length=3), "total_timesteps": 71, "epistemic_factor": 0.1}
CHANGES |= {"aleatoric_factor": 5.0, "aleatoric": "variance", "noise_scale": 20.0}
CHANGES |= {"learning_rate": 1e-2, "gamma": 0.1, "n_quantiles": 8, "policy": "MlpPolicy"}
CHANGES |= {"random_state": 1}
FURTHER = {"learning_starts": 30, "buffer_size": 20, "batch_size": 33, "target_update_interval": 10}
FURTHER |= {"policy_kwargs": {"net_arch": [8], "levels": "paper"}, "tau": 0.5, "train_freq": 2}
FURTHER |= {"gradient_steps": 2, "n_steps": 2, "max_grad_norm": 1e-3}
ON_GRIDS = {"learning_starts": 40, "target_update_interval": 20, "policy_kwargs": {"net_arch": [8]}}


@pytest.fixture(scope="module")
def beliefs():
    """Uncertainty of an agent by its parameters, and that of the one that is changed."""

    def of(algorithm, **options):
        options = {"env": RandomEnv(GRID), "total_timesteps": 70, "n_quantiles": 7} | options
        options = {"algorithm_kwargs": ON_GRIDS | algorithm, "random_state": 0} | options
        result = UADQN(**options).fit(SEEDS).predict_uncertainty(sampled(GRID), per_action=True)
        return np.array(result)

    return of, of({})


@pytest.mark.parametrize("name", [*CHANGES, *FURTHER])
def test_every_parameter_has_an_effect(beliefs, name):
    changed, unchanged = beliefs
    options, further = ({name: of[name]} if name in of else {} for of in (CHANGES, FURTHER))
    assert not np.array_equal(changed(further, **options), unchanged)
    assert {*CHANGES, "algorithm_kwargs"} == set(UADQN("").get_params()) - {"device", "verbose"}


def test_an_environment_that_is_given_is_not_used_itself_and_progress_is_shown(capsys):
    env = RandomEnv()
    model = make(env, total_timesteps=30).fit(SEEDS)
    model.score(SEEDS)
    assert (env.steps, env._np_random) == (0, None)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""
    model.set_params(verbose=1).fit(SEEDS)
    assert "30/30" in capsys.readouterr().err


@pytest.mark.parametrize("env", [CLIFF, RandomEnv()], ids=["id", "instance"])
def test_score_is_the_mean_return_of_greedy_episodes(env):
    model = make(env, aleatoric_factor=0.5).fit(SEEDS)
    returns = []
    for seed in (3, 20, 21):
        played = gym.make(env) if isinstance(env, str) else copy.deepcopy(env)
        (observation, _), total, ended = played.reset(seed=seed), 0.0, False
        while not ended:
            values, risk, _ = moments(all_quantiles(model, observation[None]))
            (action,) = (values - 0.5 * np.sqrt(risk)).argmax(-1)
            observation, reward, terminated, truncated, _ = played.step(action)
            total, ended = total + reward, terminated or truncated
        returns.append(total)
    assert model.score([3, 20, 21]) == pytest.approx(np.mean(returns))
    assert model.score([3]) == pytest.approx(returns[0])


def test_episodes_without_end_are_cut_with_a_warning(monkeypatch):
    monkeypatch.setattr(_envs, "MAX_STEPS", 5)
    endless = make(RandomEnv(length=10**9), total_timesteps=20).fit(SEEDS)
    with pytest.warns(UserWarning, match="3 of 3"):
        score = endless.score([1, 2, 3])
    assert np.isfinite(score)
    assert endless.history_.empty
    assert tuple(endless.history_.columns) == Episode._fields
    endless.set_params(env=RandomEnv(length=5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert endless.score([1, 2, 3]) == score


@pytest.mark.parametrize(
    "method", ["predict", "predict_uncertainty", "predict_quantiles", "score_samples", "score"]
)
def test_unfitted_agents_and_bad_inputs_are_refused_by_every_method(agent, method):
    with pytest.raises(NotFittedError):
        getattr(make(), method)(CELLS)
    assert not hasattr(make(), "quantile_levels_")
    with pytest.raises(ValueError, match=r"NaN|seed"):
        getattr(agent, method)(np.full((2, 10), np.nan))


def test_a_failed_fit_leaves_the_fitted_agent_and_all_calls_the_global_random_states():
    scramble()
    before = global_states()
    model = make(total_timesteps=60).fit(SEEDS)
    assert global_states() == before
    fitted = {name: value for name, value in vars(model).items() if name.endswith("_")}
    expected = all_quantiles(model, CELLS)
    for call in (model.predict, model.predict_uncertainty, model.score):
        call(SEEDS if call == model.score else CELLS)
    copy.deepcopy(pickle.loads(pickle.dumps(model)))
    for change, seeds, error, word in [
        ({}, [-1], ValueError, "environment seeds"),
        ({"policy": "CnnPolicy"}, SEEDS, AssertionError, None),
        ({"env": "Nowhere-v0"}, SEEDS, ValueError, "cannot be made"),
    ]:
        with pytest.raises(error, match=word):
            model.set_params(**change).fit(seeds)
    assert all(getattr(model, name) is value for name, value in fitted.items())
    np.testing.assert_array_equal(all_quantiles(model, CELLS), expected)
    assert global_states() == before
