"""QUAMRegressor as a user meets it."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from skorch import NeuralNetRegressor
from torch import nn

from skuq import QUAMRegressor
from skuq._networks import MLP
from skuq.quam import PointwiseSearch

LEARNED = {"noise": "learned", "setting": "expected"}
pytestmark = pytest.mark.usefixtures("few_trees")


def quick(**search):
    """Parameters of a short search."""
    search = PointwiseSearch(**{"n_steps": 6, **search})
    return {"search": search, "setting": "selected", "random_state": 0}


@pytest.fixture(scope="module")
def sine():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(120, 1))
    return X, 3 + np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=120)


@pytest.fixture(scope="module")
def network(sine):
    """The default network, trained; nothing may change it."""
    return QUAMRegressor(noise=0.04, random_state=0).fit(*sine).model_.module


def linear(X, y):
    """Least squares as a network, and the posterior covariance of its weights for noise 1."""
    A = np.c_[X, np.ones(len(X))]
    w = np.linalg.lstsq(A, y, rcond=None)[0]
    net = nn.Linear(X.shape[1], 1).double()
    with torch.no_grad():
        net.weight[0] = torch.tensor(w[:-1])
        net.bias[0] = w[-1]
    return net, np.linalg.inv(A.T @ A)


@pytest.fixture(scope="module")
def plane():
    """A linear model, test points ever further out, and the posterior's spread of its means."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 4))
    y = X @ rng.normal(size=4) + 0.5 + 0.3 * rng.normal(size=100)
    net, covariance = linear(X, y)
    points = rng.normal(size=(25, 4)) * np.geomspace(0.3, 20, 25)[:, None]
    A = np.c_[points, np.ones(25)]
    return X, y, net, points, 0.3 * np.sqrt(np.einsum("ij,jk,ik->i", A, covariance, A))


@pytest.mark.parametrize("setting", ["selected", pytest.param("expected", marks=pytest.mark.slow)])
def test_spread_of_a_linear_model_follows_its_exact_posterior(plane, setting):
    X, y, net, points, exact = plane
    quam = QUAMRegressor(
        FrozenEstimator(net), search="pointwise", noise=0.09, setting=setting, random_state=0
    ).fit(X, y)
    found = quam.predict_model_std(points)
    assert spearmanr(found, exact).statistic > 0.98
    # Over a factor of 50 in the exact values, always within a factor of 4 of them.
    assert exact.max() > 50 * exact.min()
    assert (found / exact).min() > 0.25
    assert (found / exact).max() < 1.0
    if setting == "selected":  # Eq. 29
        epistemic = quam.predict_uncertainty(points).epistemic
        np.testing.assert_allclose(epistemic, found**2 / (2 * 0.09))


def test_divergence_outruns_the_penalty_far_out(plane):
    X, y, net, points, exact = plane
    ratios = [
        QUAMRegressor(
            FrozenEstimator(net), search="pointwise", noise=0.09, attack=attack, random_state=0
        )
        .fit(X, y)
        .predict_model_std(points[-5:])
        / exact[-5:]
        for attack in ("displacement", "divergence")
    ]
    assert (ratios[1] > 3 * ratios[0]).all()


@pytest.mark.parametrize(
    "params",
    [
        {"noise": 0.04},
        pytest.param({"noise": 0.04, "setting": "expected"}, marks=pytest.mark.slow),
        pytest.param(
            {**LEARNED, "search": PointwiseSearch(n_steps=50, learning_rate=0.02)},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_inputs_far_from_the_data_are_more_uncertain(sine, params):
    params = {"search": PointwiseSearch(n_steps=50), **params}
    quam = QUAMRegressor(random_state=0, **params).fit(*sine)
    assert quam.score(*sine) > 0.85
    spread = quam.predict_model_std([[-3.0], [-0.5], [0.5], [3.0]])
    assert spread[[0, 3]].min() > 2 * spread[[1, 2]].max()


def test_parts_of_the_given_model(sine):
    quam = QUAMRegressor(noise="homoscedastic", noise_cv=2, **quick()).fit(*sine)
    u = quam.predict_uncertainty(sine[0][:5])
    assert 0.02 < quam.noise_variance_ < 0.08  # in truth 0.04
    entropy = np.log(2 * np.pi * np.e * quam.noise_variance_) / 2
    assert entropy < 0  # such an entropy may be
    assert u.aleatoric == pytest.approx(entropy)
    assert (u.epistemic > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("params", [{"noise": "learned"}, {"noise_cv": 2}])
def test_noise_of_inputs_follows_the_noise(params):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(400, 1))
    y = np.where(X[:, 0] > 0, 1.0, 0.1) * rng.normal(size=400)
    quam = QUAMRegressor(**params, **quick()).fit(X, y)
    assert (quam.noise_variance_ is None) == (quam.noise == "learned")
    sd = np.exp(quam.predict_uncertainty([[-0.5], [0.5]]).aleatoric) / np.sqrt(2 * np.pi * np.e)
    assert sd == pytest.approx([0.1, 1.0], rel=0.3)


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize(
    "params",
    [{"noise_cv": 2}, {"noise": "homoscedastic", "noise_cv": 2}, {"noise": "learned"}],
    ids=["heteroscedastic", "homoscedastic", "learned"],
)
def test_units_of_the_target_do_not_matter(sine, params):
    X, y = sine
    quam, scaled = (
        QUAMRegressor(**quick(), **params).fit(X, target) for target in (y, 1000 * y - 7)
    )
    points = X[:5] * 1.5
    np.testing.assert_allclose(scaled.predict(points), 1000 * quam.predict(points) - 7, rtol=1e-6)
    spread = quam.predict_model_std(points)
    np.testing.assert_allclose(scaled.predict_model_std(points), 1000 * spread, rtol=1e-4)
    u, v = (each.predict_uncertainty(points) for each in (quam, scaled))
    np.testing.assert_allclose(v.epistemic, u.epistemic, rtol=1e-4)
    # The forest of residuals sees predictions in single precision, as all trees do.
    rtol = 1e-2 if quam.noise == "heteroscedastic" else 1e-4
    np.testing.assert_allclose(v.aleatoric, u.aleatoric + np.log(1000), rtol=rtol)


@pytest.mark.parametrize("splits", [KFold(2), list(KFold(2).split(np.zeros(40)))])
def test_noise_of_splits_that_are_given(splits):
    X = np.arange(40.0)[:, None]
    y = X[:, 0] + np.where(np.arange(40) % 2, 1.0, -1.0)
    quam = QUAMRegressor(Ridge(), noise_cv=splits, noise="homoscedastic", random_state=0).fit(X, y)
    errors = [
        (Ridge().fit(X[rows], y[rows]).predict(X[test]) - y[test]) ** 2
        for rows, test in KFold(2).split(X)
    ]
    assert quam.noise_variance_ == pytest.approx(np.mean(errors))


@pytest.mark.usefixtures("short_training")
def test_noise_is_the_error_of_a_copy_on_samples_it_has_not_seen(sine):
    X, y = sine
    quam = QUAMRegressor(noise_cv=2, **quick()).fit(X, y)
    seed = np.random.RandomState(0).randint(np.iinfo(np.int32).max, size=2)[0]
    errors = []
    for rows, held_out in KFold(2, shuffle=True, random_state=seed).split(X):
        copy = QUAMRegressor(**quick(), noise=1.0).fit(X[rows], y[rows])
        errors.append((copy.predict(X[held_out]) - y[held_out]) ** 2)
        assert copy.noise_variance_ == 1.0
    assert quam.noise_variance_ == pytest.approx(np.mean(errors))


def test_frozen_module_is_taken_as_it_is_and_never_altered(sine):
    torch.manual_seed(0)
    module = MLP(1, 1, hidden_sizes=(8,))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    quam = QUAMRegressor(FrozenEstimator(module), **quick()).fit(*sine)
    with torch.no_grad():
        outputs = module(torch.tensor(sine[0], dtype=torch.float32))[:, 0].double().numpy()
    assert quam.noise_variance_ == pytest.approx(np.mean((outputs - sine[1]) ** 2))
    quam.predict_uncertainty(sine[0][:4])
    quam.adversarial_models(sine[0][:4])
    np.testing.assert_allclose(quam.predict(sine[0]), outputs, rtol=1e-6)
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert all(p.requires_grad for p in module.parameters())


ESTIMATORS = {
    "sklearn mlp": MLPRegressor(hidden_layer_sizes=(10,), max_iter=20),
    "pipeline": make_pipeline(
        StandardScaler(), MLPRegressor(hidden_layer_sizes=(10,), max_iter=20)
    ),
    "skorch": NeuralNetRegressor(
        MLP,
        module__n_features=1,
        module__n_outputs=1,
        optimizer=torch.optim.Adam,
        max_epochs=5,
        verbose=0,
    ),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_given_estimators_are_cloned_and_trained(sine, name):
    mine = ESTIMATORS[name]
    quam = QUAMRegressor(mine, noise_cv=2, **quick()).fit(*sine)
    assert not hasattr(mine, "n_features_in_")
    assert not hasattr(mine, "module_")
    u = quam.predict_uncertainty(sine[0][:4])
    again = clone(quam).fit(*sine)
    np.testing.assert_array_equal(again.predict_uncertainty(sine[0][:4]).total, u.total)


def test_frozen_regressor_predicts_as_before(sine):
    mine = MLPRegressor(hidden_layer_sizes=(10,), max_iter=30, random_state=0, tol=1.0).fit(*sine)
    quam = QUAMRegressor(FrozenEstimator(mine), **quick()).fit(*sine)
    np.testing.assert_allclose(quam.predict(sine[0]), mine.predict(sine[0]), atol=1e-9)


def test_pipeline_takes_text_columns():
    frame = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0] * 5, "colour": ["red", "blue"] * 10})
    y = np.arange(20.0) % 4 - 1.5
    table = make_column_transformer((StandardScaler(), ["size"]), (OneHotEncoder(), ["colour"]))
    mine = make_pipeline(table, MLPRegressor(hidden_layer_sizes=(5,), max_iter=10, tol=1.0))
    weight = np.arange(20) > 3
    quam = QUAMRegressor(mine, **quick()).fit(frame, y)
    assert quam.predict_uncertainty(frame[:3]).total.shape == (3,)
    mine.fit(frame, y)
    frozen = QUAMRegressor(FrozenEstimator(mine), **quick()).fit(frame, y, sample_weight=weight)
    error = (mine.predict(frame[4:]) - y[4:]) ** 2
    assert frozen.noise_variance_ == pytest.approx(error.mean())
    with pytest.raises(ValueError, match="NaN"):
        clone(quam).fit(frame, np.where(y > 0, np.nan, y))


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["all", "last", lambda name, _: name.endswith("weight")])
@pytest.mark.parametrize("attack", ["displacement", "divergence"])
def test_models_are_found_on_both_sides_whatever_moves(sine, network, parameters, attack):
    quam = QUAMRegressor(
        FrozenEstimator(network),
        search=PointwiseSearch(parameters=parameters, n_steps=40),
        attack=attack,
        noise=0.04,
        random_state=0,
        gamma=0.05,
    ).fit(*sine)
    found = quam.adversarial_models(sine[0][:6])
    assert found.direction.tolist() == [[1, -1]] * 6
    assert found.feasible.all()
    away = found.direction * (found.mean - quam.predict(sine[0][:6])[:, None])
    assert (away > 0).all()
    assert (found.excess_loss <= 0.05).all()
    np.testing.assert_allclose(found.divergence, away**2 / (2 * quam.noise_variance_))
    np.testing.assert_array_equal(found.variance, quam.noise_variance_)


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize(
    "params",
    [{"noise_cv": 2}, LEARNED, {"noise": 0.04, "mixture": "dirac", "attack": "divergence"}],
)
def test_batch_size_does_not_change_the_result(sine, params):
    quam = QUAMRegressor(**{**quick(train_batch_size=40), **params}).fit(*sine)
    points = sine[0][:10]
    whole = quam.set_params(search__batch_size=10).predict_uncertainty(points)
    pieces = quam.set_params(search__batch_size=3).predict_uncertainty(points)
    np.testing.assert_allclose(pieces.epistemic, whole.epistemic, rtol=1e-7)
    np.testing.assert_allclose(pieces.aleatoric, whole.aleatoric, rtol=1e-7)


@pytest.mark.usefixtures("short_training")
@pytest.mark.slow
@pytest.mark.parametrize("params", [{"noise_cv": 2}, {"noise": "learned"}])
def test_weight_zero_leaves_a_sample_out_and_weights_count_as_copies(sine, params):
    X, y = sine[0][:30], sine[1][:30]
    weight = np.arange(30) % 3
    weighted = QUAMRegressor(**quick(), **params).fit(X, y, sample_weight=weight)
    removed = QUAMRegressor(**quick(), **params).fit(
        X[weight > 0], y[weight > 0], sample_weight=weight[weight > 0]
    )
    first, second = (each.predict_uncertainty(X[:4]) for each in (weighted, removed))
    np.testing.assert_allclose(first.total, second.total)
    repeated = QUAMRegressor(**quick(), **params).fit(X.repeat(weight, axis=0), y.repeat(weight))
    np.testing.assert_allclose(repeated.predict(X), weighted.predict(X), rtol=1e-6)
    uniform = QUAMRegressor(**quick(), **params).fit(X, y)
    assert np.abs(uniform.predict(X) - weighted.predict(X)).max() > 0.01


@pytest.mark.usefixtures("short_training")
def test_fitted_regressor_survives_pickling_and_leaves_random_states_alone(sine):
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    quam = QUAMRegressor(attack="divergence", noise_cv=2, **quick(parameters="last")).fit(*sine)
    expected = quam.predict_uncertainty(sine[0][:5])
    assert torch.equal(state, torch.random.get_rng_state())
    again = pickle.loads(pickle.dumps(quam))
    np.testing.assert_array_equal(again.predict_uncertainty(sine[0][:5]), expected)
    np.testing.assert_array_equal(again.score_samples(sine[0][:5]), -expected.epistemic)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"noise": "none"}, "'noise' parameter"),
        ({"attack": "both"}, "'attack' parameter"),
        ({"noise_cv": "five"}, "'noise_cv' parameter"),
        ({"noise_cv": 1}, "'noise_cv' parameter"),
        ({"noise": 0.0}, "'noise' parameter"),
        ({"estimator": FrozenEstimator(MLP(1, 1)), "noise": "learned"}, "mean and log variance"),
    ],
)
def test_what_cannot_be_fitted_is_refused(sine, params, message):
    with pytest.raises(ValueError, match=message):
        QUAMRegressor(**params).fit(*sine)


def test_training_a_fitted_estimator_again_is_warned_of_once(sine):
    mine = MLPRegressor(hidden_layer_sizes=(4,), max_iter=20, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        QUAMRegressor(mine.fit(*sine), noise_cv=2, **quick()).fit(*sine)
    assert sum("FrozenEstimator" in str(each.message) for each in caught) == 1


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.ones((120, 2)), "y should be a 1d array, got an array of shape"),
        (np.full(120, np.nan), "y contains NaN"),
        (np.array(["a", "b"] * 60), "could not convert string to float"),
    ],
)
def test_bad_targets_are_refused(sine, y, message):
    with pytest.raises(ValueError, match=message):
        QUAMRegressor().fit(sine[0], y)


def test_no_noise_and_no_samples_are_refused(sine):
    X, y = np.eye(3), np.zeros(3)
    net = nn.Linear(3, 1, bias=False).double()
    nn.init.zeros_(net.weight)
    with pytest.raises(ValueError, match=r"errors are all zero; .* as `noise`"):
        QUAMRegressor(FrozenEstimator(net)).fit(X, y)
    with pytest.raises(ValueError, match="at least one"):
        QUAMRegressor().fit(*sine, sample_weight=np.zeros(120))
    with pytest.raises(ValueError, match="1 sample"):
        QUAMRegressor().fit(sine[0][:1], sine[1][:1])


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("method", ["predict_uncertainty", "predict_model_std", "predict"])
def test_predicting_needs_a_fit_and_inputs_like_those_of_training(sine, method):
    with pytest.raises(NotFittedError, match="not fitted"):
        getattr(QUAMRegressor(), method)(sine[0])
    quam = QUAMRegressor(noise=0.04, **quick()).fit(*sine)
    with pytest.raises(ValueError, match="NaN"):
        getattr(quam, method)([[np.nan]])
    with pytest.raises(ValueError, match="2 features"):
        getattr(quam, method)([[1.0, 2.0]])
    again = getattr(quam, method)(sine[0][:1])  # nothing fitted is lost
    assert len(again) == 1
    assert np.isfinite(np.asarray(again)).all()


@pytest.mark.usefixtures("short_training")
def test_diverging_search_is_an_error_with_advice(sine):
    quam = QUAMRegressor(noise=0.04, **quick(c0=1e300, eta=1e10)).fit(*sine)
    with pytest.raises(ValueError, match=r"diverged .* smaller `learning_rate`"):
        quam.predict_uncertainty(sine[0][:2])
