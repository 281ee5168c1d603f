"""Refits of a learner with a pool that counts little."""

from inspect import signature

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.tree import DecisionTreeRegressor
from sklearn.utils.class_weight import compute_class_weight

from skuq import QUAMClassifier
from skuq.models import LearnerModel
from skuq.quam._refit_search import RefitProblem, refit_on_pool

SHARES, SIGNS = (0.1, 0.3), np.array([1, -1])


def log_loss(outputs, codes):
    return -outputs[np.arange(len(codes)), codes]


def half_square(outputs, y):
    return (outputs[:, 0] - y) ** 2 / 2


@pytest.fixture(scope="module")
def plane():
    """Data, their weights, a pool and what it is wanted to be."""
    rng = np.random.default_rng(0)
    X, pool = rng.normal(size=(60, 3)), rng.normal(1, 3, size=(40, 3))
    y = X @ [1.0, -2.0, 0.5] + 0.3 + 0.2 * rng.normal(size=60)
    wanted = [(pool @ [1.0, -2.0, 0.5] + 4 * sign)[None] for sign in SIGNS]
    return X, y, rng.uniform(0.5, 2, size=60), pool, wanted


def refitted(learner, plane, **params):
    X, y, weight, pool, wanted = plane
    problem = RefitProblem(LearnerModel(estimator=learner.fit(X, y)), X, y, weight, seed=0)
    return refit_on_pool(problem, pool, wanted, SHARES, half_square, SIGNS, **params)


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
    for k, (target,) in enumerate(wanted):
        for s, share in enumerate(SHARES):
            exact = least_squares(share, target)
            np.testing.assert_allclose(outputs[:, k, s, 0], np.c_[points, np.ones(5)] @ exact)
            assert found.excess_loss[k, s] == pytest.approx(loss(exact) - plain)
    assert (found.excess_loss[:, 1] > found.excess_loss[:, 0]).all()
    assert found.centre(points) is None


class Recorder(RegressorMixin, BaseEstimator):
    """A mean that remembers what it was fitted on."""

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
    for k, search in enumerate(found.models):
        for share, model in zip(SHARES, search, strict=True):
            fitted = model.estimator
            of_pool = np.full(40, share / 2 * weight[seen].sum() / 40)
            rows = np.c_[
                np.r_[X[seen], pool], np.r_[y[seen], wanted[k][0]], np.r_[weight[seen], of_pool]
            ]
            given = np.c_[fitted.X_, fitted.y_, fitted.weight_]
            np.testing.assert_allclose(given[given[:, 0].argsort()], rows[rows[:, 0].argsort()])
            # Learners that cut their samples into parts must not find the pool in one of them.
            in_pool = np.isin(fitted.X_[:, 0], pool[:, 0])
            assert 10 <= in_pool[:47].sum() <= 30


@pytest.mark.parametrize("n", [5, 8, 14])
def test_few_samples_are_compared_by_several(n):
    rng = np.random.default_rng(0)
    X, y, pool = rng.normal(size=(n, 2)), rng.normal(size=n), rng.normal(size=(10, 2))
    problem = RefitProblem(LearnerModel(estimator=Ridge().fit(X, y)), X, y, np.ones(n), seed=0)
    found = refit_on_pool(problem, pool, [np.ones((1, 10))], (0.1,), half_square, SIGNS[:1])
    assert found.standard_error > 1e-6  # of a single one it would be 0


@pytest.mark.parametrize(("given", "atol"), [("balanced", 0.1), ({0: 1.0, 1: 3.0}, 1e-6)])
def test_weights_of_classes_do_not_count_the_pool(given, atol):
    rng = np.random.default_rng(0)
    X, pool = rng.normal(size=(90, 2)), rng.normal(3, 1, size=(60, 2))
    y = (np.arange(90) % 3 == 0).astype(int)
    balanced = np.where(y == 1, 1.5, 0.75) if given == "balanced" else np.where(y == 1, 3.0, 1.0)
    asked = [np.zeros((1, 60), dtype=int), np.ones((1, 60), dtype=int)]

    def found(learner, weight):
        learner.fit(X, y, sample_weight=weight)
        problem = RefitProblem(
            LearnerModel(estimator=learner, classes=np.arange(2)), X, y, weight, seed=0
        )
        return refit_on_pool(problem, pool, asked, (0.2,), log_loss, np.arange(2))

    # The same weights by hand, of rows instead of classes; "balanced" is of the rows kept.
    of_classes = found(LogisticRegression(class_weight=given), np.ones(90))
    plain = found(LogisticRegression(), balanced)
    by_class, by_row = (each.outputs(pool) for each in (of_classes, plain))
    np.testing.assert_allclose(by_class, by_row, atol=atol)
    assert of_classes.models[0][0].estimator.class_weight is None


@pytest.fixture
def unbalanced():
    """Samples, a pool, and a function that refits a learner with some weights."""
    rng = np.random.default_rng(0)
    X, pool = rng.normal(size=(90, 2)), rng.normal(3, 1, size=(60, 2))
    y = (np.arange(90) % 3 == 0).astype(int)
    asked = [np.zeros((1, 60), dtype=int), np.ones((1, 60), dtype=int)]

    def outputs(learner, weight):
        learner.fit(X, y, sample_weight=weight)
        problem = RefitProblem(
            LearnerModel(estimator=learner, classes=np.arange(2)), X, y, weight, seed=0
        )
        found = refit_on_pool(problem, pool, asked, (0.2,), log_loss, np.arange(2))
        return found.outputs(pool)

    return y, outputs


@pytest.mark.skipif(
    "sample_weight" not in signature(compute_class_weight).parameters,
    reason="older versions of scikit-learn balance the rows, whatever they weigh",
)
def test_balanced_classes_count_the_weights_of_rows_where_the_learner_does(unbalanced):
    y, outputs = unbalanced
    heavy = np.where(y == 1, 20.0, 1.0)
    balanced = outputs(LogisticRegression(class_weight="balanced"), heavy)
    by_hand = outputs(LogisticRegression(), np.where(y == 1, 11.0, 5.5))  # 330 for either class
    np.testing.assert_allclose(balanced, by_hand, atol=0.1)
    boosting = HistGradientBoostingClassifier(max_iter=5, random_state=0)  # counts rows
    balanced = outputs(clone(boosting).set_params(class_weight="balanced"), heavy)
    by_hand = outputs(boosting, heavy * np.where(y == 1, 1.5, 0.75))
    np.testing.assert_allclose(balanced, by_hand, atol=0.2)  # the other way is 2 off


@pytest.mark.parametrize("package", ["xgboost", "lightgbm"])
def test_the_weight_of_a_second_class_does_not_count_the_pool(package, unbalanced):
    learner = {
        "xgboost": lambda module: module.XGBClassifier(n_estimators=5, max_depth=2),
        "lightgbm": lambda module: module.LGBMClassifier(
            n_estimators=5, num_leaves=4, min_child_samples=5, verbose=-1
        ),
    }[package](pytest.importorskip(package))
    y, outputs = unbalanced
    of_class = outputs(clone(learner).set_params(scale_pos_weight=5), np.ones(90))
    by_row = outputs(learner, np.where(y == 1, 5.0, 1.0))
    np.testing.assert_allclose(of_class, by_row, atol=1e-5)


def test_refits_stop_early_if_the_given_model_did():
    rng = np.random.default_rng(0)
    X, pool = rng.normal(size=(10_200, 2)), rng.normal(3, 1, size=(50, 2))
    y = (X[:, 0] > 0).astype(int)
    given = HistGradientBoostingClassifier(max_iter=2).fit(X, y)
    problem = RefitProblem(
        LearnerModel(estimator=given, classes=np.arange(2)), X, y, np.ones(len(y)), seed=0
    )
    asked = [np.zeros((1, 50), dtype=int), np.ones((1, 50), dtype=int)]
    found = refit_on_pool(problem, pool, asked, (0.2,), log_loss, np.arange(2))
    assert given.do_early_stopping_
    assert all(model.estimator.do_early_stopping_ for search in found.models for model in search)


@pytest.mark.parametrize(
    ("learner", "memorises"),
    [
        (RandomForestRegressor(10, random_state=0), True),
        (ExtraTreesRegressor(10, random_state=0), True),
        (DecisionTreeRegressor(), True),
        (RandomForestRegressor(10, max_depth=4), False),
        (RandomForestRegressor(10, min_samples_leaf=3), False),
        (HistGradientBoostingRegressor(max_iter=5), False),
    ],
)
def test_trees_that_memorise_are_limited(plane, learner, memorises):
    found = refitted(learner, plane)
    limited = [model.estimator for search in found.models for model in search]
    more = [each.min_samples_leaf > learner.min_samples_leaf for each in limited]
    assert more == [memorises] * 4
    centre = found.centre(plane[0])
    assert (None if centre is None else centre.shape) == ((60, 1) if memorises else None)


def test_one_sample_is_its_own_comparison():
    X, y = np.zeros((1, 2)), np.zeros(1)
    problem = RefitProblem(LearnerModel(estimator=Ridge().fit(X, y)), X, y, np.ones(1), seed=0)
    found = refit_on_pool(
        problem, np.ones((2, 2)), [np.ones((1, 2))], (0.1,), half_square, SIGNS[:1]
    )
    assert np.isfinite(found.excess_loss).all()


def test_a_class_of_a_frozen_model_may_be_missing_from_the_data():
    rng = np.random.default_rng(0)
    y = np.repeat(["a", "b", "c"], 40)
    X = rng.normal(size=(120, 2)) + 3 * np.repeat(np.eye(3)[:, :2], 40, axis=0)
    mine = HistGradientBoostingClassifier(max_iter=5).fit(X, y)
    quam = QUAMClassifier(FrozenEstimator(mine), random_state=0).fit(X[:80], y[:80])
    u = quam.predict_uncertainty(X)
    assert np.isfinite(u.parts).all()
    assert quam.adversarial_models(X[:2]).target.tolist() == [["a", "b", "c"]] * 2


def test_each_class_keeps_a_sample_to_be_fitted_on():
    y = np.r_[np.zeros(30), 1.0]
    X = np.arange(31.0)[:, None]
    for seed in range(5):
        quam = QUAMClassifier(HistGradientBoostingClassifier(max_iter=2), random_state=seed)
        quam.fit(X, y)
        assert all(1 in each.estimator.classes_ for search in quam._found.models for each in search)
