"""Agents to compare with, as estimators: their actions and what uncertainty they state."""

import inspect
import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

from skuq import predict_uncertainty
from skuq.uadqn import (
    BootstrappedDQN,
    BootstrappedDQNAgent,
    DQNAgent,
    DQNAlgorithm,
    QRDQNAgent,
    QuantileDQN,
)
from skuq.uadqn._history import Episode
from tests.uadqn.environments import GRID, MIXED, RandomEnv
from tests.uadqn.plain import plain_network

AGENTS = {
    DQNAgent: DQNAlgorithm,
    QRDQNAgent: QuantileDQN,
    BootstrappedDQNAgent: BootstrappedDQN,
}
CELLS = np.eye(10, dtype=np.float32)
X = np.concatenate([CELLS, np.random.default_rng(0).random((20, 10), dtype=np.float32)])
SEEDS = np.arange(4)
QUICK = {
    "total_timesteps": 100,
    "learning_starts": 40,
    "buffer_size": 500,
    "policy_kwargs": {"net_arch": [16]},
    "random_state": 0,
}

every_agent = pytest.mark.parametrize("cls", AGENTS, ids=lambda cls: cls.__name__)
states_uncertainty = pytest.mark.parametrize("cls", [QRDQNAgent, BootstrappedDQNAgent])


def make(cls, env="CliffWind-v0", **options):
    options = ({"n_quantiles": 7} if cls is QRDQNAgent else {}) | QUICK | options
    return cls(env, **options)


@pytest.fixture(scope="module")
def fitted():
    return {cls: make(cls).fit(SEEDS) for cls in AGENTS}


@torch.no_grad()
def values(agent, X):
    """Values of all actions, (n_heads, n_samples, n_actions), from the networks themselves."""
    X = torch.tensor(X)
    if isinstance(agent, QRDQNAgent):
        network = plain_network(agent.algorithm_.quantile_net, 0)
        return network(X).view(1, len(X), 4, 7).mean(-1).double().numpy()
    return agent.algorithm_.q_net(X).view(-1, len(X), 4).double().numpy()


@every_agent
def test_it_trains_its_algorithm_with_all_options(cls):
    options = {
        "learning_rate": 2e-3,
        "gamma": 0.8,
        "buffer_size": 321,
        "learning_starts": 17,
        "batch_size": 9,
        "target_update_interval": 13,
        "exploration_fraction": 0.4,
        "exploration_final_eps": 0.1,
    }
    kwargs = {"net_arch": [6]}
    agent = make(cls, total_timesteps=40, policy_kwargs=kwargs, **options).fit(SEEDS)
    assert type(agent.algorithm_) is AGENTS[cls]
    assert {name: getattr(agent.algorithm_, name) for name in options} == options
    assert agent.algorithm_.num_timesteps == 40
    assert agent.algorithm_.exploration_rate == pytest.approx(0.1)
    assert agent.policy_kwargs is kwargs
    assert kwargs == {"net_arch": [6]}


@every_agent
def test_parameters_are_stored_untouched(cls):
    names = list(inspect.signature(cls).parameters)
    given = {name: object() for name in names}
    agent = cls(given.pop("env"), **given)
    assert list(agent.get_params()) == sorted(names)
    assert all(getattr(agent, name) is value for name, value in given.items())


@every_agent
def test_actions_have_the_highest_mean(fitted, cls):
    actions = fitted[cls].predict(X)
    assert actions.dtype == np.int64
    np.testing.assert_array_equal(actions, values(fitted[cls], X).mean(0).argmax(1))
    assert len(set(actions)) > 1


@every_agent
def test_a_seed_makes_runs_equal(fitted, cls):
    agent = fitted[cls]
    again = clone(agent).fit(SEEDS)
    np.testing.assert_array_equal(values(again, X), values(agent, X))
    assert again.history_.equals(agent.history_)
    other = clone(agent).set_params(random_state=1, total_timesteps=50).fit(SEEDS)
    assert not np.allclose(values(other, X), values(agent, X))


@every_agent
def test_history_and_score(fitted, cls):
    agent = fitted[cls]
    assert tuple(agent.history_.columns) == Episode._fields
    assert 0 < agent.history_.length.sum() <= 100
    assert agent.history_.epistemic.isna().all()  # none of them acts by it
    assert agent.score([1, 2]) == np.mean([agent.score([1]), agent.score([2])])
    assert np.isfinite(cross_val_score(make(cls, total_timesteps=30), SEEDS, cv=2)).all()


@every_agent
def test_pickle_round_trip(fitted, cls):
    loaded = pickle.loads(pickle.dumps(fitted[cls]))
    np.testing.assert_array_equal(loaded.predict(X), fitted[cls].predict(X))
    np.testing.assert_array_equal(values(loaded, X), values(fitted[cls], X))
    assert loaded.score([5]) == fitted[cls].score([5])
    assert type(loaded.algorithm_) is AGENTS[cls]


@every_agent
@pytest.mark.parametrize("space", [GRID, MIXED], ids=["grid", "dict"])
def test_grids_and_dictionaries(cls, space):
    options = {"total_timesteps": 26, "learning_starts": 20}
    agent = make(cls, RandomEnv(space), **options).fit(SEEDS)
    samples = [space.sample() for _ in range(3)]
    batch = np.stack(samples) if space is GRID else {k: [s[k] for s in samples] for k in space}
    assert agent.predict(batch).shape == (3,)
    assert np.isfinite(agent.score([1]))


@every_agent
def test_bad_input(fitted, cls):
    with pytest.raises(NotFittedError, match=f"{cls.__name__} instance is not fitted"):
        make(cls).predict(X)
    with pytest.raises(ValueError, match=r"\(n_samples, 10\)"):
        fitted[cls].predict(X[:, :9])
    with pytest.raises(ValueError, match="integers from 0"):
        make(cls).fit([-1])
    with pytest.raises(ValueError, match="finitely many actions"):
        make(cls, "Pendulum-v1").fit(SEEDS)
    for name, value in (("exploration_fraction", 0), ("exploration_final_eps", 1.5)):
        with pytest.raises(ValueError, match=f"'{name}' parameter of {cls.__name__}"):
            make(cls, **{name: value}).fit(SEEDS)
    with pytest.raises(ValueError, match=r"observations of shape \(10,\)"):
        make(cls, policy="CnnPolicy").fit(SEEDS)


# Uncertainty


def test_dqn_states_none(fitted):
    agent = fitted[DQNAgent]
    assert not hasattr(agent, "predict_uncertainty")
    assert not hasattr(agent, "score_samples")
    with pytest.raises(TypeError, match="DQNAgent has no method `predict_uncertainty`"):
        predict_uncertainty(agent, X)
    search = GridSearchCV(make(DQNAgent, total_timesteps=30), {"gamma": [0.9]}, cv=2).fit(SEEDS)
    with pytest.raises(TypeError, match="GridSearchCV -> DQNAgent"):
        predict_uncertainty(search, X)


@states_uncertainty
def test_uncertainty_is_float64_adds_up_and_is_never_negative(fitted, cls):
    result = predict_uncertainty(fitted[cls], X)
    for part in result:
        assert part.shape == (30,)
        assert part.dtype == np.float64
        assert (part >= 0).all()
    np.testing.assert_array_equal(result.total, result.aleatoric + result.epistemic)
    assert np.ptp(result.total) > 0
    np.testing.assert_array_equal(fitted[cls].score_samples(X), -result.epistemic)
    loaded = pickle.loads(pickle.dumps(fitted[cls]))
    np.testing.assert_array_equal(loaded.predict_uncertainty(X), result)


@states_uncertainty
def test_uncertainty_of_bad_input(fitted, cls):
    with pytest.raises(NotFittedError):
        make(cls).predict_uncertainty(X)
    with pytest.raises(ValueError, match="NaN"):
        fitted[cls].predict_uncertainty(X * np.nan)
    fitted[cls].predict_uncertainty(X)


def test_bootstrapped_dqn_is_uncertain_where_heads_differ(fitted):
    agent = fitted[BootstrappedDQNAgent]
    heads = values(agent, X)
    assert len(heads) == 10
    result, actions = agent.predict_uncertainty(X), agent.predict(X)
    for i, action in enumerate(actions):
        of_heads = heads[:, i, action]
        mean = sum(of_heads) / 10
        variance = sum((value - mean) ** 2 for value in of_heads) / 9
        assert result.epistemic[i] == pytest.approx(variance, rel=1e-4)
    np.testing.assert_array_equal(result.aleatoric, np.zeros(30))


def test_qrdqn_takes_the_spread_of_quantiles_for_risk(fitted):
    agent = fitted[QRDQNAgent]
    quantiles = agent.predict_quantiles(X)
    network = plain_network(agent.algorithm_.quantile_net, 0)
    with torch.no_grad():
        outputs = network(torch.tensor(X)).view(30, 4, 7).numpy()
    np.testing.assert_allclose(quantiles, np.sort(outputs), atol=1e-5)
    assert quantiles.dtype == np.float64
    result, actions = agent.predict_uncertainty(X), agent.predict(X)
    for i, action in enumerate(actions):
        chosen = quantiles[i, action]
        mean = sum(chosen) / 7
        variance = sum((q - mean) ** 2 for q in chosen) / 7
        assert result.aleatoric[i] == pytest.approx(variance, rel=1e-9)
    np.testing.assert_array_equal(result.epistemic, np.zeros(30))


def test_qrdqn_needs_two_quantiles(fitted):
    with pytest.raises(ValueError, match="'n_quantiles' parameter of QRDQNAgent"):
        make(QRDQNAgent, n_quantiles=1).fit(SEEDS)
    with pytest.raises(ValueError, match="one observation needs a first axis"):
        fitted[QRDQNAgent].predict_quantiles(X[0])


def test_quantiles_of_an_unfitted_qrdqn():
    with pytest.raises(NotFittedError):
        make(QRDQNAgent).predict_quantiles(X)
