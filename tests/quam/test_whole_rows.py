"""Learners that take no weights of samples, refitted with whole rows of the pool."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_diabetes, load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, scale

from skuq import QUAMClassifier, QUAMRegressor
from skuq.models import LearnerModel, look_at
from skuq.quam import RefitSearch
from skuq.quam._refit_search import RefitProblem, refit_on_pool

LINEAR, BAYES, NEAR = LogisticRegression(), GaussianNB(), KNeighborsClassifier()


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


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return scale(X)[::2], y[::2]


@pytest.mark.parametrize(
    ("learner", "expected"),
    [
        (LINEAR, True),
        (NEAR, False),
        (VotingClassifier([("a", LINEAR), ("b", BAYES)]), True),
        (VotingClassifier([("a", LINEAR), ("b", NEAR)]), False),
        (VotingClassifier([("a", LINEAR), ("b", "drop")]), True),
        (StackingClassifier([("a", LINEAR)], BAYES), True),
        (StackingClassifier([("a", LINEAR)], NEAR), False),
        (StackingClassifier([("a", make_pipeline(StandardScaler(), LINEAR))]), False),
        (OneVsRestClassifier(LINEAR), False),
        (BaggingClassifier(), True),
        (BaggingClassifier(NEAR), False),
        (CalibratedClassifierCV(NEAR), False),
        (CalibratedClassifierCV(FrozenEstimator(NEAR)), True),
        (GaussianProcessClassifier(), False),
        (LinearDiscriminantAnalysis(), False),
    ],
)
def test_weights_reach_all_models_inside_or_none(learner, expected):
    assert look_at(learner).takes_weights is expected


@pytest.mark.parametrize(
    "learner",
    [
        KNeighborsClassifier(15),
        make_pipeline(StandardScaler(), NEAR),
        LinearDiscriminantAnalysis(),
        GaussianProcessClassifier(),
        OneVsRestClassifier(LogisticRegression(class_weight="balanced")),
        VotingClassifier([("a", LINEAR), ("b", BAYES)], voting="soft"),
        VotingClassifier([("a", LINEAR), ("b", NEAR)], voting="soft"),
        StackingClassifier([("a", LINEAR), ("b", BAYES)], cv=3),
        StackingClassifier([("a", LINEAR), ("b", NEAR)], cv=3),
        InContext(),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_learners_without_weights_are_searched(iris, learner):
    X, y = iris
    quam = QUAMClassifier(learner, n_targets=2, random_state=0).fit(X, y)
    u = quam.predict_uncertainty(X[::7])
    assert (u.epistemic >= 0).all()
    assert u.epistemic.max() > 0
    again = clone(quam).fit(X, y).predict_uncertainty(X[::7])
    np.testing.assert_array_equal(u, again)
    frozen = QUAMClassifier(FrozenEstimator(clone(learner).fit(X, y)), n_targets=2, random_state=0)
    assert np.isfinite(frozen.fit(X, y).search_pool(X[:9]).predict_uncertainty(X[:4]).total).all()


@pytest.mark.parametrize(
    "learner", [KNeighborsRegressor(9), GaussianProcessRegressor(alpha=0.5, random_state=0)]
)
def test_regressors_without_weights_are_searched(learner):
    X, y = load_diabetes(return_X_y=True)
    X, y = scale(X)[:150], scale(y)[:150]
    quam = QUAMRegressor(learner, random_state=0).fit(X, y)
    assert quam.predict_uncertainty(X[:20]).epistemic.max() > 0
    found = quam.adversarial_models(quam._pool[:50]).mean
    assert found[:, 0].mean() > found[:, 1].mean()  # upward, and downward


@pytest.mark.parametrize(("share", "n_rows"), [(0.1, 3), (0.5, 14), (1e-6, 1), (3.0, 81)])
def test_the_number_of_rows_is_the_share_of_the_training_rows(share, n_rows):
    random = np.random.default_rng(0)
    X, pool = random.normal(size=(60, 2)), random.normal(5, 1, size=(30, 2))
    y = np.arange(60) % 2
    given = LearnerModel(estimator=InContext().fit(X, y), classes=np.arange(2))
    problem = RefitProblem(given, X, y, np.ones(60), seed=0)
    wanted = [np.full((1, 30), k) for k in (0, 1)]
    found = refit_on_pool(
        problem, pool, wanted, (share,), lambda outputs, y: outputs[:, 0] * 0, np.arange(2)
    )
    n_train = 54  # without those held out
    for k, (model,) in enumerate(found.models):
        rows, labels = model.estimator.X_, model.estimator.y_
        of_pool = np.isin(rows[:, 0], pool[:, 0])
        assert len(rows) == n_train + n_rows
        assert of_pool.sum() == n_rows
        assert (labels[of_pool] == k).all()
        np.testing.assert_array_equal(np.unique(rows[of_pool], axis=0).shape[0], min(n_rows, 30))
        assert not of_pool[:n_train].all()
        assert not of_pool[-n_rows:].all() or n_rows == 1  # shuffled


def test_weights_of_samples_are_not_left_aside_in_silence(iris):
    X, y = iris
    weight = np.random.default_rng(0).uniform(1, 2, len(y))
    for learner in (NEAR, make_pipeline(StandardScaler(), NEAR), CalibratedClassifierCV(NEAR)):
        with pytest.raises(ValueError, match=r"does not accept `sample_weight`, .* not all equal"):
            QUAMClassifier(learner).fit(X, y, sample_weight=weight)
    with pytest.raises(ValueError, match=r"does not accept `sample_weight`"):
        QUAMRegressor(KNeighborsRegressor()).fit(X, y + weight, sample_weight=weight)
    equal, none = (
        QUAMClassifier(NEAR, random_state=0).fit(X, y, sample_weight=w).predict_uncertainty(X)
        for w in (np.full(len(y), 2.0), None)
    )
    np.testing.assert_array_equal(equal, none)
    with pytest.raises(ValueError, match=r"0 for all samples|non-zero"):
        QUAMClassifier(NEAR).fit(X, y, sample_weight=np.zeros(len(y)))


def test_members_of_an_ensemble_keep_their_class_weights(iris):
    members = [("a", LogisticRegression(class_weight="balanced")), ("b", BAYES)]
    quam = QUAMClassifier(VotingClassifier(members, voting="soft"), random_state=0).fit(*iris)
    fitted = quam._found.models[0][0].estimator.estimators_
    assert fitted[0].class_weight == "balanced"


def test_an_ensemble_whose_members_take_weights_is_refitted_with_weights(iris):
    X, y = iris
    single, voting = (
        LINEAR,
        VotingClassifier([("only", LogisticRegression(tol=1e-6))], voting="soft"),
    )
    alone, inside = (
        QUAMClassifier(each, search=RefitSearch(), random_state=0).fit(X, y)
        for each in (clone(single).set_params(tol=1e-6), voting)
    )
    np.testing.assert_allclose(
        alone.predict_uncertainty(X), inside.predict_uncertainty(X), rtol=0.01, atol=1e-4
    )
