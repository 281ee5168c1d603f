"""QUAMRegressor around networks and learners, with searches at points and on pools."""

from copy import deepcopy
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr
from sklearn import ensemble, linear_model
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import BayesianRidge, GammaRegressor, LinearRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, PolynomialFeatures
from skorch import NeuralNetRegressor
from torch import nn

from skuq import QUAMRegressor
from skuq._networks import MLP, train_default_regressor
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch

pytestmark = pytest.mark.usefixtures("few_trees")
# Few bins: with sample weights, scikit-learn computes the quantile of each bin on its own.
boosting = partial(HistGradientBoostingRegressor, max_bins=32, random_state=0)
BOOSTING = boosting(max_iter=10, min_samples_leaf=5)
LEARNERS = {
    "boosting": BOOSTING,
    "gradient boosting": ensemble.GradientBoostingRegressor(n_estimators=15, random_state=0),
    "forest": RandomForestRegressor(8, random_state=0),
    "extra trees": ensemble.ExtraTreesRegressor(8, random_state=0),
}


def quick(**search):
    search = PointwiseSearch(**{"n_steps": 6, **search})
    return {"search": search, "setting": "selected", "random_state": 0}


def exact_spread(X, points, noise):
    """Standard deviation of the means of a linear model under its posterior."""
    A, B = np.c_[X, np.ones(len(X))], np.c_[points, np.ones(len(points))]
    return np.sqrt(noise * np.einsum("ij,jk,ik->i", B, np.linalg.inv(A.T @ A), B))


@pytest.fixture(scope="module")
def sine():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(120, 1))
    return X, 3 + np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=120)


@pytest.fixture(scope="module")
def network(sine):
    """The default network, trained; nothing may change it."""
    seed = np.random.RandomState(0).randint(np.iinfo(np.int32).max, size=2)[0]
    return train_default_regressor(*sine, n_outputs=1, seed=int(seed), device="cpu")


@pytest.fixture(scope="module")
def related():
    """Four columns, two by two nearly the same, and a target of zero mean."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(300, 2))
    X = np.c_[first, first + 0.1 * rng.normal(size=(300, 2))]
    y = np.sin(2 * X[:, 0]) + X[:, 3] + 0.3 * rng.normal(size=300)
    return X, y - y.mean()


@pytest.mark.parametrize("setting", ["selected", "expected"])
def test_spread_of_a_linear_model_follows_its_exact_posterior(setting):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 4))
    y = X @ rng.normal(size=4) + 0.5 + 0.3 * rng.normal(size=100)
    w = np.linalg.lstsq(np.c_[X, np.ones(100)], y, rcond=None)[0]
    net = nn.Linear(4, 1).double()
    with torch.no_grad():
        net.weight[0], net.bias[0] = torch.tensor(w[:-1]), w[-1]
    points = rng.normal(size=(25, 4)) * np.geomspace(0.3, 20, 25)[:, None]
    exact = exact_spread(X, points, 0.09)
    quam = QUAMRegressor(net, search="pointwise", noise=0.09, setting=setting, random_state=0)
    found = quam.fit(X, y).predict_model_std(points)
    assert spearmanr(found, exact).statistic > 0.98
    # Over a factor of 50 in the exact values, always within a factor of 4 of them.
    assert exact.max() > 50 * exact.min()
    assert 0.25 < (found / exact).min() < (found / exact).max() < 1.0
    if setting == "selected":  # Eq. 29
        epistemic = quam.predict_uncertainty(points).epistemic
        np.testing.assert_allclose(epistemic, found**2 / (2 * 0.09))
        divergence = clone(quam).set_params(attack="divergence").fit(X, y)
        far = divergence.predict_model_std(points[-5:])  # outruns the penalty
        assert (far > 3 * found[-5:]).all()


@pytest.mark.parametrize("learner", [LinearRegression(), Ridge(), BayesianRidge()])
def test_linear_models_rank_inputs_as_their_exact_posterior_does(learner):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4)) @ rng.normal(size=(4, 4))
    y = X @ rng.normal(size=4) + 0.3 * rng.normal(size=200)
    quam = QUAMRegressor(learner, noise=0.09, random_state=0).fit(X, y)
    far = np.geomspace(0.3, 20, 60)[:, None] * X[:60]
    for rows, least in ((far, 0.9), (rng.permuted(X, axis=0), 0.85)):
        spread = quam.predict_model_std(rows)
        assert spearmanr(spread, exact_spread(X, rows, 0.09)).statistic > least


@pytest.mark.parametrize("splits", [2, KFold(2), list(KFold(2).split(np.zeros(40)))])
def test_noise_is_the_mean_square_of_errors_on_folds(splits):
    X = np.arange(40.0)[:, None]
    y = X[:, 0] + np.where(np.arange(40) % 2, 0.1, -0.1)
    quam = QUAMRegressor(Ridge(), noise_cv=splits, noise="homoscedastic", random_state=0).fit(X, y)
    seed = np.random.RandomState(0).randint(np.iinfo(np.int32).max, size=2)[0]
    folds = KFold(2, shuffle=True, random_state=seed) if splits == 2 else KFold(2)
    errors = (cross_val_predict(Ridge(), X, y, cv=folds) - y) ** 2
    assert quam.noise_variance_ == pytest.approx(np.mean(errors))
    aleatoric = np.log(2 * np.pi * np.e * np.mean(errors)) / 2  # less than 0 for some of the folds
    assert quam.predict_uncertainty(X).aleatoric == pytest.approx(aleatoric)


@pytest.mark.parametrize("noise", ["learned", "heteroscedastic"])
def test_noise_of_inputs_follows_the_noise(noise, monkeypatch):
    monkeypatch.setattr("skuq.residuals.N_TREES", 100)  # as users have
    X = (rng := np.random.default_rng(0)).uniform(-1, 1, size=(400, 1))
    y = np.where(X[:, 0] > 0, 1.0, 0.1) * rng.normal(size=400)
    given = {"estimator": None, **quick()} if noise == "learned" else {"estimator": Ridge()}
    quam = QUAMRegressor(noise=noise, **{"random_state": 0, **given}).fit(X, y)
    assert (quam.noise_variance_ is None) == (noise == "learned")
    sd = np.exp(quam.predict_uncertainty([[-0.5], [0.5]]).aleatoric) / np.sqrt(2 * np.pi * np.e)
    assert sd == pytest.approx([0.1, 1.0], rel=0.3)


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("noise", ["heteroscedastic", "homoscedastic", "learned"])
def test_units_of_the_target_do_not_matter(sine, noise):
    X, y = sine[0][:60], sine[1][:60]
    params = {} if noise == "learned" else {"noise_cv": 2}
    given = QUAMRegressor(**quick(n_steps=3), noise=noise, **params)
    quam, scaled = (clone(given).fit(X, target) for target in (y, 1000 * y - 7))
    points = X[:5] * 1.5
    np.testing.assert_allclose(scaled.predict(points), 1000 * quam.predict(points) - 7, rtol=1e-6)
    spread = quam.predict_model_std(points)
    np.testing.assert_allclose(scaled.predict_model_std(points), 1000 * spread, rtol=1e-4)
    u, v = (each.predict_uncertainty(points) for each in (quam, scaled))
    np.testing.assert_allclose(v.epistemic, u.epistemic, rtol=1e-4)
    # The forest of residuals sees predictions in single precision, as all trees do.
    rtol = 1e-2 if noise == "heteroscedastic" else 1e-4
    np.testing.assert_allclose(v.aleatoric, u.aleatoric + np.log(1000), rtol=rtol)


def test_units_do_not_matter_on_a_pool_either(related):
    X, y = related[0][:100], related[1][:100]
    for estimator, search in ((MLP(4, 1).double(), PoolSearch(n_steps=5)), (BOOSTING, None)):
        spreads = []
        for unit in (1.0, 64.0):
            given = estimator
            if search is not None:
                last = nn.Linear(1, 1, bias=False).double()
                nn.init.constant_(last.weight, unit)
                given = nn.Sequential(*estimator, last)
            quam = QUAMRegressor(given, search=search, noise=0.09 * unit**2, random_state=0)
            spreads.append(quam.fit(X, unit * y).predict_model_std(X[:9] * 2) / unit)
        np.testing.assert_allclose(*spreads, rtol=1e-3)


SKORCH = {"module__n_features": 1, "module__n_outputs": 1, "max_epochs": 5, "verbose": 0}


def test_given_estimators_are_cloned_and_a_fitted_one_is_warned_of_once(sine):
    mine = NeuralNetRegressor(MLP, optimizer=torch.optim.Adam, **SKORCH)
    quam = QUAMRegressor(mine, noise_cv=2, **quick()).fit(*sine)
    assert not hasattr(mine, "module_")
    assert np.isfinite(quam.predict_uncertainty(sine[0][:4]).total).all()
    mine.fit(*(part.astype(np.float32).reshape(-1, 1) for part in sine))
    with pytest.warns(UserWarning, match="FrozenEstimator") as caught:
        QUAMRegressor(mine, noise_cv=2, **quick()).fit(*sine)
    assert sum("FrozenEstimator" in str(each.message) for each in caught) == 1


@pytest.mark.parametrize("parameters", ["all", "last", lambda name, _: name.endswith("weight")])
@pytest.mark.parametrize("attack", ["displacement", "divergence"])
def test_models_are_found_on_both_sides_whatever_moves(sine, network, parameters, attack):
    X, search = sine[0][:6], PointwiseSearch(parameters=parameters, n_steps=40)
    before, outputs = deepcopy(network.state_dict()), network(torch.tensor(sine[0])).detach()[:, 0]
    quam = QUAMRegressor(network, search=search, attack=attack, gamma=0.05).fit(*sine)
    np.testing.assert_allclose(quam.predict(sine[0]), outputs, rtol=1e-6)
    assert quam.noise_variance_ == pytest.approx(np.mean((outputs.numpy() - sine[1]) ** 2))
    found = quam.adversarial_models(X)
    assert found.direction.tolist() == [[1, -1]] * 6
    assert found.feasible.all()
    away = found.direction * (found.mean - quam.predict(X)[:, None])
    assert (away > 0).all()
    assert (found.excess_loss <= 0.05).all()
    np.testing.assert_allclose(found.divergence, away**2 / (2 * quam.noise_variance_))
    np.testing.assert_array_equal(found.variance, quam.noise_variance_)
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())


@pytest.mark.usefixtures("short_training")
@pytest.mark.parametrize("params", [{"noise_cv": 2}, {"noise": "learned"}])
def test_weight_zero_leaves_a_sample_out_and_weights_count_as_copies(sine, params):
    X, y = sine[0][:30], sine[1][:30]
    weight = np.arange(30) % 3
    quam = QUAMRegressor(**quick(n_steps=2), **params)
    weighted = clone(quam).fit(X, y, sample_weight=weight)
    kept = weight > 0
    removed = clone(quam).fit(X[kept], y[kept], sample_weight=weight[kept])
    totals = (each.predict_uncertainty(X[:4]).total for each in (weighted, removed))
    np.testing.assert_allclose(*totals)
    repeated = clone(quam).fit(X.repeat(weight, axis=0), y.repeat(weight))
    np.testing.assert_allclose(repeated.predict(X), weighted.predict(X), rtol=1e-6)
    assert np.abs(clone(quam).fit(X, y).predict(X) - weighted.predict(X)).max() > 0.01


@pytest.mark.parametrize("name", LEARNERS)
def test_rows_unlike_the_data_are_more_uncertain(related, name):
    X, y = related
    quam = QUAMRegressor(LEARNERS[name], noise_cv=3, random_state=0).fit(X[:200], y[:200])
    strange = X[200:] * [1, 1, -1, -1] + [0, 0, 4, 0]
    ordinary, unlike = (quam.predict_model_std(rows) for rows in (X[200:], strange))
    assert roc_auc_score(np.repeat([0, 1], 100), np.r_[ordinary, unlike]) > 0.9
    near, far = (quam.predict_uncertainty(rows).epistemic for rows in (X[200:], strange))
    assert np.median(far) > np.median(near) >= 0
    found = quam.adversarial_models(strange)
    assert found.direction.tolist() == [[1, -1]] * 100
    assert (found.mean[:, 0] >= found.mean[:, 1]).mean() > 0.9  # up, down
    noise = quam.noise_variance_
    assert 0.05 < noise < 0.5  # in truth 0.09
    covered = np.abs(quam.predict(X[200:]) - y[200:]) < 1.645 * np.sqrt(noise + ordinary**2)
    assert 0.8 < covered.mean() <= 1.0


def test_predictions_are_moved_by_two_standard_deviations_of_the_target():
    X, y, weight = np.arange(5.0)[:, None], np.array([0.0, 3, 1, 5, 2]), np.array([1, 2, 0, 1, 3])
    search = RefitSearch(shares=[0.1])
    quam = QUAMRegressor(Ridge(), search=search, noise=1.0).fit(X, y, sample_weight=weight)
    assert quam._task.pull == pytest.approx(2 * y.repeat(weight).std(ddof=1))


def test_coverage_on_diabetes():
    X, y = load_diabetes(return_X_y=True)
    forest = RandomForestRegressor(10, min_samples_leaf=5, random_state=0)
    search = RefitSearch(shares=[0.1])
    quam = QUAMRegressor(forest, search=search, random_state=0).fit(X[:300], y[:300])
    for coverage, low, high in ((0.68, 0.6, 0.85), (0.9, 0.85, 0.98)):
        lower, upper = quam.predict_interval(X[300:], coverage)
        assert low < np.mean((lower <= y[300:]) & (y[300:] <= upper)) < high


def test_tables_with_missing_values_and_categories():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.uniform(20, 120, 300), "town": rng.choice(["Ulm", "Linz"], 300)})
    y = 8 * X["size"] + 200 * (X["town"] == "Linz") + 40 * rng.normal(size=300)
    X, y = X.assign(size=X["size"].where(X.index % 10 > 0)), y.to_numpy()
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = make_column_transformer((encoder, ["town"]), remainder="passthrough")
    mine, weight = make_pipeline(columns, clone(BOOSTING)).fit(X, y), X.index > 3
    quam = QUAMRegressor(FrozenEstimator(mine), random_state=0).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(quam.predict(X), mine.predict(X))
    assert quam.noise_variance_ == pytest.approx(np.mean((mine.predict(X) - y)[weight] ** 2))
    strange = X.assign(town="Paris")
    ordinary, unseen = (quam.predict_model_std(rows) for rows in (X, strange))
    assert np.isfinite(ordinary).all()
    assert np.median(unseen) > np.median(ordinary)
    assert np.median(quam.search_pool(strange).predict_model_std(strange)) > np.median(ordinary)
    assert quam.explain(strange[:3]).contribution.shape == (3, 2)
    X = X.assign(town=X["town"].astype("category"))
    quam = QUAMRegressor(BOOSTING, noise=1600.0, random_state=0).fit(X, y)
    assert np.isfinite(quam.predict_uncertainty(X).total).all()


def test_spread_of_heteroscedastic_data_is_not_their_noise():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(600, 1))
    y = np.sin(X[:, 0]) + np.where(X[:, 0] > 0, 0.6, 0.1) * rng.normal(size=600)
    spread = QUAMRegressor(boosting(max_iter=30), random_state=0).fit(X, y).predict_model_std
    inside, outside = spread([[-1.5], [1.5]]), spread([[-4.0], [4.0]])
    assert inside.max() < 0.3
    assert outside.min() > inside.max()


@pytest.mark.parametrize("attack", ["displacement", "divergence"])
def test_inputs_far_out_do_not_carry_a_network_away(related, attack):
    X, y = related[0][:150], related[1][:150]
    net = MLPRegressor(hidden_layer_sizes=(20,), max_iter=100, tol=1e-2, random_state=0)
    search = PoolSearch(n_steps=100)
    quam = QUAMRegressor(net, search=search, noise=0.1, attack=attack, random_state=0)
    quam.fit(X, y, X_pool=np.r_[X, 100 * X[:50]])
    assert quam.predict_model_std(X).max() < 3 * y.std()


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_losses_of_targets_that_are_never_negative(related, loss):
    X, y = related[0], np.exp(related[1] / np.std(related[1]))
    quam = QUAMRegressor(boosting(loss=loss, max_iter=8), noise=1.0, random_state=0).fit(X, y)
    assert (quam.predict_model_std(X) >= 0).all()


TWEEDIE, CUBIC = linear_model.TweedieRegressor(power=1.5), PolynomialFeatures(3)
EXTRAPOLATING = [TWEEDIE, GammaRegressor(), make_pipeline(CUBIC, Ridge())]


@pytest.mark.parametrize("learner", EXTRAPOLATING, ids=["tweedie", "gamma", "cubic"])
def test_learners_that_extrapolate_by_exponentials_and_powers(learner):
    """Predictions of 1e18 for the pool would ruin the refits that they are targets of."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    y = np.exp(X[:, 0]) * rng.gamma(2, 0.5, 500)
    search = RefitSearch(shares=[0.3])
    quam = QUAMRegressor(learner, search=search, noise=1.0, random_state=0).fit(X[:350], y[:350])
    near, far = X[350:], 4 * rng.normal(size=(150, 3))
    assert np.median(quam.predict_model_std(near)) < 0.3 * y.std()
    unsure = [quam.predict_uncertainty(rows).epistemic for rows in (near, far)]
    assert roc_auc_score(np.repeat([0, 1], 150), np.concatenate(unsure)) > 0.7


def test_a_learner_that_predicts_nothing_plausible_for_the_pool_is_searched_all_the_same(related):
    X, y = related
    quam = QUAMRegressor(Ridge(), noise=1.0, random_state=0).fit(X, y, X_pool=1e6 + X[:50])
    assert len(quam._found.excess_loss) == 2
