"""QUAMClassifier with a search on a pool around learners and tables, and what it detects."""

import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context, ensemble, preprocessing
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris, make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.tree import DecisionTreeClassifier

from skuq import QUAMClassifier
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch, make_pool
from skuq.validation import to_dense

# Few bins: with sample weights, scikit-learn computes the quantile of each bin on its own.
boosting = partial(ensemble.HistGradientBoostingClassifier, max_iter=8, max_bins=32, random_state=0)
BOOSTING = boosting()
FOREST = ensemble.RandomForestClassifier
LEARNERS = {
    "boosting": BOOSTING,
    "forest": FOREST(15, random_state=0),
    "extra trees": ensemble.ExtraTreesClassifier(20, random_state=0),
    "bayes": GaussianNB(),
}
SMALL_POOL = partial(make_pool, n_inputs=100, random_state=5)
# A gradient search and a refit, whose given models need no training.
SEARCHES = {
    "networks": (LogisticRegression(tol=0.1), PoolSearch(n_steps=10, pool=SMALL_POOL)),
    "learners": (DecisionTreeClassifier(max_depth=3), RefitSearch(pool=SMALL_POOL)),
}


def refitted(learner, *data, shares=(0.3,), pool="auto", **params):
    search = RefitSearch(shares=shares, pool=pool)
    return QUAMClassifier(learner, search=search, random_state=0, **params).fit(*data)


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def table():
    """People with an income that depends on age and trade."""
    random = np.random.default_rng(0)
    ages, trades = random.integers(20, 65, size=400), ["baker", "smith", "nurse"]
    X = pd.DataFrame({"age": ages, "trade": random.choice(trades, size=400)})
    X["town"] = random.choice(["Ulm", "Linz", "Bern"], size=400)
    score = (X["age"] - 42) / 10 + (X["trade"] == "smith") + random.normal(size=400)
    return X, np.where(score > 0, "high", "low")


@pytest.fixture(scope="module")
def people(table):
    encoder = preprocessing.OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    columns = make_column_transformer((encoder, ["trade", "town"]), remainder="passthrough")
    trees = make_pipeline(columns, boosting(max_bins=255))
    return QUAMClassifier(trees, random_state=0).fit(*table)


@pytest.mark.parametrize("name", LEARNERS)
def test_any_learner_with_weights_is_unsure_of_rows_unlike_its_data(iris, name):
    X, y = iris
    strange = make_pool(X, kinds=["shuffled"], n_inputs=100, random_state=1)
    strange[:, 3] += 8.0
    quam = refitted(LEARNERS[name], X, y)
    given = quam.model_.estimator
    np.testing.assert_allclose(quam.predict_proba(X), given.predict_proba(X), atol=1e-11)
    u = quam.predict_uncertainty(np.r_[X, strange])
    assert np.isfinite(u.parts).all()
    assert (u.epistemic >= 0).all()
    assert (u.total <= np.log(3) + 1e-9).all()
    assert roc_auc_score(np.arange(250) >= 150, u.epistemic) > 0.75


@pytest.mark.parametrize("member", [None, DecisionTreeClassifier(), FOREST(3)])
def test_bagged_trees_are_refitted_with_leaves_that_cannot_hold_a_single_sample(iris, member):
    for each, least in ((member, 2), (DecisionTreeClassifier(max_depth=2), 1)):
        bagging = ensemble.BaggingClassifier(each, n_estimators=3, random_state=0)
        quam = refitted(bagging, *iris, shares=(0.1,), pool=SMALL_POOL, n_targets=1)
        assert quam.model_.estimator.estimators_[0].min_samples_leaf == 1  # the given model stays
        trees = quam._found.models[0][0].estimator.estimators_
        assert [each.min_samples_leaf for each in trees] == [least] * 3


def test_categories_that_no_row_has_are_unusual_and_rows_are_explained_by_columns(table, people):
    X, strange = table[0], table[0].assign(town="Paris", trade="priest")
    assert list(people.classes_) == ["high", "low"]
    ordinary, unseen = (people.predict_uncertainty(rows).epistemic for rows in (X, strange))
    assert np.median(unseen) > np.quantile(ordinary, 0.95)
    assert set(people.predict(strange)) <= {"high", "low"}
    strange = X[:3].assign(town=["Paris", "Ulm", "Ulm"], age=[40, 400, 40], trade="smith")
    explained = people.explain(strange)
    assert explained.most_unusual(1)[:2] == [["town"], ["age"]]
    assert explained.contribution.shape == (3, 3)
    np.testing.assert_allclose(explained.epistemic, people.predict_uncertainty(strange).epistemic)
    assert explained.contribution[2].max() < explained.contribution[:2].max(axis=1).min()
    assert explained.models.target.tolist() == [["high", "low"]] * 3


def test_missing_values_and_categories_are_the_learners_business(table):
    X, y = table
    X = X.assign(age=X["age"].where(X["age"] > 25), town=X["town"].astype("category"))
    X["trade"] = X["trade"].astype("category")
    quam = refitted(BOOSTING, X, y)
    assert np.isfinite(quam.predict_uncertainty(X).epistemic).all()
    # New rows may have few of the categories, or others.
    few = X[X["town"] == "Ulm"].astype({"town": str}).astype({"town": "category"})
    for rows in (few, X.assign(town=pd.Categorical(["Rome"] * len(X)))):
        sharper = quam.search_pool(rows)
        assert np.isfinite(sharper.predict_uncertainty(rows).epistemic).all()
        given = clone(quam).fit(X, y, X_pool=rows)
        assert np.isfinite(given.predict_uncertainty(X).epistemic).all()


@pytest.mark.parametrize("kind", SEARCHES)
def test_the_pool_is_made_or_given_or_a_function(iris, kind):
    X, y = iris
    estimator, search = SEARCHES[kind]
    quam = QUAMClassifier(estimator, search=search, random_state=0).fit(X, y)
    u = quam.predict_uncertainty(X[::9])
    given = clone(quam).set_params(search__pool="auto").fit(X, y, X_pool=SMALL_POOL(X))
    np.testing.assert_array_equal(given.predict_uncertainty(X[::9]), u)
    made = clone(given).fit(X, y).predict_uncertainty(X[::9])
    assert not np.allclose(made.epistemic, u.epistemic)


@pytest.mark.parametrize("kind", SEARCHES)
def test_search_on_new_inputs_is_explicit_and_leaves_the_estimator(iris, kind):
    X, y = iris
    estimator, search = BOOSTING, RefitSearch()
    if kind == "networks":
        search = PoolSearch(n_steps=60, pool=SMALL_POOL)
        estimator = MLPClassifier((20,), learning_rate_init=0.03, max_iter=60, random_state=0)
    quam = QUAMClassifier(estimator, search=search, random_state=0).fit(X, y)
    strange = X[:60] + [0, 0, 0, 6.0]
    before = quam.predict_uncertainty(X[:9])
    new = quam.search_pool(np.r_[X[60:120], strange])
    np.testing.assert_array_equal(quam.predict_uncertainty(X[:9]), before)
    assert new.model_ is quam.model_
    epistemic = new.predict_uncertainty(np.r_[X[60:120], strange]).epistemic
    assert roc_auc_score(np.arange(120) >= 60, epistemic) > 0.95


def test_the_pool_passes_through_pipelines(iris):
    X, y = iris
    pool, tree = SMALL_POOL(X), DecisionTreeClassifier(max_depth=3)
    with config_context(enable_metadata_routing=True):
        quam = QUAMClassifier(tree, search=RefitSearch(), random_state=0)
        quam.set_fit_request(X_pool=True, sample_weight=False)
        pipe = make_pipeline(preprocessing.StandardScaler(), quam, transform_input=["X_pool"])
        pipe.fit(X, y, X_pool=pool)
        scaled = preprocessing.StandardScaler().fit(X).transform
        alone = clone(quam).fit(scaled(X), y, X_pool=scaled(pool))
        expected = alone.predict_uncertainty(scaled(X[:5]))
        np.testing.assert_array_equal(pipe[-1].predict_uncertainty(scaled(X[:5])), expected)


def test_the_search_is_that_of_the_fit(iris):
    X, y = iris
    pooled = QUAMClassifier(SEARCHES["learners"][0], random_state=0).fit(X, y)
    u = pooled.predict_uncertainty(X)
    pooled.set_params(search=PointwiseSearch())  # for the next fit
    np.testing.assert_array_equal(pooled.predict_uncertainty(X), u)
    search = PoolSearch(n_steps=5, targeted=False, pool=SMALL_POOL)
    quam = QUAMClassifier(LogisticRegression(tol=0.1), search=search, random_state=0).fit(X, y)
    found = quam.set_params(search__targeted=True).search_pool(X)
    assert found.adversarial_models(X[:3]).target.shape == (3, 1)


def test_learners_that_cut_their_samples_into_parts_see_each_class_in_all_of_them():
    X, y = make_classification(400, 6, n_informative=5, n_redundant=0, random_state=1)
    learner = CalibratedClassifierCV(FOREST(20, random_state=0), cv=3)
    quam = refitted(learner, X, y, shares=(0.1,))
    # With the pool in one part, models that had not seen the class cost .1 to .27 nats.
    assert quam._found.excess_loss.max() < 0.08


def test_a_frozen_forest_without_a_seed_is_reproducible(iris):
    given = FrozenEstimator(FOREST(5).fit(*iris))
    quam = refitted(given, *iris, shares=(0.1,), pool=SMALL_POOL)
    expected = quam.predict_uncertainty(iris[0]).epistemic
    np.testing.assert_array_equal(quam.fit(*iris).predict_uncertainty(iris[0]).epistemic, expected)


COUNTS = np.random.default_rng(0).integers(1, 9, size=(200, 2))
MODELS = {
    "codes": (preprocessing.OneHotEncoder(), preprocessing.FunctionTransformer(to_dense), BOOSTING),
    "dense codes": (preprocessing.OneHotEncoder(sparse_output=False), BOOSTING),
    "ordinal": (preprocessing.OrdinalEncoder(), BOOSTING),
    "logarithm": (preprocessing.FunctionTransformer(np.log1p), LogisticRegression()),
    "powers": (preprocessing.PowerTransformer("box-cox"), BOOSTING),
    "counts": (MultinomialNB(),),
}


@pytest.mark.parametrize("steps", MODELS.values(), ids=MODELS)
def test_models_that_refuse_unknown_categories_or_numbers_get_none(steps):
    quam = refitted(make_pipeline(*steps), COUNTS, COUNTS[:, 0] > 4, n_targets=1)
    assert np.isfinite(quam.predict_uncertainty(COUNTS).epistemic).all()


def test_classes_of_weights_are_no_reason_for_a_warning():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1000, 2)), rng.uniform(size=1000) < 0.02
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for learner in (GaussianNB(), DecisionTreeClassifier(max_depth=2, class_weight="balanced")):
            refitted(learner, X, y, shares=(0.1,), pool=SMALL_POOL)


@pytest.mark.parametrize("learner", [ensemble.ExtraTreesClassifier, FOREST])
def test_what_a_forest_has_memorised_is_no_uncertainty(learner):
    """Of a given model that memorises, training rows must not be less certain than others."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 3))
    y = (X[:, 0] + rng.normal(size=600) > 0).astype(int)
    quam = refitted(learner(30, random_state=0), X[:400], y[:400], setting="selected")
    rows = X[:200], X[400:], 5 * X[400:]
    known, new, far = (quam.predict_uncertainty(each).epistemic for each in rows)
    assert known.mean() < 1.3 * new.mean()
    assert roc_auc_score(np.arange(400) >= 200, np.r_[new, far]) > 0.8


def test_dates_and_numbers_that_are_objects_stay_what_they_are(table):
    X, y = table
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(len(X)), "D")
    X = X.assign(day=days, age=X["age"].astype(object))
    read = preprocessing.FunctionTransformer(
        lambda X: np.c_[X["age"].astype(float), X["day"].dt.month]
    )
    model = make_pipeline(read, DecisionTreeClassifier(max_depth=3))
    quam = QUAMClassifier(model, random_state=0).fit(X, y)
    assert np.isfinite(quam.predict_uncertainty(X.assign(age=500.0)).epistemic).all()


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_pool_of_an_array_gets_the_columns_of_the_training_rows(iris):
    X, y = pd.DataFrame(iris[0], columns=list("abcd")), iris[1]
    strange = np.asarray(X)[:40] + 3
    tree = DecisionTreeClassifier(max_depth=3)
    quam = QUAMClassifier(tree, random_state=0)
    by_name = clone(quam).fit(X, y, X_pool=pd.DataFrame(strange, columns=list("abcd")))
    by_place = clone(quam).fit(X, y, X_pool=strange)
    search = RefitSearch(pool=lambda X: np.asarray(X)[:40] + 3)
    by_function = QUAMClassifier(tree, search=search, random_state=0).fit(X, y)
    expected = by_name.predict_uncertainty(X).epistemic
    for each in (by_place, by_function):
        np.testing.assert_array_equal(each.predict_uncertainty(X).epistemic, expected)


def test_codes_that_do_not_exist_are_not_made_of_declared_categories(table):
    X, y = table
    X = np.c_[X["age"], preprocessing.OrdinalEncoder().fit_transform(X[["trade", "town"]])]
    trees = boosting(categorical_features=[1, 2])  # which refuses other codes
    codes = QUAMClassifier(trees, random_state=0).fit(X, y)._pool[:, 1:]
    assert set(np.unique(codes[~np.isnan(codes)])) == {0, 1, 2}


PACKAGES = {  # which take pandas' categories
    "lightgbm": ("LGBMClassifier", {"verbose": -1, "num_leaves": 8}),
    "xgboost": ("XGBClassifier", {"enable_categorical": True, "tree_method": "hist"}),
}


@pytest.mark.parametrize(("package", "frozen"), [("lightgbm", False), ("xgboost", True)])
def test_boosted_classifiers_with_missing_numbers_and_categories(table, package, frozen):
    X, y = table[0], (table[1] == "high").astype(int)
    hours = np.random.default_rng(1).choice([38.0, 40.0, np.nan], len(X))
    X = X.assign(hours=hours).astype({"trade": "category", "town": "category"})
    name, options = PACKAGES[package]
    options |= {"n_estimators": 20, "max_depth": 4, "n_jobs": 1, "random_state": 0}
    learner = getattr(pytest.importorskip(package), name)(**options)
    expected = clone(learner).fit(X[:300], y[:300])
    given, rows = FrozenEstimator(expected) if frozen else learner, X[300:]
    quam = QUAMClassifier(given, random_state=0).fit(X[:300], y[:300])
    np.testing.assert_allclose(quam.predict_proba(rows), expected.predict_proba(rows), rtol=1e-5)
    rows = pd.concat([rows, rows.assign(age=12 * rows["age"])])
    assert roc_auc_score(np.arange(200) >= 100, quam.predict_uncertainty(rows).epistemic) > 0.95
