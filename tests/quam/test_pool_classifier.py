"""QUAMClassifier with the search on a pool, as a user meets it."""

import pickle
import warnings
from functools import partial

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris, make_classification
from sklearn.ensemble import (
    BaggingClassifier,
    ExtraTreesClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    StandardScaler,
)
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from skuq import QUAMClassifier
from skuq.quam import PointwiseSearch, PoolSearch, RefitSearch, make_pool
from skuq.validation import to_dense

BOOSTING = HistGradientBoostingClassifier(max_iter=8, random_state=0)
BOOSTING_OF_DENSE = make_pipeline(FunctionTransformer(to_dense), BOOSTING)
LEARNERS = {
    "boosting": BOOSTING,
    "forest": RandomForestClassifier(20, random_state=0),
    "extra trees": ExtraTreesClassifier(30, random_state=0),
    "bayes": GaussianNB(),
}


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def table():
    """People with an income that depends on age and trade."""
    random = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "age": random.integers(20, 65, size=400),
            "trade": random.choice(["baker", "smith", "nurse"], size=400),
            "town": random.choice(["Ulm", "Linz", "Bern"], size=400),
        }
    )
    score = (X["age"] - 42) / 10 + (X["trade"] == "smith") + random.normal(size=400)
    return X, np.where(score > 0, "high", "low")


def piped(learner):
    encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    return make_pipeline(
        make_column_transformer((encoder, ["trade", "town"]), remainder="passthrough"), learner
    )


def test_a_linear_model_is_unsure_between_its_classes(iris):
    X, y = iris
    given = LogisticRegression(C=10, max_iter=1000)
    pool = make_pool(X, n_inputs=100, random_state=0)
    quam = QUAMClassifier(given, search=RefitSearch(shares=(0.2,)), random_state=0).fit(
        X, y, X_pool=pool
    )
    fitted_on = quam._found.models[1][0].estimator
    assert fitted_on.predict_proba(pool)[:, 1].mean() > quam.predict_proba(pool)[:, 1].mean()
    far = quam.predict_uncertainty([[6.0, 3.0, 1.5, 2.5]]).epistemic  # a long way off the classes
    assert far[0] > np.quantile(quam.predict_uncertainty(X).epistemic, 0.9)


@pytest.mark.parametrize("name", LEARNERS)
def test_any_learner_with_weights_is_unsure_of_rows_unlike_its_data(iris, name):
    X, y = iris
    strange = make_pool(X, kinds=["shuffled"], n_inputs=100, random_state=1)
    strange[:, 3] += 8.0
    quam = QUAMClassifier(LEARNERS[name], random_state=0).fit(X, y)
    np.testing.assert_allclose(
        quam.predict_proba(X), quam.model_.estimator.predict_proba(X), atol=1e-11
    )
    ordinary, far = (quam.predict_uncertainty(rows) for rows in (X, strange))
    labels = np.r_[np.zeros(150), np.ones(100)]
    for u in (ordinary, far):
        assert np.isfinite(u.parts).all()
        assert (u.epistemic >= 0).all()
        assert (u.total <= np.log(3) + 1e-9).all()
    assert roc_auc_score(labels, np.r_[ordinary.epistemic, far.epistemic]) > 0.75


@pytest.mark.parametrize("member", [None, DecisionTreeClassifier(), RandomForestClassifier(3)])
def test_bagged_trees_are_refitted_with_leaves_that_cannot_hold_a_single_sample(iris, member):
    given = BaggingClassifier(member, n_estimators=3, random_state=0)
    quam = QUAMClassifier(given, search=RefitSearch(shares=(0.1,)), random_state=0).fit(*iris)
    assert quam.model_.estimator.estimators_[0].min_samples_leaf == 1  # the given model stays
    refitted = quam._found.models[0][0].estimator
    assert [each.min_samples_leaf for each in refitted.estimators_] == [2, 2, 2]
    shallow = BaggingClassifier(DecisionTreeClassifier(max_depth=2), n_estimators=3)
    found = (
        QUAMClassifier(shallow, search=RefitSearch(shares=(0.1,)), random_state=0).fit(*iris)._found
    )
    assert found.models[0][0].estimator.estimators_[0].min_samples_leaf == 1


def test_a_frozen_model_stays_as_it_is(iris):
    X, y = iris
    mine = clone(BOOSTING).fit(X, y)
    before = pickle.dumps(mine)
    quam = QUAMClassifier(FrozenEstimator(mine), random_state=0).fit(X, y)
    assert pickle.dumps(mine) == before
    np.testing.assert_allclose(quam.predict_proba(X), mine.predict_proba(X))


def test_text_columns_and_unseen_categories_of_a_pipeline(table):
    X, y = table
    quam = QUAMClassifier(piped(BOOSTING), random_state=0).fit(X, y)
    strange = X.assign(town="Paris", trade="priest")
    assert list(quam.classes_) == ["high", "low"]
    ordinary, unseen = (quam.predict_uncertainty(rows).epistemic for rows in (X, strange))
    assert np.median(unseen) > np.quantile(ordinary, 0.95)
    assert set(quam.predict(strange)) <= {"high", "low"}


def test_missing_values_and_categories_are_the_learners_business(table):
    X, y = table
    X = X.assign(age=X["age"].where(X["age"] > 25), town=X["town"].astype("category"))
    X["trade"] = X["trade"].astype("category")
    quam = QUAMClassifier(BOOSTING, random_state=0).fit(X, y)
    assert np.isfinite(quam.predict_uncertainty(X).epistemic).all()
    with pytest.raises(ValueError, match="NaN"):
        QUAMClassifier(LogisticRegression()).fit([[np.nan], [0.0], [1.0]], [0, 1, 1])


def test_rows_are_explained_by_the_columns_that_make_them_unusual(table):
    X, y = table
    quam = QUAMClassifier(piped(BOOSTING), random_state=0).fit(X, y)
    strange = X[:3].assign(town=["Paris", "Ulm", "Ulm"], age=[40, 400, 40])
    strange["trade"] = ["smith", "smith", "smith"]
    explained = quam.explain(strange)
    assert explained.most_unusual(1)[:2] == [["town"], ["age"]]
    assert explained.contribution.shape == (3, 3)
    np.testing.assert_allclose(explained.epistemic, quam.predict_uncertainty(strange).epistemic)
    assert explained.contribution[2].max() < explained.contribution[:2].max(axis=1).min()
    assert explained.models.target.tolist() == [["high", "low"]] * 3


def test_only_rows_can_be_explained():
    X, y = np.random.default_rng(0).normal(size=(20, 1, 6)).astype(np.float32), np.arange(20) % 2
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    quam = QUAMClassifier(FrozenEstimator(net), search=PoolSearch(n_steps=3)).fit(X, y)
    with pytest.raises(ValueError, match="3 dimensions"):
        quam.explain(X[:2])


@pytest.mark.parametrize("estimator", [None, BOOSTING])
def test_the_pool_is_made_or_given_or_a_function(iris, estimator):
    X, y = iris
    pool = make_pool(X, n_inputs=400, random_state=5)
    search = PoolSearch(n_steps=10) if estimator is None else "refit"
    quam = QUAMClassifier(estimator, search=search, random_state=0)
    given = quam.fit(X, y, X_pool=pool).predict_uncertainty(X[:5])
    made = clone(quam).fit(X, y).predict_uncertainty(X[:5])
    kind = PoolSearch(n_steps=10) if estimator is None else RefitSearch()
    by_function = clone(quam).set_params(
        search=kind.set_params(pool=partial(make_pool, n_inputs=400, random_state=5))
    )
    np.testing.assert_array_equal(given, by_function.fit(X, y).predict_uncertainty(X[:5]))
    assert not np.allclose(given.epistemic, made.epistemic)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [None, BOOSTING])
def test_search_on_new_inputs_is_explicit_and_leaves_the_estimator(iris, estimator):
    X, y = iris
    strange = X[:60] + [0, 0, 0, 6.0]
    quam = QUAMClassifier(estimator, random_state=0).fit(X, y)
    before = quam.predict_uncertainty(X[:9])
    new = quam.search_pool(np.r_[X[60:120], strange])
    np.testing.assert_array_equal(quam.predict_uncertainty(X[:9]), before)
    assert new.model_ is quam.model_
    ordinary, far = (new.predict_uncertainty(rows).epistemic for rows in (X[60:120], strange))
    assert roc_auc_score(np.repeat([0, 1], 60), np.r_[ordinary, far]) > 0.95


def test_the_pool_passes_through_pipelines_and_searches(iris):
    X, y = iris
    pool = make_pool(X, n_inputs=100, random_state=5)
    with config_context(enable_metadata_routing=True):
        quam = QUAMClassifier(search=PoolSearch(n_steps=5), random_state=0).set_fit_request(
            X_pool=True, sample_weight=False
        )
        pipe = make_pipeline(StandardScaler(), quam, transform_input=["X_pool"])
        pipe.fit(X, y, X_pool=pool)
        scaler = StandardScaler().fit(X)
        alone = clone(quam).fit(scaler.transform(X), y, X_pool=scaler.transform(pool))
        np.testing.assert_array_equal(
            pipe[-1].predict_uncertainty(scaler.transform(X[:5])),
            alone.predict_uncertainty(scaler.transform(X[:5])),
        )
    search = GridSearchCV(QUAMClassifier(BOOSTING), {"estimator__max_iter": [2, 4]}, cv=2)
    assert search.fit(X, y).best_estimator_.predict_uncertainty(X[:2]).total.shape == (2,)


@pytest.mark.parametrize("estimator", [None, BOOSTING])
def test_jobs_pickles_and_seeds_change_nothing(iris, estimator):
    X, y = iris
    search = PoolSearch(n_steps=10) if estimator is None else None
    quam = QUAMClassifier(estimator, search=search, random_state=0).fit(X, y)
    u = quam.predict_uncertainty(X)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(quam)).predict_uncertainty(X), u)
    np.testing.assert_array_equal(clone(quam).fit(X, y).predict_uncertainty(X), u)
    with joblib.parallel_config(backend="threading"):
        parallel = clone(quam).set_params(n_jobs=2).fit(X, y)
        np.testing.assert_allclose(parallel.predict_uncertainty(X), u, rtol=1e-5, atol=1e-9)


def test_weights_count_and_a_weight_of_zero_leaves_a_sample_out(iris):
    X, y = iris
    pool = make_pool(X, n_inputs=100, random_state=0)
    keep = np.random.default_rng(0).permutation(150) < 120
    quam = QUAMClassifier(BOOSTING, random_state=0)
    weighted = quam.fit(X, y, sample_weight=keep.astype(float), X_pool=pool)._problem
    removed = clone(quam).fit(X[keep], y[keep], X_pool=pool)._problem
    np.testing.assert_array_equal(weighted.X, removed.X)
    np.testing.assert_array_equal(weighted.weight, removed.weight)


def test_a_pool_that_does_not_fit_is_refused(iris):
    X, y = iris
    frame = pd.DataFrame(X, columns=list("abcd"))
    for pool, message in (
        (X[:, :3], "3 features"),
        (X[:0], "at least 2 inputs, got 0"),
        (X[:1], "at least 2 inputs, got 1"),
        ((X, y), "without labels"),
        (np.c_[X, y], "5 features"),
    ):
        for estimator in (None, BOOSTING):
            with pytest.raises(ValueError, match=message):
                QUAMClassifier(estimator).fit(X, y, X_pool=pool)
    with pytest.raises(ValueError, match="feature names"):
        QUAMClassifier(BOOSTING).fit(frame, y, X_pool=frame.rename(columns={"a": "z"}))


@pytest.mark.parametrize("shares", [(), (0.0, 0.1), (-0.1,), [[0.1]]])
def test_shares_of_the_pool_are_positive(iris, shares):
    with pytest.raises(ValueError, match="`shares` must be a non-empty list of numbers"):
        QUAMClassifier(BOOSTING, search=RefitSearch(shares=shares)).fit(*iris)


def test_a_bad_pool_is_refused_before_any_training(iris, monkeypatch):
    monkeypatch.setattr(
        HistGradientBoostingClassifier, "fit", lambda _self, _X, _y, sample_weight=None: 1 / 0
    )
    with pytest.raises(ValueError, match="3 features"):
        QUAMClassifier(BOOSTING).fit(*iris, X_pool=iris[0][:, :3])


def test_models_found_never_outlive_the_model_that_they_belong_to(iris):
    X, y = iris
    quam = QUAMClassifier(search=PoolSearch(n_steps=4), random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="diverged"):
        quam.set_params(search__c0=1e300, search__eta=1e10, search__learning_rate=10).fit(X, y)
    with pytest.raises(ValueError, match="has no models"):
        quam.predict_uncertainty(X)


@pytest.mark.parametrize("estimator", [None, BOOSTING])
def test_some_weight_must_count(iris, estimator):
    with pytest.raises(ValueError, match=r"(?i)weight"):
        QUAMClassifier(estimator).fit(*iris, sample_weight=np.zeros(150))


def test_learners_without_probabilities_are_refused(iris):
    with pytest.raises(TypeError, match="does not predict probabilities"):
        QUAMClassifier(LinearSVC()).fit(*iris)


def test_the_search_is_chosen_before_fit(iris):
    X, y = iris
    pooled = QUAMClassifier(BOOSTING, random_state=0).fit(X, y)
    u = pooled.predict_uncertainty(X)
    pooled.set_params(search="pointwise")  # for the next fit
    np.testing.assert_array_equal(pooled.predict_uncertainty(X), u)
    pointwise = QUAMClassifier(search=PointwiseSearch(n_steps=2)).fit(X, y)
    for act in ("search_pool", "explain"):
        with pytest.raises(ValueError, match="has no models from a search on a pool"):
            getattr(pointwise.set_params(search="pool"), act)(X)


def test_a_model_worse_than_guessing_is_warned_of(iris):
    X, y = iris
    mine = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)[-1]
    with pytest.warns(UserWarning, match="guessing"):  # it was trained on scaled features
        QUAMClassifier(FrozenEstimator(mine), random_state=0).fit(100 * X, y)


def test_learners_that_cut_their_samples_into_parts_see_each_class_in_all_of_them():
    X, y = make_classification(400, 6, n_informative=5, n_redundant=0, random_state=1)
    learner = CalibratedClassifierCV(RandomForestClassifier(20, random_state=0), cv=3)
    quam = QUAMClassifier(learner, search=RefitSearch(shares=(0.1,)), random_state=0).fit(X, y)
    # With the pool in one part, models that had not seen the class cost .1 to .27 nats.
    assert quam._found.excess_loss.max() < 0.08


def test_a_frozen_forest_without_a_seed_is_reproducible(iris):
    given = FrozenEstimator(RandomForestClassifier(20).fit(*iris))
    first, second = (QUAMClassifier(given, random_state=0).fit(*iris) for _ in range(2))
    np.testing.assert_array_equal(
        first.predict_uncertainty(iris[0]).epistemic, second.predict_uncertainty(iris[0]).epistemic
    )


@pytest.mark.parametrize("encoder", [OneHotEncoder(sparse_output=False), OrdinalEncoder()])
def test_encoders_that_refuse_unseen_categories_get_none(table, encoder):
    X, y = table
    columns = make_column_transformer((encoder, ["trade", "town"]), remainder="passthrough")
    quam = QUAMClassifier(make_pipeline(columns, BOOSTING), random_state=0).fit(X, y)
    assert np.isfinite(quam.predict_uncertainty(X).epistemic).all()
    with pytest.raises(ValueError, match="unknown categories"):  # as of the model itself
        quam.predict_uncertainty(X.assign(town="Rome"))


@pytest.mark.parametrize(
    ("preparation", "learner"),
    [
        (OneHotEncoder(), BOOSTING_OF_DENSE),
        (FunctionTransformer(np.log1p), LogisticRegression()),
        (PowerTransformer("box-cox"), BOOSTING),
        (FunctionTransformer(), MultinomialNB()),
    ],
    ids=["codes", "logarithm", "powers", "counts"],
)
def test_models_that_refuse_numbers_out_of_their_range_get_none(preparation, learner):
    rng = np.random.default_rng(0)
    X = rng.integers(1, 9, size=(200, 2))
    model = make_pipeline(preparation, learner)
    quam = QUAMClassifier(model, random_state=0).fit(X, X[:, 0] > 4)
    assert np.isfinite(quam.predict_uncertainty(X).epistemic).all()


def test_what_all_inputs_are_refused_for_is_said_to_arise_in_the_search(table):
    def prepare(X):
        if (X["age"].to_numpy()[:3] != table[0]["age"].to_numpy()[:3]).any():
            raise ValueError("other people")
        return X[["age"]].to_numpy()

    model = make_pipeline(FunctionTransformer(prepare), BOOSTING)
    with pytest.raises(ValueError, match="other people") as refused:
        QUAMClassifier(model, random_state=0).fit(*table)
    assert "X_pool" in refused.value.__notes__[0]


def test_codes_of_categories_may_be_numbers():
    rng = np.random.default_rng(0)
    X = np.c_[rng.normal(size=3000), rng.integers(0, 12, 3000)]  # in a pool more than it takes
    learner = HistGradientBoostingClassifier(max_iter=5, categorical_features=[1])
    quam = QUAMClassifier(learner, random_state=0).fit(X, X[:, 0] > 0)
    assert np.isfinite(quam.predict_uncertainty(X).epistemic).all()


def test_classes_of_weights_are_no_reason_for_a_warning():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 2))
    y = rng.uniform(size=1000) < 0.02
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        QUAMClassifier(GaussianNB(), random_state=0).fit(X, y)
        QUAMClassifier(
            HistGradientBoostingClassifier(max_iter=3, class_weight="balanced"), random_state=0
        ).fit(X, y)


@pytest.mark.parametrize("learner", [ExtraTreesClassifier, RandomForestClassifier])
def test_what_a_forest_has_memorised_is_no_uncertainty(learner):
    """Of a given model that memorises, training rows must not be less certain than others."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 3))
    y = (X[:, 0] + rng.normal(size=900) > 0).astype(int)
    quam = QUAMClassifier(learner(50, random_state=0), setting="selected", random_state=0)
    quam.fit(X[:600], y[:600])
    known, new, far = (
        quam.predict_uncertainty(rows).epistemic for rows in (X[:300], X[600:], 5 * X[600:])
    )
    assert known.mean() < 1.3 * new.mean()
    assert roc_auc_score(np.repeat([0, 1], 300), np.concatenate([new, far])) > 0.8


def test_another_error_of_a_preparation_is_not_hidden(table):
    def prepare(X):
        if len(X) > 400:
            raise ValueError("too many rows")
        return X[["age"]].to_numpy()

    model = make_pipeline(FunctionTransformer(prepare), BOOSTING)
    with pytest.raises(ValueError, match="too many rows"):
        QUAMClassifier(model, random_state=0).fit(*table)


def test_dates_and_numbers_that_are_objects_stay_what_they_are(table):
    X, y = table
    X = X.assign(
        day=pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(400), "D"),
        age=X["age"].astype(object),
    )

    def prepare(X):
        return np.c_[X["age"].astype(float), X["day"].dt.month]

    quam = QUAMClassifier(make_pipeline(FunctionTransformer(prepare), BOOSTING), random_state=0)
    far = quam.fit(X, y).predict_uncertainty(X.assign(age=500.0)).epistemic
    assert np.isfinite(far).all()


@pytest.fixture(scope="module")
def by_category(table):
    X, y = table
    X = X.assign(trade=X["trade"].astype("category"), town=X["town"].astype("category"))
    learner = HistGradientBoostingClassifier(
        max_iter=8, random_state=0, categorical_features="from_dtype"
    )
    return X, y, QUAMClassifier(learner, random_state=0)


def test_new_rows_with_few_or_new_categories_are_searched(by_category):
    X, y, quam = by_category
    few = X[X["town"] == "Ulm"].astype({"town": str}).astype({"town": "category"})
    for rows in (few, X.assign(town=pd.Categorical(["Rome"] * len(X)))):
        sharper = quam.fit(X, y).search_pool(rows)
        assert np.isfinite(sharper.predict_uncertainty(rows).epistemic).all()
        given = quam.fit(X, y, X_pool=rows)
        assert np.isfinite(given.predict_uncertainty(X).epistemic).all()


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_a_pool_of_an_array_gets_the_columns_of_the_training_rows(iris):
    X, y = pd.DataFrame(iris[0], columns=list("abcd")), iris[1]
    strange = np.asarray(X)[:40] + 3
    by_name = QUAMClassifier(BOOSTING, random_state=0).fit(
        X, y, X_pool=pd.DataFrame(strange, columns=list("abcd"))
    )
    by_place = QUAMClassifier(BOOSTING, random_state=0).fit(X, y, X_pool=strange)
    by_function = QUAMClassifier(
        BOOSTING, search=RefitSearch(pool=lambda X: np.asarray(X)[:40] + 3), random_state=0
    )
    expected = by_name.predict_uncertainty(X).epistemic
    for quam in (by_place, by_function.fit(X, y)):
        np.testing.assert_array_equal(quam.predict_uncertainty(X).epistemic, expected)


def test_whole_numbers_are_explained_as_the_same_numbers_with_a_point(iris):
    quam = QUAMClassifier(BOOSTING, random_state=0).fit(*iris)
    whole, point = (
        quam.explain(np.array([[5, 3, 1, 9]], dtype=dtype)).contribution
        for dtype in (np.int64, np.float64)
    )
    np.testing.assert_array_equal(whole, point)


def test_the_kind_of_search_is_that_of_the_fit(iris):
    X, y = iris
    quam = QUAMClassifier(search=PoolSearch(n_steps=20, targeted=False), random_state=0).fit(X, y)
    found = quam.set_params(search__targeted=True).search_pool(X)
    assert found.adversarial_models(X[:3]).target.shape == (3, 1)


@pytest.mark.parametrize("declared", [True, False])
def test_ages_in_months_are_unusual_whether_or_not_categories_are_declared(table, declared):
    X, y = table
    X = np.c_[X["age"], OrdinalEncoder().fit_transform(X[["trade", "town"]])]
    trees = HistGradientBoostingClassifier(
        max_iter=20, categorical_features=[1, 2] if declared else None, random_state=0
    )
    quam = QUAMClassifier(trees, random_state=0).fit(X[:300], y[:300])
    codes = quam._pool[:, 1:]
    if declared:  # codes that do not exist would be refused, and with them all ages out of range
        assert set(np.unique(codes[~np.isnan(codes)])) == {0, 1, 2}
    months = X[300:] * [12, 1, 1]
    scores = quam.predict_uncertainty(np.concatenate([X[300:], months])).epistemic
    assert roc_auc_score(np.repeat([0, 1], 100), scores) > 0.95
