"""Refits of a learner with a pool that counts little."""

from functools import partial
from inspect import signature
from itertools import product

import numpy as np
import pandas as pd
import pytest
from sklearn import ensemble
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_diabetes
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils.class_weight import compute_class_weight

from skuq import QUAMClassifier, QUAMRegressor
from skuq.models import LearnerModel, takes_weights
from skuq.quam import RefitSearch, make_pool
from skuq.quam._refit_search import RefitProblem, refit_on_pool
from skuq.quam._search import Work

SHARES, SIGNS, ALONE = (0.1, 0.3), np.array([1, -1]), Work("cpu", None, 0)
LINEAR, BAYES, NEAR = LogisticRegression(), GaussianNB(), KNeighborsClassifier()


def log_loss(outputs, codes):
    return -outputs[np.arange(len(codes)), codes]


def half_square(outputs, y):
    return (outputs[:, 0] - y) ** 2 / 2


@pytest.fixture(scope="module")
def plane():
    rng = np.random.default_rng(0)
    X, pool = rng.normal(size=(60, 3)), rng.normal(1, 3, size=(40, 3))
    y = X @ [1.0, -2.0, 0.5] + 0.3 + 0.2 * rng.normal(size=60)
    wanted = [(pool @ [1.0, -2.0, 0.5] + 4 * sign)[None] for sign in SIGNS]
    return X, y, rng.uniform(0.5, 2, size=60), pool, wanted


def refitted(learner, plane):
    X, y, weight, pool, wanted = plane
    problem = RefitProblem(LearnerModel(estimator=learner.fit(X, y)), X, y, weight, seed=0)
    return refit_on_pool(problem, pool, wanted, SHARES, half_square, SIGNS, ALONE)


@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_linear_models_are_weighted_least_squares_of_data_and_pool(plane, alpha):
    X, y, weight, pool, wanted = plane
    learner = Ridge(alpha=alpha) if alpha else LinearRegression()
    found = refitted(learner, plane)
    seen = seen_rows(plane)
    assert len(seen) == 54
    unseen = np.setdiff1d(np.arange(60), seen)
    held_out = weight[unseen] / weight[unseen].sum()
    points = np.random.default_rng(1).normal(size=(5, 3))

    def least_squares(share, target):
        A = np.c_[np.r_[X[seen], pool], np.ones(54 + 40)]
        w = np.r_[weight[seen], np.full(40, share / 2 * weight[seen].sum() / 40)]
        prior = alpha * np.diag([1.0, 1, 1, 0])  # not of the intercept
        return np.linalg.solve(A.T @ (w[:, None] * A) + prior, A.T @ (w * np.r_[y[seen], target]))

    def loss(solution):
        return held_out @ (np.c_[X[unseen], np.ones(6)] @ solution - y[unseen]) ** 2 / 2

    plain = loss(least_squares(0.0, wanted[0][0]))
    outputs = found.outputs(points)
    assert outputs.shape == (5, 2, 2, 1)
    for (k, (target,)), (s, share) in product(enumerate(wanted), enumerate(SHARES)):
        exact = least_squares(share, target)
        np.testing.assert_allclose(outputs[:, k, s, 0], np.c_[points, np.ones(5)] @ exact)
        assert found.excess_loss[k, s] == pytest.approx(loss(exact) - plain)
    assert (found.excess_loss[:, 1] > found.excess_loss[:, 0]).all()
    assert found.centre(points) is None


class Recorder(RegressorMixin, BaseEstimator):
    def fit(self, X, y, sample_weight=None):
        self.X_, self.weight_, self.y_ = X, sample_weight, y
        return self

    def predict(self, X):
        return np.full(len(X), np.average(self.y_, weights=self.weight_))


def seen_rows(plane):
    X = plane[0]
    seen = refitted(Recorder(), plane).models[0][0].estimator.X_
    return np.flatnonzero((X[:, None] == seen).all(-1).any(1))


def test_held_out_samples_are_the_same_for_all_and_seen_by_none(plane):
    X, y, weight, pool, wanted = plane
    found = refitted(Recorder(), plane)
    seen = seen_rows(plane)
    for k, (s, share) in product(range(2), enumerate(SHARES)):
        fitted = found.models[k][s].estimator
        of_pool = np.full(40, share / 2 * weight[seen].sum() / 40)
        rows = np.r_[X[seen], pool], np.r_[y[seen], wanted[k][0]], np.r_[weight[seen], of_pool]
        rows, given = np.column_stack(rows), np.c_[fitted.X_, fitted.y_, fitted.weight_]
        np.testing.assert_allclose(given[given[:, 0].argsort()], rows[rows[:, 0].argsort()])
        # Learners that cut their samples into parts must not find the pool in one of them.
        assert 10 <= np.isin(fitted.X_[:47, 0], pool[:, 0]).sum() <= 30


@pytest.mark.parametrize("n", [1, 5, 8, 14])
def test_few_samples_are_compared_by_several(n):
    rng = np.random.default_rng(0)
    X, y, pool = rng.normal(size=(n, 2)), rng.normal(size=n), rng.normal(size=(10, 2))
    problem = RefitProblem(LearnerModel(estimator=Ridge().fit(X, y)), X, y, np.ones(n), seed=0)
    found = refit_on_pool(problem, pool, [np.ones((1, 10))], (0.1,), half_square, SIGNS[:1], ALONE)
    assert np.isfinite(found.excess_loss).all()
    assert n == 1 or found.standard_error > 1e-6  # of a single one it would be 0


def refitted_to_classes(learner, X, y, weight, pool, share=0.2):
    learner = clone(learner).fit(X, y, **({} if weight is None else {"sample_weight": weight}))
    model = LearnerModel(estimator=learner, classes=np.arange(2))
    problem = RefitProblem(model, X, y, np.ones(len(y)) if weight is None else weight, seed=0)
    asked = [np.full((1, len(pool)), code) for code in range(2)]
    return refit_on_pool(problem, pool, asked, (share,), log_loss, np.arange(2), ALONE)


def per_class(rare, often):
    return np.where(np.arange(90) % 3 == 0, rare, often).astype(float)


def booster(package, name, **options):
    options["n_estimators"] = 5
    return lambda **params: getattr(pytest.importorskip(package), name)(**options, **params)


TREES = partial(ensemble.HistGradientBoostingClassifier, max_iter=5, random_state=0)
XGB = booster("xgboost", "XGBClassifier", max_depth=2)
LGBM = booster("lightgbm", "LGBMClassifier", num_leaves=4, min_child_samples=5, verbose=-1)
BALANCED, HEAVY = {"class_weight": "balanced"}, per_class(20, 1)
WEIGHTED = {  # weights of classes beside those of rows, and the same by rows alone
    "balanced": (LogisticRegression, BALANCED, 1, per_class(1.5, 0.75), 0.1),
    "given": (LogisticRegression, {"class_weight": {0: 1.0, 1: 3.0}}, 1, per_class(3, 1), 1e-6),
    "rows": (LogisticRegression, BALANCED, HEAVY, per_class(11, 5.5), 0.1),  # 330 for either class
    "trees": (TREES, BALANCED, HEAVY, HEAVY * per_class(1.5, 0.75), 0.2),  # the other way is 2 off
    "xgboost": (XGB, {"scale_pos_weight": 5}, 1, per_class(5, 1), 1e-5),
    "lightgbm": (LGBM, {"scale_pos_weight": 5}, 1, per_class(5, 1), 1e-5),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_classes_do_not_count_the_pool(name):
    learner, of_classes, of_rows, by_hand, atol = WEIGHTED[name]
    if name == "rows" and "sample_weight" not in signature(compute_class_weight).parameters:
        pytest.skip("older versions of scikit-learn balance the rows, whatever they weigh")
    rng = np.random.default_rng(0)
    X, pool = rng.normal(size=(90, 2)), rng.normal(3, 1, size=(60, 2))
    fits, y = ((of_classes, of_rows * np.ones(90)), ({}, by_hand)), per_class(1, 0).astype(int)
    found, expected = (refitted_to_classes(learner(**p), X, y, weight, pool) for p, weight in fits)
    np.testing.assert_allclose(found.outputs(pool), expected.outputs(pool), atol=atol)


@pytest.mark.parametrize(
    ("kind", "power", "stops"), [(np.asarray, 1, 0), (pd.DataFrame, 0, 0), (np.asarray, 1, 7)]
)
def test_trees_on_bins_are_those_of_scikit_learn(plane, monkeypatch, kind, power, stops):
    def rows(X):  # many values, some infinite, most of them twice, and some missing
        first, last = np.where(X[:, 0] > 1.5, np.inf, X[:, 0]), np.where(X > 1, np.nan, X)[:, 2]
        return kind(np.c_[first, X[:, 1].round(1), last])

    X, y, weight, pool, wanted = plane
    given = rows(X), y, weight**power, rows(pool), wanted
    learner = ensemble.HistGradientBoostingRegressor(max_iter=9, max_bins=18, min_samples_leaf=2)
    learner.set_params(early_stopping=bool(stops), random_state=stops or None)
    found = refitted(learner, given)
    monkeypatch.setattr("skuq.quam._refit_search._refit_on_bins", LearnerModel.refit)
    plain = refitted(learner, given)
    for some in (X, pool, np.random.default_rng(0).normal(size=(2000, 3))):
        np.testing.assert_array_equal(found.outputs(rows(some)), plain.outputs(rows(some)))
    np.testing.assert_array_equal(found.excess_loss, plain.excess_loss)


def test_refits_stop_early_if_the_given_model_did():
    rng = np.random.default_rng(0)
    X, pool = rng.normal(size=(10_200, 1)), rng.normal(3, 1, size=(50, 1))
    given = ensemble.HistGradientBoostingClassifier(max_iter=1, max_bins=8, max_leaf_nodes=2)
    found = refitted_to_classes(given, X, (X[:, 0] > 0).astype(int), None, pool)
    assert all(model.estimator.do_early_stopping_ for search in found.models for model in search)


@pytest.mark.parametrize(
    ("learner", "memorises"),
    [
        (ensemble.RandomForestRegressor(10, random_state=0), True),
        (ensemble.ExtraTreesRegressor(10, random_state=0), True),
        (DecisionTreeRegressor(), True),
        (ensemble.RandomForestRegressor(10, max_depth=4), False),
        (ensemble.RandomForestRegressor(10, min_samples_leaf=3), False),
        (ensemble.HistGradientBoostingRegressor(max_iter=5), False),
    ],
)
def test_trees_that_memorise_are_limited(plane, learner, memorises):
    found = refitted(learner, plane)
    limited = [model.estimator for search in found.models for model in search]
    more = [each.min_samples_leaf > learner.min_samples_leaf for each in limited]
    assert more == [memorises] * 4
    centre = found.centre(plane[0])
    assert (None if centre is None else centre.shape) == ((60, 1) if memorises else None)


def test_a_class_of_a_frozen_model_may_be_missing_from_the_data():
    rng = np.random.default_rng(0)
    y = np.repeat(["a", "b", "c"], 40)
    X = rng.normal(size=(120, 2)) + 3 * np.repeat(np.eye(3)[:, :2], 40, axis=0)
    mine = FrozenEstimator(DecisionTreeClassifier(max_depth=3).fit(X, y))
    quam = QUAMClassifier(mine, random_state=0).fit(X[:80], y[:80])
    assert np.isfinite(quam.predict_uncertainty(X).parts).all()
    assert quam.adversarial_models(X[:2]).target.tolist() == [["a", "b", "c"]] * 2


def test_each_class_keeps_a_sample_to_be_fitted_on():
    X, y = np.arange(31.0)[:, None], np.r_[np.zeros(30), 1.0]
    tree, search = DecisionTreeClassifier(max_depth=2), RefitSearch(shares=[0.1], pool=np.negative)
    for seed in range(5):
        quam = QUAMClassifier(tree, search=search, random_state=seed).fit(X, y)
        assert all(1 in each.estimator.classes_ for search in quam._found.models for each in search)


class InContext(ClassifierMixin, BaseEstimator):
    """A learner whose context is the training data: means of classes, by distance."""

    def fit(self, X, y):
        self.X_, self.y_ = np.asarray(X), np.asarray(y)
        self.classes_ = np.unique(self.y_)
        return self

    def predict_proba(self, X):
        means = np.stack([self.X_[self.y_ == k].mean(axis=0) for k in self.classes_])
        near = np.exp(-np.square(np.asarray(X)[:, None] - means).sum(axis=-1)) + 1e-9
        return near / near.sum(axis=1, keepdims=True)


WITH_WEIGHTS = [
    *(LINEAR, BaggingClassifier(), CalibratedClassifierCV(FrozenEstimator(NEAR))),
    VotingClassifier([("a", LINEAR), ("b", BAYES)]),
    VotingClassifier([("a", LINEAR), ("b", "drop")]),
    StackingClassifier([("a", LINEAR)], BAYES),
]
WITHOUT = [
    *(NEAR, BaggingClassifier(NEAR), CalibratedClassifierCV(NEAR), OneVsRestClassifier(LINEAR)),
    *(GaussianProcessClassifier(), LinearDiscriminantAnalysis()),
    VotingClassifier([("a", LINEAR), ("b", NEAR)]),
    StackingClassifier([("a", LINEAR)], NEAR),
    StackingClassifier([("a", make_pipeline(StandardScaler(), LINEAR))]),
]


def test_weights_reach_all_models_inside_or_none():
    assert all(map(takes_weights, WITH_WEIGHTS))
    assert not any(map(takes_weights, WITHOUT))


@pytest.mark.parametrize(
    "learner",
    [
        KNeighborsClassifier(15),
        make_pipeline(StandardScaler(), NEAR),
        LinearDiscriminantAnalysis(),
        GaussianProcessClassifier(optimizer=None),
        OneVsRestClassifier(LogisticRegression(class_weight="balanced")),
        VotingClassifier([("a", LINEAR), ("b", NEAR)], voting="soft"),
        StackingClassifier([("a", LINEAR), ("b", NEAR)], cv=2),
        InContext(),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_learners_without_weights_are_searched(iris, learner):
    X, y = iris
    search = RefitSearch(shares=[0.2], pool=partial(make_pool, n_inputs=100, random_state=0))
    quam = QUAMClassifier(learner, search=search, n_targets=2, random_state=0).fit(X, y)
    u = quam.predict_uncertainty(X[::7])
    assert (u.epistemic >= 0).all()
    assert u.epistemic.max() > 0
    mine = clone(learner).fit(X, y)
    before = mine.predict_proba(X)
    again = QUAMClassifier(FrozenEstimator(mine), search=search, n_targets=2, random_state=0)
    found = again.fit(X, y).predict_uncertainty(X[::7])
    np.testing.assert_allclose(found, u, rtol=1e-6, atol=1e-9)
    assert np.isfinite(again.search_pool(X[:9]).predict_uncertainty(X[:4]).total).all()
    np.testing.assert_array_equal(mine.predict_proba(X), before)


@pytest.mark.parametrize(
    "learner", [KNeighborsRegressor(9), GaussianProcessRegressor(alpha=0.5, optimizer=None)]
)
def test_regressors_without_weights_are_searched(learner):
    X, y = load_diabetes(return_X_y=True)
    X, y = scale(X)[:150], scale(y)[:150]
    quam = QUAMRegressor(learner, noise=0.5, random_state=0).fit(X, y)
    assert quam.predict_uncertainty(X[:20]).epistemic.max() > 0
    found = quam.adversarial_models(quam._pool[:50]).mean
    assert found[:, 0].mean() > found[:, 1].mean()  # upward, and downward


@pytest.mark.parametrize(("share", "n_rows"), [(0.1, 3), (0.5, 14), (1e-6, 1), (3.0, 81)])
def test_the_number_of_rows_is_the_share_of_the_training_rows(share, n_rows):
    random = np.random.default_rng(0)
    X, pool = random.normal(size=(60, 2)), random.normal(5, 1, size=(30, 2))
    found = refitted_to_classes(InContext(), X, np.arange(60) % 2, None, pool, share)
    n_train = 54  # without those held out
    for k, (model,) in enumerate(found.models):
        rows, labels = model.estimator.X_, model.estimator.y_
        of_pool = np.isin(rows[:, 0], pool[:, 0])
        assert len(rows) == n_train + n_rows
        assert of_pool.sum() == n_rows
        assert (labels[of_pool] == k).all()
        assert len(np.unique(rows[of_pool], axis=0)) == min(n_rows, 30)
        assert not of_pool[:n_train].all()
        assert not of_pool[-n_rows:].all() or n_rows == 1  # shuffled


def test_equal_weights_are_no_weights_to_a_learner_without_them(iris):
    X, y = iris
    quam = QUAMClassifier(NEAR, search=RefitSearch(shares=[0.2]), random_state=0)
    weights = np.full(len(y), 2.0), None
    equal, none = (quam.fit(X, y, sample_weight=w).predict_uncertainty(X) for w in weights)
    np.testing.assert_array_equal(equal, none)


def test_members_that_take_weights_are_refitted_with_them_and_keep_those_of_classes(iris):
    single = LogisticRegression(tol=1e-6)
    voting = VotingClassifier([("only", single)], voting="soft")
    both = (QUAMClassifier(each, search=RefitSearch(), random_state=0) for each in (single, voting))
    alone, inside = (each.fit(*iris).predict_uncertainty(iris[0]) for each in both)
    np.testing.assert_allclose(alone, inside, rtol=0.01, atol=1e-4)
    members = [("a", LogisticRegression(class_weight="balanced")), ("b", BAYES)]
    quam = QUAMClassifier(VotingClassifier(members, voting="soft"), random_state=0).fit(*iris)
    fitted = quam._found.models[0][0].estimator.estimators_
    assert fitted[0].class_weight == "balanced"
