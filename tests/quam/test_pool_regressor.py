"""QUAMRegressor with the search on a pool, as a user meets it."""

import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes
from sklearn.ensemble import (
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import (
    BayesianRidge,
    GammaRegressor,
    LinearRegression,
    Ridge,
    TweedieRegressor,
)
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder, PolynomialFeatures

from skuq import QUAMRegressor
from skuq.quam import PoolSearch, RefitSearch, make_pool

pytestmark = pytest.mark.usefixtures("few_trees")

# Few bins: with sample weights, scikit-learn computes the quantile of each bin on its own.
boosting = partial(HistGradientBoostingRegressor, max_bins=32, random_state=0)
BOOSTING = boosting(max_iter=10, min_samples_leaf=5)
LEARNERS = {
    "boosting": BOOSTING,
    "gradient boosting": GradientBoostingRegressor(n_estimators=15, random_state=0),
    "forest": RandomForestRegressor(10, random_state=0),
    "extra trees": ExtraTreesRegressor(10, random_state=0),
    "network": None,
}


@pytest.fixture(scope="module")
def related():
    """Four columns, two by two nearly the same, and a target of zero mean."""
    rng = np.random.default_rng(0)
    first = rng.normal(size=(300, 2))
    X = np.c_[first, first + 0.1 * rng.normal(size=(300, 2))]
    y = np.sin(2 * X[:, 0]) + X[:, 3] + 0.3 * rng.normal(size=300)
    return X, y - y.mean()


@pytest.fixture(scope="module")
def table():
    """Flats, some of unknown size, with a rent that depends on size and town."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.uniform(20, 120, 300), "town": rng.choice(["Ulm", "Linz"], 300)})
    y = 8 * X["size"] + 200 * (X["town"] == "Linz") + 40 * rng.normal(size=300)
    return X.assign(size=X["size"].where(X.index % 10 > 0)), y.to_numpy()


def piped(learner):
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    table = make_column_transformer((encoder, ["town"]), remainder="passthrough")
    return make_pipeline(table, learner)


@pytest.mark.parametrize("name", LEARNERS)
def test_rows_unlike_the_data_are_more_uncertain(related, name):
    X, y = related
    quam = QUAMRegressor(LEARNERS[name], noise_cv=3, random_state=0).fit(X[:200], y[:200])
    strange = X[200:] * [1, 1, -1, -1] + [0, 0, 4, 0]
    ordinary, unlike = (quam.predict_model_std(rows) for rows in (X[200:], strange))
    assert roc_auc_score(np.repeat([0, 1], 100), np.r_[ordinary, unlike]) > 0.9
    near, far = (quam.predict_uncertainty(rows) for rows in (X[200:], strange))
    assert np.median(far.epistemic) > np.median(near.epistemic) >= 0
    np.testing.assert_allclose(far.total, far.aleatoric + far.epistemic)
    found = quam.adversarial_models(strange)
    assert found.direction.tolist() == [[1, -1]] * 100
    assert (found.mean[:, 0] >= found.mean[:, 1]).mean() > 0.9  # up, down
    noise = quam.noise_variance_
    assert 0.05 < noise < 0.5  # in truth 0.09
    covered = np.abs(quam.predict(X[200:]) - y[200:]) < 1.645 * np.sqrt(noise + ordinary**2)
    assert 0.8 < covered.mean() <= 1.0


def test_coverage_on_diabetes():
    X, y = load_diabetes(return_X_y=True)
    forest = RandomForestRegressor(20, min_samples_leaf=5, random_state=0)
    quam = QUAMRegressor(forest, random_state=0).fit(X[:300], y[:300])
    for coverage, low, high in ((0.68, 0.6, 0.85), (0.9, 0.85, 0.98)):
        lower, upper = quam.predict_interval(X[300:], coverage)
        assert low < np.mean((lower <= y[300:]) & (y[300:] <= upper)) < high


@pytest.mark.parametrize("learner", [LinearRegression(), Ridge(), BayesianRidge()])
def test_linear_models_rank_inputs_as_their_exact_posterior_does(learner):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4)) @ rng.normal(size=(4, 4))
    y = X @ rng.normal(size=4) + 0.3 * rng.normal(size=200)
    A = np.c_[X, np.ones(200)]
    far = np.geomspace(0.3, 20, 60)[:, None] * X[:60]
    crossed = rng.permuted(X, axis=0)
    quam = QUAMRegressor(learner, noise=0.09, random_state=0).fit(X, y)
    for rows, least in ((far, 0.9), (crossed, 0.85)):
        B = np.c_[rows, np.ones(len(rows))]
        exact = np.sqrt(np.einsum("ij,jk,ik->i", B, np.linalg.inv(A.T @ A), B))
        assert spearmanr(quam.predict_model_std(rows), exact).statistic > least


def test_text_and_missing_values_in_pipelines(table):
    X, y = table
    quam = QUAMRegressor(piped(BOOSTING), random_state=0).fit(X, y)
    strange = X.assign(town="Paris")
    ordinary, unseen = (quam.predict_model_std(rows) for rows in (X, strange))
    assert np.isfinite(ordinary).all()
    assert np.median(unseen) > np.median(ordinary)
    explained = quam.explain(strange[:3])
    assert explained.contribution.shape == (3, 2)
    mine = piped(clone(BOOSTING)).fit(X, y)
    frozen = QUAMRegressor(FrozenEstimator(mine), random_state=0).fit(X, y)
    np.testing.assert_allclose(frozen.predict(X), mine.predict(X))
    assert frozen.noise_variance_ == pytest.approx(np.mean((mine.predict(X) - y) ** 2))
    with pytest.raises(ValueError, match="NaN"):
        QUAMRegressor(Ridge()).fit([[np.nan], [0.0], [1.0]] * 9, np.arange(27.0))


def test_categories_of_pandas_and_names_of_columns(table):
    X, y = table
    X = X.assign(town=X["town"].astype("category"))
    quam = QUAMRegressor(BOOSTING, random_state=0).fit(X, y)
    assert quam.predict_uncertainty(X[:4]).total.shape == (4,)
    assert quam.feature_names_in_.tolist() == ["size", "town"]
    with pytest.raises(ValueError, match="feature names"):
        quam.predict_model_std(X.rename(columns={"town": "city"}))


@pytest.mark.parametrize("estimator", [None, BOOSTING])
def test_pools_pickles_copies_and_new_inputs(related, estimator):
    X, y = related
    pool = make_pool(X, n_inputs=200, random_state=5)
    search = PoolSearch(n_steps=10) if estimator is None else RefitSearch()
    quam = QUAMRegressor(estimator, search=search, noise=0.09, random_state=0)
    u = quam.fit(X, y, X_pool=pool).predict_uncertainty(X[:9])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(quam)).predict_uncertainty(X[:9]), u)
    by_function = clone(quam).set_params(
        search__pool=partial(make_pool, n_inputs=200, random_state=5)
    )
    np.testing.assert_array_equal(by_function.fit(X, y).predict_uncertainty(X[:9]), u)
    one = quam.predict_uncertainty(X[4:5])
    np.testing.assert_allclose(one.epistemic, u.epistemic[4:5], rtol=1e-4)
    new = quam.search_pool(X[:50] + 5)
    np.testing.assert_array_equal(quam.predict_uncertainty(X[:9]), u)
    assert not np.allclose(new.predict_uncertainty(X[:9]).epistemic, u.epistemic)


@pytest.mark.parametrize("params", [{"search": PoolSearch(n_steps=5)}, {"estimator": BOOSTING}])
def test_units_of_the_target_do_not_matter(related, params):
    X, y = related
    quam, scaled = (
        QUAMRegressor(noise=0.09 * unit**2, random_state=0, **params).fit(X[:100], unit * y[:100])
        for unit in (1.0, 64.0)
    )
    spread = quam.predict_model_std(X[:9] * 2)
    np.testing.assert_allclose(scaled.predict_model_std(X[:9] * 2), 64 * spread, rtol=1e-3)


@pytest.mark.slow
def test_searches_over_parameters_of_the_learner(related):
    quam = QUAMRegressor(BOOSTING, noise=0.09)
    search = GridSearchCV(quam, {"estimator__max_iter": [2, 10]}, cv=2)
    search.fit(*(part[:150] for part in related))
    assert search.best_params_ == {"estimator__max_iter": 10}
    inside = QUAMRegressor(GridSearchCV(Ridge(), {"alpha": [0.1, 1.0]}), random_state=0)
    assert inside.fit(*related).predict_model_std(related[0][:2]).shape == (2,)


def test_what_cannot_be_searched_is_refused(related):
    X, y = related
    with pytest.raises(ValueError, match="3 features"):
        QUAMRegressor(Ridge()).fit(X, y, X_pool=X[:, :3])
    with pytest.raises(ValueError, match="at least 2 inputs, got 1"):
        QUAMRegressor(Ridge()).fit(X, y, X_pool=X[:1])
    with pytest.raises(ValueError, match="network with two outputs"):
        QUAMRegressor(BOOSTING, noise="learned").fit(X, y)


def test_spread_of_heteroscedastic_data_is_not_their_noise():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(600, 1))
    y = np.sin(X[:, 0]) + np.where(X[:, 0] > 0, 0.6, 0.1) * rng.normal(size=600)
    spread = QUAMRegressor(boosting(max_iter=30), random_state=0).fit(X, y).predict_model_std
    inside, outside = spread([[-1.5], [1.5]]), spread([[-4.0], [4.0]])
    assert inside.max() < 0.3
    assert outside.min() > inside.max()
    assert spearmanr(np.abs(np.linspace(0, 6, 20)), spread(np.linspace(0, 6, 20)[:, None]))[0] > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["displacement", "divergence"])
def test_inputs_far_out_do_not_carry_a_network_away(related, attack):
    X, y = related
    pool = np.r_[X, 100 * X[:50]]
    quam = QUAMRegressor(noise=0.1, attack=attack, random_state=0).fit(X, y, X_pool=pool)
    assert quam.predict_model_std(X).max() < 3 * y.std()


@pytest.mark.parametrize("loss", ["poisson", "gamma"])
def test_losses_of_targets_that_are_never_negative(related, loss):
    X, y = related[0], np.exp(related[1] / np.std(related[1]))
    quam = QUAMRegressor(boosting(loss=loss, max_iter=8), noise=1.0, random_state=0).fit(X, y)
    assert (quam.predict_model_std(X) >= 0).all()


@pytest.mark.parametrize(
    "learner",
    [
        TweedieRegressor(power=1.5),
        GammaRegressor(),
        make_pipeline(PolynomialFeatures(3), Ridge()),
    ],
    ids=["tweedie", "gamma", "cubic"],
)
def test_learners_that_extrapolate_by_exponentials_and_powers(learner):
    """Predictions of 1e18 for the pool would ruin the refits that they are targets of."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 3))
    y = np.exp(X[:, 0]) * rng.gamma(2, 0.5, 500)
    quam = QUAMRegressor(learner, random_state=0).fit(X[:350], y[:350])
    near, far = X[350:], 4 * rng.normal(size=(150, 3))
    assert np.median(quam.predict_model_std(near)) < 0.3 * y.std()
    unsure = [quam.predict_uncertainty(rows).epistemic for rows in (near, far)]
    assert roc_auc_score(np.repeat([0, 1], 150), np.concatenate(unsure)) > 0.7


def test_a_learner_that_predicts_nothing_plausible_for_the_pool_is_searched_all_the_same(related):
    X, y = related
    quam = QUAMRegressor(Ridge(), random_state=0).fit(X, y, X_pool=1e6 + X[:50])
    assert len(quam._found.excess_loss) == 2
